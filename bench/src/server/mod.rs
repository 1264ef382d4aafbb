//! The embedded server beside a real etcd, with and without its waits for the disk.

mod process;
mod rates;

use std::time::Instant;

use etcd_client::{Client, WatchOptions};
use futures::future::join_all;
use process::{Ours, Server};
use tokio::task::block_in_place;

use crate::measure::Samples;
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

const VALUE: [u8; 64] = [b'x'; 64];
const MANY: usize = 10_000;
const ETCD: &str = "etcd";
const ETCD_WITH_FSYNC: &str = "etcd with fsync";

pub(crate) async fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.5 with --unsafe-no-fsync, or with fsync where it says so; one client process with one connection, \
         {cores} cores, {} rounds in turn",
        options.rounds
    ));
    let only = options.only.as_deref();
    report.comparisons.extend(block_in_place(|| rates::lean(options.rounds, only)));
    report.comparisons.extend(rates::usual(options.rounds, only).await);
    if only.is_some() {
        return report;
    }
    report.comparisons.extend(fan_out(options.rounds).await);
    report.comparisons.extend(memory().await);
    report.comparisons.push(start(options.rounds));
    report
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

async fn fan_out(rounds: u32) -> [Comparison; 2] {
    eprintln!("one put to {MANY} watchers ...");
    let mut samples = [(); 3].map(|()| Samples::default());
    let servers = [Server::ours(), Server::etcd(), Server::etcd_with_fsync()];
    for round in 0..rounds {
        for (server, samples) in servers.iter().zip(&mut samples) {
            let client = server.client().await;
            let key = format!("fan/{round}");
            let mut stream = watches(&client, &key, MANY).await;
            let began = Instant::now();
            client.kv_client().put(key, VALUE, None).await.expect("put");
            let mut told = 0;
            while told < MANY {
                let answer = stream.message().await.expect("it lasts").expect("it lasts");
                told += usize::from(!answer.events().is_empty());
            }
            samples.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    beside_both("one put to 10,000 watchers", "ms", samples, Some(Promise::AtMost(0.5)))
}

async fn memory() -> [Comparison; 2] {
    eprintln!("memory at {MANY} leases and {MANY} watches ...");
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
        Comparison { name, unit, ours: ours.clone(), rival: ETCD, theirs, promise },
        Comparison { name, unit, ours, rival: ETCD_WITH_FSYNC, theirs: with_fsync, promise: None },
    ]
}

/// Beside a fixed 50 ms, which is what is promised.
fn start(rounds: u32) -> Comparison {
    eprintln!("start to ready ...");
    let [mut ours, mut limit] = [(); 2].map(|()| Samples::default());
    for _ in 0..rounds {
        ours.push(Ours::start().ready.as_secs_f64() * 1e3);
        limit.push(50.0);
    }
    let promise = Some(Promise::AtMost(1.0));
    Comparison { name: "start to ready", unit: "ms", ours, rival: "the promise", theirs: limit, promise }
}
