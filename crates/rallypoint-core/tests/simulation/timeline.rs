//! Promise 12, checked whenever the group's record is written: what happened to the group is written down in the same
//! transaction, and no more of it than there is room for.

use std::time::Duration;

use rallypoint_core::round::{Entry, EventRecord, Keys, NAMED_MEMBERS, RoundRecord, What, Why};
use rallypoint_core::timeline::{Event, Summary};

use crate::check::{Violation, parse, promise};
use crate::etcd::Etcd;
use crate::finale::{MOMENT, settle};
use crate::scenarios::{start, tell, world};

/// `before`: the record that stood there; one without a round where there was none.
pub(crate) fn check(
    etcd: &Etcd,
    keys: &Keys,
    written: &Entry,
    record: &RoundRecord,
    before: &RoundRecord,
) -> Result<(), Violation> {
    let prefix = keys.events();
    let events: Vec<&Entry> = etcd.prefix(&prefix).collect();
    let with_it = events.into_iter().filter(|entry| entry.mod_revision == written.mod_revision);
    let now: Vec<EventRecord> = with_it.map(parse).collect::<Result<_, Violation>>()?;
    promise!(
        12,
        now.len() as u64 == record.events.saturating_sub(before.events),
        "{} events came with a record that counts {} after {}: {now:?}",
        now.len(),
        record.events,
        before.events
    );
    let is_new_round = record.has_round() && record.plan != before.plan;
    let formed = now.iter().filter_map(|event| match &event.what {
        What::Formed(formed) => Some((event.round, formed.world_size, formed.members.len())),
        _ => None,
    });
    let expected =
        is_new_round.then_some((record.round, record.world_size, record.world_size.min(NAMED_MEMBERS)));
    promise!(12, formed.eq(expected), "round {} came with {now:?}", record.round);
    if record.closed != before.closed {
        let said = now.iter().any(|event| match &event.what {
            What::Closed { reason } => Some(reason) == record.closed.as_ref(),
            _ => false,
        });
        promise!(12, said, "the close came with {now:?}");
    }
    if !is_new_round && record.news.lost_count > 0 && before.news.lost_count == 0 {
        let said = now.iter().any(|event| matches!(event.what, What::Lost { .. }));
        promise!(12, said || record.news.lost.is_empty(), "a loss came with {now:?}");
    }
    Ok(())
}

/// All nodes of a run die, and later others come for it, or processes of their names. Whoever leads then says that nobody was
/// left, and tells of nobody who stands by for the dead.
#[test]
fn who_comes_for_a_run_whose_nodes_are_all_gone_says_so() {
    for names in [["n2", "n3"], ["n0", "n1"]] {
        tell(20, |seed| {
            let mut world = world(seed, 2, 2);
            start(&mut world, 2)?;
            settle(&mut world, MOMENT)?;
            [0, 1].into_iter().for_each(|index| world.crash(index));
            world.run_for(Duration::from_secs(60))?;
            world.start(names[0])?;
            world.run_for(Duration::from_secs(3))?;
            world.start(names[1])?;
            let lease = world.setup.lease;
            settle(&mut world, lease * 2 + MOMENT)?;
            let events = Event::read_all(world.etcd.prefix(&world.keys.events()));
            let found = events.iter().filter_map(|event| match &event.record.what {
                What::Leads { found } | What::Lost { found, .. } => *found,
                What::Formed(formed) => formed.found,
                _ => None,
            });
            let (found, summary) = (found.collect::<Vec<_>>(), Summary::of(&events, None));
            assert!(!found.is_empty() && found.iter().all(|found| *found == 0), "{events:#?}");
            assert!(!events.iter().any(|it| matches!(it.record.what, What::Waiting { .. })), "{events:#?}");
            assert_eq!((summary.rounds, summary.deaths, summary.unseen_ends), (2, 2, 1), "{events:#?}");
            assert!(summary.regaining_ms >= 60_000 && summary.working_ms < 1_000, "{summary:?}");
            Ok(())
        });
    }
}

/// The leader dies, and the next one finds the others at work.
#[test]
fn who_leads_after_a_leader_that_died_says_that_others_were_there() {
    tell(20, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.run_for(Duration::from_secs(60))?;
        let leader = world.leader().expect("a group has one");
        world.crash(leader);
        let lease = world.setup.lease;
        settle(&mut world, lease * 2 + MOMENT)?;
        let events = Event::read_all(world.etcd.prefix(&world.keys.events()));
        let summary = Summary::of(&events, None);
        assert_eq!((summary.rounds, summary.deaths, summary.unseen_ends), (2, 1, 0), "{events:#?}");
        assert!(summary.working_ms >= 60_000, "{summary:?}");
        Ok(())
    });
}

/// The others have met neither, as somebody hangs, and wait for the same end as before: nothing else would be told.
#[test]
fn a_second_death_is_written_down_when_it_is_known() {
    tell(20, |seed| {
        let mut world = world(seed, 2, 6);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("a group has one");
        let [first, second, hangs] = [1, 2, 3].map(|other| (leader + other) % 6);
        [second, hangs].into_iter().for_each(|index| world.hang(index, Duration::from_secs(600)));
        world.crash(first);
        let lease = world.setup.lease;
        world.run_for(lease * 3)?;
        world.crash(second);
        world.run_for(lease + Duration::from_secs(5))?;
        let events = Event::read_all(world.etcd.prefix(&world.keys.events()));
        let lost = events.iter().filter_map(|event| match &event.record.what {
            What::Lost { lost, .. } => Some(lost),
            _ => None,
        });
        let died: Vec<&str> =
            lost.flatten().filter(|lost| lost.why == Why::Died).map(|lost| lost.node.as_str()).collect();
        assert_eq!(died, [first, second].map(|index| format!("n{index}")), "{events:#?}");
        Ok(())
    });
}
