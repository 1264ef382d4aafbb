//! The events of a run in sentences.

use std::time::Duration;

use crate::endpoint::host_and_port;
use crate::round::{EventRecord, Failed, Formed, Lost, What, until};
use crate::text::{brief, count, list, plain};

/// So many of the new members are named.
const NAMED: usize = 3;

/// What is said of an event. What nodes say of themselves is made harmless to a terminal.
pub(super) fn sentence(event: &EventRecord) -> String {
    let (by, round) = (plain(&event.by), event.round);
    match &event.what {
        What::Formed(formed) => of_round(round, formed),
        What::Lost { lost, count, .. } => losses(lost, *count, round),
        What::Waiting { waiting, spares } => waiting_or_spare(*waiting, *spares),
        What::Leads { .. } => format!("{by} leads the run from now on"),
        What::Failed(failed) => failure(&by, failed),
        What::Preempted { rank, signal, left_ms } => {
            let left = left_ms.map(|left| format!(": the workers have {} s to save", (left + 500) / 1000));
            format!("node {rank} ({by}) is preempted by {}{}", plain(signal), left.unwrap_or_default())
        }
        What::Killed { rank } => format!("node {rank} ({by}) was killed"),
        What::Without { node, rank } => {
            format!("round {round} goes on without node {rank} ({}), whose workers had finished", plain(node))
        }
        What::Working => format!("the workers of round {round} were started"),
        What::Stopped { why } => format!("the workers of round {round} have ended: {}", plain(why)),
        What::Closed { reason } if by.is_empty() => {
            format!("an operator closed the run: {}", plain(reason))
        }
        What::Closed { reason } => format!("{by} closed the run: {}", plain(reason)),
        What::Excluded { whom, reason, until_ms } => {
            let who = author(&by);
            format!("{who} excluded {whom} from the run, {}: {}", until(*until_ms), plain(reason))
        }
        What::Included { whom: Some(whom) } => format!("{} let {whom} in again", author(&by)),
        What::Included { whom: None } => format!("{} let all in again who were excluded", author(&by)),
        What::Expired { whom, .. } => format!("{whom} is excluded no longer: its time is over"),
        What::Unhealthy { problems } => format!("{by} is unhealthy: {}", plain(&problems.join("; "))),
        What::Healthy => format!("{by} passes its health checks again"),
        What::Joined { rank, world_size, waited_ms } => {
            format!("in round {round} as node {rank} of {world_size}, after {}", millis(*waited_ms))
        }
        What::Other => "something that a later version of Rallypoint knows".to_owned(),
    }
}

fn author(by: &str) -> &str {
    if by.is_empty() { "an operator" } else { by }
}

fn of_round(round: u64, formed: &Formed) -> String {
    let mut text =
        format!("round {round} formed: {} in {}", count(formed.world_size, "node"), millis(formed.took_ms()));
    let parts = [(formed.gathering_ms, "until enough were there"), (formed.last_call_ms, "of last call")];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(time, _)| *time >= 100 && *time < formed.took_ms())
        .map(|(time, what)| format!("{} {what}", millis(time)))
        .collect();
    if !parts.is_empty() {
        text.push_str(&format!(" ({})", parts.join(", ")));
    }
    if let Some(master) = &formed.master {
        text.push_str(&format!(", master {}", plain(&host_and_port(&master.address, master.port))));
    }
    if !formed.gone.is_empty() {
        text.push_str(&format!("; {}", losses(&formed.gone, formed.gone.len(), round)));
    }
    for newcomer in formed.joined.iter().take(NAMED) {
        let before = newcomer.instead_of.as_ref();
        let instead = before.map_or_else(String::new, |gone| format!(" in place of {}", plain(gone)));
        text.push_str(&format!("; {} is node {} now{instead}", plain(&newcomer.node), newcomer.rank));
    }
    if formed.joined_count > NAMED {
        text.push_str(&format!("; {} more are new", formed.joined_count - NAMED));
    }
    if formed.spares > 0 {
        text.push_str(&format!("; {} by", stand(formed.spares, "spare")));
    }
    text
}

fn stand(number: usize, what: &str) -> String {
    format!("{} {}", count(number, what), if number == 1 { "stands" } else { "stand" })
}

fn waiting_or_spare(waiting: usize, spares: usize) -> String {
    let wait = |number| if number == 1 { "waits" } else { "wait" };
    let waiting = (waiting > 0).then(|| format!("{} {} to get in", count(waiting, "node"), wait(waiting)));
    let spares = (spares > 0).then(|| {
        format!("{} by as {}", stand(spares, "node"), if spares == 1 { "a spare" } else { "spares" })
    });
    list(&waiting.into_iter().chain(spares).collect::<Vec<_>>())
}

/// Of those who are not named, most have only stopped their workers, as the others did.
fn losses(lost: &[Lost], all: usize, round: u64) -> String {
    let parts: Vec<String> = lost
        .iter()
        .map(|lost| format!("node {} ({}) {}", lost.rank, plain(&lost.node), lost.why.words()))
        .collect();
    let named = list(&parts);
    let next = round.saturating_add(1);
    match all.saturating_sub(lost.len()) {
        0 => named,
        1 => format!("{named}; 1 other is ready for round {next}, or gone"),
        more => format!("{named}; {more} others are ready for round {next}, or gone"),
    }
}

/// `by`: the node; most are called after their host.
fn failure(by: &str, failed: &Failed) -> String {
    let host = plain(&failed.host);
    let place = if by.starts_with(&host) { host } else { format!("{by} (host {host})") };
    let first = failed.message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let said =
        if first.is_empty() { String::new() } else { format!(": {}", brief(&plain(first.trim()), 200)) };
    format!("rank {} on {place} failed with {}{said}", failed.rank, plain(&failed.exit))
}

/// `0.4 s`, `12 s`, `3 min 4 s`.
fn millis(millis: u64) -> String {
    duration(Duration::from_millis(millis))
}

/// A time as people say it: `0.04 s`, `1.2 s`, `12 s`, `3 min 4 s`, `2 h 5 min`.
#[must_use]
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let whole = time.as_secs();
    match whole {
        _ if seconds < 0.1 => format!("{seconds:.2} s"),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}
