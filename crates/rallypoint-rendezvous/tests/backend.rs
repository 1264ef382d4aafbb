//! The state with a fencing token: the same results as PyTorch's backend, and one state for both, under PyTorch's
//! own dynamic handler.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::io::{BufRead, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v2;
use rallypoint_etcd::v3;
use rallypoint_rendezvous::backend::{
    Changed, EtcdV2Backend, EtcdV3Backend, RendezvousBackend, STATE_PREFIX, Token,
};
use rallypoint_rendezvous::{RendezvousError, RendezvousParameters};
use rallypoint_store::Store;
use rallypoint_testkit::{Etcd, Proxy, Version, refused_endpoint, run_python};
use serde_json::{Value, json};
use support::Kind::Torch;
use support::{Node, Run, meet};

/// The backend as a process, for the Python side of these tests; see `support/torch_node.py`.
#[test]
fn a_process_of_its_own() {
    let Ok(given) = std::env::var("RALLYPOINT_TEST_BACKEND") else { return };
    let (endpoint, run): (String, String) = serde_json::from_str(&given).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let parameters = RendezvousParameters::new("etcd-v2", &endpoint, &run, 1, 1).unwrap();
    let (backend, _) = runtime.block_on(EtcdV2Backend::create(&parameters)).unwrap();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match runtime.block_on(answer(&backend, &serde_json::from_str(&line).unwrap())) {
            Ok(answer) => answer,
            Err(error @ RendezvousError::State { .. }) => json!(["error", "state", error.to_string()]),
            Err(error) => json!(["error", "connection", error.to_string()]),
        };
        println!("@{answer}");
        std::io::stdout().flush().unwrap();
    }
    std::process::exit(0);
}

