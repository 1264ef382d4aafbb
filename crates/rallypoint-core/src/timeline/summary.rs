//! What the events of a run cost: how long it took to meet, to notice and to be whole again, and the share of the time in
//! which workers ran.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::Event;
use super::words::duration;
use crate::round::{Lost, NODE_EVENTS, What, Why};
use crate::text::count;

/// The time of a run, added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Rounds that were formed, as far as the events tell.
    pub rounds: usize,
    /// The first of them that is still known; 1 unless what was before has been written over.
    pub first_round: Option<u64>,
    /// Members that died.
    pub deaths: usize,
    /// Workers that failed first.
    pub failures: usize,
    /// There may have been more: a node keeps its last 8.
    pub failures_may_be_more: bool,
    /// So much the clocks of nodes differ, at least: times are no better than that.
    pub clocks_differ_ms: u64,
    /// Until the first round was formed.
    pub forming_ms: u64,
    /// From a death until the others were told: its lease, which is the longest but for a moment. From a failure until rank
    /// 0's workers were stopped. Workers run in it, and it is a part of their time below.
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

/// What the run did, one after the other. `now_ms`: what is not over goes on until then. None for a run that is over, or
/// whose nodes are all gone: then the last event is the last that is known of it.
#[must_use]
pub fn spans(events: &[Event], now_ms: Option<u64>) -> Vec<Span> {
    let (mut line, mut last_at) = (Line::default(), 0);
    for event in events {
        let (at, round) = (event.record.at_ms, event.record.round);
        let open = line.open.map(|(kind, round, _)| (kind, round));
        match &event.record.what {
            What::Formed(formed) => {
                // Nobody of the round before was there any more to tell of its end.
                let all_new = formed.joined_count > 0 && formed.joined_count == formed.world_size;
                if all_new && matches!(open, Some((SpanKind::Working, _))) {
                    line.end(last_at);
                    line.begin(SpanKind::Regaining, round, last_at);
                }
                if line.open.is_none() && line.spans.is_empty() {
                    // What came before may have been written over.
                    let kind = if round == 1 { SpanKind::Forming } else { SpanKind::Regaining };
                    line.begin(kind, round, at.saturating_sub(formed.took_ms()));
                }
                line.end(at);
                line.begin(SpanKind::Working, round, at);
            }
            What::Working if open == Some((SpanKind::Working, round)) => line.started(at),
            What::Lost { .. } | What::Stopped { .. } if open == Some((SpanKind::Working, round)) => {
                line.end(at);
                line.begin(SpanKind::Regaining, round.saturating_add(1), at);
            }
            What::Closed { .. } => {
                line.end(at);
                return line.spans;
            }
            _ => {}
        }
        last_at = at;
    }
    let last = events.last().map(|event| event.record.at_ms);
    if let Some(end) = now_ms.or(last) {
        line.end(end);
    }
    line.spans
}

/// By so much the clocks of nodes may differ without a word.
const CLOCKS_DIFFER: u64 = 10_000;
/// Workers that were started later than this after their round was formed are those of another clock.
const LATEST_START: u64 = 300_000;

/// What the run did so far. Nodes have clocks of their own: what seems to be before the last that is known was then.
#[derive(Default)]
struct Line {
    spans: Vec<Span>,
    /// What goes on: of which round, and since when.
    open: Option<(SpanKind, u64, u64)>,
}

