//! A member whose network is cut, in a network namespace of its own.

use rallypoint_testkit::{Etcd, Host, Network, Version};

use super::processes::{Process, example, rounds};

fn node(host: &Host, etcd: &Etcd) -> Process {
    // They meet when all are there, however long one of them takes to come.
    let options = "lease_timeout=2,last_call_timeout=20,read_timeout=1";
    Process::start_by(host.command(example()), &etcd.endpoint(), "cut", 2, 3, options)
}

#[test]
fn a_member_that_is_cut_off_is_missed_and_comes_back() {
    let network = Network::start(3).unwrap();
    let etcd = Etcd::builder(Version::V35).on(&network.hub()).start();
    let mut group: Vec<Process> = network.hosts().iter().map(|host| node(host, &etcd)).collect();
    let first = rounds(&group);
    assert!(first[0]["master"].as_str().unwrap().starts_with("10.77.0.1"), "{first:?}");

    network.host(2).cut();
    let cut = group.pop().unwrap();
    let second = rounds(&group);
    assert_eq!((&second[0]["round"], &second[0]["world_size"]), (&2.into(), &2.into()));

    network.host(2).mend();
    group.push(cut);
    let third = rounds(&group);
    assert_eq!((&third[0]["round"], &third[0]["world_size"]), (&3.into(), &3.into()));
}
