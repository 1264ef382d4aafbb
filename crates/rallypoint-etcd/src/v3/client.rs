//! What a client can be asked for.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    DeleteOptions, DeleteResponse, GetOptions, GetResponse, LeaseGrantOptions, PutOptions, PutResponse,
    StatusResponse, Txn, TxnResponse,
};
use rallypoint_core::EtcdSettings;
use rallypoint_metrics::Etcd as Metrics;
use uuid::Uuid;

use super::changes::Changes;
use super::clusters::{TwoClusters, two_clusters};
use super::connections::Connections;
use super::lease::Lease;
use super::lease_hub::LeaseHub;
use super::range::KeyRange;
use super::requests::Requests;
use super::watch::Watch;
use super::watch_hub::WatchHub;
use crate::{ErrorKind, Repeat, Result};

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
    requests: Requests,
    watches: WatchHub,
    leases: LeaseHub,
}

impl Client {
    /// Connects to the first endpoint that answers.
    pub async fn connect(settings: EtcdSettings) -> Result<Client> {
        Client::connect_counting(settings, Metrics::default()).await
    }

    /// The same, and counts what it asks for.
    pub async fn connect_counting(settings: EtcdSettings, metrics: Metrics) -> Result<Client> {
        let client = Client::connect_lazily_counting(settings, metrics)?;
        client.requests.connections.connect().await?;
        Ok(client)
    }

    /// A client that connects with its first request.
    pub fn connect_lazily(settings: EtcdSettings) -> Result<Client> {
        Client::connect_lazily_counting(settings, Metrics::default())
    }

    /// The same, and counts what it asks for.
    pub fn connect_lazily_counting(settings: EtcdSettings, metrics: Metrics) -> Result<Client> {
        let retry_timeout = settings.retry_timeout;
        let connections = Arc::new(Connections::new(settings, metrics)?);
        let watches = WatchHub::new(Arc::clone(&connections));
        let leases = LeaseHub::new(Arc::clone(&connections));
        Ok(Client { requests: Requests { connections, retry_timeout }, watches, leases })
    }

    /// The same client, with another time for a request and its retries.
    #[must_use]
    pub fn retrying_for(&self, retry_timeout: Duration) -> Client {
        let requests = Requests { connections: Arc::clone(&self.requests.connections), retry_timeout };
        Client { requests, watches: self.watches.clone(), leases: self.leases.clone() }
    }

    /// What it was connected with.
    #[must_use]
    pub fn settings(&self) -> &EtcdSettings {
        self.requests.settings()
    }

    /// Why the last try of a request was not answered, if none was since.
    #[must_use]
    pub fn why_silent(&self) -> Option<String> {
        self.requests.connections.failover.reach.why()
    }

    /// Whether etcd has given it a token for its password. It gives none where it does not ask for users.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.requests.connections.login.pass().is_some_and(|pass| pass.token().is_some())
    }

    /// Reads a key, or the range that the options name.
    pub async fn get(&self, key: impl Into<Vec<u8>>, options: Option<GetOptions>) -> Result<GetResponse> {
        self.requests.get(key.into(), options).await
    }

    /// Reads all keys of `range`.
    pub async fn read(&self, range: &KeyRange) -> Result<GetResponse> {
        self.requests.read(range).await
    }

    /// Writes a key.
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        options: Option<PutOptions>,
    ) -> Result<PutResponse> {
        let (key, value) = (key.into(), value.into());
        self.requests
            .call("put", &key, Repeat::Unsafe, |on| {
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
        self.requests
            .call("delete", &key, Repeat::Unsafe, |on| {
                let (key, options) = (key.clone(), options.clone());
                async move { on.kv().delete(key, options).await }
            })
            .await
    }

    /// Carries out a transaction, which `txn` makes for each try; errors name `key`.
    pub async fn txn(&self, key: &[u8], repeat: Repeat, txn: impl Fn() -> Txn) -> Result<TxnResponse> {
        self.requests
            .call("txn", key, repeat, |on| {
                let txn = txn();
                async move { on.kv().txn(txn).await }
            })
            .await
    }

    /// Says what server answers, and how it is. Where passwords are asked for, etcd 3.5.30 and later tell only `root`.
    pub async fn status(&self) -> Result<StatusResponse> {
        self.requests
            .call("status", b"", Repeat::Safe, |on| async move { on.maintenance().status().await })
            .await
    }

    /// Two endpoints of this client that are of different clusters, if all that answer within `time` are not of one.
    pub async fn two_clusters(&self, time: Duration) -> Option<TwoClusters> {
        two_clusters(&self.requests.connections, time).await
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
        Watch::new(self.requests.clone(), &self.watches, range, Some(from.max(1)))
    }

    /// Every change of `range` from revision `from` on with what was before it, until the server stops telling.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn changes(&self, range: &KeyRange, from: i64) -> Changes {
        Changes::new(&self.requests, &self.watches, range, from.max(1))
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
        Watch::new(self.requests.clone(), &self.watches, range, None)
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
        Lease::keep(self.requests.clone(), &self.leases, id, ttl)
    }

    /// Refreshes a lease once.
    pub async fn lease_renew(&self, id: i64) -> Result<()> {
        self.requests
            .call("lease keep-alive", b"", Repeat::Safe, |on| async move {
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
                .requests
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
            .requests
            .call("lease time to live", b"", Repeat::Safe, |on| async move {
                on.lease().time_to_live(id, None).await
            })
            .await?;
        Ok(Some(answer.ttl()).filter(|ttl| *ttl >= 0))
    }

    /// Ends a lease and deletes its keys. One that is not there any more has ended.
    pub async fn lease_revoke(&self, id: i64) -> Result<()> {
        self.requests.lease_revoke(id).await
    }
}
