//! A node that does nothing but meet, and tells what it sees: one line of JSON each.
//!
//! ```text
//! cargo run -p rallypoint-rendezvous --example node -- 127.0.0.1:2379 my-run 2 4
//! ```
//!
//! It meets again whenever the group is no longer whole, until `leave` or `close` comes on its standard input.
//! More options, as for torchrun's `--rdzv-conf`, may follow: `last_call_timeout=1,lease_timeout=2`.

use std::error::Error;
use std::io::Write as _;

use rallypoint_rendezvous::native::NativeHandler;
use rallypoint_rendezvous::{RendezvousHandler as _, RendezvousParameters};
use serde_json::{Value, json};
use tokio::sync::mpsc;

fn tell(line: &Value) {
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

    let (orders, mut order) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if orders.send(line).is_err() {
                return;
            }
        }
    });
    let node = NativeHandler::create(parameters).await?;
    tell(&json!({ "node": node.node(), "pid": std::process::id() }));
    loop {
        let met = tokio::select! {
            met = node.next_rendezvous() => met,
            Some(_) = order.recv() => return Ok(node.leave().await?),
        };
        let round = match met {
            Ok(round) => round,
            Err(error) => {
                tell(&json!({ "error": error.to_string() }));
                return Ok(node.leave().await?);
            }
        };
        tell(&json!({
            "round": round.round,
            "rank": round.rank,
            "world_size": round.world_size,
            "master": format!("{}:{}", round.master.address, round.master.port),
        }));
        tokio::select! {
            change = node.changed() => tell(&json!({ "change": format!("{change:?}") })),
            Some(order) = order.recv() => {
                if order == "close" {
                    node.set_closed("told to").await?;
                }
                return Ok(node.leave().await?);
            }
        }
    }
}
