//! What the events of a run cost: how long it took to meet, to notice and to be whole again, and the share of the time in
//! which workers ran.

use std::time::Duration;

use serde::Serialize;

use super::Event;
use super::words::duration;
use crate::round::{What, Why};
use crate::text::count;

/// The time of a run, added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Rounds that were formed, as far as the events tell.
    pub rounds: usize,
    /// Members that died.
    pub deaths: usize,
    /// Workers that failed first.
    pub failures: usize,
    /// Until the first round was formed.
    pub forming_ms: u64,
    /// From a death until the others were told, at most: its lease. From a failure until rank 0's workers were stopped.
    pub noticing_ms: u64,
    /// From when a round was over until the next one was formed.
    pub regaining_ms: u64,
    /// In which workers ran.
    pub working_ms: u64,
    /// From the first node until the end, or now.
    pub total_ms: u64,
    /// The part of it in which workers ran.
    pub working_share: f64,
}

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
    fn millis(&self) -> u64 {
        self.to_ms.saturating_sub(self.from_ms)
    }
}

/// What the run did, one after the other. `now_ms`: what is not over goes on until then; none for a run that is known to be
/// over.
#[must_use]
pub fn spans(events: &[Event], now_ms: Option<u64>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    // What goes on, since when.
    let mut open: Option<(SpanKind, u64, u64)> = None;
    let end = |spans: &mut Vec<Span>, open: &mut Option<(SpanKind, u64, u64)>, at: u64| {
        if let Some((kind, round, from_ms)) = open.take() {
            spans.push(Span { kind, round, from_ms, to_ms: at.max(from_ms) });
        }
    };
    for event in events {
        let (at, round) = (event.record.at_ms, event.record.round);
        let working = matches!(open, Some((SpanKind::Working, ..)));
        match &event.record.what {
            What::Formed(formed) => {
                if open.is_none() && spans.is_empty() {
                    open = Some((SpanKind::Forming, round, at.saturating_sub(formed.took_ms())));
                }
                end(&mut spans, &mut open, at);
                open = Some((SpanKind::Working, round, at));
            }
            // Until they are started, the nodes still meet.
            What::Working => {
                if let (Some((SpanKind::Working, of, from)), Some(last)) = (&mut open, spans.last_mut())
                    && *of == round
                    && last.to_ms == *from
                {
                    (last.to_ms, *from) = (at.max(*from), at.max(*from));
                }
            }
            What::Lost { .. } | What::Stopped { .. } if working => {
                end(&mut spans, &mut open, at);
                open = Some((SpanKind::Regaining, round + 1, at));
            }
            What::Closed { .. } => {
                // All workers had ended before that, and nobody waits for anything.
                if !working {
                    open = None;
                }
                end(&mut spans, &mut open, at);
                return spans;
            }
            _ => {}
        }
    }
    if let Some(now) = now_ms {
        end(&mut spans, &mut open, now);
    }
    spans
}

