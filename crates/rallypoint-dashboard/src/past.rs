//! What has happened in a run, as the page tells it: its events, each with an id of its own, and why its rounds ended.

use std::collections::HashMap;

use rallypoint_core::text::count;
use rallypoint_rendezvous::native::SpanKind;
use serde::Serialize;

use crate::cause::{cause, harm_in_words};
use crate::outcome::Outcome;
use crate::source::{Event, Seen};
use crate::text::{duration, line, lines, name};

/// Letters of a sentence.
const WORDS: usize = 300;
/// Letters of the last traceback, and of those in the list of events.
const TRACEBACK: usize = 8_000;
const OLDER_TRACEBACK: usize = 4_000;
/// Of many that died or failed in one round the first are told.
const TOLD: usize = 16;

/// An event as the list of them shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ShownEvent {
    pub(crate) id: String,
    pub(crate) revision: i64,
    at_ms: u64,
    by: String,
    round: u64,
    #[serde(rename = "event")]
    kind: String,
    text: String,
    /// How it is marked.
    look: &'static str,
    /// It is read out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    loud: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    traceback: String,
}

/// Why the last round that ended did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ended {
    round: u64,
    pub(crate) title: String,
    pub(crate) text: String,
    at_ms: u64,
    /// Whoever else died or failed in that round, in order.
    pub(crate) also: Vec<OtherCause>,
    /// What is left out of them.
    more: String,
    /// It keeps the run from its work.
    pub(crate) loud: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OtherCause {
    pub(crate) text: String,
    at_ms: u64,
}

/// The last failure of a worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Failure {
    round: u64,
    title: String,
    text: String,
    message: String,
    pub(crate) traceback: String,
    at_ms: u64,
}

/// Puts events in order and gives each an id. What was written in one transaction has one revision.
pub(crate) fn number(events: &mut [Event]) {
    events.sort_by_key(|event| event.revision);
    let mut before: HashMap<(i64, String), usize> = HashMap::new();
    for event in events {
        let kind = line(&event.kind, 40);
        let index = before.entry((event.revision, kind.clone())).or_default();
        event.id = format!("{}-{kind}-{index}", event.revision);
        *index += 1;
    }
}

/// What an event is to those who look: somebody died, somebody left, or all who are named ask for a new round.
pub(crate) fn look(event: &Event) -> &'static str {
    match event.kind.as_str() {
        _ if event.is_harmless => "finished",
        "lost" => loss(event),
        "killed" => "died",
        "formed" => "formed",
        "waiting" => "waiting",
        "leads" => "leads",
        "failed" => "failed",
        "working" => "working",
        "stopped" => "stopped",
        "closed" => "closed",
        "preempted" => "preempted",
        "excluded" => "excluded",
        "included" => "included",
        "expired" => "expired",
        "unhealthy" => "unhealthy",
        "healthy" => "healthy",
        _ => "other",
    }
}

fn loss(event: &Event) -> &'static str {
    let any = |why| event.lost.iter().any(|lost| lost.why == why);
    match event.lost.iter().find(|lost| !["again", "killed"].contains(&&*lost.why)) {
        _ if any("died") => "died",
        Some(_) => "left",
        None if event.lost.is_empty() => "left",
        // The node itself has told that it was killed, and that is an event of its own.
        None if any("killed") => "follows",
        None => "asked",
    }
}

/// Who tells of an event, where that is not the one it happened to.
fn teller(event: &Event) -> String {
    match event.kind.as_str() {
        "lost" | "formed" | "waiting" | "working" | "stopped" | "expired" => name(&event.by),
        // Its sentence names the node or the author.
        _ => String::new(),
    }
}

