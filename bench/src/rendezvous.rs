//! The native rendezvous on a real etcd, beside what that etcd can do at all, and beside PyTorch's `etcd`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use rallypoint::cli::bench::{Formation, Group as Nodes, disband, form};
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{Rendezvous, RendezvousHandler as _};
use rallypoint_testkit::{Etcd, Version};

use crate::measure::Samples;
use crate::processes::{Group, Nursery};
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

/// As tasks of this process, on a few connections; the largest last.
const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const MANY: usize = 1_000;
const PROCESSES: usize = 256;
const LEASE: Duration = Duration::from_secs(2);

pub(crate) async fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.5 with fsync, {cores} cores, {} rounds; nodes as tasks of one process unless it says processes",
        options.rounds
    ));
    let mut formed = SIZES.map(|size| (size, Vec::new()));
    for round in 0..options.rounds {
        for (size, formations) in &mut formed {
            eprintln!("{size} nodes, round {} of {} ...", round + 1, options.rounds);
            // Each group has an etcd to itself: what the one before left to be cleaned up is not its affair.
            let etcd = Etcd::start(Version::V35);
            let group = form(&settings(&etcd, *size, *size), *size).await.expect("a group forms");
            assert!(group.formation.ranks_ok, "every rank once");
            formations.push(group.formation.clone());
            disband(group).await;
        }
    }
    report.comparisons.extend(formations(&formed));
    report.comparisons.extend(again(options).await);
    report.comparisons.extend(deaths(options).await);
    if !options.no_torch {
        report.comparisons.push(tokio::task::block_in_place(|| processes(&mut report.setting)));
    }
    report
}

fn settings(etcd: &Etcd, min: usize, max: usize) -> NativeSettings {
    let run = format!("bench-{:016x}", fastrand::u64(..));
    NativeSettings::new(&etcd.endpoint(), &run, min, max).expect("they can be used")
}

fn samples(formations: &[Formation], figure: impl Fn(&Formation) -> f64) -> Samples {
    let mut samples = Samples::default();
    samples.extend(formations.iter().map(figure));
    samples
}

fn at_most(
    name: &'static str,
    unit: &'static str,
    (ours, rival, theirs): (Samples, &'static str, Samples),
    promise: f64,
) -> Comparison {
    Comparison { name, unit, ours, rival, theirs, promise: Some(Promise::AtMost(promise)) }
}

fn formations(formed: &[(usize, Vec<Formation>); 4]) -> Vec<Comparison> {
    let [(_, ten), (_, hundred), (_, thousand), (_, most)] = formed;
    let seconds = |formations: &[Formation]| samples(formations, |one| one.seconds);
    let floor = |formations: &[Formation]| samples(formations, |one| one.floor_seconds);
    let per_node = |formations: &[Formation]| samples(formations, |one| one.seconds / one.nodes as f64 * 1e6);
    let requests = |formations: &[Formation]| {
        samples(formations, |one| one.requests_per_node.expect("a real etcd counts"))
    };
    let rival = "the floor: as many leases and puts";
    vec![
        at_most("1,000 nodes meet", "s", (seconds(thousand), rival, floor(thousand)), 2.0),
        at_most("10,000 nodes meet", "s", (seconds(most), rival, floor(most)), 2.0),
        at_most("time per node, of 10,000", "us", (per_node(most), "of 1,000", per_node(thousand)), 1.3),
        at_most("requests per node, of 100", "", (requests(hundred), "of 10", requests(ten)), 1.0),
        at_most("requests per node, of 1,000", "", (requests(thousand), "of 10", requests(ten)), 1.0),
        at_most("requests per node, of 10,000", "", (requests(most), "of 10", requests(ten)), 1.0),
    ]
}

async fn meet(nodes: &[Arc<NativeHandler>]) -> Vec<Rendezvous> {
    try_join_all(nodes.iter().map(|node| node.next_rendezvous())).await.expect("they meet")
}

/// One of many leaves in good order, and the others meet again.
async fn again(options: &Options) -> Vec<Comparison> {
    let [mut first, mut second] = [(); 2].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("{MANY} nodes meet again, round {} of {} ...", round + 1, options.rounds);
        let etcd = Etcd::start(Version::V35);
        let mut group = form(&settings(&etcd, 1, MANY), MANY).await.expect("a group forms");
        first.push(group.formation.seconds);
        let leaver = group.nodes.swap_remove(MANY / 2);
        let began = Instant::now();
        leaver.leave().await.expect("etcd answers");
        join_all(group.nodes.iter().map(|node| node.changed())).await;
        assert_eq!(meet(&group.nodes).await[0].world_size, MANY - 1);
        second.push(began.elapsed().as_secs_f64());
        disband(group).await;
    }
    vec![at_most("1,000 nodes meet again after one left", "s", (second, "the first time", first), 1.0)]
}

