//! Many clients at once on several gateways, one of which ends in the middle: what all of them were told is one history.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::sync::Arc;

use fastrand::Rng;
use rallypoint_testkit::Version;
use reqwest::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use super::v2_support::{TIMEOUT, Target};

const CLIENTS: u64 = 9;
/// Of each client. `RALLYPOINT_STEPS` asks for more.
const STEPS: usize = 40;

/// What a client was told of its own write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    action: String,
    key: String,
    value: Value,
}

/// All that clients were told.
#[derive(Debug, Default)]
struct Log {
    done: BTreeMap<u64, Done>,
    /// Writes that were not answered.
    unknown: usize,
}

struct Client {
    gateways: Vec<Arc<Target>>,
    /// Which of them it uses.
    at: usize,
    rng: Rng,
    log: Log,
    /// The last index it has seen.
    index: u64,
    /// Counts what it wrote.
    wrote: u64,
    id: u64,
}

impl Client {
    /// Sends a request. None if it was not answered: then it goes to another gateway.
    async fn call(&mut self, method: Method, key: &str, fields: &str) -> Option<Value> {
        let gateway = Arc::clone(&self.gateways[self.at]);
        let url = gateway.url(&format!("/v2/keys{key}?{fields}"));
        let sent =
            timeout(TIMEOUT, gateway.client.request(method.clone(), url).send()).await.expect("in time");
        let read = match sent {
            Ok(response) => {
                let index = response.headers()["x-etcd-index"].to_str().unwrap().parse::<u64>().unwrap();
                response.text().await.map(|text| (index, text))
            }
            Err(error) => Err(error),
        };
        let Ok((index, text)) = read else {
            self.at = 0;
            self.log.unknown += usize::from(method != Method::GET);
            return None;
        };
        assert!(index >= self.index, "indices grow, whichever gateway tells them: {} {index}", self.index);
        self.index = index;
        let body: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_ne!(body["errorCode"], 300, "{body}");
        if method != Method::GET && body["errorCode"].is_null() {
            let node = &body["node"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let done =
                Done { action: text(&body["action"]), key: text(&node["key"]), value: node["value"].clone() };
            let index = node["modifiedIndex"].as_u64().unwrap();
            assert_eq!(index, self.index, "a write is at the index that it names");
            assert_eq!(self.log.done.insert(index, done), None, "one write, one index");
        }
        Some(body)
    }

    async fn step(&mut self) {
        let key = format!("/k/{}", self.rng.u8(..4));
        self.wrote += 1;
        let value = format!("value={}-{}", self.id, self.wrote);
        match self.rng.u8(..10) {
            0..4 => self.count().await,
            4..6 => _ = self.call(Method::POST, "/queue", &value).await,
            6 => _ = self.call(Method::PUT, &key, &value).await,
            7 => {
                let fields = format!("{value}&prevExist=false");
                _ = self.call(Method::PUT, &format!("{key}/deep"), &fields).await;
            }
            8 => _ = self.call(Method::DELETE, &key, "recursive=true").await,
            _ => _ = self.call(Method::DELETE, "/k", "recursive=true").await,
        }
    }

    /// Adds one to the counter, against all others.
    async fn count(&mut self) {
        loop {
            let Some(body) = self.call(Method::GET, "/counter", "").await else { continue };
            let (value, index) = (&body["node"]["value"], &body["node"]["modifiedIndex"]);
            let next = value.as_str().unwrap().parse::<u64>().unwrap() + 1;
            let swap = format!("value={next}&prevIndex={index}");
            match self.call(Method::PUT, "/counter", &swap).await {
                Some(body) if body["errorCode"] == 101 => {}
                _ => return,
            }
        }
    }
}

/// All events since an index, up to the one of `/end`.
async fn events(gateway: &Target, since: u64) -> Vec<Value> {
    let mut stream = gateway.watch("", &format!("recursive=true&stream=true&waitIndex={since}")).await;
    let mut text = Vec::new();
    while !text.ends_with(b"\n") || !String::from_utf8_lossy(&text).contains("\"key\":\"/end\"") {
        let chunk = timeout(TIMEOUT, stream.chunk()).await.expect("an event in time").unwrap();
        text.extend(chunk.expect("the stream goes on"));
    }
    text.split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_everybody_is_told_is_one_history() {
    let steps = env::var("RALLYPOINT_STEPS").map_or(STEPS, |steps| steps.parse().expect("a number"));
    let seed = env::var("RALLYPOINT_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("RALLYPOINT_SEED={seed}");
    let etcd = super::etcd(Version::V35).await;
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Arc::new(Target::gateway_to(&etcd.endpoint()).await));
    }
    let start = gateways[0].put("/counter", "value=0").await.index.unwrap() + 1;
    let early: Vec<_> = gateways[..2]
        .iter()
        .map(|gateway| {
            let gateway = Arc::clone(gateway);
            tokio::spawn(async move { events(&gateway, start).await })
        })
        .collect();

    // The last gateway ends when its clients are half through.
    let (half, halves) = watch::channel(0);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let at = usize::try_from(id).unwrap() % gateways.len();
            let rng = Rng::with_seed(seed.wrapping_add(id));
            let log = Log::default();
            let mut client = Client { gateways: gateways.clone(), at, rng, log, index: 0, wrote: 0, id };
            let half = half.clone();
            tokio::spawn(async move {
                for step in 0..steps {
                    if step == steps / 2 && at == 2 {
                        half.send_modify(|count| *count += 1);
                    }
                    client.step().await;
                }
                client.log
            })
        })
        .collect();
    halves.clone().wait_for(|count| *count == CLIENTS / 3).await.unwrap();
    gateways[2].end();
    let mut all = Log::default();
    for client in clients {
        let log = client.await.unwrap();
        for (index, done) in log.done {
            assert_eq!(all.done.insert(index, done), None, "no two writes have one index: {index}");
        }
        all.unknown += log.unknown;
    }
    gateways[1].put("/end", "value=1").await;

    let mut told = Vec::new();
    for stream in early {
        told.push(stream.await.unwrap());
    }
    let fresh = Target::gateway_to(&etcd.endpoint()).await;
    told.push(events(&fresh, start).await);
    assert!(told[0] == told[1] && told[0] == told[2], "every gateway tells the same, late or early");
    check(&told[0], &all);
}

