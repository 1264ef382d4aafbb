//! etcd's JSON gateway, beside a real etcd: the same requests to both, and the same answers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rallypoint_server::Numbering;
use rallypoint_testkit::Version;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use v3_support::{PATIENCE, Target, within};

/// A server, who asks it, and what was said.
struct Talk {
    target: Target,
    client: Client,
    token: Option<String>,
    said: String,
}

impl Talk {
    fn with(target: Target) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Talk { target, client, token: None, said: String::new() }
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.target.url())).body(body);
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        request.send().await.unwrap()
    }

    /// Notes an answer without what differs between any two servers.
    fn note(&mut self, path: &str, body: &str, status: u16, content: &str, answer: &Value) {
        let mut answer = answer.clone();
        scrub(&mut answer);
        writeln!(self.said, "{path} {body} -> {status} {content} {answer}").unwrap();
    }

    async fn ask(&mut self, path: &str, body: &str) -> Value {
        let response = self.send(Method::POST, path, body.to_owned()).await;
        let status = response.status().as_u16();
        let content = response.headers()["content-type"].to_str().unwrap().to_owned();
        let text = response.text().await.unwrap();
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
        self.note(path, body, status, &content, &answer);
        answer
    }

    /// So many lines of a stream.
    async fn lines(&mut self, path: &str, body: &str, count: usize) {
        let mut response = self.send(Method::POST, path, body.to_owned()).await;
        let status = response.status().as_u16();
        let content = response.headers()["content-type"].to_str().unwrap().to_owned();
        let mut text = String::new();
        while text.lines().filter(|line| line.ends_with('}')).count() < count || !text.ends_with('\n') {
            let piece = within(response.chunk()).await.unwrap().expect("more lines");
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        for line in text.lines() {
            self.note(path, body, status, &content, &serde_json::from_str(line).unwrap());
        }
    }
}

/// Ids, sizes, addresses, tokens, and words that are Go's alone.
fn scrub(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "cluster_id" | "member_id" | "raft_term" | "leader" | "raftTerm" | "dbSize"
                    | "dbSizeInUse" | "raftIndex" | "raftAppliedIndex" | "peerURLs" | "clientURLs"
                    | "token" | "name" => {
                        assert_ne!(*value, Value::Null);
                        *value = json!("some");
                    }
                    "message" if !value.as_str().is_some_and(|text| text.starts_with("etcdserver: ")) => {
                        *value = json!("some");
                    }
                    _ => scrub(value),
                }
            }
            // Of etcd 3.6, and told by this server too.
            fields.remove("dbSizeQuota");
            // etcd's alarms have the id that was asked for, and here there is one member.
            fields.remove("memberID");
            let is_member = fields.contains_key("peerURLs");
            if let Some(id) = fields.get_mut("ID").filter(|_| is_member) {
                *id = json!("some");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(scrub),
        _ => {}
    }
}

