//! A large group that has formed: what it costs while nothing happens, and how it gets over the death of half of it.

use std::time::Duration;

use rallypoint::cli::bench::{CONNECTIONS, Group, disband, form_on, idle, mass_death};
use rallypoint_rendezvous::native::NativeSettings;
use rallypoint_testkit::{Cluster, Etcd, Version};

use super::formation::grouped;
use crate::measure::Samples;
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

/// What etcd may take of a processor for 1,000 nodes at rest, all three members together.
const AT_REST: f64 = 0.5;
/// How long a group may take beyond the lease until it is whole again.
const WHOLE_AGAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(plan: &Plan, part: &mut Part) {
    let nodes = plan.pick(1_000, 100);
    let seconds = plan.pick(30, 5);
    part.setting.push(format!(
        "at rest: {} nodes with a connection each on three members of etcd 3.5, for {seconds} s",
        grouped(nodes)
    ));
    plan.say(&format!("{} nodes at rest", grouped(nodes)));
    part.comparisons.push(at_rest(plan, nodes, Duration::from_secs(seconds)).await);

    let nodes = plan.pick(10_000, 100);
    part.setting.push(format!(
        "many deaths: half of {} nodes, on an etcd 3.5 and with the lease that a group of that size has",
        grouped(nodes)
    ));
    plan.say(&format!("half of {} nodes die", grouped(nodes)));
    part.comparisons.push(many_deaths(plan, nodes).await);
}

async fn at_rest(plan: &Plan, nodes: usize, time: Duration) -> Comparison {
    let cluster = Cluster::start(Version::V35, 3);
    let (settings, group) = formed(&cluster.endpoints(), nodes, 0, nodes).await;
    let measured = idle(&settings, nodes, time).await.expect("a real etcd counts");
    disband(group).await;
    let beside = (Samples::one(measured.processors_per_1000), "a processor", Samples::one(1.0));
    Comparison::new("etcd for 1,000 nodes at rest", "", beside, plan.in_full(Promise::AtMost(AT_REST)))
}

async fn many_deaths(plan: &Plan, nodes: usize) -> Comparison {
    let etcd = Etcd::start(Version::V35);
    let (settings, mut group) = formed(&etcd.endpoint(), nodes, nodes / 2, CONNECTIONS).await;
    let died = mass_death(&settings, &mut group, nodes / 2).await.expect("the others meet again");
    disband(group).await;
    let bound = (settings.lease + WHOLE_AGAIN).as_secs_f64();
    let beside = (Samples::one(died.whole_seconds), "the lease and 5 s", Samples::one(bound));
    let name = format!("half of {} nodes die: the others are whole", grouped(nodes));
    Comparison::new(name, "s", beside, plan.in_full(Promise::AtMost(1.0)))
}

/// A group of which `deaths` may die.
async fn formed(endpoints: &str, nodes: usize, deaths: usize, connections: usize) -> (NativeSettings, Group) {
    let run = format!("bench-{:016x}", fastrand::u64(..));
    let settings = NativeSettings::new(endpoints, &run, nodes - deaths, nodes).expect("they can be used");
    let group = form_on(&settings, nodes, connections).await.expect("a group forms");
    (settings, group)
}
