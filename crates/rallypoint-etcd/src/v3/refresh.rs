//! The stream on which leases are refreshed. It is asked for without `etcd-client`, which has one for each lease.

use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;

use super::classify::classify;
use super::connections::Link;
use crate::{Error, ErrorKind, Result};

/// What errors call it.
pub(super) const WHAT: &str = "lease keep-alive";

/// A request to refresh a lease.
#[derive(Clone, PartialEq, prost::Message)]
struct Refresh {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// The answer to it. No time to live is left of a lease that is not there.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Refreshed {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// An open stream.
#[derive(Debug)]
pub(super) struct RefreshStream {
    pub(super) link: Link,
    requests: UnboundedSender<Refresh>,
    answers: Streaming<Refreshed>,
}

impl RefreshStream {
    /// Opens one by refreshing `lease`: a server answers an open stream with the first of its answers, and that needs a
    /// request. No etcd wants to know who asks.
    pub(super) async fn open(link: Link, lease: i64) -> Result<Self> {
        let failed = |error| Error::new(classify(&error), WHAT).endpoint(&link.url).because(error);
        let mut client = tonic::client::Grpc::new(link.channel.clone());
        let ready = client.ready().await;
        ready.map_err(|error| failed(etcd_client::Error::TransportError(error)))?;
        let (requests, queue) = unbounded();
        let mut request = tonic::Request::new(queue);
        // A server that has lost its cluster ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = tonic_prost::ProstCodec::default();
        let _ = requests.unbounded_send(Refresh { id: lease });
        let answers = client.streaming(request, path, codec).await;
        let answers = answers.map_err(|status| failed(etcd_client::Error::GRpcStatus(status)))?.into_inner();
        Ok(RefreshStream { link, requests, answers })
    }

    pub(super) fn send(&self, lease: i64) {
        // A stream that is over already shows in its answers.
        let _ = self.requests.unbounded_send(Refresh { id: lease });
    }

    /// The next answer; an error once the stream is over.
    pub(super) async fn answer(&mut self) -> Result<Refreshed> {
        let failed = |error| Error::new(classify(&error), WHAT).endpoint(&self.link.url).because(error);
        match self.answers.message().await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Error::new(ErrorKind::Interrupted, WHAT).endpoint(&self.link.url)),
            Err(status) => Err(failed(etcd_client::Error::GRpcStatus(status))),
        }
    }
}