fn check(told: &[Value], all: &Log) {
    let mut before = 0;
    let mut counter = 0;
    let mut queue = Vec::new();
    let mut nodes: HashMap<String, Value> = HashMap::new();
    let (mut known, mut unknown) = (0, 0);
    for event in told {
        let (node, action) = (&event["node"], event["action"].as_str().unwrap());
        let (key, index) = (node["key"].as_str().unwrap(), node["modifiedIndex"].as_u64().unwrap());
        assert!(index > before, "indices grow: {before} {event}");
        before = index;
        if key == "/end" {
            continue;
        }
        match all.done.get(&index) {
            Some(done) => {
                known += 1;
                let seen =
                    Done { action: action.to_owned(), key: key.to_owned(), value: node["value"].clone() };
                assert_eq!(*done, seen, "what was answered is what is told");
            }
            None => unknown += 1,
        }
        // What was before is what was told last.
        if key == "/counter" {
            counter += 1;
            assert_eq!(node["value"], counter.to_string().as_str(), "no update is lost: {event}");
        }
        if key.starts_with("/k/") && action == "set" {
            let prev = nodes.get(key).map(|node| &node["value"]);
            assert_eq!(event["prevNode"].get("value"), prev, "{event}");
        }
        if key.starts_with("/queue/") {
            queue.push(key.to_owned());
        }
        if action == "delete" {
            nodes.retain(|at, _| at != key && !at.starts_with(&format!("{key}/")));
        } else {
            nodes.insert(key.to_owned(), node.clone());
        }
    }
    assert_eq!(known, all.done.len(), "all that was answered is told");
    assert!(unknown <= all.unknown, "nothing is told that nobody did: {unknown} of {}", all.unknown);
    assert!(queue.is_sorted(), "in-order keys are in order: {queue:?}");
    println!("{known} writes were answered, {unknown} more were done");
}
