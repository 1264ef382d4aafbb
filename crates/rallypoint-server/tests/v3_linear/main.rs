//! Concurrent requests are carried out one after the other, each between its beginning and its end: linearizability,
//! checked on histories of this server, in memory and in a folder, and of a real etcd.
//!
//! `RALLYPOINT_REQUESTS=2000 cargo test --package rallypoint-server --test v3_linear` takes longer histories.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

#[path = "../v3_support/mod.rs"]
mod v3_support;

mod check;
mod client;
mod history;

use futures::future::join_all;
use rallypoint_testkit::Version;
use v3_support::{Target, Watch};

use crate::client::{Planted, work};
use crate::history::{Event, KEYS, Op};

const CLIENTS: usize = 8;

/// What the clients did on a server, and in which order it says that happened.
async fn lived(target: &Target, requests: usize, planted: Planted) -> (Vec<Event>, Vec<Op>) {
    let client = target.client().await;
    let mut watcher = client.watching(Watch::span(KEYS.0, KEYS.1)).await;
    let clients = join_all((0..CLIENTS).map(|_| target.client())).await;
    let working = clients
        .into_iter()
        .enumerate()
        .map(|(number, client)| tokio::spawn(async move { work(&client, number, requests, planted).await }));
    let ops = join_all(working).await.into_iter().flat_map(Result::unwrap).collect();
    let last = client.put_kv(&format!("{}last", KEYS.0), "").await;
    let events = watcher.events_until(last).await;
    let events = events.into_iter().map(Event::from).filter(|event| event.revision < last).collect();
    (events, ops)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable() {
    let requests = std::env::var("RALLYPOINT_REQUESTS").map_or(300, |many| many.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    for (name, target) in [
        ("in memory", Target::ours()),
        ("in a folder", Target::ours_with(|config| config.data_dir = Some(folder.path().to_owned()))),
        ("etcd", Target::real(Version::V35)),
    ] {
        let (events, ops) = lived(&target, requests, Planted::Nothing).await;
        assert!(
            ops.len() >= CLIENTS * requests && events.len() > requests,
            "{name}: hardly anything was done"
        );
        check::linearizable(&events, &ops).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The check finds what it is there for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_caught() {
    for (planted, words) in [
        (Planted::AnswersFromItsCache, "was told an earlier state"),
        (Planted::SaysItSwapped, "is not what happened at revision"),
        (Planted::LosesAWrite, "nobody has asked for"),
    ] {
        let (events, ops) = lived(&Target::ours(), 60, planted).await;
        let error = check::linearizable(&events, &ops).unwrap_err();
        assert!(error.contains(words), "{planted:?}: {error}");
    }
}
