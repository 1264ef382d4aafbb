//! The same random requests to this server and to etcd 3.4 get the same answers.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use std::env;
use std::time::Duration;

use fastrand::Rng;
use futures::future::join_all;
use rallypoint_testkit::Version;
use reqwest::{Method, Response};
use v2_support::{Answer, Target, is_alike, without_times};

const SEEDS: [u64; 3] = [1, 2, 3];
const STEPS: usize = 2000;
/// Watches that stay open to the end.
const WATCHES: usize = 60;

const KEYS: [&str; 16] = [
    "/a",
    "/b",
    "/d",
    "/d/a",
    "/d/b",
    "/d/_h",
    "/d/e",
    "/d/e/f",
    "/d/e/_g/h",
    "/da",
    "/_h",
    "/_h/x",
    "/q",
    "/q/x/y",
    "",
    "/u%ff%3F",
];
const VALUES: [&str; 6] = ["", "1", "2", "x+y", "%3C%26%ff", "%E2%82%AC%22%0A"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_server_and_etcd_answer_alike() {
    let seeds = match env::var("RALLYPOINT_SEED") {
        Ok(seed) => vec![seed.parse().expect("RALLYPOINT_SEED is a number")],
        Err(_) => SEEDS.to_vec(),
    };
    let runs: Vec<_> = seeds.iter().map(|&seed| tokio::spawn(compare(seed))).collect();
    for (run, seed) in runs.into_iter().zip(seeds) {
        if let Err(failed) = run.await {
            eprintln!(
                "seed {seed} failed; to replay it: RALLYPOINT_SEED={seed} cargo test --test v2_differential"
            );
            std::panic::resume_unwind(failed.into_panic());
        }
    }
}

async fn compare(seed: u64) {
    let (etcd, ours) = (Target::etcd(Version::V34).await, Target::embedded_fresh().await);
    let mut rng = Rng::with_seed(seed);
    let mut watches = Vec::new();
    let index = |answer: &Answer| answer.index.unwrap_or(0);
    let mut current = index(&etcd.get("", "").await);
    assert_eq!(current, index(&ours.get("", "").await), "a fresh server is at the index of a fresh etcd");
    for step in 0..STEPS {
        if step % (STEPS / WATCHES) == 0 {
            let (key, fields) = random_watch(&mut rng, current);
            let pair =
                (etcd.send(Method::GET, key, &fields).await, ours.send(Method::GET, key, &fields).await);
            watches.push((format!("watch {key}?{fields}, opened in step {step}"), pair));
        }
        if step % (STEPS / 2) == STEPS / 4 {
            end_some(&etcd, &ours, &mut rng).await;
        }
        let (method, key, fields) = random_request(&mut rng, current);
        let (theirs, ours) =
            tokio::join!(etcd.call(method.clone(), key, &fields), ours.call(method.clone(), key, &fields));
        let what = format!("seed {seed}, step {step}: {method} {key} {fields}");
        assert_same(&what, &theirs, &ours);
        current = current.max(index(&theirs));
    }
    // Whoever still waits hears of the end of everything, or never.
    for key in KEYS {
        let (theirs, ours) =
            tokio::join!(etcd.delete(key, "recursive=true"), ours.delete(key, "recursive=true"));
        assert_same(&format!("seed {seed}, at the end: DELETE {key}"), &theirs, &ours);
    }
    let compared = watches.into_iter().map(async |(what, (theirs, ours))| {
        let what = format!("seed {seed}: {what}");
        assert_eq!(theirs.status(), ours.status(), "{what}");
        assert_eq!(theirs.headers().get("x-etcd-index"), ours.headers().get("x-etcd-index"), "{what}");
        let (theirs, ours) = tokio::join!(events(theirs), events(ours));
        assert_eq!(theirs, ours, "{what}");
    });
    join_all(compared).await;
}

/// Lets a few nodes end on both, and waits until they have.
async fn end_some(etcd: &Target, ours: &Target, rng: &mut Rng) {
    let fields = if rng.bool() { "value=1&ttl=2" } else { "dir=true&ttl=2" };
    for key in ["/ends/in/a", "/ends/b", "/ends/in/_c"] {
        assert_same(key, &etcd.put(key, fields).await, &ours.put(key, fields).await);
    }
    for server in [etcd, ours] {
        for key in ["/ends/in/a", "/ends/b", "/ends/in/_c"] {
            server.until_gone(key).await;
        }
    }
}

fn random_watch(rng: &mut Rng, current: u64) -> (&'static str, String) {
    let key = KEYS[rng.usize(..KEYS.len())];
    let recursive = rng.bool();
    // A stream of the past is where we are better.
    let (stream, since) = match rng.u8(..4) {
        0 => (true, 0),
        1 => (false, 0),
        2 => (false, current + rng.u64(..50)),
        _ => (false, current.saturating_sub(rng.u64(..1200))),
    };
    (key, format!("wait=true&recursive={recursive}&stream={stream}&waitIndex={since}"))
}

fn random_request(rng: &mut Rng, current: u64) -> (Method, &'static str, String) {
    let key = KEYS[rng.usize(..KEYS.len())];
    let mut fields: Vec<String> = Vec::new();
    let some = |rng: &mut Rng, one_in: u8| rng.u8(..one_in) == 0;
    let method = match rng.u8(..20) {
        0..4 => Method::GET,
        4 => Method::HEAD,
        5..14 => Method::PUT,
        14..16 => Method::POST,
        _ => Method::DELETE,
    };
    match method {
        Method::GET | Method::HEAD => {
            fields.push("sorted=true".to_owned());
            if some(rng, 2) {
                fields.push("recursive=true".to_owned());
            }
            if some(rng, 8) {
                fields.push("quorum=true".to_owned());
            }
        }
        Method::PUT | Method::POST => {
            if some(rng, 4) {
                fields.push("dir=true".to_owned());
            } else {
                fields.push(format!("value={}", VALUES[rng.usize(..VALUES.len())]));
            }
            match rng.u8(..8) {
                0 => fields.push("prevExist=true".to_owned()),
                1 => fields.push("prevExist=false".to_owned()),
                2 => fields.push("noValueOnSuccess=true".to_owned()),
                3 => fields.push("refresh=true".to_owned()),
                4 => fields.extend(["refresh=true".to_owned(), "prevExist=true".to_owned()]),
                _ => {}
            }
            if some(rng, 3) {
                fields.push(format!("ttl={}", [500, 5000, 7_000_000_000_u64][rng.usize(..3)]));
            }
        }
        _ => {
            if some(rng, 3) {
                fields.push("recursive=true".to_owned());
            }
            if some(rng, 3) {
                fields.push("dir=true".to_owned());
            }
        }
    }
    if some(rng, 6) {
        fields.push(format!("prevIndex={}", current.saturating_sub(rng.u64(..12))));
    }
    if some(rng, 6) {
        fields.push(format!("prevValue={}", VALUES[rng.usize(..VALUES.len())]));
    }
    if some(rng, 25) {
        let bad = ["ttl=x", "prevIndex=", "dir=x", "wait=2", "wait=true", "prevExist=", "a=%zz", "b=;"];
        fields.push(bad[rng.usize(..bad.len())].to_owned());
        if fields.last().is_some_and(|field| field == "wait=true") && method == Method::GET {
            fields.pop();
        }
    }
    (method, key, fields.join("&"))
}

fn assert_same(what: &str, theirs: &Answer, ours: &Answer) {
    assert!(is_alike(&theirs.body, &ours.body), "{what}\netcd: {}\nours: {}", theirs.body, ours.body);
    let bare = |answer: &Answer| Answer { body: String::new(), ..answer.clone() };
    assert_eq!(bare(theirs), bare(ours), "{what}\netcd's on the left, ours on the right");
}

/// The events that a watch has been told of. etcd tells a stream twice of the end of its node.
async fn events(mut response: Response) -> Vec<String> {
    let mut text = Vec::new();
    // All that comes is on its way already.
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(Duration::from_secs(1), response.chunk()).await {
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text).unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| without_times(line).0).collect();
    lines.dedup();
    lines
}
