//! What holds once faults have stopped: promises 6 to 9, and 5 at the end of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use rallypoint_core::round::{Change, ExclusionChange, RankPolicy, Refusal};

use crate::check::{SCRIBBLE, Violation, promise};
use crate::faults::Loss;
use crate::keeper::{rack_of, whom};
use crate::network::LATEST;
use crate::process::{Phase, short};
use crate::world::{RUN, World};

/// A few round trips, in calm weather.
pub(crate) const MOMENT: Duration = Duration::from_secs(2);

/// The faults stop: the group comes together, stays together, is closed, and leaves nothing behind.
pub(crate) fn check(world: &mut World, rng: &mut Rng, names: usize) -> Result<(), Violation> {
    world.heal()?;
    if world.check.round().closed.is_none() && rng.u8(..10) > 0 {
        enough(world, rng, names)?;
    }
    // Requests that are still under way may come as late as that, and those of the dead live for a lease.
    let lease = world.setup.lease;
    world.run_for(LATEST + lease + MOMENT)?;
    settle(world, lease * 3 + longest_call(world) + MOMENT * 5)?;
    quiet(world, LATEST + lease)?;
    if world.check.round().closed.is_none() && !world.members().is_empty() {
        if rng.bool() {
            outage(world, rng)?;
        }
        if rng.bool() {
            lose_one(world, rng)?;
        }
    }
    let choosy = world.setup.when_excluded.len() > 1;
    if choosy && world.check.round().closed.is_none() && is_settled(world) && !world.members().is_empty() {
        exclude_one(world, rng)?;
    }
    if world.check.round().closed.is_none() && is_settled(world) && rng.u8(..3) == 0 {
        lose_data(world, rng)?;
    }
    end(world, rng)
}

/// For so long a round with enough nodes is not formed, as more may come.
fn longest_call(world: &World) -> Duration {
    world.setup.last_call + world.setup.replacement
}

/// Starts nodes until there are as many as a round needs.
fn enough(world: &mut World, rng: &mut Rng, names: usize) -> Result<(), Violation> {
    let wanted = rng.usize(world.setup.settings.min_nodes..=world.setup.settings.max_nodes + 1);
    for name in 0..names + wanted {
        let there = world.living().filter(|index| world.processes[*index].phase != Phase::Over).count();
        let id = format!("n{name}");
        if there < wanted && !world.living().any(|index| world.processes[index].id == id) {
            world.start(&id)?;
        }
    }
    Ok(())
}

/// Everybody is where they should be: in the group's round, or with no place in it.
pub(crate) fn is_settled(world: &World) -> bool {
    let record = world.check.round();
    let (mut there, mut members) = (Vec::new(), 0);
    let mut names = BTreeSet::new();
    for index in world.living() {
        if !names.insert(&world.processes[index].id) {
            return false;
        }
        let process = &world.processes[index];
        match &process.phase {
            // Who waits to be let in is not there for the others.
            Phase::Joining if world.is_kept_out(&process.id) && process.waits_out => {}
            _ if world.is_kept_out(&process.id) => return false,
            Phase::Joining => there.push(process.id.as_str()),
            Phase::In(joined) if joined.plan == record.plan => {
                there.push(process.id.as_str());
                members += 1;
            }
            _ => return false,
        }
    }
    if record.closed.is_some() {
        return there.is_empty();
    }
    if !world.living().all(|index| world.check.holds_key(&world.processes[index])) {
        return false;
    }
    let seatable = seatable(world, &there);
    if seatable < world.setup.settings.min_nodes {
        return members == 0;
    }
    members == seatable && members == record.world_size
}

/// How many of these nodes a round can have.
fn seatable(world: &World, there: &[&str]) -> usize {
    let settings = &world.setup.settings;
    let Some(size) = settings.policy.segment_size() else { return there.len().min(settings.max_nodes) };
    let mut racks: BTreeMap<String, usize> = BTreeMap::new();
    for id in there {
        *racks.entry(rack_of(id, world.setup.racks.unwrap_or(1))).or_default() += 1;
    }
    let segments: usize = racks.into_values().map(|nodes| nodes / size.get()).sum();
    (segments * size.get()).min(settings.max_nodes)
}

/// Promise 6: whoever is there gets in.
pub(crate) fn settle(world: &mut World, within: Duration) -> Result<(), Violation> {
    let end = world.now + within;
    let settled = world.run_while(end, |world| !is_settled(world))?;
    if !settled {
        world.living().for_each(|index| world.trace(|| short(&world.processes[index].node)));
    }
    promise!(6, settled, "after {within:?} the nodes have not met: {}", state(world));
    Ok(())
}

