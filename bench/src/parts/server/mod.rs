//! The embedded server beside a real etcd, with and without its waits for the disk.

mod lean;
pub(crate) mod process;
mod rates;

use std::time::Instant;

use etcd_client::{Client, WatchOptions};
use futures::future::join_all;
use process::{Ours, Server};
use tokio::task::block_in_place;

use crate::measure::{Samples, in_turn};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

const VALUE: [u8; 64] = [b'x'; 64];
const MANY: usize = 10_000;
const ETCD: &str = "etcd";
const ETCD_WITH_FSYNC: &str = "etcd with fsync";

pub(crate) async fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(7, 2);
    part.setting.push(format!(
        "etcd 3.5 with --unsafe-no-fsync, or with fsync where it says so; one client process with one connection, \
         rounds in turn: {rounds}"
    ));
    let (comparisons, table) = block_in_place(|| rates::lean(plan, rounds));
    part.tables.push(table);
    part.comparisons.extend(comparisons);
    part.comparisons.extend(block_in_place(|| rates::on_disk(plan, rounds)));
    part.comparisons.extend(rates::usual(plan, rounds).await);
    if plan.only.is_some() {
        return part;
    }
    part.comparisons.extend(fan_out(plan, rounds).await);
    part.comparisons.extend(memory(plan).await);
    part.comparisons.push(start(plan, rounds));
    part
}

/// So many watches on one key, on one stream.
async fn watches(client: &Client, key: &str, number: usize) -> etcd_client::WatchStream {
    let mut client = client.watch_client();
    let options = |id: usize| Some(WatchOptions::new().with_watch_id(id as i64));
    let mut stream = client.watch(key, options(1)).await.expect("watch");
    let mut created = 0;
    for id in 2..=number {
        stream.watch(key, options(id)).await.expect("watch");
        // Answers are taken as they come: neither side may have to wait for the other.
        while id - created > 50 {
            created += usize::from(stream.message().await.expect("it lasts").expect("it lasts").created());
        }
    }
    while created < number {
        created += usize::from(stream.message().await.expect("it lasts").expect("it lasts").created());
    }
    stream
}

async fn fan_out(plan: &Plan, rounds: u32) -> [Comparison; 2] {
    plan.say(&format!("one put to {MANY} watchers"));
    let mut samples = [(); 3].map(|()| Samples::default());
    let servers = [Server::ours(), Server::etcd(), Server::etcd_with_fsync()];
    for round in 0..rounds {
        for at in in_turn(servers.len(), round) {
            let client = servers[at].client().await;
            let key = format!("fan/{round}");
            let mut stream = watches(&client, &key, MANY).await;
            let began = Instant::now();
            client.kv_client().put(key, VALUE, None).await.expect("put");
            let mut told = 0;
            while told < MANY {
                let answer = stream.message().await.expect("it lasts").expect("it lasts");
                told += usize::from(!answer.events().is_empty());
            }
            samples[at].push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    beside_both("one put to 10,000 watchers", "ms", samples, Some(Promise::AtMost(0.5)))
}

async fn memory(plan: &Plan) -> [Comparison; 2] {
    plan.say(&format!("memory at {MANY} leases and {MANY} watches"));
    let mut samples = [(); 3].map(|()| Samples::default());
    let servers = [Server::ours(), Server::etcd(), Server::etcd_with_fsync()];
    for (server, samples) in servers.iter().zip(&mut samples) {
        let client = server.client().await;
        let grants = (0..64).map(|_| {
            let mut leases = client.lease_client();
            async move {
                for _ in 0..MANY / 64 + 1 {
                    leases.grant(3600, None).await.expect("grant");
                }
            }
        });
        join_all(grants).await;
        let _stream = watches(&client, "memory", MANY).await;
        samples.push(server.memory());
    }
    beside_both("memory at 10,000 leases and 10,000 watches", "MB", samples, Some(Promise::AtMost(0.5)))
}

/// Ours beside etcd without and with its waits for the disk; something is promised of the first alone.
fn beside_both(
    name: &'static str,
    unit: &'static str,
    [ours, theirs, with_fsync]: [Samples; 3],
    promise: Option<Promise>,
) -> [Comparison; 2] {
    [
        Comparison::new(name, unit, (ours.clone(), ETCD, theirs), promise),
        Comparison::new(name, unit, (ours, ETCD_WITH_FSYNC, with_fsync), None),
    ]
}

/// Beside a fixed 50 ms, which is what is promised.
fn start(plan: &Plan, rounds: u32) -> Comparison {
    plan.say("start to ready");
    let mut ours = Samples::default();
    ours.extend((0..rounds).map(|_| Ours::start().ready.as_secs_f64() * 1e3));
    Comparison::fixed("start to ready", "ms", ours, "the promise", 50.0)
}
