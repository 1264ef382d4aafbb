//! A random life of a run: what is drawn from a seed, and what goes wrong in it.

use std::num::NonZeroUsize;
use std::time::Duration;

use fastrand::Rng;
use rallypoint_core::round::{ExclusionChange, PLACES_PER_REQUEST, RankPolicy, RunSettings, WhenExcluded};

use crate::check::Violation;
use crate::etcd::MIN_TTL;
use crate::faults::Loss;
use crate::finale::{self, LONGEST_EXCLUSION};
use crate::keeper::whom;
use crate::network::Weather;
use crate::planted::Planted;
use crate::process::{Crash, Phase};
use crate::world::{Setup, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Crash,
    CrashLeader,
    CrashAtRequest,
    CrashAll,
    Restart,
    /// A second process by the name of one that runs.
    Double,
    Newcomer,
    Mismatch,
    Leave,
    CloseByMember,
    CloseByOther,
    CloseByOperator,
    Stall,
    StallLeader,
    Cut,
    CutMany,
    EtcdPaused,
    EtcdRestarted,
    Compaction,
    WorkerFailure,
    /// The program gives up on a round and asks for it anew, with another port.
    AskAgain,
    /// A process leaves and comes back as the same process.
    Return,
    /// A program does not react to anything.
    Hang,
    /// What the watches of a process tell comes late, as from a member of etcd that lags behind.
    Lag,
    BackUp,
    DataLost,
    Denied,
    DeniedAll,
    Full,
    /// etcd ends a lease that was refreshed in time.
    LeaseEnded,
    /// Somebody who is no node has written at the leader's key.
    Scribble,
    /// A node, or all of a machine, is kept out: for some seconds, or for good. Only in choosy worlds.
    Exclude,
    /// Somebody is let in again, or everybody. Only in choosy worlds.
    Include,
}

/// From this seed on, worlds are choosy: some are kept out in them, or only whole segments are seated. What else happens in
/// them is drawn as in the others.
pub(crate) const CHOOSY: u64 = 1 << 40;

const FAULTS: [Fault; 31] = [
    Fault::Crash,
    Fault::CrashLeader,
    Fault::CrashAtRequest,
    Fault::CrashAll,
    Fault::Restart,
    Fault::Double,
    Fault::Newcomer,
    Fault::Mismatch,
    Fault::Leave,
    Fault::CloseByMember,
    Fault::CloseByOther,
    Fault::CloseByOperator,
    Fault::Stall,
    Fault::StallLeader,
    Fault::Cut,
    Fault::CutMany,
    Fault::EtcdPaused,
    Fault::EtcdRestarted,
    Fault::Compaction,
    Fault::WorkerFailure,
    Fault::AskAgain,
    Fault::Return,
    Fault::Hang,
    Fault::Lag,
    Fault::BackUp,
    Fault::DataLost,
    Fault::Denied,
    Fault::DeniedAll,
    Fault::Full,
    Fault::LeaseEnded,
    Fault::Scribble,
];

/// What came of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) rounds: u64,
    pub(crate) processes: usize,
    pub(crate) requests: u64,
    pub(crate) revision: i64,
}

/// Lives through the world of a seed.
pub(crate) fn live(seed: u64, planted: Planted, traced: bool) -> Result<Figures, Violation> {
    let mut rng = Rng::with_seed(seed);
    let mut world = draw(&mut rng, planted, seed >= CHOOSY);
    world.planted = planted;
    world.traced = traced;
    world.trace(|| format!("{:?}, {:?}", world.setup, world.weather));
    let names = rng.usize(1..=world.setup.settings.max_nodes + 2);
    let mut faults = draw_faults(&mut rng, planted, world.setup.run_ttl);
    if seed >= CHOOSY && planted.faults().is_empty() && rng.u8(..4) > 0 {
        faults.extend([Fault::Exclude, Fault::Include]);
    }
    world.trace(|| format!("{names} names, faults: {faults:?}"));

    for name in 0..names {
        world.start(&format!("n{name}"))?;
        let pause = world.up_to(Duration::from_millis(200));
        world.run_for(pause)?;
    }
    let end = world.now + Duration::from_secs(rng.u64(3..30));
    let gap = Duration::from_millis(rng.u64(50..2_500));
    while world.now < end && !faults.is_empty() {
        let pause = world.up_to(gap * 2);
        world.run_for(pause)?;
        let fault = faults[rng.usize(..faults.len())];
        strike(&mut world, &mut rng, fault, names)?;
    }
    finale::check(&mut world, &mut rng, names)?;
    Ok(Figures {
        rounds: world.check.commits,
        processes: world.processes.len(),
        requests: world.processes.iter().map(|process| process.requests).sum(),
        revision: world.etcd.revision(),
    })
}

