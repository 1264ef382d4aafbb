//! A node of ours, in this test program run again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{
    EtcdBarrier, Rendezvous, RendezvousError, RendezvousHandler, RendezvousParameters,
};
use rallypoint_testkit::Program;
use serde_json::{Value, json};

const PORT: &str = "RALLYPOINT_TEST_NODE";

/// The arguments with which a test program runs the test that is the node.
pub(crate) const ARGUMENTS: [&str; 3] = ["--exact", "a_process_of_its_own", "--nocapture"];

/// Starts a node, which connects to `port`.
pub(crate) fn start(port: &str) -> Program {
    let program = std::env::current_exe().expect("a running program has a path");
    Program::start(&program, &ARGUMENTS, &[(PORT, port)])
}

/// Is the node, if this process was started as one. Every test program that has nodes calls it from a test named
/// `a_process_of_its_own`.
pub(crate) fn run_if_asked() {
    let Ok(port) = std::env::var(PORT) else { return };
    let port: u16 = port.parse().expect("a port");
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("whoever started us listens");
    stream.set_nodelay(true).expect("an open socket");
    let mut writer = stream.try_clone().expect("an open socket");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let mut node = Node::default();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let command: Value = serde_json::from_str(&line).expect("JSON");
        let answer = match runtime.block_on(node.obey(&command)) {
            Ok(value) => json!({"ok": value}),
            Err(error) => json!({"error": kind(&error), "text": error.to_string()}),
        };
        writeln!(writer, "{answer}").expect("whoever started us listens");
    }
    std::process::exit(0);
}

fn kind(error: &RendezvousError) -> &'static str {
    match error {
        RendezvousError::Closed { .. } => "closed",
        RendezvousError::NotMet { .. } | RendezvousError::Timeout { .. } => "timeout",
        RendezvousError::Connection { .. } => "connection",
        RendezvousError::State { .. } => "state",
        RendezvousError::Parameter(_) => "value",
        _ => "other",
    }
}

#[derive(Default)]
struct Node {
    handler: Option<Arc<EtcdBarrier>>,
    met: Option<Rendezvous>,
}

impl Node {
    async fn obey(&mut self, command: &Value) -> Result<Value, RendezvousError> {
        let text = |name: &str| command[name].as_str().expect("a text");
        if text("do") == "open" {
            let number = |name: &str| command[name].as_u64().expect("a number") as usize;
            let config: BTreeMap<String, String> =
                serde_json::from_value(command["config"].clone()).expect("texts by name");
            let mut parameters = RendezvousParameters::new(
                text("backend"),
                text("endpoint"),
                text("run"),
                number("min"),
                number("max"),
            )?;
            parameters.local_addr = Some("127.0.0.1".to_owned());
            parameters.config = config;
            self.handler = Some(Arc::new(EtcdBarrier::connect(&parameters).await?));
            return Ok(true.into());
        }
        let handler = Arc::clone(self.handler.as_ref().expect("the node is open"));
        let store = || Arc::clone(&self.met.as_ref().expect("the node has met").store);
        let version = || command["version"].as_u64().expect("a number");
        Ok(match text("do") {
            "meet" => {
                let met = handler.next_rendezvous().await?;
                let answer = json!({
                    "rank": met.rank,
                    "world": met.world_size,
                    "address": met.master.address,
                    "port": met.master.port,
                    "round": met.round,
                    "holds": met.held_port.is_some(),
                });
                self.met = Some(met);
                answer
            }
            "waiting" => handler.num_nodes_waiting().await?.into(),
            "set" => {
                store().set(text("key").as_bytes(), text("value").as_bytes()).await.expect("set");
                true.into()
            }
            "get" => String::from_utf8(store().get(text("key").as_bytes()).await.expect("get"))
                .expect("text")
                .into(),
            "close" => {
                handler.set_closed("the test says so").await?;
                true.into()
            }
            "closed" => handler.is_closed().await?.into(),
            "shutdown" => handler.shutdown("the test says so").await.is_ok().into(),
            "leave" => {
                handler.leave().await?;
                true.into()
            }
            "changed" => format!("{:?}", handler.changed().await).into(),
            "extra_set" => {
                handler.store_extra_data(version(), text("key"), command["value"].clone()).await?;
                true.into()
            }
            "extra_get" => {
                let timeout = command["timeout"].as_f64().map(Duration::from_secs_f64);
                handler.load_extra_data(version(), text("key"), timeout).await?
            }
            other => panic!("no such command: {other}"),
        })
    }
}
