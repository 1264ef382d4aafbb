//! Who stopped first. No clock, no store: a table of all ranks goes in, and one name comes out, the same on whichever node.
//!
//! In synchronous training all ranks stop when one does. So everybody is silent, and the one to be found is what the others
//! wait for: a process that is stopped; who has beaten less often; who has been silent for clearly longer; who waits for
//! no other, in a collective or for its GPU, where the others do; whose stack is like nobody's.

use std::time::Duration;

use rallypoint_core::text::count;
use rallypoint_stacks::{Folded, fold, ranges};

use super::inquiry::{Answer, WorkerState};

/// Nodes are asked at slightly different moments, and look at their workers now and then: who has been silent for less longer
/// than this has not clearly been silent for longer.
const CLEARLY: Duration = Duration::from_secs(2);

/// What of a stack shows that its process waits for others: names of functions, and of files, in lower case. A collective on
/// GPUs is waited for where the program waits for its GPU, so that is the same.
const WAITS: [&str; 15] = [
    "torch/distributed",
    "torch\\distributed",
    "allreduce",
    "all_reduce",
    "allgather",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "processgroup",
    "gloo::",
    "nccl",
    "libcuda",
    "libamdhip",
    "torch/cuda",
];
/// So many of the innermost calls are looked at for that.
const INNERMOST: usize = 12;

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// This one stopped first.
    Hung { rank: usize, node: usize, host: String, silent: Duration, why: String },
    /// Nobody is hung, as far as can be told; it can be different after so long.
    Nobody { why: String, again: Duration },
}

/// When a worker is too long silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    /// Before its first sign.
    pub(crate) start: Option<Duration>,
}

/// One rank in the table.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    rank: usize,
    node: usize,
    host: &'a str,
    beats: Option<u64>,
    silent: Duration,
    stack: Option<&'a Folded>,
    /// How many do the same.
    alike: usize,
}

/// Whom a step of the search leaves.
type Fits<'a> = dyn Fn(&Case<'_>) -> bool + 'a;

/// Finds who stopped first.
pub(crate) fn judge(answers: &[Answer], limits: Limits) -> Finding {
    let stacks = fold(answers.iter().flat_map(|answer| answer.stacks.iter().cloned()));
    let nobody =
        |why: String, again: Duration| Finding::Nobody { why, again: again.max(Duration::from_secs(1)) };
    let mut cases: Vec<Case<'_>> = Vec::new();
    let mut starting: Vec<usize> = Vec::new();
    let mut youngest: Option<(Duration, usize)> = None;
    for (answer, worker) in
        answers.iter().flat_map(|answer| answer.workers.iter().map(move |it| (answer, it)))
    {
        let rank = worker.rank;
        match worker.state {
            WorkerState::Paused => return nobody(format!("rank {rank} is paused"), limits.timeout / 2),
            WorkerState::Ended | WorkerState::Unknown => continue,
            WorkerState::Unwatched => {
                let why = format!(
                    "node {} does not look for its workers' progress: give --hang-timeout to all nodes",
                    answer.node
                );
                return nobody(why, limits.timeout / 2);
            }
            WorkerState::Running => {}
        }
        let silent = worker.silent_ms.map(Duration::from_millis);
        let starts = worker.starts_ms.map(Duration::from_millis);
        let silent = match (silent, starts) {
            (Some(silent), _) => silent,
            // Before its first sign it has another limit.
            (None, Some(starts)) if limits.start.is_some_and(|limit| starts >= limit) => starts,
            _ => {
                starting.push(rank);
                continue;
            }
        };
        youngest = youngest.into_iter().chain([(silent, rank)]).min();
        let stack = stacks.iter().find(|folded| folded.ranks.contains(&rank));
        // Of one that could not be looked at it is not known.
        let seen = stack.filter(|stack| !stack.stack.is_empty());
        let alike = seen.map_or(usize::MAX, |stack| stack.ranks.len());
        let (node, host, beats) = (answer.node, answer.host.as_str(), worker.beats);
        cases.push(Case { rank, node, host, beats, silent, stack, alike });
    }
    let half = limits.timeout / 2;
    if let Some((silent, rank)) = youngest.filter(|(silent, _)| *silent < half) {
        let why = format!("rank {rank} still makes progress, so nobody waits for others");
        return nobody(why, half - silent);
    }
    // Where some beat, all are expected to: the others have not come that far.
    if cases.iter().any(|case| case.beats.is_some()) && !starting.is_empty() {
        let why = format!(
            "{} {} shown no sign yet (--hang-start-timeout bounds that)",
            whose(&starting),
            has(&starting)
        );
        return nobody(why, half);
    }
    if !cases.iter().any(|case| case.silent >= limits.timeout) {
        return nobody("nobody has been silent for long enough".to_owned(), half);
    }
    let (case, why) = first(cases);
    match case {
        Some(case) => {
            let Case { rank, node, host, silent, .. } = case;
            Finding::Hung { rank, node, host: host.to_owned(), silent, why }
        }
        None => nobody("no worker runs".to_owned(), half),
    }
}