async fn answer(backend: &dyn RendezvousBackend, asked: &Value) -> Result<Value, RendezvousError> {
    let token = match &asked[2] {
        Value::Null => None,
        token => Some(Token::from(token.to_string().trim_matches('"'))),
    };
    let number = |token: &Token| token.to_string().parse::<u64>().unwrap();
    Ok(if asked[0] == "get" {
        backend.get_state().await?.map_or(Value::Null, |(state, token)| json!([hex(&state), number(&token)]))
    } else {
        let state = bytes(asked[1].as_str().unwrap());
        let changed = backend.set_state(&state, token.as_ref()).await?;
        changed.map_or(Value::Null, |Changed { state, token, was_set }| {
            json!([hex(&state), number(&token), was_set])
        })
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// PyTorch's backend, taken through the same steps as ours in [`steps`].
const STEPS: &str = r#"
import json, sys
import etcd
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend

host, port = sys.argv[1].split(":")
client = etcd.Client(host=host, port=int(port), allow_reconnect=True)
backend = EtcdRendezvousBackend(client, "theirs", "/steps")
tokens, seen = [], []

def note(result):
    if result is None:
        seen.append(None)
        return
    state, token, *rest = result
    if token not in tokens:
        tokens.append(token)
    seen.append([state.hex(), tokens.index(token), *rest])

note(backend.get_state())
note(backend.set_state(b"zero", "abc"))
note(backend.set_state(b"one"))
note(backend.get_state())
note(backend.set_state(b"two"))
note(backend.set_state(b"one"))
note(backend.set_state(b"two", tokens[0]))
note(backend.set_state(b"three", tokens[0]))
note(backend.set_state(b"two", tokens[0]))
note(backend.set_state(b"three", str(tokens[1])))
note(backend.set_state(b"four", "abc"))
note(backend.set_state(b"four", ""))
note(backend.set_state(b"four", "0"))
note(backend.set_state(b"four", 10**12))
note(backend.set_state(bytes(range(256)), tokens[2]))
note(backend.get_state())
print(json.dumps(seen))
"#;

/// What a backend answers, with its tokens numbered as they come.
async fn steps(backend: &dyn RendezvousBackend) -> Value {
    let mut tokens: Vec<Token> = Vec::new();
    let mut seen = Vec::new();
    let all: Vec<u8> = (0..=255).collect();
    let given: [(Option<&[u8]>, Option<&str>); 16] = [
        (None, None),
        (Some(b"zero"), Some("abc")),
        (Some(b"one"), None),
        (None, None),
        (Some(b"two"), None),
        (Some(b"one"), None),
        (Some(b"two"), Some("@0")),
        (Some(b"three"), Some("@0")),
        (Some(b"two"), Some("@0")),
        (Some(b"three"), Some("@1")),
        (Some(b"four"), Some("abc")),
        (Some(b"four"), Some("")),
        (Some(b"four"), Some("0")),
        (Some(b"four"), Some("1000000000000")),
        (Some(&all), Some("@2")),
        (None, None),
    ];
    for (state, token) in given {
        let token = token.map(|token| match token.strip_prefix('@') {
            Some(number) => tokens[number.parse::<usize>().unwrap()].clone(),
            None => Token::from(token),
        });
        let (state, token, was_set) = match state {
            None => match backend.get_state().await.unwrap() {
                None => {
                    seen.push(Value::Null);
                    continue;
                }
                Some((state, token)) => (state, token, None),
            },
            Some(state) => match backend.set_state(state, token.as_ref()).await.unwrap() {
                None => {
                    seen.push(Value::Null);
                    continue;
                }
                Some(changed) => (changed.state, changed.token, Some(changed.was_set)),
            },
        };
        let number = tokens.iter().position(|one| *one == token).unwrap_or_else(|| {
            tokens.push(token);
            tokens.len() - 1
        });
        let mut entry = vec![json!(hex(&state)), json!(number)];
        entry.extend(was_set.map(Value::from));
        seen.push(Value::Array(entry));
    }
    Value::Array(seen)
}

fn settings(etcd: &Etcd) -> EtcdSettings {
    EtcdSettings::new(&etcd.endpoint()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_have_the_same_effect_as_in_pytorch() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let theirs: Value = serde_json::from_str(&run_python(STEPS, &[&etcd.endpoint()])).unwrap();
        let on_v2 = v2::Client::connect(settings(&etcd)).await.unwrap();
        let on_v3 = v3::Client::connect(settings(&etcd)).await.unwrap();
        let backend = EtcdV2Backend::new(on_v2.clone(), "ours", Some("/steps"), None).unwrap();
        assert_eq!(steps(&backend).await, theirs, "v2 on {version}");
        let backend = EtcdV3Backend::new(on_v3, "ours", Some("/steps"), None).unwrap();
        assert_eq!(steps(&backend).await, theirs, "v3 on {version}");

        let node = |key: &'static str| {
            let client = on_v2.clone();
            async move { client.get(key, v2::Get::new()).await.unwrap().node }
        };
        let (ours, theirs) = (node("/steps/ours").await, node("/steps/theirs").await);
        assert_eq!(ours.value, theirs.value);
        for ttl in [ours.ttl.unwrap(), theirs.ttl.unwrap()] {
            assert!((7190..=7200).contains(&ttl), "{ttl}");
        }
    }
}

#[tokio::test]
async fn a_state_on_v3_hangs_on_a_lease() {
    let etcd = Etcd::start(Version::V35);
    let client = v3::Client::connect(settings(&etcd)).await.unwrap();
    let ttl = Duration::from_secs(2);
    let backend = EtcdV3Backend::new(client.clone(), "run", None, Some(ttl)).unwrap();
    let set = backend.set_state(b"state", None).await.unwrap().unwrap();
    assert!(set.was_set && client.get("run", None).await.unwrap().kvs()[0].lease() != 0);
    while backend.get_state().await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again = backend.set_state(b"again", None).await.unwrap().unwrap();
    assert!(again.was_set, "with a lease of its own, as the first one has ended");
}

#[tokio::test]
async fn a_corrupt_state_is_an_error_with_its_key() {
    let etcd = Etcd::builder(Version::V34).v2().start();
    let client = v2::Client::connect(settings(&etcd)).await.unwrap();
    client.set("/p/text", "?not base64?").await.unwrap();
    client.put("/p/folder", v2::Put::dir()).await.unwrap();
    for run in ["text", "folder"] {
        let backend = EtcdV2Backend::new(client.clone(), run, Some("/p"), None).unwrap();
        for error in [
            backend.get_state().await.unwrap_err(),
            backend.set_state(b"x", Some(&Token::from("abc"))).await.unwrap_err(),
        ] {
            assert!(matches!(error, RendezvousError::State { .. }), "{error:?}");
            assert!(error.to_string().contains(&format!("/p/{run}")), "{error}");
        }
    }
}

#[tokio::test]
async fn every_failure_to_connect_is_a_connection_error_that_names_the_endpoint() {
    let endpoint = refused_endpoint();
    let mut parameters = RendezvousParameters::new("etcd-v2", &endpoint, "run", 1, 1).unwrap();
    parameters.config.insert("read_timeout".into(), "1".into());
    let errors = [
        EtcdV2Backend::create(&parameters).await.unwrap_err(),
        EtcdV3Backend::create(&parameters).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, RendezvousError::Connection { .. }), "{error:?}");
        assert!(error.to_string().contains(&endpoint), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }

    let etcd = Etcd::builder(Version::V35).v2().start();
    let proxy = Proxy::start(&etcd.endpoint());
    parameters.endpoint = proxy.endpoint();
    let (on_v2, _) = EtcdV2Backend::create(&parameters).await.unwrap();
    let (on_v3, _) = EtcdV3Backend::create(&parameters).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    let backends: [&dyn RendezvousBackend; 2] = [&on_v2, &on_v3];
    for backend in backends {
        let error = backend.get_state().await.unwrap_err();
        assert!(matches!(error, RendezvousError::Connection { .. }), "{error:?}");
    }
    proxy.refuse(false);
    for backend in backends {
        assert!(backend.set_state(b"back", None).await.unwrap().unwrap().was_set);
    }
}

#[tokio::test]
async fn runs_share_a_store_only_where_the_wire_wants_it() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let parameters = |run| RendezvousParameters::new("etcd-v2", &etcd.endpoint(), run, 1, 1).unwrap();
    let (_, one) = EtcdV2Backend::create(&parameters("one")).await.unwrap();
    let (_, two) = EtcdV2Backend::create(&parameters("two")).await.unwrap();
    one.set(b"key", b"shared").await.unwrap();
    assert_eq!(two.get(b"key").await.unwrap(), b"shared");
    let (_, one) = EtcdV3Backend::create(&parameters("one")).await.unwrap();
    let (_, two) = EtcdV3Backend::create(&parameters("two")).await.unwrap();
    one.set(b"key", b"of one").await.unwrap();
    assert!(!two.check(&[b"key"]).await.unwrap());
}