fn draw(rng: &mut Rng, planted: Planted, choosy: bool) -> World {
    let max_nodes = if rng.u8(..10) == 0 { rng.usize(1..=24) } else { rng.usize(1..=7) };
    let min_nodes = if rng.bool() {
        rng.usize(1..=max_nodes)
    } else {
        1 + rng.usize(..=max_nodes / 3).min(max_nodes - 1)
    };
    let policy = if rng.u8(..3) > 0 { RankPolicy::Sticky } else { RankPolicy::ALL[rng.usize(..4)] };
    let mut setup = Setup {
        settings: RunSettings { min_nodes, max_nodes, policy },
        lease: Duration::from_secs(if rng.bool() { 2 } else { 5 }),
        last_call: Duration::from_millis([100, 1_000, 5_000, 20_000][rng.usize(..4)]),
        replacement: Duration::ZERO,
        // A short one ends in some outages.
        run_ttl: Duration::from_secs(if rng.u8(..4) == 0 { 12 } else { 90 }),
        // Longer than all that follows, so that whoever comes late can be told.
        closed_ttl: Duration::from_secs(300),
        places: &[2, 5, PLACES_PER_REQUEST],
        racks: None,
        when_excluded: &[WhenExcluded::End],
    };
    if choosy {
        choose(rng, &mut setup);
    }
    let mut some = |most: f64| if rng.bool() { most * rng.f64() } else { 0.0 };
    let mut weather = Weather {
        slow: some(0.4),
        lost: some(0.15),
        late: some(0.15),
        snapshot: some(0.2),
        twice: some(0.1),
        busy: false,
    };
    if planted == Planted::CommitUnfenced {
        // It takes a commit that is carried out when there is another leader, who has not planned yet.
        (setup.lease, setup.last_call, weather.late) = (MIN_TTL, Duration::from_secs(5), 0.3);
    }
    let seed = rng.u64(..);
    setup.replacement = Duration::from_secs(if seed % 5 == 1 { 3 } else { 0 });
    weather.busy = seed % 7 == 3;
    let mut world = World::new(seed, setup, weather);
    world.lax = seed.is_multiple_of(4);
    world
}

/// Makes a world choosy.
fn choose(rng: &mut Rng, setup: &mut Setup) {
    setup.when_excluded = &[WhenExcluded::End, WhenExcluded::Wait];
    if let Some(size) = NonZeroUsize::new(rng.usize(..5)) {
        // Mostly there are more nodes than make whole segments, here and there.
        let RunSettings { min_nodes, max_nodes, policy } = &mut setup.settings;
        let whole = |nodes: usize| nodes.div_ceil(size.get()) * size.get();
        (*min_nodes, *max_nodes) = (whole(*min_nodes), whole(*max_nodes));
        *policy = RankPolicy::Segment { size };
        setup.racks = Some(rng.usize(1..=3));
    }
}

/// Each world has its own few kinds of faults, so that rare ones are not drowned by the others.
fn draw_faults(rng: &mut Rng, planted: Planted, run_ttl: Duration) -> Vec<Fault> {
    if !planted.faults().is_empty() {
        return planted.faults().to_vec();
    }
    let mut faults = FAULTS.to_vec();
    // The end of the run is the end of most of what can happen.
    faults.retain(|fault| {
        rng.u8(..100)
            < match fault {
                Fault::CloseByMember | Fault::CloseByOperator => 4,
                Fault::DataLost | Fault::Full => 15,
                _ => 30,
            }
    });
    if faults.contains(&Fault::DataLost) || run_ttl < Duration::from_secs(60) {
        // It could be the one that begins the run anew.
        faults.retain(|fault| *fault != Fault::Mismatch);
    }
    faults
}

