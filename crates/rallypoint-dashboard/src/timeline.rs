//! The picture of a run's time: bars for what its nodes did, marks for what happened to them.

use serde::Serialize;

use crate::source::{Event, Seen};

/// A longer picture could not be read.
const MOST_BARS: usize = 400;

/// What the nodes of a run did, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    pub(crate) bars: Vec<Bar>,
    pub(crate) marks: Vec<Mark>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bar {
    pub(crate) kind: Kind,
    /// The round that was at work, or that is being formed.
    pub(crate) round: u64,
    pub(crate) from_ms: u64,
    /// None while it goes on.
    pub(crate) to_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Before the first round.
    Forming,
    Working,
    /// From the end of a round to the next.
    Regaining,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mark {
    pub(crate) kind: &'static str,
    pub(crate) at_ms: u64,
    /// Of the event that tells more.
    pub(crate) revision: i64,
}

/// Clocks of nodes differ, so what comes later is never drawn earlier.
pub(crate) fn timeline(seen: &Seen) -> Timeline {
    let mut drawing = Drawing::default();
    for event in &seen.events {
        drawing.take(event);
    }
    let over = ["closed", "abandoned"].contains(&&*seen.state);
    if drawing.bars.is_empty() && !over {
        let first = seen.nodes.iter().map(|node| node.since).filter(|since| *since > 0).min();
        drawing.bars.extend(first.map(|since| bar(Kind::Forming, 1, since * 1000)));
    }
    let mut bars = drawing.bars;
    if over && let Some(last) = bars.last_mut() {
        last.to_ms = last.to_ms.or(Some(drawing.now));
    }
    bars.drain(..bars.len().saturating_sub(MOST_BARS));
    let from = bars.first().map_or(0, |bar| bar.from_ms);
    let marks = drawing.marks.into_iter().filter(|mark| mark.at_ms >= from).collect();
    Timeline { bars, marks }
}

fn bar(kind: Kind, round: u64, from_ms: u64) -> Bar {
    Bar { kind, round, from_ms, to_ms: None }
}

#[derive(Default)]
struct Drawing {
    now: u64,
    bars: Vec<Bar>,
    marks: Vec<Mark>,
}

impl Drawing {
    fn take(&mut self, event: &Event) {
        self.now = self.now.max(event.at_ms);
        match event.kind.as_str() {
            "formed" => {
                if self.bars.is_empty() {
                    let took = event.gathering_ms + event.last_call_ms + event.placing_ms;
                    let kind = if event.round <= 1 { Kind::Forming } else { Kind::Regaining };
                    self.bars.push(bar(kind, event.round, self.now.saturating_sub(took)));
                }
                self.turn_to(Kind::Working, event.round);
            }
            "lost" => {
                let died = event.lost.iter().any(|lost| lost.why == "died");
                self.mark(if died { "died" } else { "left" }, event);
                self.round_ends();
            }
            "failed" => {
                self.mark("failed", event);
                self.round_ends();
            }
            "stopped" => self.round_ends(),
            "closed" => {
                self.mark("closed", event);
                self.end();
            }
            _ => {}
        }
    }

    fn mark(&mut self, kind: &'static str, event: &Event) {
        self.marks.push(Mark { kind, at_ms: self.now, revision: event.revision });
    }

    fn end(&mut self) {
        if let Some(last) = self.bars.last_mut() {
            last.to_ms = last.to_ms.or(Some(self.now));
        }
    }

    fn turn_to(&mut self, kind: Kind, round: u64) {
        self.end();
        self.bars.push(bar(kind, round, self.now));
    }

    /// The time until the next round is lost. What is told of a round that has ended already changes nothing.
    fn round_ends(&mut self) {
        if let Some(Bar { kind: Kind::Working, round, to_ms: None, .. }) = self.bars.last() {
            let next = round + 1;
            self.turn_to(Kind::Regaining, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Lost, Node};

    fn event(kind: &str, at_ms: u64, round: u64) -> Event {
        Event { kind: kind.to_owned(), at_ms, round, ..Event::default() }
    }

    fn bars(timeline: &Timeline) -> Vec<(Kind, u64, u64, Option<u64>)> {
        timeline.bars.iter().map(|bar| (bar.kind, bar.round, bar.from_ms, bar.to_ms)).collect()
    }

    #[test]
    fn a_death_ends_a_round_and_what_follows_is_lost_until_the_next() {
        let formed = Event { gathering_ms: 3000, last_call_ms: 900, placing_ms: 100, ..event("formed", 10_000, 1) };
        let died = Lost { why: "died".to_owned(), ..Lost::default() };
        let lost = Event { lost: vec![died], revision: 7, ..event("lost", 20_000, 1) };
        // The clock of whoever forms the second round is behind.
        let events = vec![formed, event("working", 10_100, 1), lost, event("failed", 20_500, 1), event("formed", 19_000, 2)];
        let seen = Seen { state: "running".to_owned(), events, ..Seen::default() };
        let timeline = timeline(&seen);
        assert_eq!(
            bars(&timeline),
            [
                (Kind::Forming, 1, 6_000, Some(10_000)),
                (Kind::Working, 1, 10_000, Some(20_000)),
                (Kind::Regaining, 2, 20_000, Some(20_500)),
                (Kind::Working, 2, 20_500, None),
            ]
        );
        let marks: Vec<_> = timeline.marks.iter().map(|mark| (mark.kind, mark.at_ms)).collect();
        assert_eq!(marks, [("died", 20_000), ("failed", 20_500)]);
    }

    #[test]
    fn before_the_first_event_it_has_been_forming_since_the_first_node_came() {
        let node = |since| Node { since, ..Node::default() };
        let nodes = vec![node(0), node(50), node(40)];
        let seen = Seen { state: "meeting".to_owned(), nodes, ..Seen::default() };
        assert_eq!(bars(&timeline(&seen)), [(Kind::Forming, 1, 40_000, None)]);
    }

    #[test]
    fn nothing_goes_on_in_a_run_that_is_over() {
        let events = vec![event("formed", 5, 1), event("closed", 9, 1), event("stopped", 12, 1)];
        let seen = Seen { state: "closed".to_owned(), events, ..Seen::default() };
        assert_eq!(bars(&timeline(&seen)), [(Kind::Forming, 1, 5, Some(5)), (Kind::Working, 1, 5, Some(9))]);
    }

    #[test]
    fn of_a_long_story_the_end_is_drawn() {
        let story = (1..=1000).flat_map(|round| [event("formed", round * 10, round), event("failed", round * 10 + 5, round)]);
        let seen = Seen { state: "running".to_owned(), events: story.collect(), ..Seen::default() };
        let timeline = timeline(&seen);
        assert_eq!(timeline.bars.len(), MOST_BARS);
        assert_eq!(timeline.bars.last().map(|bar| bar.round), Some(1001));
        assert!(timeline.marks.iter().all(|mark| mark.at_ms >= timeline.bars[0].from_ms));
    }
}
