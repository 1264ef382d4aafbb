//! Meeting again: after a node has left in good order, and after it was killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use rallypoint::cli::bench::{disband, form};
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{Rendezvous, RendezvousError, RendezvousHandler as _};
use rallypoint_testkit::{Etcd, Version};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use super::contender::{Contender, Field, TORCH_ETCD, Tries, Whose};
use super::formation::grouped;
use crate::measure::{Samples, in_turn};
use crate::nodes::{Failure, Group, MeetingServer, Size, Wire};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise, Row, Table};

const PROCESSES: usize = 8;
/// Of those that meet on the v2 wire with PyTorch's.
const FEW: usize = 4;
const TASKS: usize = 1_000;
const TASKS_SHORT: usize = 100;
/// Of the nodes that are tasks.
const LEASE: Duration = Duration::from_secs(2);
/// Nothing that is known to end takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// What took this long altogether is not tried again.
const BUDGET: Duration = Duration::from_secs(20);

pub(crate) async fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(3, 1);
    block_in_place(|| {
        let mut field = Field::enter(plan, false);
        part.tables.push(one_goes(plan, &mut part.setting, &mut field, rounds));
        part.comparisons.extend(on_the_v2_wire(plan, &mut field, rounds));
    });
    let nodes = plan.pick(TASKS, TASKS_SHORT);
    part.setting.push(format!(
        "as tasks: {} nodes of one process, native, on etcd 3.5 with fsync, leases of {} s where one dies; \
         rounds: {rounds}",
        grouped(nodes),
        LEASE.as_secs()
    ));
    part.comparisons.extend(after_a_leave(plan, nodes, rounds).await);
    part.comparisons.extend(after_a_death(plan, nodes, rounds).await);
    part
}

/// How a node goes.
#[derive(Debug, Clone, Copy)]
enum Going {
    Leaves,
    IsKilled,
}

/// What is measured from then on.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// All others know, by themselves.
    Known,
    /// They have met again, which they do as soon as they know.
    Whole,
    /// They have met again, which they are told to do at once.
    WholeWhenTold,
}

fn one_goes(plan: &Plan, setting: &mut Vec<String>, field: &mut Field, rounds: u32) -> Table {
    let limit = Duration::from_secs(30);
    // Longer than any keep-alive of theirs lasts.
    let to_know = Duration::from_secs(plan.pick(20, 3));
    setting.push(format!(
        "as processes: {PROCESSES} nodes, of which a round needs {}; every timeout as it comes, but a last call of \
         1 s for all; rounds in turn: {rounds}, at most {} s each; the node that goes is not the one that has the \
         store of c10d",
        PROCESSES - 1,
        limit.as_secs()
    ));
    let mut rows = Vec::new();
    let cases = [
        ("one leaves: the others know", Going::Leaves, Until::Known),
        ("one leaves: they have met again", Going::Leaves, Until::Whole),
        ("one leaves: they have met again, told at once", Going::Leaves, Until::WholeWhenTold),
        ("one is killed: the others know", Going::IsKilled, Until::Known),
        ("one is killed: they have met again", Going::IsKilled, Until::Whole),
        ("one is killed: they have met again, told at once", Going::IsKilled, Until::WholeWhenTold),
    ];
    let mut knows: Vec<bool> = field.contenders.iter().map(|_| true).collect();
    // Those who are killed are found out by a timeout of 5 or 10 s; once is enough in short.
    let is_wanted = |until: &Until, going: &Going| {
        !plan.short || matches!((going, until), (Going::Leaves, _) | (_, Until::Known))
    };
    for (name, going, until) in cases.into_iter().filter(|(_, going, until)| is_wanted(until, going)) {
        // Who never knows is not asked what comes after that; and in short, others are asked nothing that takes
        // as long as their timeouts.
        let left_out = |(contender, knows): (&Contender, &bool)| {
            let takes_long = !matches!((going, until), (Going::Leaves, Until::Known));
            (matches!(until, Until::Whole) && !knows)
                || (plan.short && takes_long && contender.whose != Whose::Ours)
        };
        let mut tries: Vec<Tries> =
            field.contenders.iter().zip(&knows).map(|each| Tries::new(1, left_out(each))).collect();
        for round in 0..rounds {
            for at in in_turn(tries.len(), round) {
                if !tries[at].wants_more(BUDGET) {
                    continue;
                }
                let contender = field.contenders[at];
                plan.say(&format!("{}: {name}, round {} of {rounds}", contender.column, round + 1));
                let limit = match until {
                    _ if contender.whose == Whose::Ours => limit,
                    Until::Known => to_know,
                    _ => limit,
                };
                tries[at].add(measure(contender, field, going, until, limit));
            }
        }
        if matches!(until, Until::Known) {
            knows = tries.iter().map(|tries| !tries.has_failed()).collect();
        }
        let cells = tries.into_iter().map(Tries::outcome).collect();
        rows.push(Row { name: name.to_owned(), x: None, unit: "s".to_owned(), cells });
    }
    let (id, title) = ("again".to_owned(), format!("{PROCESSES} processes, of which one goes"));
    Table { id, title, rows_are: "what, and until when".to_owned(), columns: field.columns(), rows }
}