/// Nodes under PyTorch's dynamic handler: on PyTorch's backend, and on ours.
fn dynamic(run: &Run, rust: bool) -> Node {
    let mut node = Node::start(Torch);
    let mut open = json!({
        "do": "open",
        "backend": "etcd-v2",
        "endpoint": run.endpoint,
        "run": run.id,
        "min": run.min,
        "max": run.max,
        "config": {
            "join_timeout": "240",
            // Whoever waits looks once a second whether it can get in.
            "last_call_timeout": "5",
        },
    });
    if rust {
        let program = std::env::current_exe().unwrap();
        let arguments = support::node::ARGUMENTS.iter().map(|one| Value::from(*one));
        open["program"] = [Value::from(program.to_str().unwrap())].into_iter().chain(arguments).collect();
    }
    assert_eq!(node.get(&open), true);
    node
}

fn dynamic_nodes(run: &Run, each: usize) -> Vec<Node> {
    let mut rust = [vec![true; each], vec![false; each]].concat();
    fastrand::shuffle(&mut rust);
    println!("on our backend: {rust:?}");
    rust.into_iter().map(|rust| dynamic(run, rust)).collect()
}

fn share_data(nodes: &mut [Node]) {
    for at in 0..nodes.len() {
        let key = format!("of{at}");
        nodes[at].get(&json!({"do": "set", "key": key, "value": key}));
        for node in nodes.iter_mut() {
            assert_eq!(node.get(&json!({"do": "get", "key": key})), key.as_str());
        }
    }
}