fn strike(world: &mut World, rng: &mut Rng, fault: Fault, names: usize) -> Result<(), Violation> {
    let living: Vec<usize> = world.living().collect();
    let any = if living.is_empty() { None } else { Some(living[rng.usize(..living.len())]) };
    let leader = world.leader();
    let lease = world.setup.lease;
    let fresh = format!("n{}", names + rng.usize(..3));
    match (fault, any) {
        (Fault::Crash, Some(index)) => world.crash(index),
        (Fault::CrashLeader, _) => leader.into_iter().for_each(|index| world.crash(index)),
        (Fault::CrashAtRequest, Some(index)) => {
            let index = leader.filter(|_| rng.bool()).unwrap_or(index);
            let process = &mut world.processes[index];
            let request = process.requests + rng.u64(1..5);
            process.crash = Some(Crash { request, lost: rng.bool() });
        }
        (Fault::CrashAll, _) if rng.u8(..4) == 0 => living.into_iter().for_each(|index| world.crash(index)),
        (Fault::Restart, _) => {
            let dead: Vec<String> = (0..names)
                .map(|name| format!("n{name}"))
                .filter(|id| !world.living().any(|index| world.processes[index].id == *id))
                .collect();
            if !dead.is_empty() {
                world.start(&dead[rng.usize(..dead.len())])?;
            }
        }
        (Fault::Double, Some(index)) => {
            let id = world.processes[index].id.clone();
            if id != "odd" {
                world.start(&id)?;
            }
        }
        (Fault::Newcomer, _) if !world.living().any(|index| world.processes[index].id == fresh) => {
            world.start(&fresh)?;
        }
        (Fault::Mismatch, _) => {
            let mut settings = world.setup.settings;
            settings.max_nodes += 1;
            // It must not be the one that begins the run.
            if world.round().is_some_and(|record| record.round > 0) {
                world.start_with("odd", settings)?;
            }
        }
        (Fault::Leave, Some(index)) => world.leave(index)?,
        (Fault::CloseByMember, Some(index)) => world.close(index, "the work is done")?,
        (Fault::CloseByOther, _) => {
            let other = living.into_iter().find(|index| {
                let process = &world.processes[*index];
                process.phase == Phase::Joining && !world.check.is_member(process)
            });
            if let Some(index) = other {
                world.close(index, "not its to close")?;
            }
        }
        (Fault::CloseByOperator, _) => world.operator_closes("an operator has closed it"),
        (Fault::Hang, Some(index)) => {
            let time = world.up_to(Duration::from_secs(60));
            world.hang(index, time);
        }
        (Fault::Lag, Some(index)) => {
            let lag = world.up_to(Duration::from_secs(3));
            world.lag(index, lag);
        }
        (Fault::BackUp, _) => world.back_up(),
        (Fault::DataLost, _) if world.now >= world.etcd_away_until => {
            let (empty, overtakes, compacted) = (rng.bool(), rng.bool(), rng.bool());
            world.lose_data(Loss { empty, overtakes, compacted })?;
        }
        (Fault::Denied, Some(index)) => {
            let time = world.up_to(lease * 3);
            world.deny(index, time);
        }
        (Fault::DeniedAll, _) => {
            let time = world.up_to(lease * 4);
            world.deny_all(time);
        }
        (Fault::Full, _) => {
            let time = world.up_to(lease * 3);
            world.fill(time);
        }
        (Fault::LeaseEnded, Some(index)) => world.end_lease(index)?,
        (Fault::Scribble, _) if world.leader().is_some() => world.scribble(world.keys.leader())?,
        (Fault::Exclude, _) => {
            let id = format!("n{}", rng.usize(..names));
            let time = Duration::from_secs(rng.u64(1..=LONGEST_EXCLUSION.as_secs()));
            let who = whom(&id, rng.u8(..4) == 0);
            let time = (rng.u8(..3) > 0).then_some(time);
            world.keeper_changes(ExclusionChange::Exclude(who, format!("{id} is sick"), time));
        }
        (Fault::Include, _) if rng.u8(..3) == 0 => world.keeper_changes(ExclusionChange::IncludeAll),
        (Fault::Include, _) => {
            let who = whom(&format!("n{}", rng.usize(..names)), rng.u8(..4) == 0);
            world.keeper_changes(ExclusionChange::Include(who));
        }
        (Fault::Stall, Some(index)) => stall(world, rng, index),
        (Fault::StallLeader, _) => leader.into_iter().for_each(|index| stall(world, rng, index)),
        (Fault::Cut, Some(index)) => {
            let time = world.up_to(lease * 3);
            world.cut(index, time);
        }
        (Fault::CutMany, _) => {
            let time = world.up_to(lease * 3);
            for index in living {
                if rng.bool() {
                    world.cut(index, time);
                }
            }
        }
        (Fault::EtcdPaused, _) => etcd_away(world, false),
        (Fault::EtcdRestarted, _) => etcd_away(world, true),
        (Fault::Compaction, _) => world.compact(),
        (Fault::AskAgain, Some(index)) if world.processes[index].phase == Phase::Joining => {
            world.join(index)?;
        }
        (Fault::Return, Some(index)) if world.check.round().closed.is_none() => {
            world.processes[index].returns = true;
            world.leave(index)?;
        }
        (Fault::WorkerFailure, Some(index)) if world.processes[index].is_in().is_some() => {
            world.join(index)?;
        }
        _ => {}
    }
    Ok(())
}

fn stall(world: &mut World, rng: &mut Rng, index: usize) {
    let longest = world.setup.lease * if rng.bool() { 3 } else { 1 };
    let time = world.up_to(longest);
    world.stall(index, time);
}

fn etcd_away(world: &mut World, restarted: bool) {
    let time = world.up_to(world.setup.lease * 3);
    world.etcd_away(time, restarted);
}
