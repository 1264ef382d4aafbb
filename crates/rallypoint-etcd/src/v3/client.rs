//! Requests, tried at one endpoint after the other until their deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    DeleteOptions, DeleteResponse, GetOptions, GetResponse, LeaseGrantOptions, PutOptions, PutResponse,
    ResponseHeader, StatusResponse, Txn, TxnResponse,
};
use rallypoint_core::EtcdSettings;
use tokio::time::Instant;
use uuid::Uuid;

use super::classify::is_outdated_login;
use super::connections::{Connection, Connections};
use super::lease::Lease;
use super::lease_hub::LeaseHub;
use super::watch::{KeyRange, Watch};
use super::watch_hub::WatchHub;
use crate::failover::after;
use crate::{Error, ErrorKind, Repeat, Result};

/// A client of etcd v3. Cheap to clone; clones share the connection and the watches.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_core::EtcdSettings;
/// use rallypoint_etcd::v3::Client;
///
/// let client = Client::connect(EtcdSettings::new("etcd1,etcd2,etcd3")?).await?;
/// client.put("greeting", "hello", None).await?;
/// let answer = client.get("greeting", None).await?;
/// assert_eq!(answer.kvs()[0].value(), b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    connections: Arc<Connections>,
    hub: WatchHub,
    leases: LeaseHub,
    retry_timeout: Duration,
}

impl Client {
    /// Connects to the first endpoint that answers.
    pub async fn connect(settings: EtcdSettings) -> Result<Client> {
        let client = Client::connect_lazily(settings)?;
        client.connections.connect().await?;
        Ok(client)
    }

    /// A client that connects with its first request.
    pub fn connect_lazily(settings: EtcdSettings) -> Result<Client> {
        let retry_timeout = settings.retry_timeout;
        let connections = Arc::new(Connections::new(settings)?);
        let hub = WatchHub::new(Arc::clone(&connections));
        let leases = LeaseHub::new(Arc::clone(&connections));
        Ok(Client { connections, hub, leases, retry_timeout })
    }

    /// The same client, with another time for a request and its retries.
    #[must_use]
    pub fn retrying_for(&self, retry_timeout: Duration) -> Client {
        Client { retry_timeout, ..self.clone() }
    }

    /// What it was connected with.
    #[must_use]
    pub fn settings(&self) -> &EtcdSettings {
        &self.connections.settings
    }

    /// Reads a key, or the range that the options name.
    pub async fn get(&self, key: impl Into<Vec<u8>>, options: Option<GetOptions>) -> Result<GetResponse> {
        let key = key.into();
        self.call("get", &key, Repeat::Safe, |on| {
            let (key, options) = (key.clone(), options.clone());
            async move { on.kv().get(key, options).await }
        })
        .await
    }

    /// Reads all keys of `range`.
    pub async fn read(&self, range: &KeyRange) -> Result<GetResponse> {
        let first =
            if range.start().is_empty() && self.settings().prefix.is_empty() { b"\0" } else { range.start() };
        self.get(first, Some(range.get_options())).await
    }