impl Line {
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
            total_ms: spans.iter().map(Span::millis).sum(),
            ..Summary::default()
        };
        // By round: those who tell of a failure and of the stop write in any order.
        let (mut failed, mut stopped) = (BTreeMap::new(), BTreeMap::new());
        let (mut dead, mut noticed, mut of_node) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let mut latest = 0;
        for event in events {
            let (at, round) = (event.record.at_ms, event.record.round);
            // A failure is told when its node has stopped its workers.
            if !matches!(event.record.what, What::Failed(_)) {
                summary.clocks_differ_ms = summary.clocks_differ_ms.max(u64::saturating_sub(latest, at));
                latest = latest.max(at);
            }
            match &event.record.what {
                What::Formed(formed) => {
                    summary.rounds += 1;
                    summary.first_round = summary.first_round.or(Some(round));
                    // Of those who died while the others met nothing else tells.
                    dead.extend(died(&formed.gone).map(|node| (round.saturating_sub(1), node)));
                }
                What::Lost { lost, within_ms, .. } => {
                    // Who dies after that is missed while the others meet.
                    if died(lost).next().is_some() && noticed.insert(round) {
                        summary.noticing_ms = summary.noticing_ms.saturating_add(within_ms.unwrap_or(0));
                    }
                    dead.extend(died(lost).map(|node| (round, node)));
                }
                What::Failed(_) => {
                    summary.failures += 1;
                    *of_node.entry(&event.record.by).or_insert(0) += 1;
                    failed.entry(round).or_insert(at);
                }
                What::Stopped { .. } => _ = stopped.entry(round).or_insert(at),
                _ => {}
            }
        }
        summary.deaths = dead.len();
        summary.failures_may_be_more = of_node.values().any(|failures| *failures >= NODE_EVENTS);
        let told = failed.iter().filter_map(|(round, at)| Some(stopped.get(round)?.saturating_sub(*at)));
        summary.noticing_ms = told.fold(summary.noticing_ms, u64::saturating_add);
        if summary.total_ms > 0 {
            summary.working_share = summary.working_ms as f64 / summary.total_ms as f64;
        }
        summary
    }

    /// It in a few lines.
    #[must_use]
    pub fn text(&self) -> String {
        let time = |millis| duration(Duration::from_millis(millis));
        let mut text = match self.first_round {
            Some(first) if first > 1 => format!("what was before round {first} is not kept any more\n"),
            _ => String::new(),
        };
        text += &format!(
            "{}, {}, {}\n",
            count(self.rounds, "round"),
            count(self.deaths, "death"),
            count(self.failures, "failure") + if self.failures_may_be_more { " or more" } else { "" },
        );
        if self.clocks_differ_ms >= CLOCKS_DIFFER {
            text.push_str(&format!(
                "clocks differ   by {} or more: times are no better than that\n",
                time(self.clocks_differ_ms)
            ));
        }
        text.push_str(&format!("first meeting   {}\n", time(self.forming_ms)));
        if self.noticing_ms > 0 {
            text.push_str(&format!("noticing        {}\n", time(self.noticing_ms)));
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

fn died(lost: &[Lost]) -> impl Iterator<Item = &str> {
    lost.iter().filter(|lost| lost.why == Why::Died).map(|lost| lost.node.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{EventRecord, Failed, Formed};

    fn event(at_ms: u64, round: u64, what: What) -> Event {
        let revision = i64::try_from(at_ms).unwrap_or(i64::MAX);
        Event { revision, record: EventRecord::new(at_ms, "n0", round, what) }
    }

    fn formed(gathering_ms: u64) -> What {
        What::Formed(Box::new(Formed { world_size: 2, gathering_ms, ..Formed::default() }))
    }

    fn failure() -> What {
        What::Failed(Box::new(Failed {
            rank: 1,
            local_rank: 1,
            host: "h".to_owned(),
            exit: "exit code 1".to_owned(),
            message: String::new(),
            traceback: String::new(),
        }))
    }

    fn stopped() -> What {
        What::Stopped { why: "so".to_owned() }
    }

    fn a_death(node: &str) -> What {
        let lost = vec![Lost { node: node.to_owned(), rank: 1, why: Why::Died }];
        What::Lost { lost, count: 1, within_ms: Some(5_000) }
    }

    #[test]
    fn the_time_of_a_run_is_added_up() {
        let events = [
            event(10_000, 1, formed(4_000)),
            event(11_000, 1, What::Working),
            event(31_000, 1, a_death("n1")),
            event(31_500, 1, What::Stopped { why: "node 1 died".to_owned() }),
            event(33_000, 2, formed(1_000)),
            event(34_000, 2, What::Working),
            event(44_000, 2, failure()),
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
        let events = [event(10_000, 1, formed(4_000)), event(30_000, 1, a_death("n1"))];
        let kinds =
            |now| spans(&events, now).iter().map(|span| (span.kind, span.millis())).collect::<Vec<_>>();
        let known = [(SpanKind::Forming, 4_000), (SpanKind::Working, 20_000)];
        assert_eq!(kinds(None), [known[0], known[1], (SpanKind::Regaining, 0)]);
        assert_eq!(kinds(Some(31_000)), [known[0], known[1], (SpanKind::Regaining, 1_000)]);
        assert_eq!(Summary::of(&[], Some(5)), Summary::default());
    }

    #[test]
    fn events_of_one_round_say_nothing_of_another() {
        // Rank 0 stops slowly, and the others are in the next round by then. It is the last to tell of the failure, too.
        let events = [
            event(1_000, 1, formed(0)),
            event(5_000, 1, stopped()),
            event(4_500, 1, failure()),
            event(6_000, 2, formed(0)),
            event(7_000, 1, stopped()),
            event(106_000, 2, stopped()),
        ];
        let summary = Summary::of(&events, None);
        assert_eq!((summary.noticing_ms, summary.working_ms, summary.regaining_ms), (500, 104_000, 1_000));
    }

    #[test]
    fn no_clock_makes_more_of_the_time_than_there_was() {
        // The second leader's clock is half an hour behind; rank 0's an hour ahead.
        let (minute, hour) = (60_000, 3_600_000);
        let events = [
            event(hour, 1, formed(1_000)),
            event(2 * hour, 1, What::Working),
            event(hour + minute, 1, a_death("n1")),
            event(hour / 2 + 2 * minute, 2, formed(1_000)),
            event(hour / 2 + 62 * minute, 2, a_death("n2")),
        ];
        let summary = Summary::of(&events, None);
        assert!(summary.working_share <= 1.0, "{summary:?}");
        assert_eq!(summary.working_ms, minute + 31 * minute, "{summary:?}");
    }

    #[test]
    fn what_is_not_known_any_more_is_said() {
        let events =
            [event(9_000, 57, formed(2_000)), event(12_000, 57, What::Closed { reason: String::new() })];
        let summary = Summary::of(&events, None);
        assert_eq!((summary.forming_ms, summary.regaining_ms, summary.working_ms), (0, 2_000, 3_000));
        assert!(summary.text().starts_with("what was before round 57 is not kept any more\n"));
        // Nobody came for those who had died, and an operator has ended it.
        let events = [
            event(1_000, 1, formed(0)),
            event(2_000, 1, a_death("n1")),
            event(602_000, 1, What::Closed { reason: String::new() }),
        ];
        assert_eq!(Summary::of(&events, None).regaining_ms, 600_000);
    }

    #[test]
    fn the_time_in_which_nobody_was_there_is_not_worked() {
        let all_new = Formed { world_size: 2, joined_count: 2, ..Formed::default() };
        let events = [
            event(1_000, 1, formed(0)),
            event(2_000, 1, What::Working),
            event(600_000, 2, What::Formed(Box::new(all_new))),
            event(601_000, 2, What::Closed { reason: String::new() }),
        ];
        let summary = Summary::of(&events, None);
        assert_eq!((summary.working_ms, summary.regaining_ms), (1_000, 598_000), "{summary:?}");
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        let mut events = vec![event(1_000, 1, formed(0))];
        events.extend((0..8).map(|n| event(2_000 + n, 1, failure())));
        events.push(event(3_000, 1, a_death("n1")));
        events.push(event(4_000, 1, a_death("n2")));
        let summary = Summary::of(&events, None);
        assert!(summary.text().contains("8 failures or more"), "{}", summary.text());
        assert_eq!((summary.deaths, summary.noticing_ms), (2, 5_000), "one lease in which both are missed");
        let events = [event(3_600_000, 1, formed(0)), event(60_000, 1, stopped())];
        let text = Summary::of(&events, None).text();
        assert!(text.contains("clocks differ   by 59 min 0 s or more"), "{text}");
    }
}
