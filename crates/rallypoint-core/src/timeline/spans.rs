//! What a run did, one after the other, as its events tell it.

use serde::Serialize;

use super::{Event, Without};
use crate::round::What;

/// What a run did in a part of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Its nodes met for the first time.
    Forming,
    /// Its workers ran.
    Working,
    /// Its nodes met again.
    Regaining,
}

/// A part of the time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// What it did.
    pub kind: SpanKind,
    /// The round that it was in, or met for.
    pub round: u64,
    /// From when, in milliseconds since 1970.
    pub from_ms: u64,
    /// Until when.
    pub to_ms: u64,
}

impl Span {
    pub(super) fn millis(&self) -> u64 {
        self.to_ms.saturating_sub(self.from_ms)
    }
}

/// What the run did, one after the other. `now_ms`: what is not over goes on until then. None for a run that is over, or
/// whose nodes are all gone: then the last event is the last that is known of it.
#[must_use]
pub fn spans(events: &[Event], now_ms: Option<u64>) -> Vec<Span> {
    Line::of(events, now_ms).spans
}

/// Workers that were started later than this after their round was formed are those of another clock.
const LATEST_START: u64 = 300_000;

/// What the run did so far. Nodes have clocks of their own: what seems to be before the last that is known was then.
#[derive(Default)]
pub(super) struct Line {
    pub(super) spans: Vec<Span>,
    /// What goes on: of which round, and since when.
    open: Option<(SpanKind, u64, u64)>,
    /// What was known when the one came who leads, as long as it is not told whether anybody was left by then.
    taken_over: Option<TakenOver>,
    /// Rounds of whose end nobody was left to tell.
    pub(super) unseen_ends: usize,
}

/// What was known when another node began to lead.
struct TakenOver {
    spans: usize,
    open: (SpanKind, u64, u64),
    last_at: u64,
}

impl Line {
    pub(super) fn of(events: &[Event], now_ms: Option<u64>) -> Self {
        let mut line = Line::default();
        let closed = line.read(events);
        let last = events.last().map(|event| event.record.at_ms);
        if let Some(end) = now_ms.or(last).filter(|_| !closed) {
            line.end(end);
        }
        line
    }

    /// Whether the run is closed by then.
    fn read(&mut self, events: &[Event]) -> bool {
        let mut last_at = 0;
        let without = Without::told_by(events);
        for event in events {
            let (at, round) = (event.record.at_ms, event.record.round);
            let open = self.open.map(|(kind, round, _)| (kind, round));
            let what = &event.record.what;
            if let What::Leads { found: Some(1..) } | What::Lost { found: Some(1..), .. } = what {
                self.taken_over = None;
            }
            match what {
                What::Formed(formed) => {
                    if nobody_was_left(what) {
                        self.end_unseen(last_at, round);
                    }
                    self.taken_over = None;
                    if self.open.is_none() && self.spans.is_empty() {
                        // What came before may have been written over.
                        let kind = if round == 1 { SpanKind::Forming } else { SpanKind::Regaining };
                        self.begin(kind, round, at.saturating_sub(formed.took_ms()));
                    }
                    self.end(at);
                    self.begin(SpanKind::Working, round, at);
                }
                What::Leads { found: None } => {
                    let spans = self.spans.len();
                    self.taken_over = self.open.map(|open| TakenOver { spans, open, last_at });
                }
                What::Leads { .. } | What::Lost { .. } if nobody_was_left(what) => {
                    self.end_unseen(last_at, round.saturating_add(1));
                }
                What::Working if open == Some((SpanKind::Working, round)) => self.started(at),
                What::Lost { lost, count, .. } if without.has_all(round, lost, *count) => {}
                What::Lost { .. } | What::Stopped { .. } if open == Some((SpanKind::Working, round)) => {
                    self.end(at);
                    self.begin(SpanKind::Regaining, round.saturating_add(1), at);
                }
                What::Closed { .. } => {
                    self.end(at);
                    return true;
                }
                _ => {}
            }
            last_at = at;
        }
        false
    }

    /// Nobody of the round at work was there any more to tell of its end. Nothing is known of it since `last_at`, or since who
    /// leads came, whatever that one has told until it knew.
    fn end_unseen(&mut self, mut last_at: u64, next: u64) {
        if let Some(then) = self.taken_over.take() {
            self.spans.truncate(then.spans);
            (self.open, last_at) = (Some(then.open), then.last_at);
        }
        if let Some((SpanKind::Working, ..)) = self.open {
            self.end(last_at);
            self.begin(SpanKind::Regaining, next, last_at);
            self.unseen_ends += 1;
        }
    }

    fn begin(&mut self, kind: SpanKind, round: u64, at: u64) {
        let at = self.spans.last().map_or(at, |last| at.max(last.to_ms));
        self.open = Some((kind, round, at));
    }

    fn end(&mut self, at: u64) {
        if let Some((kind, round, from_ms)) = self.open.take() {
            self.spans.push(Span { kind, round, from_ms, to_ms: at.max(from_ms) });
        }
    }

    /// Until the workers are started, the nodes still meet.
    fn started(&mut self, at: u64) {
        if let (Some((_, _, from)), Some(last)) = (&mut self.open, self.spans.last_mut())
            && last.to_ms == *from
            && (*from..from.saturating_add(LATEST_START)).contains(&at)
        {
            (last.to_ms, *from) = (at, at);
        }
    }
}

/// Whether who leads has found nobody of the round before.
pub(super) fn nobody_was_left(what: &What) -> bool {
    match what {
        What::Leads { found } | What::Lost { found, .. } => *found == Some(0),
        // Of an earlier version nothing is known but the names.
        What::Formed(formed) => formed.found.map_or_else(
            || formed.joined_count > 0 && formed.joined_count == formed.world_size,
            |found| found == 0,
        ),
        _ => false,
    }
}
