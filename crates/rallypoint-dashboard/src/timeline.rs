//! The picture of a run's time: bars for what its nodes did, marks for what happened to them.

use rallypoint_rendezvous::native::SpanKind;
use serde::Serialize;

use crate::cause::cause;
use crate::missing::missing;
use crate::past::look;
use crate::source::Seen;

/// A longer picture could not be read.
const MOST_BARS: usize = 400;
/// What an event has a mark for.
const MARKED: [&str; 4] = ["died", "left", "failed", "closed"];
/// Rows of the table of rounds.
const MOST_ROUNDS: usize = 100;

/// What the nodes of a run did, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    pub(crate) bars: Vec<Bar>,
    pub(crate) marks: Vec<Mark>,
    /// Newest first.
    pub(crate) rounds: Vec<Worked>,
    /// What is to be said where there is little to draw.
    note: &'static str,
}

/// A round that was at work, or that is being formed: then nothing is known of its nodes and its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Worked {
    pub(crate) round: u64,
    is_forming: bool,
    pub(crate) nodes: Option<usize>,
    from_ms: u64,
    /// None while it goes on.
    to_ms: Option<u64>,
    /// The time after it in which the nodes met again.
    pub(crate) after: Option<Bar>,
    pub(crate) why: String,
    /// The event that tells of its end.
    event: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bar {
    pub(crate) kind: SpanKind,
    /// The round that was at work, or that is being formed.
    pub(crate) round: u64,
    pub(crate) from_ms: u64,
    /// None while it goes on.
    pub(crate) to_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mark {
    pub(crate) kind: &'static str,
    pub(crate) at_ms: u64,
    /// The id of the event that tells more.
    pub(crate) event: String,
}

pub(crate) fn timeline(seen: &Seen) -> Timeline {
    let over = ["closed", "abandoned"].contains(&&*seen.state);
    // Of a run that is over nothing goes on after its last event.
    let last = seen.events.iter().map(|event| event.at_ms).max().unwrap_or_default();
    let mut bars: Vec<Bar> = seen
        .parts
        .iter()
        .map(|part| {
            let from_ms = part.span.from_ms;
            let to_ms = part.to_ms.or(over.then_some(last.max(from_ms)));
            Bar { kind: part.span.kind, round: part.span.round, from_ms, to_ms }
        })
        .collect();
    if bars.is_empty() && !over {
        // Nothing has been told yet: it has been forming since the first node came.
        let first = seen.nodes.iter().map(|node| node.since).filter(|since| *since > 0).min();
        let forming = |since| Bar { kind: SpanKind::Forming, round: 1, from_ms: since * 1000, to_ms: None };
        bars.extend(first.map(forming));
    }
    bars.drain(..bars.len().saturating_sub(MOST_BARS));
    let from = bars.first().map_or(0, |bar| bar.from_ms);
    let marks = seen.events.iter().filter(|event| event.at_ms >= from).filter_map(|event| {
        // Who asks for another round has a reason that is told elsewhere.
        let kind = Some(look(event)).filter(|look| MARKED.contains(look))?;
        Some(Mark { kind, at_ms: event.at_ms, event: event.id.clone() })
    });
    let worked = bars.iter().rev().filter(|bar| bar.kind == SpanKind::Working);
    let rounds = worked.take(MOST_ROUNDS).map(|bar| {
        let cause = cause(&seen.events, bar.round);
        let why = match (&cause, bar.to_ms) {
            (Some(cause), _) => cause.text.clone(),
            (None, None) => "it is at work".to_owned(),
            (None, Some(_)) => "not known".to_owned(),
        };
        let event = cause.map(|cause| cause.event);
        let formed = seen.events.iter().find(|event| event.kind == "formed" && event.round == bar.round);
        let is_after = |after: &&Bar| after.kind == SpanKind::Regaining && after.round == bar.round + 1;
        Worked {
            round: bar.round,
            is_forming: false,
            nodes: formed.and_then(|event| event.world_size),
            from_ms: bar.from_ms,
            to_ms: bar.to_ms,
            after: bars.iter().find(is_after).cloned(),
            why,
            event,
        }
    });
    let next = bars.last().filter(|bar| bar.to_ms.is_none() && bar.kind != SpanKind::Working);
    let next = next.map(|bar| Worked {
        round: bar.round,
        is_forming: true,
        nodes: None,
        from_ms: bar.from_ms,
        to_ms: None,
        after: None,
        why: missing(seen).map_or_else(String::new, |missing| missing.text),
        event: None,
    });
    let rounds: Vec<Worked> = next.into_iter().chain(rounds).collect();
    let note = match (over, seen.round) {
        (true, 0) => "No round was ever formed.",
        _ if bars.is_empty() => "No events yet.",
        _ => "",
    };
    Timeline { marks: marks.collect(), rounds, note, bars }
}

#[cfg(test)]
mod tests {
    use rallypoint_rendezvous::native::Span;

    use super::*;
    use crate::source::{Event, Lost, Node, Part};

    fn event(kind: &str, at_ms: u64, why: &str) -> Event {
        let lost = vec![Lost { why: why.to_owned(), ..Lost::default() }];
        Event { kind: kind.to_owned(), at_ms, lost, ..Event::default() }
    }

    fn part(kind: SpanKind, round: u64, from_ms: u64, to_ms: Option<u64>) -> Part {
        Part { span: Span { kind, round, from_ms, to_ms: to_ms.unwrap_or(u64::MAX) }, to_ms }
    }

    fn run(state: &str, parts: Vec<Part>, events: Vec<Event>) -> Seen {
        Seen { state: state.to_owned(), parts, events, ..Seen::default() }
    }

    #[test]
    fn what_happened_to_nodes_is_marked_and_what_they_asked_for_is_not() {
        let parts = vec![part(SpanKind::Forming, 1, 10, Some(20)), part(SpanKind::Working, 1, 20, None)];
        let events = ["died", "left", "again", "replaced"].map(|why| event("lost", 30, why));
        let more = [
            event("failed", 40, ""),
            event("formed", 20, ""),
            event("closed", 50, ""),
            event("failed", 5, ""),
        ];
        let seen = run("running", parts, events.into_iter().chain(more).collect());
        let timeline = timeline(&seen);
        let kinds: Vec<_> = timeline.marks.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, ["died", "left", "left", "failed", "closed"], "and none before the first bar");
        assert_eq!(timeline.bars.last().map(|bar| bar.to_ms), Some(None), "it goes on");
        let round = &timeline.rounds[0];
        assert_eq!((round.round, &*round.why), (1, "it is at work"), "no event of round 1 tells of an end");
    }

    #[test]
    fn before_the_first_event_it_has_been_forming_since_the_first_node_came() {
        let node = |since| Node { since, ..Node::default() };
        let mut seen = run("meeting", Vec::new(), Vec::new());
        seen.nodes = vec![node(0), node(50), node(40)];
        let bar = Bar { kind: SpanKind::Forming, round: 1, from_ms: 40_000, to_ms: None };
        assert_eq!(timeline(&seen).bars, [bar]);
    }

    #[test]
    fn nothing_goes_on_in_a_run_that_is_over() {
        for state in ["closed", "abandoned"] {
            let parts = vec![part(SpanKind::Working, 1, 20, None)];
            let seen = run(state, parts, vec![event("failed", 90, "")]);
            assert_eq!(timeline(&seen).bars[0].to_ms, Some(90), "{state}");
        }
    }

    #[test]
    fn of_a_long_story_the_end_is_drawn() {
        let parts = (0..1000).map(|n| part(SpanKind::Working, n, n, Some(n + 1))).collect();
        let events = (0..1000).map(|n| event("failed", n, "")).collect();
        let timeline = timeline(&run("running", parts, events));
        assert_eq!((timeline.bars.len(), timeline.marks.len()), (MOST_BARS, MOST_BARS));
        assert_eq!(timeline.bars.last().map(|bar| bar.round), Some(999));
    }
}
