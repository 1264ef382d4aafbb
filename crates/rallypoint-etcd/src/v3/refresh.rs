//! The stream on which leases are refreshed. It is asked for without `etcd-client`, which has one for each lease.

use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;

use super::classify::{classify, is_said_by_server};
use super::connections::Link;
use crate::{Error, ErrorKind};

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

/// Why a stream did not come about, or is over.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) error: Error,
    /// The server ended it. The connection works.
    pub(super) by_server: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken { error, by_server: false }
    }
}

impl Broken {
    fn new(status: tonic::Status, url: &str) -> Self {
        let by_server = is_said_by_server(&status);
        let error = etcd_client::Error::GRpcStatus(status);
        Broken { error: Error::new(classify(&error), WHAT).endpoint(url).because(error), by_server }
    }
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
    pub(super) async fn open(link: Link, lease: i64) -> Result<Self, Broken> {
        let mut client = tonic::client::Grpc::new(link.channel.clone());
        client
            .ready()
            .await
            .map_err(|error| Error::new(ErrorKind::Unreachable, WHAT).endpoint(&link.url).because(error))?;
        let (requests, queue) = unbounded();
        let mut request = tonic::Request::new(queue);
        // A server that has lost its cluster ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = tonic_prost::ProstCodec::default();
        let _ = requests.unbounded_send(Refresh { id: lease });
        let answers = client.streaming(request, path, codec).await;
        let answers = answers.map_err(|status| Broken::new(status, &link.url))?.into_inner();
        Ok(RefreshStream { link, requests, answers })
    }

    pub(super) fn send(&self, lease: i64) {
        // A stream that is over already shows in its answers.
        let _ = self.requests.unbounded_send(Refresh { id: lease });
    }

    /// The next answer; an error once the stream is over.
    pub(super) async fn answer(&mut self) -> Result<Refreshed, Broken> {
        match self.answers.message().await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                let error = Error::new(ErrorKind::Interrupted, WHAT).endpoint(&self.link.url);
                Err(Broken { error, by_server: true })
            }
            Err(status) => Err(Broken::new(status, &self.link.url)),
        }
    }
}