fn whose(ranks: &[usize]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, ranges(ranks))
}

fn has(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "has" } else { "have" }
}

/// The one who stopped first, and how that is known: by the last step that told. Each leaves those who fit it, if others do not.
fn first(mut cases: Vec<Case<'_>>) -> (Option<Case<'_>>, String) {
    cases.sort_by_key(|case| case.rank);
    if let [only] = cases[..] {
        return (Some(only), "it is the only one".to_owned());
    }
    let mut why = None;
    // Who does not count where others do has none.
    let beats = |case: &Case<'_>| case.beats.unwrap_or(0);
    let (fewest, most) = (cases.iter().map(beats).min(), cases.iter().map(beats).max());
    let others_wait = cases.iter().any(|case| seen(case).is_some_and(waits));
    let others_are_seen = cases.iter().any(|case| seen(case).is_some());
    let longest = cases.iter().map(|case| case.silent).max().unwrap_or_default();
    let state = |case: &Case<'_>, state: &str| case.stack.is_some_and(|stack| stack.state == state);
    let steps: [(&Fits<'_>, String); 6] = [
        (&|case| state(case, "T"), "it is stopped by a signal".to_owned()),
        (&|case| state(case, "D"), "it waits in the kernel".to_owned()),
        (
            &|case| Some(beats(case)) == fewest && fewest < most,
            format!(
                "its {} {} the fewest",
                fewest.unwrap_or(0),
                if fewest == Some(1) { "heartbeat is" } else { "heartbeats are" }
            ),
        ),
        (
            &|case| longest.saturating_sub(case.silent) <= CLEARLY,
            "it has been silent for the longest".to_owned(),
        ),
        (
            // Of one that could not be looked at it is not known.
            &|case| others_wait && !seen(case).is_some_and(waits),
            "it waits for no other, and others do".to_owned(),
        ),
        (
            &|case| others_are_seen && seen(case).is_none() && case.stack.is_some(),
            "it could not be looked at, and others could".to_owned(),
        ),
    ];
    for (fits, said) in steps {
        if narrow(&mut cases, fits) {
            why = Some(said);
        }
        if let [only] = cases[..] {
            return (Some(only), why.unwrap_or_default());
        }
    }
    let fewest = cases.iter().map(|case| case.alike).min().unwrap_or(0);
    let all = cases.len();
    if narrow(&mut cases, &|case| case.alike == fewest) {
        let unlike = all - cases.len();
        why = Some(format!("its stack differs from that of {}", count(unlike, "other")));
    }
    (
        cases.first().copied(),
        why.unwrap_or_else(|| "nothing tells it from the others; it is the first of them".to_owned()),
    )
}

/// The stack of a rank, if it could be looked at.
fn seen<'a>(case: &Case<'a>) -> Option<&'a Folded> {
    case.stack.filter(|stack| !stack.stack.is_empty())
}

/// Leaves those that fit, if some do and others do not. Whether that was so.
fn narrow(cases: &mut Vec<Case<'_>>, fits: &Fits<'_>) -> bool {
    let fit = cases.iter().filter(|case| fits(case)).count();
    let tells = fit > 0 && fit < cases.len();
    if tells {
        cases.retain(|case| fits(case));
    }
    tells
}

