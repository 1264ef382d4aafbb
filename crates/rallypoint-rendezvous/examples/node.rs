//! A node that does nothing but meet, and tells what it sees and does: one line of JSON each, with the time by the
//! clock that all processes of a machine share (`at`, in microseconds).
//!
//! ```text
//! cargo run -p rallypoint-rendezvous --example node -- 127.0.0.1:2379 my-run 2 4
//! ```
//!
//! It meets again whenever the group is no longer whole. What it is told on its standard input:
//!
//! - `leave` and `close`: it leaves, and closes the run before that;
//! - `meet`: it asks for a new round, as when its workers have failed;
//! - `hang` and `go`: it does not meet again from now on, and does again.
//!
//! More options, as for torchrun's `--rdzv-conf`, may follow: `last_call_timeout=1,lease_timeout=2`.

use std::error::Error;
use std::io::Write as _;

use rallypoint_rendezvous::native::NativeHandler;
use rallypoint_rendezvous::{Rendezvous, RendezvousError, RendezvousHandler as _, RendezvousParameters};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::mpsc;

fn tell(mut line: Value) {
    let now = clock_gettime(ClockId::Monotonic);
    line["at"] = json!(now.tv_sec * 1_000_000 + now.tv_nsec / 1000);
    // Whoever reads may be gone; this node is not here to complain.
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or(format!("say {what}: ENDPOINT RUN MIN MAX [OPTIONS]"));
    let (endpoint, run) = (next("where etcd is")?, next("which run")?);
    let (min, max) = (next("the least nodes")?.parse()?, next("the most nodes")?.parse()?);
    let mut parameters = RendezvousParameters::new("rallypoint", &endpoint, &run, min, max)?;
    parameters.config = RendezvousParameters::parse_config(&next("options").unwrap_or_default())?;

    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let created = NativeHandler::create(parameters).await;
    let handler = created.inspect_err(|error| tell(json!({ "error": error.to_string() })))?;
    tell(json!({ "node": handler.node(), "pid": std::process::id() }));
    let mut node = Node { handler, orders, hangs: false };
    let done = node.run().await;
    if let Err(error) = &done {
        tell(json!({ "error": error.to_string() }));
    }
    tell(json!({ "leaves": true }));
    let left = node.handler.leave().await;
    tell(json!({ "left": left.is_ok() }));
    Ok(done.and(left)?)
}

struct Node {
    handler: NativeHandler,
    orders: mpsc::UnboundedReceiver<String>,
    /// It does not meet again by itself.
    hangs: bool,
}

impl Node {
    async fn run(&mut self) -> Result<(), RendezvousError> {
        while let Some(round) = self.meet().await? {
            tell(json!({
                "round": round.round,
                "plan": self.handler.plan(),
                "rank": round.rank,
                "world_size": round.world_size,
                "master": format!("{}:{}", round.master.address, round.master.port),
            }));
            if !self.work().await? {
                break;
            }
        }
        Ok(())
    }

    /// The next round; none if it is to leave.
    async fn meet(&mut self) -> Result<Option<Rendezvous>, RendezvousError> {
        tell(json!({ "asks": true }));
        let meeting = self.handler.next_rendezvous();
        tokio::pin!(meeting);
        let mut progress = self.handler.progress();
        let mut was_spare = false;
        loop {
            tokio::select! {
                met = &mut meeting => return met.map(Some),
                Some(order) = self.orders.recv() => match order.as_str() {
                    "leave" | "close" => return Ok(None),
                    "hang" => self.hangs = true,
                    "go" => self.hangs = false,
                    _ => {}
                },
                Ok(()) = progress.changed() => {
                    let spare = progress.borrow_and_update().spare;
                    if std::mem::replace(&mut was_spare, spare) != spare {
                        tell(json!({ "spare": spare }));
                    }
                }
            }
        }
    }

    /// Works until it is time to meet again; false if it is to leave.
    async fn work(&mut self) -> Result<bool, RendezvousError> {
        let mut told = false;
        loop {
            tokio::select! {
                change = self.handler.changed(), if !told => {
                    told = true;
                    tell(json!({ "change": format!("{change:?}") }));
                }
                Some(order) = self.orders.recv() => match order.as_str() {
                    "leave" => return Ok(false),
                    "close" => {
                        self.handler.set_closed("told to").await?;
                        return Ok(false);
                    }
                    "meet" => return Ok(true),
                    "hang" => self.hangs = true,
                    "go" => self.hangs = false,
                    _ => {}
                },
            }
            if told && !self.hangs {
                return Ok(true);
            }
        }
    }
}