/// A whole group is left in peace.
pub(crate) fn quiet(world: &mut World, time: Duration) -> Result<(), Violation> {
    let (news, before) = (world.news, state(world));
    let requests = |world: &World| world.processes.iter().map(|process| process.requests).sum::<u64>();
    let made = requests(world);
    world.run_for(time)?;
    let made = requests(world) - made;
    let renewals = time.as_millis() * 3 / world.setup.run_ttl.as_millis();
    // Whoever waits looks now and then whether etcd has it as it should.
    let waiting = world.living().filter(|index| world.processes[*index].phase == Phase::Joining).count();
    let looks = waiting as u128 * (1 + time.as_millis() / (world.setup.lease * 2).as_millis());
    promise!(
        10,
        u128::from(made) < 40 + renewals + looks,
        "a group at rest made {made} requests: {}",
        state(world)
    );
    promise!(6, world.news == news, "nothing had happened, and {before} became {}", state(world));
    promise!(6, is_settled(world), "the group has come apart: {}", state(world));
    for index in world.living() {
        // Each lease is refreshed several times within its time.
        let contact = world.processes[index].node.contact();
        let recent = contact.is_some_and(|at| world.now <= at + world.setup.lease / 2);
        promise!(11, recent, "{} is in contact since {contact:?}, now {:?}", world.name(index), world.now);
    }
    // What comes late may bring a place back; it goes with the run's lease.
    if world.leader().is_some() && world.check.round().closed.is_none() && !world.was_late {
        let ranks = world.keys.ranks();
        let stale: Vec<&str> = world
            .etcd
            .prefix(&ranks)
            .map(|entry| &entry.key[ranks.len()..])
            .filter(|id| !world.check.knows(&world.etcd, id))
            .collect();
        promise!(5, stale.is_empty(), "places of nodes that are gone: {stale:?}; {}", state(world));
    }
    Ok(())
}

/// Promise 9: the group outlives an outage of etcd, longer than the leases, whoever comes as it ends.
pub(crate) fn outage(world: &mut World, rng: &mut Rng) -> Result<(), Violation> {
    let (news, round, lease) = (world.news, world.check.round().round, world.setup.lease);
    // What lasts longer than the run's own lease ends the run.
    let time = lease.mul_f64(0.3 + 4.0 * rng.f64()).min(world.setup.run_ttl / 2);
    world.etcd_away(time, rng.u8(..4) == 0);
    world.run_for(time)?;
    let members: Vec<_> =
        world.members().into_iter().map(|index| (index, world.processes[index].told.clone())).collect();
    let visited = rng.bool();
    if visited {
        world.start("visitor")?;
    }
    world.run_for(lease * 3)?;
    for index in world.living() {
        let process = &world.processes[index];
        let there = world.etcd.get(&world.keys.node(&process.id)).is_some();
        promise!(9, there, "{} did not take up its place again: {}", process.id, state(world));
    }
    if !visited {
        let told = world.news != news;
        promise!(9, !told, "etcd was away for {time:?}, and the group was told: {}", state(world));
        let again = world.check.round().round != round;
        promise!(9, !again, "etcd was away for {time:?}, and a new round came");
        return Ok(());
    }
    // It is let in where there is room, and that is all.
    for (index, before) in members {
        let told = &world.processes[index].told;
        let told = told.as_ref().filter(|_| *told != before).map(|(_, told)| told);
        // With a last call that is shorter than a program takes to come back, some may be late.
        let late = told == Some(&Change::Excluded) && world.setup.last_call < MOMENT;
        let right = late || matches!(told, None | Some(Change::Waiting(_) | Change::Left { .. }));
        promise!(9, right, "etcd was away for {time:?}, and {} was told {told:?}", world.name(index));
    }
    settle(world, lease + longest_call(world) + MOMENT)
}

/// etcd loses what it has: the group is whole again within a lease and five seconds.
pub(crate) fn lose_data(world: &mut World, rng: &mut Rng) -> Result<(), Violation> {
    let (empty, overtakes, compacted) = (rng.bool(), rng.bool(), rng.bool());
    let strangers = world.members().len() < world.living().count();
    world.lose_data(Loss { empty, overtakes, compacted })?;
    // A snapshot from another life of the run may be one of a closed run.
    if world.check.round().closed.is_some() {
        return Ok(());
    }
    let mut within = world.setup.lease + Duration::from_secs(5) + world.setup.replacement;
    // Whoever was in no round meets others as at the beginning.
    if strangers {
        within += world.setup.last_call;
    }
    // Exclusions that a snapshot has brought back end when their time is over once more.
    if world.etcd.prefix(&world.keys.exclusions()).next().is_some() {
        within += LONGEST_EXCLUSION + MOMENT;
    }
    world.run_for(MOMENT)?;
    settle(world, within - MOMENT)
}

