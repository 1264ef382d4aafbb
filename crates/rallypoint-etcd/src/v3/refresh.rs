//! The stream on which leases are refreshed. It is asked for without `etcd-client`, which has one for each lease.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;

use super::classify::{Said, classify, is_said_by_server};
use super::link::Link;
use super::login::{Login, Pass, TOKEN};
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
    pub(super) cause: Cause,
}

/// What a stream broke of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection, as far as can be told.
    Connection,
    /// The server ended it. The connection works.
    Server,
    /// The server wants another token.
    Token,
    /// The server gives no token for our password.
    Password,
    /// The server lets this lease be refreshed only by who may write its keys.
    Permission(i64),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        let wrong_password = error.kind() == ErrorKind::Auth;
        Broken { error, cause: if wrong_password { Cause::Password } else { Cause::Connection } }
    }
}

impl Broken {
    /// `first` is the lease whose refresh was not answered.
    fn new(status: tonic::Status, link: &Link, login: &Login, pass: &Pass, first: Option<i64>) -> Self {
        let by_server = is_said_by_server(&status);
        let error = etcd_client::Error::GRpcStatus(status);
        let cause = match (classify(&error), first) {
            _ if login.refused(pass, &error) => Cause::Token,
            (ErrorKind::PermissionDenied, Some(lease)) => Cause::Permission(lease),
            _ if by_server => Cause::Server,
            _ => Cause::Connection,
        };
        Broken { error: Error::new(classify(&error), WHAT).endpoint(&link.url).because(Said(error)), cause }
    }
}

/// An open stream.
pub(super) struct RefreshStream {
    pub(super) link: Link,
    login: Arc<Login>,
    pass: Pass,
    requests: UnboundedSender<Refresh>,
    answers: Streaming<Refreshed>,
    /// What was asked and not answered yet. Answers come in the order of the requests.
    asked: VecDeque<i64>,
}

impl RefreshStream {
    /// Opens one by refreshing `lease`: a server answers an open stream with the first of its answers, and that needs a
    /// request. The token is shown here, and good for the stream as long as etcd takes it.
    pub(super) async fn open(link: Link, login: Arc<Login>, pass: Pass, lease: i64) -> Result<Self, Broken> {
        let mut client = tonic::client::Grpc::new(link.channel.clone());
        client
            .ready()
            .await
            .map_err(|error| Error::new(ErrorKind::Unreachable, WHAT).endpoint(&link.url).because(error))?;
        let (requests, queue) = unbounded();
        let mut request = tonic::Request::new(queue);
        // A server that has lost its cluster ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = pass.token() {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = tonic_prost::ProstCodec::default();
        let _ = requests.unbounded_send(Refresh { id: lease });
        match client.streaming(request, path, codec).await {
            Ok(answers) => {
                let (answers, asked) = (answers.into_inner(), VecDeque::from([lease]));
                Ok(RefreshStream { link, login, pass, requests, answers, asked })
            }
            Err(status) => Err(Broken::new(status, &link, &login, &pass, Some(lease))),
        }
    }

    pub(super) fn send(&mut self, lease: i64) {
        self.asked.push_back(lease);
        // A stream that is over already shows in its answers.
        let _ = self.requests.unbounded_send(Refresh { id: lease });
    }

    /// The next answer; an error once the stream is over.
    pub(super) async fn answer(&mut self) -> Result<Refreshed, Broken> {
        match self.answers.message().await {
            Ok(Some(answer)) => {
                if let Some(at) = self.asked.iter().position(|lease| *lease == answer.id) {
                    self.asked.drain(..=at);
                }
                Ok(answer)
            }
            Ok(None) => {
                let error = Error::new(ErrorKind::Interrupted, WHAT).endpoint(&self.link.url);
                Err(Broken { error, cause: Cause::Server })
            }
            Err(status) => {
                let first = self.asked.front().copied();
                Err(Broken::new(status, &self.link, &self.login, &self.pass, first))
            }
        }
    }
}