impl Summary {
    /// What these events cost. `now_ms`: as in [`spans`].
    #[must_use]
    pub fn of(events: &[Event], now_ms: Option<u64>) -> Self {
        let spans = spans(events, now_ms);
        let of = |kind| spans.iter().filter(|span| span.kind == kind).map(Span::millis).sum::<u64>();
        let mut summary = Summary {
            forming_ms: of(SpanKind::Forming),
            regaining_ms: of(SpanKind::Regaining),
            working_ms: of(SpanKind::Working),
            ..Summary::default()
        };
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            summary.total_ms = last.to_ms.saturating_sub(first.from_ms);
        }
        // A failure that nobody has stopped for yet.
        let mut failed_at = None;
        for event in events {
            match &event.record.what {
                What::Formed(_) => summary.rounds += 1,
                What::Lost { lost, within_ms, .. } => {
                    let deaths = lost.iter().filter(|lost| lost.why == Why::Died).count();
                    summary.deaths += deaths;
                    if deaths > 0 {
                        summary.noticing_ms += within_ms.unwrap_or(0);
                    }
                }
                What::Failed(_) => {
                    summary.failures += 1;
                    failed_at = Some(event.record.at_ms);
                }
                What::Stopped { .. } => {
                    let failed_at = failed_at.take();
                    summary.noticing_ms +=
                        failed_at.map_or(0, |failed| event.record.at_ms.saturating_sub(failed));
                }
                _ => {}
            }
        }
        if summary.total_ms > 0 {
            summary.working_share = summary.working_ms as f64 / summary.total_ms as f64;
        }
        summary
    }

    /// It in a few lines.
    #[must_use]
    pub fn text(&self) -> String {
        let time = |millis| duration(Duration::from_millis(millis));
        let mut text = format!(
            "{}, {}, {}\n",
            count(self.rounds, "round"),
            count(self.deaths, "death"),
            count(self.failures, "failure"),
        );
        text.push_str(&format!("first meeting   {}\n", time(self.forming_ms)));
        if self.noticing_ms > 0 {
            text.push_str(&format!("noticing        {} at most\n", time(self.noticing_ms)));
        }
        if self.regaining_ms > 0 {
            text.push_str(&format!("meeting again   {}\n", time(self.regaining_ms)));
        }
        let share = 100.0 * self.working_share;
        text.push_str(&format!(
            "workers ran     {} of {} ({share:.1} %)\n",
            time(self.working_ms),
            time(self.total_ms)
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{EventRecord, Failed, Formed, Lost};

    fn event(at_ms: u64, round: u64, what: What) -> Event {
        let revision = i64::try_from(at_ms).unwrap_or(i64::MAX);
        Event { revision, record: EventRecord::new(at_ms, "n0", round, what) }
    }

    fn formed(gathering_ms: u64) -> What {
        let (master, members, joined, gone) = (None, Vec::new(), Vec::new(), Vec::new());
        let (last_call_ms, placing_ms, spares) = (0, 0, 0);
        let world_size = 2;
        What::Formed(Box::new(Formed {
            world_size,
            master,
            members,
            joined,
            gone,
            spares,
            gathering_ms,
            last_call_ms,
            placing_ms,
        }))
    }

    fn died(node: &str) -> What {
        let lost = vec![Lost { node: node.to_owned(), rank: 1, why: Why::Died }];
        What::Lost { lost, count: 1, within_ms: Some(5_000) }
    }

    #[test]
    fn the_time_of_a_run_is_added_up() {
        let failed = Failed {
            rank: 1,
            local_rank: 1,
            host: "h".to_owned(),
            exit: "exit code 1".to_owned(),
            message: String::new(),
            traceback: String::new(),
        };
        let events = [
            event(10_000, 1, formed(4_000)),
            event(11_000, 1, What::Working),
            event(31_000, 1, died("n1")),
            event(31_500, 1, What::Stopped { why: "node 1 died".to_owned() }),
            event(33_000, 2, formed(1_000)),
            event(34_000, 2, What::Working),
            event(44_000, 2, What::Failed(Box::new(failed))),
            event(45_000, 2, What::Stopped { why: "rank 1 failed".to_owned() }),
            event(47_000, 3, formed(10)),
            event(48_000, 3, What::Working),
            event(57_000, 3, What::Closed { reason: "done".to_owned() }),
        ];
        let summary = Summary::of(&events, Some(1_000_000));
        assert_eq!((summary.rounds, summary.deaths, summary.failures), (3, 1, 1));
        assert_eq!((summary.forming_ms, summary.noticing_ms), (5_000, 6_000));
        assert_eq!((summary.regaining_ms, summary.working_ms), (3_000 + 3_000, 20_000 + 11_000 + 9_000));
        assert_eq!(summary.total_ms, 51_000);
        assert!((summary.working_share - 40.0 / 51.0).abs() < 1e-9);
        // Under torchrun nobody tells when workers were started and stopped.
        let events = [event(10_000, 1, formed(4_000)), event(30_000, 1, died("n1"))];
        let kinds =
            |now| spans(&events, now).iter().map(|span| (span.kind, span.millis())).collect::<Vec<_>>();
        let known = [(SpanKind::Forming, 4_000), (SpanKind::Working, 20_000)];
        assert_eq!(kinds(None), known);
        assert_eq!(kinds(Some(31_000)), [known[0], known[1], (SpanKind::Regaining, 1_000)]);
        assert_eq!(Summary::of(&[], Some(5)), Summary::default());
    }
}