/// For no longer than this somebody is kept out, where it is not for as long as the run lives.
pub(crate) const LONGEST_EXCLUSION: Duration = Duration::from_secs(10);

/// Promise 14: a member is excluded. It and the others are told, they meet without it, and when it is let in again it gets a
/// place if it has waited.
pub(crate) fn exclude_one(world: &mut World, rng: &mut Rng) -> Result<(), Violation> {
    let members = world.members();
    let excluded = members[rng.usize(..members.len())];
    let (round, node) = (world.check.round().round, world.processes[excluded].id.clone());
    let who = whom(&node, false);
    world.keeper_changes(ExclusionChange::Exclude(who.clone(), "it is sick".to_owned(), None));
    let is_told = |world: &World, index: &usize| {
        world.processes[*index].told.as_ref().is_some_and(|(told, _)| *told == round)
    };
    let end = world.now + MOMENT;
    let told = world.run_while(end, |world| !members.iter().all(|index| is_told(world, index)))?;
    promise!(14, told, "{node} is excluded, and not all were told: {}", state(world));
    for index in &members {
        let told = world.processes[*index].told.as_ref().map(|(_, change)| change);
        let right = match told {
            Some(Change::KeptOut(exclusion)) => *index == excluded && exclusion.reason == "it is sick",
            Some(Change::MemberKeptOut { node: kept_out, .. }) => *index != excluded && *kept_out == node,
            // Who is quick to ask for another round may be heard of first.
            Some(Change::Left { .. }) => *index != excluded,
            _ => false,
        };
        promise!(14, right, "{node} is excluded, and {} was told {told:?}", world.name(*index));
    }
    // Where nobody is left of the group, newcomers form one as at the beginning.
    let alone = if members.len() == 1 { world.setup.last_call } else { Duration::ZERO };
    let alone = alone + world.setup.replacement;
    let met = world.run_while(world.now + MOMENT + alone, |world| !is_settled(world))?;
    promise!(14, met, "{node} is excluded, and the others have not met: {}", state(world));
    let process = &world.processes[excluded];
    let refused = matches!(&process.refusal, Some(Refusal::Excluded(exclusion)) if exclusion.whom == who);
    promise!(14, refused != process.waits_out, "{node} is excluded, and was told {:?}", process.refusal);
    if rng.bool() {
        world.keeper_changes(ExclusionChange::Include(who));
        world.run_for(MOMENT)?;
        settle(world, MOMENT + alone + world.setup.last_call)?;
    }
    Ok(())
}

/// Promises 7 and 8, and who takes the place: a member dies or leaves.
pub(crate) fn lose_one(world: &mut World, rng: &mut Rng) -> Result<(), Violation> {
    let members = world.members();
    let lost = members[rng.usize(..members.len())];
    let before: BTreeMap<usize, usize> =
        members.iter().filter_map(|index| Some((*index, world.processes[*index].is_in()?.rank))).collect();
    let (round, node) = (world.check.round().round, world.processes[lost].id.clone());
    let others: Vec<usize> = members.into_iter().filter(|index| *index != lost).collect();
    let waits = |index: &usize| !world.is_kept_out(&world.processes[*index].id);
    let spares = world.living().filter(waits).count() - others.len() - 1;
    let (dies, overlooked) = (rng.bool(), world.overlooked);
    let mut within = MOMENT;
    if dies {
        world.crash(lost);
        within += world.setup.lease + Duration::from_secs(1);
    } else {
        world.processes[lost].returns = false;
        world.leave(lost)?;
    }
    let end = world.now + within;
    let is_told = |world: &World, index: &usize| {
        world.processes[*index].told.as_ref().is_some_and(|(told, _)| *told == round)
    };
    let told = world.run_while(end, |world| !others.iter().all(|index| is_told(world, index)))?;
    promise!(7, told, "{node} is gone for {within:?} and not all were told: {}", state(world));
    let rank = before[&lost];
    let (died, left) = (Change::Died { node: node.clone(), rank }, Change::Left { node, rank });
    // Of whom it was overlooked how he went it is only known that he is gone.
    let overlooked = world.overlooked > overlooked;
    for index in &others {
        let told = world.processes[*index].told.as_ref().map(|(_, change)| change);
        let right = told == Some(if dies { &died } else { &left }) || (overlooked && told == Some(&died));
        promise!(7, right, "of {left:?}, who died: {dies}, {} was told {told:?}", world.name(*index));
    }
    // Where nobody is left of the group, newcomers form one as at the beginning.
    let alone = if others.is_empty() { within + world.setup.last_call } else { Duration::ZERO };
    let alone = alone + world.setup.replacement;
    let met = world.run_while(world.now + MOMENT + alone, |world| !is_settled(world))?;
    promise!(8, met, "all are back, and have not met: {}", state(world));
    // With a last call that is shorter than a program takes to come back, some may be late.
    if world.setup.settings.policy == RankPolicy::Sticky && world.setup.last_call >= MOMENT / 2 {
        kept_ranks(world, &others, &before, rank, spares)?;
    }
    Ok(())
}

