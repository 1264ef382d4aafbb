//! Whether all endpoints are of one cluster.
//!
//! A client stays with one of them, whichever it is. Were they of two clusters, two nodes of one run might never see each
//! other, each sure to be where it should be. etcd tells with every answer which cluster it is of.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use futures::future::join_all;

use super::connections::Connections;

/// What is asked for is any answer: no lease has this number.
const NO_LEASE: i64 = 1;

/// Endpoints that were given for one cluster and are of two.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TwoClusters {
    /// One of the first...
    pub one: String,
    /// ...and one of the second.
    pub other: String,
}

impl std::fmt::Display for TwoClusters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TwoClusters { one, other } = self;
        write!(
            f,
            "{one} and {other} are of two etcd clusters, and who uses the one does not see who uses the other; name the members of one cluster"
        )
    }
}

impl std::error::Error for TwoClusters {}

/// Asks every endpoint, on connections of their own: most are needed for nothing else. Who does not answer within `time`
/// counts for nothing. One alone is of one cluster, and is not asked.
pub(super) async fn two_clusters(connections: &Connections, time: Duration) -> Option<TwoClusters> {
    if connections.len() < 2 {
        return None;
    }
    let ask = |at| async move { tokio::time::timeout(time, cluster(connections, at)).await.ok().flatten() };
    let clusters = join_all((0..connections.len()).map(ask)).await;
    let mut known = clusters.into_iter().enumerate().filter_map(|(at, cluster)| Some((at, cluster?)));
    let (first, cluster) = known.next()?;
    let (other, _) = known.find(|(_, other)| *other != cluster)?;
    let name = |at| connections.url(at).to_owned();
    Some(TwoClusters { one: name(first), other: name(other) })
}

async fn cluster(connections: &Connections, at: usize) -> Option<u64> {
    let link = connections.link(at).await.ok()?;
    connections.login.pass_on(&link).await.ok()?;
    let channel = connections.login.channel(link.channel);
    // A server that has no leader knows its cluster, too.
    let client = Client::from_channel(channel, Some(ConnectOptions::new())).await.ok()?;
    let answer = client.lease_client().time_to_live(NO_LEASE, None).await.ok()?;
    answer.header().map(etcd_client::ResponseHeader::cluster_id).filter(|cluster| *cluster != 0)
}
