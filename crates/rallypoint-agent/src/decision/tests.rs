use std::time::{Duration, SystemTime};

use super::*;
use crate::failure::{Exit, Failure};
use crate::notice::{Leaving, Restarts};

const OURS: usize = 1;
const THEIRS: usize = 2;

fn failed(node: usize) -> Notice {
    let failure = Failure {
        rank: node * 8,
        local_rank: 0,
        host: format!("host{node}"),
        pid: 7,
        exit: Exit::ExitCode(1),
        time: Some(SystemTime::UNIX_EPOCH),
        error: None,
        stderr: Vec::new(),
        log: None,
        hint: None,
    };
    Notice::failed(node, failure, Some(Restarts { left: 1, max: 1, leaves: false }))
}

fn leaves() -> Notice {
    Notice { at: SystemTime::UNIX_EPOCH, ..Notice::leaves(THEIRS, "host2", Leaving::Asked) }
}

fn died() -> GroupChange {
    GroupChange::Died { node: "c".into(), rank: Some(2) }
}

fn left() -> GroupChange {
    GroupChange::Left { node: "c".into(), rank: Some(2) }
}

fn closed() -> GroupChange {
    GroupChange::Closed { reason: "enough".into() }
}

/// What the events lead to, on a node that may start its workers again so often.
fn after(restarts_left: u32, events: impl IntoIterator<Item = Event>) -> Stage {
    let rules = Rules { node: OURS, restarts_left, when_exhausted: WhenExhausted::Close };
    under(rules, events)
}

fn under(rules: Rules, events: impl IntoIterator<Item = Event>) -> Stage {
    let mut decision = Decision::new(rules);
    events.into_iter().for_each(|event| decision.handle(event));
    decision.stage().clone()
}

fn over(restarts_left: u32, events: impl IntoIterator<Item = Event>) -> Verdict {
    match after(restarts_left, events) {
        Stage::Over(verdict) => verdict,
        stage => panic!("not decided: {stage:?}"),
    }
}

fn free(cause: Cause) -> Verdict {
    Verdict::Regroup { cost: 0, cause }
}

#[test]
fn work_that_is_done_succeeds_when_all_have_done_theirs_or_nobody_can_be_asked() {
    assert_eq!(after(0, [Event::Succeeded]), Stage::Finishing);
    for (event, without_word) in [(Event::AllSucceeded, false), (Event::NoWord, true)] {
        assert_eq!(over(0, [Event::Succeeded, event]), Verdict::Succeed { without_word });
    }
    assert_eq!(
        over(0, [Event::Succeeded, Event::Changed(died())]),
        free(Cause::Group(died())),
        "those who work need this node"
    );
}

#[test]
fn a_failure_follows_from_what_was_gone_before_and_took_along_what_workers_need() {
    let without = || Event::Without(left());
    assert_eq!(over(0, [Event::Failed, without()]), free(Cause::Group(left())));
    assert_eq!(over(0, [Event::Notice(failed(THEIRS)), without()]), free(Cause::Group(left())));
    assert_eq!(after(0, [without()]), Stage::Working, "nothing has failed");
}

#[test]
fn a_failure_costs_the_node_that_failed_first_and_nobody_else() {
    let own = [Event::Failed, Event::Notice(failed(OURS)), Event::AllAnswered];
    assert_eq!(over(2, own.clone()), Verdict::Regroup { cost: 1, cause: Cause::Own });
    assert_eq!(over(0, own), Verdict::Close);
    for restarts_left in [0, 2] {
        let heard = [Event::Notice(failed(THEIRS)), Event::AllAnswered];
        assert_eq!(over(restarts_left, heard), free(Cause::Other(failed(THEIRS))));
        let echo = [Event::Failed, Event::Notice(failed(THEIRS)), Event::AllAnswered];
        assert_eq!(over(restarts_left, echo), free(Cause::Other(failed(THEIRS))));
    }
}