fn kept_ranks(
    world: &World,
    others: &[usize],
    before: &BTreeMap<usize, usize>,
    free: usize,
    spares: usize,
) -> Result<(), Violation> {
    let now = world.members();
    for index in others {
        let rank = world.processes[*index].is_in().map(|joined| joined.rank);
        let keeps = before[index] >= now.len() || rank == Some(before[index]);
        let name = world.name(*index);
        promise!(7, now.is_empty() || keeps, "{name} had rank {} and has {rank:?}", before[index]);
    }
    let takes = now.iter().any(|index| {
        !others.contains(index) && world.processes[*index].is_in().is_some_and(|joined| joined.rank == free)
    });
    promise!(7, spares == 0 || now.is_empty() || takes, "no spare took rank {free}: {}", state(world));
    Ok(())
}

/// Promises 4 and 5: the run is closed, all are told, and nothing stays in etcd.
pub(crate) fn end(world: &mut World, rng: &mut Rng) -> Result<(), Violation> {
    let ends_well = world.check.round().closed.is_none() && !world.members().is_empty();
    if world.check.round().closed.is_none() {
        let members = world.members();
        if !members.is_empty() && rng.u8(..4) > 0 {
            world.close(members[rng.usize(..members.len())], "all done")?;
            world.run_while(world.now + MOMENT, |world| world.check.round().closed.is_none())?;
        }
        // The others may have gone on without the one that wanted to close it.
        if world.check.round().closed.is_none() {
            world.operator_closes("it is enough");
            let closed = world.run_while(world.now + MOMENT, |world| world.check.round().closed.is_none())?;
            promise!(4, closed, "an operator cannot close the run: {}", state(world));
        }
    }
    let all_live = world.check.all_live(world.living().map(|index| &world.processes[index]));
    // In a large group it is the leader who tidies up, and a snapshot may have brought back the key of an earlier one.
    let led = world.check.round().world_size <= 16 || world.leader().is_some();
    let late = world.start("late")?;
    let over = world.run_while(world.now + MOMENT * 2, |world| world.living().next().is_some())?;
    promise!(4, over, "the run is closed, and not all are gone: {}", state(world));
    let mut left: Vec<&str> = world.etcd.prefix(RUN).map(|entry| entry.key.as_str()).collect();
    // Its past is there for a while.
    left.retain(|key| !key.starts_with(&world.keys.events()));
    // A lease that a snapshot brought back lives for its time.
    left.retain(|key| *key != world.keys.leader() || world.check.losses == 0);
    promise!(
        5,
        !(ends_well && all_live && led) || left == [world.keys.round()],
        "the run has ended well, and etcd has {left:?}"
    );
    let refusal = &world.processes[late].refusal;
    let told = matches!((refusal, &world.check.round().closed), (Some(Refusal::Closed(told)), Some(reason)) if told == reason);
    promise!(4, told, "who came late was told {refusal:?}");
    world.run_for(world.setup.closed_ttl + world.setup.run_ttl + world.setup.lease + MOMENT)?;
    // What is nobody's stays, where nobody is left.
    let left = world.etcd.prefix(RUN).filter(|entry| entry.value != SCRIBBLE);
    let left: Vec<&str> = left.map(|entry| entry.key.as_str()).collect();
    promise!(5, left.is_empty(), "the run is over, and etcd has {left:?}");
    Ok(())
}

/// For messages.
pub(crate) fn state(world: &World) -> String {
    let mut text = format!("{:?};", world.check.round());
    for index in world.living() {
        let phase = match &world.processes[index].phase {
            Phase::In(joined) => format!("rank {} of round {}", joined.rank, joined.round),
            other => format!("{other:?}"),
        };
        text += &format!(" {}: {phase};", world.name(index));
    }
    text
}
