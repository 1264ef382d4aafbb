//! What the events of a run cost: how long it took to meet, to notice and to be whole again, and the share of the time in
//! which workers ran.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::spans::{Line, Span, SpanKind, nobody_was_left};
use super::words::duration;
use super::{Event, Without};
use crate::round::{Lost, NODE_EVENTS, What, Why};
use crate::text::count;

/// By so much the clocks of nodes may differ without a word.
const CLOCKS_DIFFER: u64 = 10_000;

/// The time of a run, added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Rounds that were formed, as far as the events tell.
    pub rounds: usize,
    /// The first of them that is still known; 1 unless what was before has been written over.
    pub first_round: Option<u64>,
    /// Members that died or were killed.
    pub deaths: usize,
    /// Rounds of whose end nobody was left to tell: they worked until their last event, as far as is known.
    pub unseen_ends: usize,
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
    /// It may have been more: of some failures it is not known when the others noticed.
    pub noticing_may_be_more: bool,
    /// From when a round was over until the next one was formed.
    pub regaining_ms: u64,
    /// In which workers ran.
    pub working_ms: u64,
    /// From the first node until the end, or now.
    pub total_ms: u64,
    /// The part of it in which workers ran.
    pub working_share: f64,
}

impl Summary {
    /// What these events cost. `now_ms`: as in [`spans`](super::spans()).
    #[must_use]
    pub fn of(events: &[Event], now_ms: Option<u64>) -> Self {
        let Line { spans, unseen_ends, .. } = Line::of(events, now_ms);
        let of = |kind| spans.iter().filter(|span| span.kind == kind).map(Span::millis).sum::<u64>();
        let mut summary = Summary {
            forming_ms: of(SpanKind::Forming),
            regaining_ms: of(SpanKind::Regaining),
            working_ms: of(SpanKind::Working),
            total_ms: spans.iter().map(Span::millis).sum(),
            unseen_ends,
            ..Summary::default()
        };
        // By round: those who tell of a failure and of the stop write in any order.
        let (mut failed, mut stopped) = (BTreeMap::new(), BTreeMap::new());
        let (mut dead, mut noticed, mut of_node) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        // When the others first told of the end of a round.
        let mut told = BTreeMap::new();
        // Rounds of which nobody was left when others came.
        let deserted = events.iter().filter(|event| nobody_was_left(&event.record.what));
        let deserted: BTreeSet<u64> = deserted
            .map(|event| match event.record.what {
                What::Formed(_) => event.record.round.saturating_sub(1),
                _ => event.record.round,
            })
            .collect();
        let without = Without::told_by(events);
        let mut latest = 0;
        for event in events {
            let (at, round) = (event.record.at_ms, event.record.round);
            // A failure is told when its node has stopped its workers.
            if !matches!(event.record.what, What::Failed(_) | What::Killed { .. }) {
                summary.clocks_differ_ms = summary.clocks_differ_ms.max(u64::saturating_sub(latest, at));
                latest = latest.max(at);
            }
            match &event.record.what {
                What::Formed(formed) => {
                    summary.rounds += 1;
                    summary.first_round = summary.first_round.or(Some(round));
                    // Of those who died while the others met nothing else tells.
                    let before = round.saturating_sub(1);
                    dead.extend(died(&formed.gone, deserted.contains(&before)).map(|node| (before, node)));
                    told.entry(before).or_insert(at.saturating_sub(formed.took_ms()));
                }
                What::Killed { .. } => _ = dead.insert((round, event.record.by.as_str())),
                What::Lost { lost, count, within_ms, .. } => {
                    let deserted = deserted.contains(&round);
                    let missed = !without.has_all(round, lost, *count);
                    // Who dies after that is missed while the others meet. Where nobody is left, nobody works meanwhile.
                    if missed && died(lost, false).next().is_some() && !deserted && noticed.insert(round) {
                        summary.noticing_ms = summary.noticing_ms.saturating_add(within_ms.unwrap_or(0));
                    }
                    dead.extend(died(lost, deserted).map(|node| (round, node)));
                    // Who asks for another round has stopped its workers by then.
                    if lost.iter().any(|lost| lost.why == Why::Again) {
                        told.entry(round).or_insert(at);
                    }
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
        // Rank 0 tells best when the workers were stopped. It keeps only what it told last; the group keeps more.
        for (round, at) in &failed {
            let noticed = stopped.get(round).or_else(|| told.get(round)).map(|end| end.saturating_sub(*at));
            summary.noticing_ms = summary.noticing_ms.saturating_add(noticed.unwrap_or(0));
        }
        summary.noticing_may_be_more = summary.failures_may_be_more;
        if summary.total_ms > 0 {
            summary.working_share = summary.working_ms as f64 / summary.total_ms as f64;
        }
        summary
    }

    /// What is to be known of the figures, in sentences: where they are not of all that there was, or not exact.
    #[must_use]
    pub fn caveats(&self) -> Vec<String> {
        let before = self.first_round.filter(|first| *first > 1);
        let before = before.map(|first| format!("what was before round {first} is not kept any more"));
        let failures = self.failures_may_be_more.then(|| {
            format!("there may have been more failures: of each node the last {NODE_EVENTS} are kept")
        });
        let ends = (self.unseen_ends > 0).then(|| {
            let ended = count(self.unseen_ends, "round");
            format!("{ended} ended with nobody left to tell when: what is after the last event counts as meeting again")
        });
        let clocks = (self.clocks_differ_ms >= CLOCKS_DIFFER).then(|| {
            let by = duration(Duration::from_millis(self.clocks_differ_ms));
            format!("clocks differ by {by} or more: times are no better than that")
        });
        [before, failures, ends, clocks].into_iter().flatten().collect()
    }

    /// It in a few lines.
    #[must_use]
    pub fn text(&self) -> String {
        let time = |millis| duration(Duration::from_millis(millis));
        let mut text: String = self.caveats().iter().map(|caveat| format!("{caveat}\n")).collect();
        text += &format!(
            "{}, {}, {}\n",
            count(self.rounds, "round"),
            count(self.deaths, "death"),
            count(self.failures, "failure") + if self.failures_may_be_more { " or more" } else { "" },
        );
        text.push_str(&format!("first meeting   {}\n", time(self.forming_ms)));
        if self.noticing_ms > 0 {
            let more = if self.noticing_may_be_more { " or more" } else { "" };
            text.push_str(&format!("noticing        {}{more}\n", time(self.noticing_ms)));
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

/// Of these, who died. `deserted`: nobody was left, so that also those had whose names others have taken.
fn died(lost: &[Lost], deserted: bool) -> impl Iterator<Item = &str> {
    let died = move |lost: &&Lost| lost.why == Why::Died || (deserted && lost.why == Why::Replaced);
    lost.iter().filter(died).map(|lost| lost.node.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::spans;
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

    /// Of who had finished nobody asks.
    #[test]
    fn a_round_that_goes_on_without_who_is_gone_works_on() {
        let died = Lost { node: "b".to_owned(), rank: 1, why: Why::Died };
        let lost = || What::Lost { lost: vec![died.clone()], count: 1, within_ms: Some(400), found: None };
        let without = What::Without { node: "b".to_owned(), rank: 1 };
        let mut events = vec![event(1_000, 1, formed(1_000)), event(5_000, 1, lost())];
        let missed = Summary::of(&events, Some(10_000));
        assert_eq!((missed.working_ms, missed.regaining_ms, missed.noticing_ms), (4_000, 5_000, 400));
        events.push(event(5_001, 1, without));
        let summary = Summary::of(&events, Some(10_000));
        assert_eq!((summary.working_ms, summary.regaining_ms, summary.noticing_ms), (9_000, 0, 0));
        assert_eq!(summary.deaths, 1);
        // Somebody else is missed.
        let both = vec![died.clone(), Lost { node: "c".to_owned(), ..died }];
        events.push(event(6_000, 1, What::Lost { lost: both, count: 2, within_ms: None, found: None }));
        assert_eq!(Summary::of(&events, Some(10_000)).working_ms, 5_000);
    }

    fn stopped() -> What {
        What::Stopped { why: "so".to_owned() }
    }

    fn a_death(node: &str) -> What {
        let lost = vec![Lost { node: node.to_owned(), rank: 1, why: Why::Died }];
        What::Lost { lost, count: 1, within_ms: Some(5_000), found: None }
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

    fn lost(nodes: &[&str], why: Why) -> Vec<Lost> {
        nodes.iter().map(|node| Lost { node: (*node).to_owned(), rank: 0, why }).collect()
    }

    #[test]
    fn who_comes_for_a_run_whose_nodes_are_all_gone_does_not_make_their_absence_work() {
        let leads = What::Leads { found: Some(0) };
        let gone = Formed { world_size: 2, joined_count: 2, found: Some(0), ..Formed::default() };
        let begin = [event(1_000, 1, formed(0)), event(2_000, 1, What::Working)];
        let closed = event(40_000, 1, What::Closed { reason: String::new() });
        let summary =
            |then: &[Event]| Summary::of(&[&begin[..], then, std::slice::from_ref(&closed)].concat(), None);
        // They are too few to meet, and only told of. Nothing is known of the others since they began to work.
        let both = What::Lost {
            lost: lost(&["a", "b"], Why::Died),
            count: 2,
            within_ms: Some(2_000),
            found: Some(0),
        };
        let told = summary(&[event(22_000, 1, leads.clone()), event(22_000, 1, both.clone())]);
        assert_eq!((told.working_ms, told.regaining_ms, told.deaths), (0, 38_000, 2), "{told:?}");
        assert_eq!((told.noticing_ms, told.unseen_ends), (0, 1), "nobody was there to notice");
        assert!(told.text().starts_with("1 round ended with nobody left to tell when"), "{}", told.text());
        // Who leads tells something before it knows that they are all dead.
        let one = What::Lost { lost: lost(&["a"], Why::Replaced), count: 1, within_ms: None, found: None };
        let late = summary(&[
            event(22_000, 1, What::Leads { found: None }),
            event(22_000, 1, one),
            event(24_000, 1, both),
        ]);
        assert_eq!((late.working_ms, late.regaining_ms, late.deaths), (0, 38_000, 2), "{late:?}");
        // Others meet at once, or the same names.
        let meet = |gone| summary(&[event(22_000, 2, What::Formed(Box::new(gone)))]);
        let others = meet(Formed { gone: lost(&["a", "b"], Why::Died), ..gone.clone() });
        let same = meet(Formed { joined_count: 0, gone: lost(&["a", "b"], Why::Replaced), ..gone.clone() });
        for told in [others, same] {
            assert_eq!((told.working_ms, told.regaining_ms, told.deaths), (18_000, 20_000, 2), "{told:?}");
        }
        // A leader that comes while others work changes nothing, nor does a process that takes the name of one.
        let one = Formed { found: Some(1), gone: lost(&["a"], Why::Replaced), ..gone };
        let told = summary(&[
            event(20_000, 1, What::Leads { found: Some(1) }),
            event(20_000, 1, stopped()),
            event(22_000, 2, What::Formed(Box::new(one))),
        ]);
        assert_eq!((told.working_ms, told.deaths, told.unseen_ends), (36_000, 0, 0), "{told:?}");
    }

    #[test]
    fn who_was_killed_is_among_the_dead_and_the_cause() {
        let entry = |revision, what: What| {
            let value = serde_json::to_string(&EventRecord::new(10, "c", 1, what)).unwrap_or_default();
            crate::round::Entry {
                key: String::new(),
                value,
                create_revision: 1,
                mod_revision: revision,
                lease: 1,
            }
        };
        let again = What::Lost { lost: lost(&["a"], Why::Again), count: 1, within_ms: None, found: None };
        let events =
            Event::read_all(&[entry(3, stopped()), entry(2, again), entry(4, What::Killed { rank: 2 })]);
        assert_eq!(events[0].text(), "node 2 (c) was killed");
        assert_eq!(Summary::of(&events, None).deaths, 1);
    }

    #[test]
    fn of_failures_that_rank_0_no_longer_tells_of_the_group_tells_when_they_were_noticed() {
        let again = || What::Lost { lost: lost(&["a"], Why::Again), count: 1, within_ms: None, found: None };
        let events = [
            event(1_000, 1, formed(0)),
            event(5_000, 1, failure()),
            event(6_500, 1, again()),
            event(7_000, 2, formed(0)),
            event(8_000, 2, failure()),
            event(8_500, 2, stopped()),
            event(8_700, 2, again()),
            event(9_000, 3, formed(0)),
            event(10_000, 3, failure()),
            event(10_250, 4, formed(0)),
        ];
        assert_eq!(Summary::of(&events, None).noticing_ms, 1_500 + 500 + 250);
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
        assert!(text.contains("clocks differ by 59 min 0 s or more"), "{text}");
    }
}
