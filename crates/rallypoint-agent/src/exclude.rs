//! A node that keeps itself out of its run: it is sick, or fails too often. Where it was told which machine it is on, all nodes
//! on that go with it, if the others can go on without them.

use std::time::Duration;

use rallypoint_core::text::plain;
use rallypoint_rendezvous::{ExclusionOutcome, RendezvousHandler, Whom};
use rallypoint_store::Store;
use tracing::warn;

use crate::decision::{ServerIs, Spared};
use crate::server::server_node;

/// For an etcd to say who is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the run would be without those that `whom` means.
pub(crate) async fn without(
    handler: &dyn RendezvousHandler,
    whom: &Whom,
    run_store: &dyn Store,
) -> Result<Spared, String> {
    let remain = handler.others_than(whom).await.map_err(|error| error.to_string())?;
    let remain = remain
        .ok_or_else(|| format!("the backend {:?} does not say which nodes are there", handler.backend()))?;
    let server = match whom {
        Whom::Host(host) => {
            let server = server_node(run_store).await;
            let is_there = server.is_some_and(|server| server.machine.as_ref() == Some(host));
            if is_there { ServerIs::OnHost(host.clone()) } else { ServerIs::Elsewhere }
        }
        Whom::Node(_) => ServerIs::Elsewhere,
    };
    let min_nodes = handler.progress().borrow().min_nodes;
    Ok(Spared { server, remain, min_nodes })
}

/// Keeps this node, which goes anyhow, out of its run: with its host, unless that would keep the others from going on.
pub(crate) async fn exclude_itself(handler: &dyn RendezvousHandler, reason: &str, time: Option<Duration>) {
    let Some(itself) = handler.itself() else { return };
    let alone = handler.node_name().map(|name| Whom::Node(name.to_owned()));
    let whom = match (itself, alone) {
        (host @ Whom::Host(_), Some(alone)) => {
            let spared = tokio::time::timeout(PATIENCE, spares_host(handler, &host, &alone)).await;
            match spared.unwrap_or_else(|_| Err("etcd does not answer".to_owned())) {
                Ok(()) => host,
                Err(why) => {
                    warn!("only this node is excluded, and not all nodes of its {host}: {why}");
                    alone
                }
            }
        }
        (itself, _) => itself,
    };
    exclude(handler, whom, reason, time).await;
}

/// Whether the others can do as well without all nodes of a host as without this one, or why not.
async fn spares_host(handler: &dyn RendezvousHandler, host: &Whom, alone: &Whom) -> Result<(), String> {
    let run_store = handler.run_store().await.map_err(|error| error.to_string())?;
    // Nobody has met yet, which is told below.
    let Some(run_store) = run_store else { return Ok(()) };
    let with_host = without(handler, host, &*run_store).await?;
    match with_host.check() {
        // Too few are left, whoever else is on that host.
        Err(_) if with_host == without(handler, alone, &*run_store).await? => Ok(()),
        checked => checked,
    }
}

/// Keeps somebody out of the run that this node is in. An etcd that does not take it, or a backend that has no place for it, is
/// told of, and that is all: the node goes anyhow.
pub(crate) async fn exclude(
    handler: &dyn RendezvousHandler,
    whom: Whom,
    reason: &str,
    time: Option<Duration>,
) {
    match handler.exclude(whom.clone(), reason, time).await {
        Ok(ExclusionOutcome::Done) => {
            let host = match whom {
                Whom::Host(host) => format!(", with all nodes of host {}", plain(&host)),
                Whom::Node(_) => String::new(),
            };
            warn!("this node is excluded from the run{host}: {reason}");
        }
        Ok(outcome) => {
            let why = match outcome {
                ExclusionOutcome::NoRun => "there is no run yet: no other node has joined",
                ExclusionOutcome::RunClosed => "the run is closed",
                ExclusionOutcome::TooMany => "too many are excluded already",
                _ => "etcd does not take it",
            };
            warn!("this node cannot be excluded from the run: {why}");
        }
        Err(error) => warn!("this node cannot be excluded from the run: {error}"),
    }
}