fn measure(
    contender: Contender,
    field: &mut Field,
    going: Going,
    until: Until,
    limit: Duration,
) -> Result<f64, Failure> {
    let place = MeetingServer::fresh(contender.wire);
    let size = match contender.whose {
        Whose::Ours => Size::but_one(PROCESSES, 0),
        _ => Size::but_one(0, PROCESSES),
    };
    let mut group = Group::start(contender.backend, &place, field.nursery(contender.whose), size);
    group.meet(PATIENCE)?;
    let began = Instant::now();
    match going {
        Going::Leaves => group.one_leaves(),
        Going::IsKilled => group.one_dies(),
    }
    match until {
        Until::Known => group.watch(limit)?,
        Until::Whole => {
            group.watch(limit)?;
            group.meet(limit)?
        }
        Until::WholeWhenTold => group.meet(limit)?,
    };
    Ok(began.elapsed().as_secs_f64())
}

/// The barrier beside PyTorch's `etcd`, whose protocol it speaks, and both in one group.
fn on_the_v2_wire(plan: &Plan, field: &mut Field, rounds: u32) -> Vec<Comparison> {
    let mut again = |ours, theirs, one_leaves| {
        let place = MeetingServer::fresh(Wire::V2);
        let size = if one_leaves { Size::but_one(ours, theirs) } else { Size::all(ours, theirs) };
        let mut group = Group::start("etcd", &place, field.nursery(Whose::Torchs), size);
        group.meet(PATIENCE).expect("they meet");
        let began = Instant::now();
        if one_leaves {
            group.one_leaves();
        }
        group.meet(PATIENCE).expect("they meet again");
        began.elapsed().as_secs_f64()
    };
    let groups =
        [(FEW, 0, false), (FEW, 0, true), (0, FEW, false), (FEW / 2, FEW / 2, false), (0, FEW, true)];
    let mut samples = groups.map(|_| Samples::default());
    // Those with PyTorch's nodes take as long as its timeouts.
    let with_torch = plan.torch && !plan.short;
    let count = if with_torch { groups.len() } else { 2 };
    for round in 0..rounds {
        plan.say(&format!("{FEW} nodes on the v2 wire meet again, round {} of {rounds}", round + 1));
        for at in in_turn(count, round) {
            let (ours, theirs, one_leaves) = groups[at];
            samples[at].push(again(ours, theirs, one_leaves));
        }
    }
    let [ours, without, theirs, mixed, theirs_without] = samples;
    let beside = |name, ours, rival, theirs| {
        Comparison::new(name, "s", (ours, rival, theirs), Some(Promise::AtMost(1.0)))
    };
    let fixed = |name, ours| Comparison::fixed(name, "s", ours, "the promise", 1.0);
    let mut compared = vec![
        fixed("4 nodes on the v2 wire meet again", ours.clone()),
        fixed("one of 4 on the v2 wire leaves, 3 meet again", without.clone()),
    ];
    if with_torch {
        compared.extend([
            beside("4 nodes on the v2 wire meet again", ours, TORCH_ETCD, theirs.clone()),
            beside("2 of ours and 2 of torch etcd meet again", mixed, "4 of torch etcd", theirs),
            beside("one of 4 on the v2 wire leaves, 3 meet again", without, TORCH_ETCD, theirs_without),
        ]);
    }
    compared
}

fn settings(etcd: &Etcd, max: usize) -> NativeSettings {
    let run = format!("bench-{:016x}", fastrand::u64(..));
    NativeSettings::new(&etcd.endpoint(), &run, 1, max).expect("they can be used")
}

async fn meet(nodes: &[Arc<NativeHandler>]) -> Vec<Rendezvous> {
    let meeting = try_join_all(nodes.iter().map(|node| node.next_rendezvous()));
    timeout(PATIENCE, meeting).await.expect("they meet within two minutes").expect("they meet")
}

fn next_round(node: &Arc<NativeHandler>) -> JoinHandle<Result<Rendezvous, RendezvousError>> {
    let node = Arc::clone(node);
    tokio::spawn(async move { node.next_rendezvous().await })
}

