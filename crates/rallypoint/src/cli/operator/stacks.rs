//! `rallypoint stacks`: what the workers of a run do at this moment.

use std::time::Duration;

use rallypoint_agent::{Answer, ask_stacks};
use rallypoint_core::text::plain;
use rallypoint_rendezvous::native::{self, LastRound};
use rallypoint_stacks::{Folded, fold, ranges};
use rallypoint_store::StoreError;
use serde_json::json as object;

use super::super::connection::Connection;
use super::super::exit::{NO_SERVER, Problem, chain};
use super::super::variables::yes_or_no;
use super::{NO_RUN, failed, json, no_such_run, print};

/// For all nodes to look at their workers, and to answer.
const TO_ANSWER: Duration = Duration::from_secs(6);

/// Show what the workers of a run do now: their stacks.
///
/// Python's, and those of compiled code. Workers that do the same are shown as one, the odd ones first: where all but one wait in a collective, that one is at the
/// top. The workers go on; each of their threads is stopped for a moment. All of it, with every thread, is in the nodes' log
/// folders, as stacks.txt of each worker.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  rallypoint stacks job42 --endpoint etcd1:2379\n  rallypoint stacks job42 --rank 3 --endpoint etcd1:2379\n\nExit codes: 0 shown, 1 there is no such run, its workers do not run, or no node answers, 2 wrong usage, 4 no etcd at the endpoint."
)]
pub(crate) struct Stacks {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Show this rank only; may be given several times.
    #[arg(long, env = "RALLYPOINT_RANK", value_name = "RANK", value_delimiter = ',')]
    rank: Vec<usize>,
    /// Print JSON.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The exit code of `rallypoint stacks`.
pub(crate) async fn stacks(options: &Stacks) -> Result<u8, Problem> {
    let run = &options.run;
    native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    let client = options.connection.client().await?;
    if native::row(&client, run).await.map_err(|error| failed(&error))?.is_none() {
        return Err(no_such_run(run));
    }
    let round = native::last_round(&client, run).await.map_err(|error| failed(&error))?;
    let Some(round) = round else {
        return Err(Problem::new(NO_RUN, format!("run {run:?} is in no round: its workers do not run")));
    };
    let answers = ask_stacks(&*round.store, round.world_size, TO_ANSWER).await;
    let seen = Seen::new(&round, answers.map_err(|error| unanswered(&error))?, &options.rank);
    let text = if options.json { json(&seen.object(run, round.round), false)? } else { seen.text() };
    print(&text, false)?;
    Ok(if seen.stacks.is_empty() { NO_RUN } else { 0 })
}

fn unanswered(error: &StoreError) -> Problem {
    Problem::new(NO_SERVER, chain(error))
}

/// What was seen of a run.
struct Seen {
    stacks: Vec<Folded>,
    /// Nodes that have not answered, by name where that is known.
    unheard: Vec<String>,
    answered: usize,
    answers: Vec<Answer>,
}

impl Seen {
    fn new(round: &LastRound, answers: Vec<Option<Answer>>, wanted: &[usize]) -> Self {
        let name = |node: usize| {
            let member = round.members.iter().find(|member| member.rank == node);
            member.map_or_else(
                || format!("node {node}"),
                |member| format!("node {node} ({})", plain(&member.node)),
            )
        };
        let silent = answers.iter().enumerate().filter(|(_, answer)| answer.is_none());
        let unheard = silent.map(|(node, _)| name(node)).collect();
        let mut answers: Vec<Answer> = answers.into_iter().flatten().collect();
        let mut stacks = fold(answers.iter().flat_map(|answer| answer.stacks.iter().cloned()));
        if !wanted.is_empty() {
            stacks.iter_mut().for_each(|stack| stack.ranks.retain(|rank| wanted.contains(rank)));
            stacks.retain(|stack| !stack.ranks.is_empty());
            answers.iter_mut().for_each(|it| it.workers.retain(|worker| wanted.contains(&worker.rank)));
        }
        Seen { stacks, unheard, answered: answers.len(), answers }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for stack in &self.stacks {
            // What workers are called is theirs to choose.
            stack.text().lines().for_each(|line| text.push_str(&format!("{}\n", plain(line))));
        }
        let known: Vec<usize> = self.stacks.iter().flat_map(|stack| stack.ranks.iter().copied()).collect();
        if known.is_empty() && self.answered > 0 {
            text.push_str("no such worker runs\n");
        }
        if !self.unheard.is_empty() {
            let few: Vec<&str> = self.unheard.iter().take(10).map(String::as_str).collect();
            let more = self.unheard.len().saturating_sub(few.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let why = "under torchrun, of an earlier version, or busy";
            text.push_str(&format!("not heard of: {}{more} ({why})\n", few.join(", ")));
        }
        text
    }

    fn object(&self, run: &str, round: u64) -> serde_json::Value {
        let stack = |stack: &Folded| {
            object!({
                "ranks": stack.ranks,
                "who": ranges(&stack.ranks),
                "state": stack.state,
                "stack": stack.stack,
                "unseen": stack.unseen,
            })
        };
        let stacks: Vec<_> = self.stacks.iter().map(stack).collect();
        let workers: Vec<_> = self.answers.iter().flat_map(|answer| answer.workers.iter()).collect();
        object!({ "run": run, "round": round, "stacks": stacks, "workers": workers, "not_heard_of": self.unheard })
    }
}