#[test]
fn a_node_without_restarts_leaves_if_it_was_told_to_and_can_be_spared() {
    let own = [Event::Failed, Event::Notice(failed(OURS)), Event::AllAnswered];
    let after = |restarts_left, more: &[Event]| {
        let rules = Rules { node: OURS, restarts_left, when_exhausted: WhenExhausted::Leave };
        under(rules, own.iter().chain(more).cloned())
    };
    assert_eq!(after(1, &[]), regroup(1, Cause::Own));
    assert_eq!(after(0, &[]), Stage::Exhausted);
    assert_eq!(after(0, &[Event::CanBeSpared(true)]), Stage::Over(Verdict::Leave));
    assert_eq!(after(0, &[Event::CanBeSpared(false)]), Stage::Over(Verdict::Close));
    // The others meet again meanwhile, and one of them may die.
    assert_eq!(after(0, &[Event::Changed(left()), Event::Changed(died())]), Stage::Exhausted);
    let reason = "enough".to_owned();
    assert_eq!(after(0, &[Event::Changed(closed())]), Stage::Over(Verdict::Closed { reason, first: None }));
    assert_eq!(after(0, &[Event::Asked(Signal::TERM)]), Stage::Over(Verdict::Stop(Signal::TERM)));
}

#[test]
fn the_others_can_do_without_a_node_if_enough_are_left_and_few_have_left_so() {
    let enough = || Spared { server: ServerIs::Elsewhere, remain: 2, min_nodes: 2 };
    assert_eq!(enough().check(), Ok(()));
    let few = Spared { min_nodes: 3, ..enough() };
    assert_eq!(few.check(), Err("the group needs 3 nodes, and would have 2".to_owned()));
    assert_eq!(Spared { remain: 3, ..few }.check(), Ok(()), "a spare takes its place");
    for server in [ServerIs::Here, ServerIs::OnHost("a".to_owned())] {
        let spared = Spared { server, ..enough() };
        assert!(spared.check().is_err_and(|why| why.contains("meet on the server")));
    }
    assert_eq!([may_leave(1, 1), may_leave(2, 2)], [Ok(()), Ok(())]);
    assert_eq!(may_leave(2, 1), Err("1 node may leave a run, and as many have".to_owned()));
    assert!(may_leave(1, 0).is_err());
}

#[test]
fn restarts_that_came_back_count() {
    let mut decision =
        Decision::new(Rules { node: OURS, restarts_left: 0, when_exhausted: WhenExhausted::Close });
    decision.handle(Event::Failed);
    decision.restarts_left(2);
    decision.handle(Event::TimeUp);
    assert_eq!(decision.verdict(), Some(&Verdict::Regroup { cost: 1, cause: Cause::Own }));
}

#[test]
fn a_node_that_is_cut_off_meets_again_and_pays_nothing() {
    let why = || CutOff::MovedOn { rank: 2, known: true };
    let cut = free(Cause::CutOff(why()));
    for before in [vec![], vec![Event::Failed], vec![Event::Failed, Event::Notice(failed(OURS))]] {
        assert_eq!(over(0, before.into_iter().chain([Event::CutOff(why())])), cut);
    }
    assert_eq!(after(0, [Event::Succeeded, Event::CutOff(why())]), Stage::Finishing, "no worker runs");
}

#[test]
fn what_failed_while_the_round_stood_is_no_consequence_of_a_silence_after_it() {
    let why = || CutOff::NoWord { for_long: Duration::from_secs(10) };
    assert_eq!(over(0, [Event::Failed, Event::CutOffAfter(why())]), Verdict::Close);
    assert_eq!(
        over(1, [Event::Failed, Event::Notice(failed(OURS)), Event::CutOffAfter(why())]),
        Verdict::Regroup { cost: 1, cause: Cause::Own }
    );
    let theirs = [Event::Failed, Event::Notice(failed(THEIRS)), Event::CutOffAfter(why())];
    assert_eq!(over(0, theirs), free(Cause::Other(failed(THEIRS))));
    assert_eq!(over(0, [Event::CutOffAfter(why())]), free(Cause::CutOff(why())), "nothing failed");
}

#[test]
fn a_node_that_cannot_start_its_workers_ends_whatever_else_happens() {
    let unable = Stage::Unable { why: "no such program".into() };
    let cannot = || Event::CannotStart("no such program".into());
    for more in [vec![], vec![Event::Changed(died())], vec![Event::Notice(failed(THEIRS)), Event::TimeUp]] {
        assert_eq!(after(3, std::iter::once(cannot()).chain(more)), unable);
    }
    assert_eq!(over(3, [cannot(), Event::Asked(Signal::TERM)]), Verdict::Stop(Signal::TERM));
    assert_eq!(over(3, [Event::Changed(died()), cannot()]), free(Cause::Group(died())), "that came before");
}

