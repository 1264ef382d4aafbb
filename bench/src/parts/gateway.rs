//! A gateway on etcd 3.5 beside the v2 API that etcd 3.4 has itself.

use std::time::Instant;

use rallypoint::EtcdSettings;
use rallypoint::etcd::v2::{Client, Get, Put, Watched};
use rallypoint_testkit::torch_python;
use tokio::task::block_in_place;

use super::formation::{grouped, limit};
use crate::measure::{Samples, in_turn};
use crate::nodes::{Group, MeetingServer, Nursery, Size, Wire};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

const ETCD: &str = "etcd 3.4's own v2";
/// What is asked of each.
const CASES: [(What, &str); 5] = [
    (What::Set, "set"),
    (What::SetWithTtl, "set with a TTL"),
    (What::Get, "get"),
    (What::CompareAndSwap, "compare-and-swap"),
    (What::Watch, "set until its watcher is told"),
];

#[derive(Debug, Clone, Copy)]
enum What {
    Set,
    SetWithTtl,
    Get,
    CompareAndSwap,
    Watch,
}

pub(crate) async fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let (rounds, requests) = (plan.rounds(21, 2), plan.pick(200, 50));
    part.setting.push(format!(
        "the gateway on etcd 3.5 without v2; both etcds with fsync; one client, one request at a time, {requests} a round; \
         rounds in turn: {rounds}"
    ));
    part.comparisons.extend(requests_of_one_client(plan, rounds, requests).await);
    if plan.torch {
        part.comparisons.push(block_in_place(|| formation(plan)));
    }
    part
}

async fn requests_of_one_client(plan: &Plan, rounds: u32, requests: u32) -> Vec<Comparison> {
    let places = block_in_place(|| [MeetingServer::fresh(Wire::Gateway), MeetingServer::fresh(Wire::V2)]);
    let clients = places.each_ref().map(|place| {
        let settings = EtcdSettings::new(&place.endpoint()).expect("an endpoint");
        Client::connect_lazily(settings).expect("settings that can work")
    });
    // What is first in a fresh server pays for it.
    for client in &clients {
        milliseconds(client, What::Set, requests).await;
    }
    let mut comparisons = Vec::new();
    for (what, name) in CASES {
        plan.say(name);
        let mut samples = [(); 2].map(|()| Samples::default());
        for round in 0..rounds {
            for at in in_turn(clients.len(), round) {
                samples[at].push(milliseconds(&clients[at], what, requests).await);
            }
        }
        let [ours, theirs] = samples;
        let promise = Some(Promise::AtMost(3.0));
        comparisons.push(Comparison::new(name, "ms", (ours, ETCD, theirs), promise));
    }
    comparisons
}

/// How long one takes, on the average of so many.
async fn milliseconds(client: &Client, what: What, requests: u32) -> f64 {
    let key = "/bench/dir/key";
    let mut index = client.set(key, "0").await.expect("set").etcd_index;
    let mut spent = 0.0;
    for number in 0..requests {
        let value = number.to_string();
        let mut watching = matches!(what, What::Watch).then(|| {
            let mut watcher = client.watch(key, index + 1);
            tokio::spawn(async move {
                let Watched::Event(event) = watcher.next().await.expect("watch") else {
                    panic!("the past is kept")
                };
                (Instant::now(), event.node.value)
            })
        });
        if watching.is_some() {
            // Until it waits there.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        let answer = match what {
            What::Set | What::Watch => client.set(key, &value).await,
            What::SetWithTtl => {
                client.put(key, Put::value(&value).ttl(std::time::Duration::from_secs(10))).await
            }
            What::Get => client.get(key, Get::new()).await,
            What::CompareAndSwap => client.put(key, Put::value(&value).prev_index(index)).await,
        };
        index = answer.expect("an answer").etcd_index;
        let end = match watching.take() {
            Some(told) => told.await.expect("it is told").0,
            None => Instant::now(),
        };
        spent += (end - began).as_secs_f64() * 1e3;
    }
    spent / f64::from(requests)
}

/// PyTorch's own nodes meet through both.
fn formation(plan: &Plan) -> Comparison {
    // PyTorch sleeps in steps of a second: few rounds tell nothing.
    let (size, rounds) = (plan.pick(32, 8), plan.rounds(21, 1));
    let mut nursery = Nursery::start(&torch_python(), &[]);
    let mut samples = [(); 2].map(|()| Samples::default());
    for round in 0..rounds {
        for at in in_turn(samples.len(), round) {
            plan.say(&format!("{size} nodes of PyTorch, round {} of {rounds}", round + 1));
            let place = MeetingServer::fresh([Wire::Gateway, Wire::V2][at]);
            let mut group = Group::start("etcd", &place, Some(&mut nursery), Size::all(0, size));
            samples[at].push(group.meet(limit(plan, size)).expect("they meet in time"));
        }
    }
    let [ours, theirs] = samples;
    let name = format!("{} nodes of torch etcd meet", grouped(size));
    Comparison::new(name, "s", (ours, ETCD, theirs), plan.in_full(Promise::AtMost(1.2)))
}