pub(crate) fn shown(event: &Event) -> ShownEvent {
    let look = look(event);
    ShownEvent {
        id: event.id.clone(),
        revision: event.revision,
        at_ms: event.at_ms,
        round: event.round,
        by: teller(event),
        kind: line(&event.kind, WORDS),
        text: line(&event.text, 2 * WORDS),
        look,
        loud: ["died", "left", "failed", "closed", "preempted", "excluded", "unhealthy"].contains(&look),
        traceback: lines(&event.traceback, OLDER_TRACEBACK),
    }
}

/// The round that ended, if this tells of an end.
fn ends(event: &Event) -> Option<u64> {
    let tells = ["failed", "died", "left", "asked", "closed", "stopped"].contains(&look(event));
    let round = match event.kind.as_str() {
        "formed" => event.round.saturating_sub(1),
        _ if tells => event.round,
        _ => 0,
    };
    (round > 0).then_some(round)
}

fn is_harm(event: &Event) -> bool {
    ["failed", "died", "left"].contains(&look(event))
}

/// None as long as no round has ended, and of a run that has done its work.
pub(crate) fn ended(seen: &Seen) -> Option<Ended> {
    let outcome = Outcome::of(&seen.state, seen.closed.as_deref());
    if outcome == Outcome::Finished {
        return None;
    }
    let mut last = seen.events.iter().rev().filter_map(ends);
    let (round, cause) = last.find_map(|round| Some((round, cause(&seen.events, round)?)))?;
    let time = |kind, of: u64| {
        let part = seen.parts.iter().find(|part| part.span.kind == kind && part.span.round == of)?;
        Some(duration(part.to_ms?.saturating_sub(part.span.from_ms)))
    };
    let mut title = format!("Why round {round} ended");
    if let Some(worked) = time(SpanKind::Working, round) {
        title.push_str(&format!(", after {worked} at work"));
    }
    if let Some(regained) = time(SpanKind::Regaining, round + 1).filter(|_| outcome == Outcome::GoesOn) {
        title.push_str(&format!("; {regained} to meet again"));
    }
    let is_other = |event: &&Event| event.round == round && event.id != cause.event && is_harm(event);
    let others: Vec<&Event> = seen.events.iter().filter(is_other).collect();
    let told = |event: &&Event| OtherCause {
        text: line(&harm_in_words(&seen.events, event), WORDS),
        at_ms: event.at_ms,
    };
    let any_harm = seen.events.iter().any(|event| event.round == round && is_harm(event));
    let more = others.len().saturating_sub(TOLD);
    Some(Ended {
        round,
        title,
        text: cause.text,
        at_ms: cause.at_ms,
        also: others.iter().take(TOLD).map(told).collect(),
        more: if more > 0 { format!("and {} more", count(more, "such event")) } else { String::new() },
        loud: outcome == Outcome::Failed
            || (["meeting again", "abandoned"].contains(&&*seen.state) && any_harm),
    })
}

pub(crate) fn failure(seen: &Seen) -> Option<Failure> {
    let event = seen.events.iter().rev().find(|event| event.kind == "failed")?;
    let title = match event.round {
        0 => "Last failure".to_owned(),
        round => format!("Last failure, in round {round}"),
    };
    Some(Failure {
        round: event.round,
        title,
        text: line(&event.text, WORDS),
        message: lines(&event.message, 4 * WORDS),
        traceback: lines(&event.traceback, TRACEBACK),
        at_ms: event.at_ms,
    })
}

#[cfg(test)]
mod tests {
    use rallypoint_rendezvous::native::Span;
    use serde_json::json;

    use super::*;
    use crate::source::Part;

    fn seen(run: serde_json::Value) -> Seen {
        let mut seen: Seen = serde_json::from_value(run).unwrap();
        number(&mut seen.events);
        seen
    }

    fn lost(revision: i64, node: usize, why: &str) -> serde_json::Value {
        json!({"revision": revision, "round": 1, "event": "lost", "text": format!("node {node} {why}"), "lost": [{"rank": node, "why": why}]})
    }