/// One of many dies; a spare takes its place.
async fn deaths(options: &Options) -> Vec<Comparison> {
    let [mut known, mut whole, mut taken] = [(); 3].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("one of {MANY} nodes dies, round {} of {} ...", round + 1, options.rounds);
        let etcd = Etcd::start(Version::V35);
        let settings = NativeSettings { lease: LEASE, ..settings(&etcd, 1, MANY) };
        let group = form(&settings, MANY).await.expect("a group forms");
        let Nodes { formation, mut nodes } = group;
        // Dropped without a word, which is what etcd sees of a process that is killed.
        drop(nodes.swap_remove(MANY / 2));
        let began = Instant::now();
        join_all(nodes.iter().map(|node| node.changed())).await;
        known.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        let before = meet(&nodes).await;
        whole.push(began.elapsed().as_secs_f64());

        // Full again, with one to spare.
        let client =
            rallypoint::etcd::v3::Client::connect(settings.etcd.clone()).await.expect("etcd answers");
        let newcomer = |name: &str| {
            let settings = NativeSettings { node_id: Some(name.to_owned()), ..settings.clone() };
            NativeHandler::with_client(settings, client.clone())
        };
        let filler = Arc::new(newcomer("filler").await.expect("it can be made"));
        nodes.push(filler);
        drop(before);
        let before = meet(&nodes).await;
        let spare = Arc::new(newcomer("spare").await.expect("it can be made"));
        let standing_by = tokio::spawn({
            let spare = Arc::clone(&spare);
            async move { spare.next_rendezvous().await }
        });
        let mut progress = spare.progress();
        progress.wait_for(|progress| progress.spare).await.expect("it stands by");
        let dead = nodes.swap_remove(MANY / 3);
        let (mut ranks, rank) =
            (before.iter().map(|round| round.rank).collect::<Vec<_>>(), before[MANY / 3].rank);
        ranks.swap_remove(MANY / 3);
        drop(dead);
        join_all(nodes.iter().map(|node| node.changed())).await;
        let began = Instant::now();
        let after = meet(&nodes).await;
        let taker = standing_by.await.expect("it does not panic").expect("it gets in");
        taken.push(began.elapsed().as_secs_f64());
        assert!(after.iter().map(|round| round.rank).eq(ranks), "nobody else's rank changes");
        assert_eq!(taker.rank, rank, "the spare has the dead node's rank");
        nodes.push(spare);
        disband(Nodes { formation, nodes }).await;
    }
    let promised = |seconds| {
        let mut samples = Samples::default();
        samples.push(seconds);
        samples
    };
    let lease = promised(LEASE.as_secs_f64() + 1.0);
    vec![
        at_most("a death is known to 999", "s", (known, "lease and 1 s", lease), 1.0),
        at_most("999 nodes are whole again after that", "s", (whole, "the promise", promised(1.0)), 1.0),
        at_most("a spare has taken over after that", "s", (taken, "the promise", promised(0.5)), 1.0),
    ]
}

/// A process for each node, on both sides. PyTorch's side takes minutes, so there is one round.
fn processes(setting: &mut Vec<String>) -> Comparison {
    let mut nursery = Nursery::start();
    setting.push(format!("PyTorch {}: its `etcd` rendezvous, on etcd 3.4 with --enable-v2", nursery.version));
    let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
    let size = (PROCESSES, PROCESSES);
    eprintln!("{PROCESSES} nodes as processes ...");
    let etcd = Etcd::start(Version::V35);
    ours.push(Group::start("rallypoint", &etcd, &mut nursery, PROCESSES, 0, size).meet());
    eprintln!("{PROCESSES} nodes of PyTorch's ...");
    let etcd = Etcd::builder(Version::V34).v2().start();
    theirs.push(Group::start("etcd", &etcd, &mut nursery, 0, PROCESSES, size).meet());
    at_most("256 nodes as processes", "s", (ours, "PyTorch `etcd`", theirs), 0.02)
}