/// Whether a stack is that of a process that waits for others.
fn waits(stack: &Folded) -> bool {
    stack.stack.iter().take(INNERMOST).any(|line| {
        let line = line.to_lowercase();
        WAITS.iter().any(|word| line.contains(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::inquiry::Worker;

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(60), start: None };

    /// A node of two ranks.
    fn node(node: usize, workers: [Worker; 2]) -> Answer {
        Answer { node, host: format!("h{node}"), workers: workers.into(), stacks: Vec::new() }
    }

    fn worker(rank: usize, beats: u64, silent: u64) -> Worker {
        let (beats, silent_ms) = (Some(beats).filter(|beats| *beats > 0), Some(silent * 1000));
        Worker { rank, beats, silent_ms, starts_ms: None, state: WorkerState::Running }
    }

    fn starting(rank: usize, seconds: u64) -> Worker {
        Worker { beats: None, silent_ms: None, starts_ms: Some(seconds * 1000), ..worker(rank, 0, 0) }
    }

    /// Four ranks on two nodes.
    fn table(ranks: [(u64, u64); 4]) -> Vec<Answer> {
        let [a, b, c, d] = ranks;
        vec![
            node(0, [worker(0, a.0, a.1), worker(1, b.0, b.1)]),
            node(1, [worker(2, c.0, c.1), worker(3, d.0, d.1)]),
        ]
    }

    fn stacks(mut answers: Vec<Answer>, stacks: [(&str, &str); 4]) -> Vec<Answer> {
        for (rank, (state, line)) in stacks.into_iter().enumerate() {
            let folded = Folded {
                ranks: vec![rank],
                state: state.to_owned(),
                stack: vec![line.to_owned(), "main (train.py:9)".to_owned()],
                unseen: None,
            };
            answers[rank / 2].stacks.push(folded);
        }
        answers
    }

    #[track_caller]
    fn hung(answers: &[Answer], who: usize, how: &str) {
        match judge(answers, LIMITS) {
            Finding::Hung { rank, node, host, why, .. } => {
                assert_eq!((rank, node, host), (who, who / 2, format!("h{}", who / 2)), "{why}");
                assert!(why.contains(how), "{why}");
            }
            nobody => panic!("{nobody:?}"),
        }
    }

    #[track_caller]
    fn nobody(answers: &[Answer], limits: Limits, how: &str) {
        match judge(answers, limits) {
            Finding::Nobody { why, .. } => assert!(why.contains(how), "{why}"),
            hung => panic!("{hung:?}"),
        }
    }

    const WAITING: (&str, &str) = ("S", "all_reduce (torch/distributed/distributed_c10d.py:3)");
    const LOCKED: (&str, &str) = ("S", "acquire (lock.py:1)");

    #[test]
    fn who_has_beaten_less_often_stopped_first_whatever_the_clocks_say() {
        hung(&table([(42, 61), (42, 60), (41, 60), (42, 62)]), 2, "its 41 heartbeats are the fewest");
        let answers =
            stacks(table([(42, 61), (42, 60), (41, 60), (42, 62)]), [LOCKED, WAITING, WAITING, WAITING]);
        hung(&answers, 2, "heartbeats");
    }

    #[test]
    fn who_has_been_silent_for_clearly_longer_stopped_first_and_a_second_does_not_tell() {
        hung(&table([(0, 61), (0, 90), (0, 60), (0, 62)]), 1, "silent for the longest");
        let answers =
            stacks(table([(0, 62), (0, 61), (0, 60), (0, 61)]), [WAITING, WAITING, WAITING, LOCKED]);
        hung(&answers, 3, "waits for no other");
        // As seen on a GPU: a collective of NCCL is waited for by waiting for the GPU.
        let gpu = ("S", "cuCtxSynchronize_v2 (libcuda.so.580.159.04)");
        let answers = stacks(table([(7, 61); 4]), [gpu, LOCKED, gpu, gpu]);
        hung(&answers, 1, "waits for no other");
    }

    #[test]
    fn one_that_could_not_be_looked_at_does_not_make_others_wait() {
        let mut answers = stacks(table([(7, 61); 4]), [LOCKED; 4]);
        for answer in &mut answers {
            for stack in answer.stacks.iter_mut().filter(|stack| stack.ranks.contains(&2)) {
                stack.stack.clear();
                stack.unseen = Some("it could not be looked at within 2 s".to_owned());
            }
        }
        hung(&answers, 2, "could not be looked at, and others could");
    }

    #[test]
    fn who_has_no_heartbeat_where_others_have_some_has_the_fewest() {
        let limited = Limits { start: Some(Duration::from_secs(60)), ..LIMITS };
        let answers = vec![
            node(0, [worker(0, 10, 61), worker(1, 10, 61)]),
            node(1, [starting(2, 62), worker(3, 10, 61)]),
        ];
        let Finding::Hung { rank, why, .. } = judge(&answers, limited) else { panic!("one hangs") };
        assert_eq!((rank, why.as_str()), (2, "its 0 heartbeats are the fewest"));
    }

    #[test]
    fn a_node_that_does_not_look_for_progress_keeps_others_from_judging() {
        let mut answers = table([(7, 61); 4]);
        answers[1].workers[0].state = WorkerState::Unwatched;
        nobody(&answers, LIMITS, "give --hang-timeout to all nodes");
    }

    #[test]
    fn the_odd_stack_tells_where_nothing_else_does() {
        let (a, b) = (("S", "recv (socket.py:1)"), ("S", "read (disk.py:1)"));
        hung(&stacks(table([(7, 61); 4]), [a, a, b, a]), 2, "its stack differs from that of 3 others");
        hung(&stacks(table([(7, 61); 4]), [a; 4]), 0, "nothing tells");
        hung(&table([(7, 61); 4]), 0, "nothing tells");
    }

    #[test]
    fn a_process_that_is_stopped_keeps_all_others() {
        let answers =
            stacks(table([(7, 61), (7, 90), (6, 61), (7, 61)]), [("T", WAITING.1), LOCKED, WAITING, WAITING]);
        hung(&answers, 0, "stopped by a signal");
        let answers = stacks(table([(7, 61); 4]), [WAITING, WAITING, ("D", "read (disk.py:1)"), WAITING]);
        hung(&answers, 2, "in the kernel");
    }

    #[test]
    fn nobody_is_hung_while_others_make_progress_or_one_is_paused_or_has_not_begun() {
        nobody(&table([(7, 61), (9, 1), (9, 2), (9, 1)]), LIMITS, "rank 1 still makes progress");
        nobody(&table([(7, 59), (7, 58), (7, 58), (7, 58)]), LIMITS, "long enough");
        let mut answers = table([(7, 61); 4]);
        answers[1].workers[0].state = WorkerState::Paused;
        nobody(&answers, LIMITS, "rank 2 is paused");
        let begun =
            vec![node(0, [worker(0, 1, 90), worker(1, 1, 90)]), node(1, [worker(2, 1, 90), starting(3, 95)])];
        nobody(&begun, LIMITS, "rank 3 has shown no sign yet");
        let limited = Limits { start: Some(Duration::from_secs(95)), ..LIMITS };
        assert!(matches!(judge(&begun, limited), Finding::Hung { rank: 3, .. }));
        // Those who never say anything are not expected to, where nobody beats.
        let printing =
            vec![node(0, [worker(0, 0, 90), starting(1, 95)]), node(1, [starting(2, 95), starting(3, 95)])];
        hung(&printing, 0, "the only one");
    }

    #[test]
    fn who_has_ended_is_not_judged() {
        let mut answers = table([(7, 61), (7, 61), (3, 90), (7, 61)]);
        answers[1].workers[0].state = WorkerState::Ended;
        hung(&stacks(answers, [WAITING, WAITING, WAITING, LOCKED]), 3, "waits for no other");
    }

    #[test]
    fn it_is_asked_again_when_the_last_one_may_have_stopped() {
        let Finding::Nobody { again, .. } = judge(&table([(7, 61), (9, 10), (9, 2), (9, 20)]), LIMITS) else {
            panic!("others make progress");
        };
        assert_eq!(again, Duration::from_secs(28));
    }
}