    fn part(kind: SpanKind, round: u64, from_ms: u64, to_ms: Option<u64>) -> Part {
        Part { span: Span { kind, round, from_ms, to_ms: to_ms.unwrap_or(u64::MAX) }, to_ms }
    }

    #[test]
    fn events_of_one_revision_have_ids_of_their_own() {
        let leads = json!({"revision": 7, "event": "leads"});
        let seen =
            seen(json!({"events": [leads, lost(7, 1, "died"), lost(7, 2, "died"), lost(6, 3, "died")]}));
        let ids: Vec<_> = seen.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(ids, ["6-lost-0", "7-leads-0", "7-lost-0", "7-lost-1"]);
    }

    #[test]
    fn who_asks_for_a_new_round_is_not_lost() {
        let run = seen(
            json!({"events": [lost(1, 0, "again"), lost(2, 0, "left"), lost(3, 0, "died"), {"event": "new"}]}),
        );
        let looks: Vec<_> = run.events.iter().map(|event| (look(event), shown(event).loud)).collect();
        assert_eq!(looks, [("other", false), ("asked", false), ("left", true), ("died", true)]);
    }

    #[test]
    fn a_round_ended_because_a_launcher_was_killed_and_not_because_the_others_meet_again() {
        let killed =
            json!({"revision": 4, "round": 1, "event": "killed", "rank": 2, "text": "node 2 (c) was killed"});
        let stopped =
            json!({"revision": 3, "round": 1, "event": "stopped", "text": "the workers have ended"});
        let run = seen(
            json!({"state": "meeting again", "round": 1, "events": [lost(2, 1, "again"), stopped, killed]}),
        );
        let told = ended(&run).unwrap();
        assert_eq!((&*told.text, told.loud), ("node 2 (c) was killed", true));
        assert_eq!(look(&run.events[2]), "died", "it has a mark");
        assert_eq!(shown(&run.events[2]).by, "", "it tells of itself");
        let run = seen(json!({"state": "meeting again", "round": 1, "events": [
            {"revision": 1, "round": 1, "event": "killed", "by": "c", "text": "node 2 (c) was killed"}, lost(2, 2, "killed")]}));
        assert_eq!(look(&run.events[1]), "follows", "one event has one mark");
        assert!(ended(&run).unwrap().also.is_empty(), "and is told once");
    }

    #[test]
    fn the_end_of_a_round_has_how_long_it_worked_and_all_who_died() {
        let mut run = seen(json!({"state": "meeting again", "round": 1,
            "events": [lost(1, 0, "again"), lost(2, 1, "died"), lost(2, 2, "died"), lost(3, 3, "left")]}));
        run.parts =
            vec![part(SpanKind::Working, 1, 0, Some(12_000)), part(SpanKind::Regaining, 2, 12_000, None)];
        let told = ended(&run).unwrap();
        assert_eq!((&*told.title, &*told.text), ("Why round 1 ended, after 12 s at work", "node 1 died"));
        let also: Vec<_> = told.also.iter().map(|told| told.text.as_str()).collect();
        assert_eq!(also, ["node 2 died", "node 3 left"]);
        assert!(told.loud);
        run.state = "running".to_owned();
        run.parts[1].to_ms = Some(36_000);
        let told = ended(&run).unwrap();
        assert_eq!(told.title, "Why round 1 ended, after 12 s at work; 24 s to meet again");
        assert!(!told.loud, "it works again");
    }

    #[test]
    fn a_run_that_has_done_its_work_did_not_end_badly() {
        let closed = |reason: &str| {
            let event = json!({"revision": 1, "round": 1, "event": "closed", "text": format!("n closed the run: {reason}")});
            ended(&seen(json!({"state": "closed", "closed": reason, "round": 1, "events": [event]})))
        };
        assert_eq!(closed("all workers have finished"), None);
        assert!(!closed("maintenance").unwrap().loud);
        assert!(closed("rank 3 on gpu-1 failed with exit code 1").unwrap().loud);
    }
}