/// Waits until all of them know that they must meet again.
async fn changed(nodes: &[Arc<NativeHandler>]) {
    let knowing = join_all(nodes.iter().map(|node| node.changed()));
    timeout(PATIENCE, knowing).await.expect("they know within two minutes");
}

/// One of many leaves in good order, and the others meet again.
async fn after_a_leave(plan: &Plan, nodes: usize, rounds: u32) -> Vec<Comparison> {
    let [mut first, mut second] = [(); 2].map(|()| Samples::default());
    for round in 0..rounds {
        plan.say(&format!("one of {} nodes leaves, round {} of {rounds}", grouped(nodes), round + 1));
        let etcd = Etcd::start(Version::V35);
        let mut group = form(&settings(&etcd, nodes), nodes).await.expect("a group forms");
        first.push(group.formation.seconds);
        let leaver = group.nodes.swap_remove(nodes / 2);
        let began = Instant::now();
        leaver.leave().await.expect("etcd answers");
        changed(&group.nodes).await;
        assert_eq!(meet(&group.nodes).await[0].world_size, nodes - 1);
        second.push(began.elapsed().as_secs_f64());
        disband(group).await;
    }
    let name = format!("{} nodes meet again after one left", grouped(nodes));
    let promise = plan.in_full(Promise::AtMost(1.0));
    vec![Comparison::new(name, "s", (second, "the first time", first), promise)]
}

/// One of many dies; the others meet again; another dies, and a spare takes its place.
async fn after_a_death(plan: &Plan, count: usize, rounds: u32) -> Vec<Comparison> {
    let [mut known, mut whole, mut taken] = [(); 3].map(|()| Samples::default());
    for round in 0..rounds {
        plan.say(&format!("one of {} nodes dies, round {} of {rounds}", grouped(count), round + 1));
        let etcd = Etcd::start(Version::V35);
        let mut settings = settings(&etcd, count);
        settings.lease = LEASE;
        let mut group = form(&settings, count).await.expect("a group forms");
        let nodes = &mut group.nodes;
        // Dropped without a word, which is what etcd sees of a process that is killed.
        drop(nodes.swap_remove(count / 2));
        let began = Instant::now();
        changed(nodes).await;
        known.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        drop(meet(nodes).await);
        whole.push(began.elapsed().as_secs_f64());
        taken.push(spare_takes_over(&settings, nodes, count).await);
        disband(group).await;
    }
    let lease = LEASE.as_secs_f64() + 2.0;
    let others = grouped(count - 1);
    vec![
        Comparison::fixed(format!("a death is known to {others}"), "s", known, "lease and 2 s", lease),
        Comparison::fixed(
            format!("{others} nodes are whole again after that"),
            "s",
            whole,
            "the promise",
            1.0,
        ),
        Comparison::fixed("a spare has taken over after that", "s", taken, "the promise", 0.5),
    ]
}

/// Makes the group full again with one to spare, and lets another die; the seconds from when that is known.
async fn spare_takes_over(
    settings: &NativeSettings,
    nodes: &mut Vec<Arc<NativeHandler>>,
    count: usize,
) -> f64 {
    let client = rallypoint::etcd::v3::Client::connect(settings.etcd.clone()).await.expect("etcd answers");
    let newcomer = |name: &str| {
        let mut settings = settings.clone();
        settings.node_id = Some(name.to_owned());
        NativeHandler::with_client(settings, client.clone())
    };
    let filler = Arc::new(newcomer("filler").await.expect("it can be made"));
    let waiting = next_round(&filler);
    // Who asks for a round before all know of the newcomer could meet without it.
    changed(nodes).await;
    let mut before = meet(nodes).await;
    before.push(waiting.await.expect("it does not panic").expect("it gets in"));
    nodes.push(filler);
    let spare = Arc::new(newcomer("spare").await.expect("it can be made"));
    let standing_by = next_round(&spare);
    spare.progress().wait_for(|progress| progress.spare).await.expect("it stands by");
    let dead = nodes.swap_remove(count / 3);
    let mut ranks: Vec<usize> = before.iter().map(|round| round.rank).collect();
    let rank = ranks.swap_remove(count / 3);
    drop(dead);
    changed(nodes).await;
    let began = Instant::now();
    let after = meet(nodes).await;
    let taker = standing_by.await.expect("it does not panic").expect("it gets in");
    let took = began.elapsed().as_secs_f64();
    assert!(after.iter().map(|round| round.rank).eq(ranks), "nobody else's rank changes");
    assert_eq!(taker.rank, rank, "the spare has the dead node's rank");
    nodes.push(spare);
    took
}
