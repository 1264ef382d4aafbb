//! The barrier on the v2 wire beside PyTorch's `etcd` rendezvous: the time to form a group, and to meet again.

use rallypoint_testkit::{Etcd, Version};

use crate::measure::Samples;
use crate::processes::{Group, Nursery};
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

const MANY: usize = 128;
const FEW: usize = 4;

pub(crate) fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.4 with fsync and --enable-v2, one process for each node, {cores} cores, {} rounds in turn",
        options.rounds
    ));
    let etcd = Etcd::builder(Version::V34).v2().start();
    let mut nursery = Nursery::start();
    report.setting.push(format!("PyTorch {}: its `etcd` rendezvous, on the same etcd", nursery.version));

    let [mut formed, mut theirs_formed] = [(); 2].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("{MANY} nodes, round {} of {} ...", round + 1, options.rounds);
        formed.push(Group::start("etcd", &etcd, &mut nursery, MANY, 0, (MANY, MANY)).meet());
        theirs_formed.push(Group::start("etcd", &etcd, &mut nursery, 0, MANY, (MANY, MANY)).meet());
    }

    let [mut again, mut theirs_again, mut mixed_again, mut without, mut theirs_without] =
        [(); 5].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("meeting again, round {} of {} ...", round + 1, options.rounds);
        for (ours, theirs, samples) in
            [(FEW, 0, &mut again), (0, FEW, &mut theirs_again), (FEW / 2, FEW / 2, &mut mixed_again)]
        {
            let mut group = Group::start("etcd", &etcd, &mut nursery, ours, theirs, (FEW, FEW));
            group.meet();
            samples.push(group.meet());
        }
        for (ours, theirs, samples) in [(FEW, 0, &mut without), (0, FEW, &mut theirs_without)] {
            let mut group = Group::start("etcd", &etcd, &mut nursery, ours, theirs, (FEW - 1, FEW));
            group.meet();
            samples.push(group.meet_without_one());
        }
    }
    let seconds = |name, ours, rival, theirs, promise| Comparison {
        name,
        unit: "s",
        ours,
        rival,
        theirs,
        promise: Some(Promise::AtMost(promise)),
    };
    let mut second = Samples::default();
    second.push(1.0);
    report.comparisons = vec![
        seconds("a group of 128", formed, "PyTorch", theirs_formed, 0.33),
        seconds("4 nodes meet again", again.clone(), "PyTorch", theirs_again.clone(), 1.0),
        seconds("4 nodes meet again", again, "the promise", second.clone(), 1.0),
        seconds("2 of ours and 2 of PyTorch's meet again", mixed_again, "4 of PyTorch's", theirs_again, 1.0),
        seconds("one of 4 leaves, 3 meet again", without.clone(), "PyTorch", theirs_without, 1.0),
        seconds("one of 4 leaves, 3 meet again", without, "the promise", second, 1.0),
    ];
    report
}