fn b64(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

async fn talk(mut talk: Talk) -> Talk {
    let (a, b, one, two) = (b64("a"), b64("b"), b64("1"), b64("2"));
    let put = |key: &str, value: &str| json!({ "key": key, "value": value }).to_string();
    talk.ask("/v3/kv/put", &put(&a, &one)).await;
    talk.ask("/v3/kv/put", &json!({ "key": a, "value": two, "prevKv": true }).to_string()).await;
    talk.ask("/v3/kv/range", &json!({ "key": a }).to_string()).await;
    let all =
        json!({ "key": a, "range_end": b64("z"), "sort_order": "DESCEND", "sort_target": 0, "limit": "5" });
    talk.ask("/v3/kv/range", &all.to_string()).await;
    // What is not a request.
    for body in ["", "{}", "x", "[]", "{\"key\":1}", "{\"key\":\"!\"}", "{\"key\":\"YQ==\",\"limit\":\"x\"}"]
    {
        talk.ask("/v3/kv/range", body).await;
    }
    talk.ask("/v3/kv/range", "{\"key\":\"YQ==\",\"nothing\":{}} and what follows").await;
    talk.ask("/v3/kv/range", "{\"key\":\"YQ==\",\"revision\":\"99\"}").await;
    talk.ask("/v3/kv/nothing", "{}").await;
    let response = talk.send(Method::GET, "/v3/kv/range", String::new()).await;
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    talk.note("GET", "", status, "", &serde_json::from_str(&text).unwrap());

    let txn = json!({
        "compare": [{ "result": "GREATER", "target": "VERSION", "key": a, "version": "1" }],
        "success": [
            { "requestPut": { "key": b, "value": one } },
            { "request_range": { "key": b } },
            { "request_delete_range": { "key": a, "prev_kv": true } },
            { "request_txn": { "failure": [] } },
        ],
    });
    talk.ask("/v3/kv/txn", &txn.to_string()).await;
    talk.ask("/v3/kv/txn", "{\"success\":[{\"request_put\":{}}]}").await;
    talk.ask("/v3/kv/deleterange", &json!({ "key": b }).to_string()).await;

    talk.ask("/v3/lease/grant", "{\"TTL\":1000,\"ID\":\"7\"}").await;
    talk.ask("/v3/lease/grant", "{\"TTL\":\"1000\",\"ID\":7}").await;
    talk.ask("/v3/kv/put", &json!({ "key": a, "value": one, "lease": "7" }).to_string()).await;
    let left = talk.ask("/v3/lease/timetolive", "{\"ID\":\"8\",\"keys\":true}").await;
    assert_eq!(left["TTL"], "-1");
    talk.ask("/v3/lease/leases", "").await;
    talk.lines("/v3/lease/keepalive", "{\"ID\":\"7\"}{\"ID\":\"8\"}", 2).await;
    talk.ask("/v3/kv/lease/leases", "").await;
    talk.ask("/v3/kv/lease/revoke", "{\"ID\":\"7\"}").await;
    talk.ask("/v3/lease/revoke", "{\"ID\":\"7\"}").await;

    talk.lines(
        "/v3/watch",
        &json!({ "create_request": { "key": a, "start_revision": 2, "prev_kv": true } }).to_string(),
        2,
    )
    .await;
    talk.ask("/v3/kv/compaction", "{\"revision\":4}").await;
    talk.lines("/v3/watch", &json!({ "create_request": { "key": a, "start_revision": "2" } }).to_string(), 2)
        .await;
    talk.ask("/v3/kv/compaction", "{\"revision\":4}").await;
    talk.ask("/v3/maintenance/status", "{}").await;
    talk.ask("/v3/maintenance/alarm", "{}").await;
    talk.ask("/v3/maintenance/alarm", "{\"action\":\"ACTIVATE\",\"alarm\":\"NOSPACE\"}").await;
    talk.ask("/v3/kv/put", &put(&a, &one)).await;
    talk.ask("/v3/maintenance/alarm", "{\"action\":2,\"alarm\":1}").await;
    talk.ask("/v3/cluster/member/list", "{}").await;
    talk.ask("/v3/lock/lock", &json!({ "name": b64("l"), "lease": "9" }).to_string()).await;

    talk.ask("/v3/auth/authenticate", "{\"name\":\"root\",\"password\":\"p\"}").await;
    talk.ask("/v3/auth/user/add", "{\"name\":\"root\",\"password\":\"p\"}").await;
    talk.ask("/v3/auth/role/add", "{\"name\":\"root\"}").await;
    talk.ask("/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}").await;
    talk.ask("/v3/auth/enable", "").await;
    talk.ask("/v3/kv/put", &put(&a, &one)).await;
    talk.ask("/v3/auth/authenticate", "{\"name\":\"root\",\"password\":\"wrong\"}").await;
    let token = talk.ask("/v3/auth/authenticate", "{\"name\":\"root\",\"password\":\"p\"}").await;
    talk.token = Some("nobody's".to_owned());
    talk.ask("/v3/kv/put", &put(&a, &one)).await;
    talk.token = token["token"].as_str().map(str::to_owned);
    talk.ask("/v3/kv/put", &put(&a, &one)).await;
    talk.lines("/v3/watch", &json!({ "create_request": { "key": a } }).to_string(), 1).await;
    talk.token = None;
    talk
}

/// What gRPC's metrics have counted of keys, watches, leases and users.
async fn counted(talk: &Talk) -> Vec<String> {
    let text = talk.send(Method::GET, "/metrics", String::new()).await.text().await.unwrap();
    let is_counted = |line: &&str| {
        ["grpc_server_handled_total", "grpc_server_started_total"].iter().any(|name| line.starts_with(name))
            && ["KV", "Watch", "Lease", "Auth"]
                .iter()
                .any(|it| line.contains(&format!("etcdserverpb.{it}\"")))
            && !line.ends_with(" 0")
    };
    let mut lines: Vec<_> = text.lines().filter(is_counted).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_json_are_answered_as_etcd_answers_them() {
    let ours = Target::ours_with(|config| config.numbering = Numbering::FromOne);
    let (ours, etcds) = tokio::join!(talk(Talk::with(ours)), talk(Talk::with(Target::real(Version::V35))));
    for (ours, etcds) in ours.said.lines().zip(etcds.said.lines()) {
        assert_eq!(ours, etcds);
    }
    assert_eq!(ours.said.lines().count(), etcds.said.lines().count());
    // That a client has hung up is seen a moment later.
    let began = std::time::Instant::now();
    while counted(&ours).await != counted(&etcds).await && began.elapsed() < PATIENCE / 3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (ours, etcds) = (counted(&ours).await, counted(&etcds).await);
    assert!(ours.len() > 20, "{ours:#?}");
    assert_eq!(ours, etcds);
}

#[tokio::test]
async fn a_large_answer_in_json_comes_whole_and_pages_of_others_are_not_served() {
    let target = Target::ours();
    let mut talk = Talk::with(target);
    let value = b64(&"v".repeat(1_000_000));
    talk.ask("/v3/kv/put", &json!({ "key": "YQ==", "value": value }).to_string()).await;
    let answer = talk.ask("/v3/kv/range", "{\"key\":\"YQ==\"}").await;
    assert_eq!(answer["kvs"][0]["value"], value);
    let url = format!("{}/v3/kv/range", talk.target.url());
    let form = talk.client.post(url).header("origin", "http://evil.example").body("{\"key\":\"YQ==\"}");
    assert_eq!(form.send().await.unwrap().status(), 403);
    let metrics = talk.send(Method::GET, "/metrics", String::new()).await.text().await.unwrap();
    let counted = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\",\
                   grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1";
    assert!(metrics.lines().any(|line| line == counted), "it is counted as any other");
}

#[tokio::test]
async fn very_many_watches_in_one_request_are_made_one_after_the_other() {
    const WATCHES: usize = 3_000;
    let target = Target::ours();
    let mut talk = Talk::with(target);
    let create = json!({ "create_request": { "key": b64(&"w".repeat(300)), "range_end": "AA==" } });
    talk.lines("/v3/watch", &create.to_string().repeat(WATCHES), WATCHES).await;
}