fn dynamic_groups(version: Version) {
    // Sixteen PyTorchs at a time are enough for two cores: they vie for one key, and give up.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let etcd = Etcd::builder(version).v2().start();
    for each in [1, 3, 8] {
        let run = Run::new(&etcd, 2 * each, 2 * each);
        let mut nodes = dynamic_nodes(&run, each);
        meet(&mut nodes);
        share_data(&mut nodes);
    }
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn groups_on_both_backends_meet_under_pytorchs_dynamic_handler_on_etcd_3_4() {
    dynamic_groups(Version::V34);
}

#[test]
fn groups_on_both_backends_meet_under_pytorchs_dynamic_handler_on_etcd_3_5() {
    dynamic_groups(Version::V35);
}

#[test]
fn late_nodes_get_in_and_groups_meet_again_on_both_backends() {
    let etcd = Etcd::builder(Version::V34).v2().start();
    for late_on_rust in [true, false] {
        let run = Run::new(&etcd, 2, 3);
        let mut nodes = dynamic_nodes(&run, 1);
        meet(&mut nodes);
        let mut late = dynamic(&run, late_on_rust);
        late.meet();
        for node in &mut nodes {
            assert_eq!(node.sees_waiting(), 1);
        }
        for node in &mut nodes {
            node.meet();
        }
        nodes.push(late);
        let met: Vec<_> = nodes.iter_mut().map(Node::met).collect();
        support::assert_one_group(&met);
        share_data(&mut nodes);
    }
}

#[test]
fn the_others_meet_again_when_a_node_on_either_backend_is_killed() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    for victim_on_rust in [true, false] {
        let run = Run::new(&etcd, 2, 3);
        let mut nodes = vec![dynamic(&run, true), dynamic(&run, false), dynamic(&run, victim_on_rust)];
        meet(&mut nodes);
        drop(nodes.pop());
        meet(&mut nodes);
    }
}

#[test]
fn a_run_closed_on_one_backend_is_closed_on_the_other() {
    let etcd = Etcd::builder(Version::V34).v2().start();
    for closer in [0, 1] {
        let run = Run::new(&etcd, 2, 2);
        let mut nodes = vec![dynamic(&run, true), dynamic(&run, false)];
        meet(&mut nodes);
        nodes[closer].get(&json!({"do": "close"}));
        for node in &mut nodes {
            while node.get(&json!({"do": "closed"})) != true {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(node.ask(&json!({"do": "meet"}))["error"], "closed");
        }
    }
}

#[tokio::test]
async fn the_state_is_where_pytorch_looks_for_it() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let parameters = RendezvousParameters::new("etcd-v2", &etcd.endpoint(), "job", 1, 1).unwrap();
    let (backend, _) = EtcdV2Backend::create(&parameters).await.unwrap();
    backend.set_state(b"state", None).await.unwrap();
    let client = v2::Client::connect(settings(&etcd)).await.unwrap();
    let node = client.get(&format!("{STATE_PREFIX}/job"), v2::Get::new()).await.unwrap().node;
    assert_eq!(node.value.as_deref(), Some("c3RhdGU="));
    let refused = EtcdV2Backend::new(client, "", None, None).unwrap_err();
    assert_eq!(refused.to_string(), "The run id must be a non-empty string.");
}