#[test]
fn a_death_is_the_cause_of_what_failed_with_it() {
    for stage in [vec![], vec![Event::Failed], vec![Event::Failed, Event::Notice(failed(OURS))]] {
        let events = stage.into_iter().chain([Event::Changed(died())]);
        assert_eq!(over(0, events), free(Cause::Group(died())));
    }
}

#[test]
fn a_death_is_not_the_cause_of_a_failure_that_the_dead_node_had_answered() {
    let own = [Event::Failed, Event::DiedAfter(failed(OURS))];
    assert_eq!(after(0, own.clone()), Stage::Settling { first: Some(failed(OURS)) });
    for end in [Event::AllAnswered, Event::TimeUp] {
        assert_eq!(over(0, own.clone().into_iter().chain([end.clone()])), Verdict::Close);
        // Also where the death is heard of first.
        let theirs = [Event::DiedAfter(failed(THEIRS)), end];
        assert_eq!(over(0, theirs), free(Cause::Other(failed(THEIRS))));
    }
    // Another one may have died before it.
    assert_eq!(over(0, own.into_iter().chain([Event::Changed(died())])), free(Cause::Group(died())));
}

#[test]
fn a_failure_that_nobody_answers_is_its_own_cause_after_a_while() {
    assert_eq!(after(0, [Event::Failed]), Stage::Settling { first: None });
    assert_eq!(over(0, [Event::Failed, Event::TimeUp]), Verdict::Close);
    assert_eq!(over(1, [Event::Failed, Event::TimeUp]), Verdict::Regroup { cost: 1, cause: Cause::Own });
}

#[test]
fn who_leaves_says_so_and_costs_nobody_anything() {
    assert_eq!(over(0, [Event::Notice(leaves())]), free(Cause::Other(leaves())));
    assert_eq!(over(0, [Event::Failed, Event::Notice(leaves())]), free(Cause::Other(leaves())));
    let again = Notice { at: SystemTime::UNIX_EPOCH, ..Notice::regroups(THEIRS, "host2", "why".into()) };
    assert_eq!(over(0, [Event::Failed, Event::Notice(again.clone())]), free(Cause::Other(again)));
}

#[test]
fn what_comes_first_is_waited_for_even_where_others_meet_again_or_etcd_has_lost_the_round() {
    for change in [left(), GroupChange::StateLost] {
        let settling = after(0, [Event::Failed, Event::Changed(change.clone())]);
        assert_eq!(settling, Stage::Settling { first: None });
        assert_eq!(over(0, [Event::Changed(change.clone())]), free(Cause::Group(change)));
    }
    let waiting = GroupChange::Waiting { count: 1 };
    assert_eq!(over(0, [Event::Changed(waiting.clone())]), free(Cause::Group(waiting.clone())));
    assert_eq!(after(0, [Event::Succeeded, Event::Changed(waiting)]), Stage::Finishing);
}

#[test]
fn a_close_ends_it_with_the_failure_before_it() {
    let reason = || "enough".to_owned();
    assert_eq!(over(3, [Event::Changed(closed())]), Verdict::Closed { reason: reason(), first: None });
    assert_eq!(
        over(3, [Event::Notice(failed(THEIRS)), Event::Changed(closed())]),
        Verdict::Closed { reason: reason(), first: Some(failed(THEIRS)) }
    );
}

#[test]
fn a_signal_comes_before_everything_and_nothing_else_changes_a_verdict() {
    let asked = || Event::Asked(Signal::TERM);
    for before in [vec![], vec![Event::Succeeded], vec![Event::Failed], vec![Event::Changed(died())]] {
        assert_eq!(over(1, before.into_iter().chain([asked()])), Verdict::Stop(Signal::TERM));
    }
    assert_eq!(over(1, [asked(), Event::Failed, Event::TimeUp]), Verdict::Stop(Signal::TERM));
    assert_eq!(
        over(1, [Event::Changed(died()), Event::Failed, Event::Notice(failed(OURS))]),
        free(Cause::Group(died()))
    );
}