    /// Writes a key.
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        options: Option<PutOptions>,
    ) -> Result<PutResponse> {
        let (key, value) = (key.into(), value.into());
        self.call("put", &key, Repeat::Unsafe, |on| {
            let (key, value, options) = (key.clone(), value.clone(), options.clone());
            async move { on.kv().put(key, value, options).await }
        })
        .await
    }

    /// Deletes a key, or the range that the options name.
    pub async fn delete(
        &self,
        key: impl Into<Vec<u8>>,
        options: Option<DeleteOptions>,
    ) -> Result<DeleteResponse> {
        let key = key.into();
        self.call("delete", &key, Repeat::Unsafe, |on| {
            let (key, options) = (key.clone(), options.clone());
            async move { on.kv().delete(key, options).await }
        })
        .await
    }

    /// Carries out a transaction, which `txn` makes for each try; errors name `key`.
    pub async fn txn(&self, key: &[u8], repeat: Repeat, txn: impl Fn() -> Txn) -> Result<TxnResponse> {
        self.call("txn", key, repeat, |on| {
            let txn = txn();
            async move { on.kv().txn(txn).await }
        })
        .await
    }

    /// Says what server answers, and how it is.
    pub async fn status(&self) -> Result<StatusResponse> {
        self.call("status", b"", Repeat::Safe, |on| async move { on.maintenance().status().await }).await
    }

    /// Every event of `range` from revision `from` on.
    ///
    /// Read the range first and watch from the revision after that read's: then nothing is missed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch(&self, range: KeyRange, from: i64) -> Watch {
        // Revision 0 would mean "from now on", a now that moves with every reconnection.
        Watch::new(self.clone(), &self.hub, range, Some(from.max(1)))
    }

    /// Watches a range of keys from now on. The first update, which may be empty, tells that it has begun.
    ///
    /// An etcd takes such a watch in at once, where one from an earlier revision waits in line for what it may have
    /// missed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_from_now(&self, range: KeyRange) -> Watch {
        Watch::new(self.clone(), &self.hub, range, None)
    }

    /// A lease of `ttl`, kept alive until it is dropped or revoked. etcd counts in seconds, from 2.
    pub async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let (id, granted) = self.lease_grant(ttl).await?;
        Ok(self.lease_keep(id, granted))
    }

    /// Keeps a lease alive that was granted before.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn lease_keep(&self, id: i64, ttl: Duration) -> Lease {
        Lease::keep(self.clone(), &self.leases, id, ttl)
    }

    /// Refreshes a lease once.
    pub async fn lease_renew(&self, id: i64) -> Result<()> {
        self.call("lease keep-alive", b"", Repeat::Safe, |on| async move {
            on.lease().keep_alive(id).await.map(|_| ())
        })
        .await
    }

    /// A lease that nobody keeps alive: its id, and the time that the server granted.
    pub async fn lease_grant(&self, ttl: Duration) -> Result<(i64, Duration)> {
        let seconds = i64::try_from(ttl.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX);
        loop {
            // Our own id makes a repeat harmless: the second grant finds the first one's lease. It is drawn by
            // the system, as two processes that were one before a fork would draw the same.
            let id = (Uuid::new_v4().as_u64_pair().0 >> 1).cast_signed().max(1);
            let options = LeaseGrantOptions::new().with_id(id);
            let granted = self
                .call("lease grant", b"", Repeat::Safe, |on| {
                    let options = options.clone();
                    async move { on.lease().grant(seconds, Some(options)).await }
                })
                .await;
            match granted {
                Ok(answer) => return Ok((id, Duration::from_secs(answer.ttl().max(1).unsigned_abs()))),
                Err(error) if error.kind() == ErrorKind::LeaseExists => {
                    if error.may_have_applied() {
                        return Ok((id, ttl));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The seconds that are left of a lease; none if it is not there any more.
    pub async fn lease_left(&self, id: i64) -> Result<Option<i64>> {
        let answer = self
            .call("lease time to live", b"", Repeat::Safe, |on| async move {
                on.lease().time_to_live(id, None).await
            })
            .await?;
        Ok(Some(answer.ttl()).filter(|ttl| *ttl >= 0))
    }

    /// Ends a lease and deletes its keys. One that is not there any more has ended.
    pub async fn lease_revoke(&self, id: i64) -> Result<()> {
        let revoked = self
            .call("lease revoke", b"", Repeat::Safe, |on| async move { on.lease().revoke(id).await })
            .await;
        match revoked {
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Tries `request` until it succeeds, fails for good, or its time is over.
    async fn call<T, F>(
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
            // Until there is a connection, nothing can have been carried out.
            let connecting = tokio::time::timeout_at(limit, self.connections.at(at)).await;
            let connection =
                connecting.map_err(|_| late(ErrorKind::Unreachable).because("no answer in time"))??;
            match tokio::time::timeout_at(limit, request(Arc::clone(&connection))).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => {
                    if is_outdated_login(&error) {
                        self.connections.forget(at);
                    }
                    Err(connection.error(what, error))
                }
                Err(_) => Err(late(ErrorKind::Timeout)),
            }
        };
        let answer = self.connections.failover.call(repeat, self.retry_timeout, send).await;
        answer.map_err(|error| if key.is_empty() { error } else { error.key(key) })
    }
}

/// The revision that an answer was given at. etcd sends it with every answer.
pub fn revision_of(header: Option<&ResponseHeader>) -> Result<i64> {
    header
        .map(ResponseHeader::revision)
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "read an answer").because("it has no header"))
}
