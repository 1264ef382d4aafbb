//! One request, tried at one endpoint after the other until its deadline; and the few that watches and leases make
//! themselves.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, ResponseHeader};
use rallypoint_core::EtcdSettings;
use tokio::time::Instant;

use super::classify::is_said_by_server;
use super::connections::{Connection, Connections};
use super::range::KeyRange;
use crate::failover::after;
use crate::{Error, ErrorKind, Repeat, Result};

/// Sends requests, each for as long as `retry_timeout`.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    pub(super) connections: Arc<Connections>,
    pub(super) retry_timeout: Duration,
}

impl Requests {
    pub(super) fn settings(&self) -> &EtcdSettings {
        &self.connections.settings
    }

    pub(super) async fn get(&self, key: Vec<u8>, options: Option<GetOptions>) -> Result<GetResponse> {
        self.call("get", &key, Repeat::Safe, |on| {
            let (key, options) = (key.clone(), options.clone());
            async move { on.kv().get(key, options).await }
        })
        .await
    }

    pub(super) async fn read(&self, range: &KeyRange) -> Result<GetResponse> {
        let first =
            if range.start().is_empty() && self.settings().prefix.is_empty() { b"\0" } else { range.start() };
        self.get(first.to_vec(), Some(range.get_options())).await
    }

    pub(super) async fn lease_revoke(&self, id: i64) -> Result<()> {
        let revoked = self
            .call("lease revoke", b"", Repeat::Safe, |on| async move { on.lease().revoke(id).await })
            .await;
        match revoked {
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Counts a try. An error that a server sends is an answer too.
    fn count<T, E>(&self, what: &str, answer: &Result<Result<T, etcd_client::Error>, E>, asked: Instant) {
        let metrics = &self.connections.metrics;
        metrics.request(what, matches!(answer, Ok(Ok(_))), asked.elapsed());
        let said = match answer {
            Ok(Ok(_)) => true,
            Ok(Err(etcd_client::Error::GRpcStatus(status))) => is_said_by_server(status),
            _ => false,
        };
        if said {
            metrics.answered();
        }
    }

    /// Tries `request` until it succeeds, fails for good, or its time is over.
    pub(super) async fn call<T, F>(
        &self,
        what: &'static str,
        key: &[u8],
        repeat: Repeat,
        request: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let send = async |at, deadline: Instant| {
            let late = |kind| Error::new(kind, what).endpoint(self.connections.url(at));
            let turn = tokio::time::timeout_at(deadline, self.connections.turns.acquire()).await;
            let _turn = turn.map_err(|_| late(ErrorKind::Busy).because("this client's other requests"))?;
            let limit = deadline.min(after(self.settings().request_timeout));
            let mut again = false;
            loop {
                // Until there is a connection, nothing can have been carried out.
                let connecting = tokio::time::timeout_at(limit, self.connections.at(at)).await;
                let connection =
                    connecting.map_err(|_| late(ErrorKind::Unreachable).because("no answer in time"))??;
                let shown = self.connections.login.pass();
                let asked = Instant::now();
                let answer = tokio::time::timeout_at(limit, request(Arc::clone(&connection))).await;
                self.count(what, &answer, asked);
                match answer {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => {
                        let refused =
                            shown.is_some_and(|shown| self.connections.login.refused(&shown, &error));
                        // Tokens end now and then: nobody need notice.
                        if again || !refused {
                            return Err(connection.error(what, error));
                        }
                        again = true;
                    }
                    Err(_) => return Err(late(ErrorKind::Timeout)),
                }
            }
        };
        let answer = self.connections.failover.call(repeat, self.retry_timeout, send).await;
        // As etcd has it: that is where somebody looks, and what a role is granted for.
        let named = || [self.settings().prefix.as_bytes(), key].concat();
        answer.map_err(|error| if key.is_empty() { error } else { error.key(named()) })
    }
}

/// The revision that an answer was given at. etcd sends it with every answer.
pub fn revision_of(header: Option<&ResponseHeader>) -> Result<i64> {
    header
        .map(ResponseHeader::revision)
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "read an answer").because("it has no header"))
}
