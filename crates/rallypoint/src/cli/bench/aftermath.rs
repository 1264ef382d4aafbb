//! What comes after a group has formed: nothing for a while, and the death of many at once.

use std::time::{Duration, Instant};

use etcd_client::{Client as RawClient, GetOptions};
use futures::future::{join_all, try_join_all};
use rallypoint_core::round::Keys;
use rallypoint_rendezvous::native::{NativeSettings, run_prefix};
use rallypoint_rendezvous::{RendezvousError, RendezvousHandler as _};
use serde::Serialize;

use super::counts::Counts;
use super::{Group, raw_options};

/// What a group that does nothing costs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Idle {
    /// How long that was looked at.
    pub seconds: f64,
    /// Refreshes of leases that etcd counted, in a second.
    pub keep_alives: f64,
    /// What all members of etcd together took of a processor, for 1,000 nodes: 0.05 is a twentieth of one.
    pub processors_per_1000: f64,
}

/// Lets a group be for so long; none if its etcd does not tell what it counts.
pub async fn idle(settings: &NativeSettings, nodes: usize, time: Duration) -> Option<Idle> {
    // What the formation has left to do, and the beginnings of the leases.
    tokio::time::sleep(settings.lease / 2).await;
    let (began, before) = (Instant::now(), Counts::read(settings).await.ok()?);
    tokio::time::sleep(time).await;
    let after = Counts::read(settings).await.ok()?;
    let seconds = began.elapsed().as_secs_f64();
    let processors = (after.processor - before.processor) / seconds;
    Some(Idle {
        seconds,
        keep_alives: (after.keep_alives - before.keep_alives) / seconds,
        processors_per_1000: processors / nodes as f64 * 1000.0,
    })
}

/// What became of a group of which many died at once.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MassDeath {
    /// How many died.
    pub deaths: usize,
    /// The lease that they had, in seconds.
    pub lease: f64,
    /// From then until the last of the others knew.
    pub known_seconds: f64,
    /// From then until all others had met again.
    pub whole_seconds: f64,
    /// From then until nothing of the dead was left in etcd.
    pub tidy_seconds: f64,
}

/// Lets `deaths` nodes of a group die at once, spread over its ranks, and the others meet again.
pub async fn mass_death(
    settings: &NativeSettings,
    group: &mut Group,
    deaths: usize,
) -> Result<MassDeath, RendezvousError> {
    let (all, rest) = (group.nodes.len(), group.nodes.len() - deaths);
    let mut index = 0;
    let began = Instant::now();
    // Dropped without a word, which is what etcd sees of a process that is killed.
    group.nodes.retain(|_| {
        index += 1;
        index * deaths / all == (index - 1) * deaths / all
    });
    join_all(group.nodes.iter().map(|node| node.changed())).await;
    let known_seconds = began.elapsed().as_secs_f64();
    loop {
        let rounds = try_join_all(group.nodes.iter().map(|node| node.next_rendezvous())).await?;
        if rounds.iter().all(|round| round.world_size == rest) {
            break;
        }
        // Not all of the dead were known to be so yet.
        join_all(group.nodes.iter().map(|node| node.changed())).await;
    }
    let whole_seconds = began.elapsed().as_secs_f64();
    while places(settings).await? > rest {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (lease, tidy_seconds) = (settings.lease.as_secs_f64(), began.elapsed().as_secs_f64());
    Ok(MassDeath { deaths, lease, known_seconds, whole_seconds, tidy_seconds })
}

/// How many places stand in etcd.
async fn places(settings: &NativeSettings) -> Result<usize, RendezvousError> {
    let failed = |error: etcd_client::Error| RendezvousError::Connection {
        endpoint: settings.etcd.endpoints.to_string(),
        source: error.into(),
    };
    let mut client =
        RawClient::connect(settings.etcd.urls(), raw_options(settings)?).await.map_err(failed)?;
    let prefix = settings.etcd.prefix.clone() + &Keys::new(&run_prefix(&settings.run_id)).ranks();
    let counted = client.get(prefix, Some(GetOptions::new().with_prefix().with_count_only())).await;
    Ok(usize::try_from(counted.map_err(failed)?.count()).unwrap_or(0))
}
