//! One connection per endpoint, and which of them is in use.
//!
//! The balancing channel of `etcd-client` would hide which endpoint failed, and can hand requests to one that
//! accepts and never answers. So each endpoint has a channel of its own, all requests go to one of them, and a
//! failure moves on to the next.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::{ConnectOptions, KvClient, KvClientPrefix, LeaseClient, MaintenanceClient, WatchClient};
use futures::stream::{FuturesUnordered, StreamExt};
use rallypoint_core::EtcdSettings;
use rallypoint_metrics::Etcd as Metrics;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::transport::Channel as TonicChannel;

use super::classify::{Said, classify};
use super::dial::Dial;
use super::link::Link;
use super::login::Login;
use crate::error::CONNECT;
use crate::failover::{Failover, after};
use crate::tls::Pem;
use crate::{Error, ErrorKind, Result};

/// The largest answer that is read: a bound for what a hostile server can make us hold.
const MAX_ANSWER: usize = 256 << 20;

/// Requests under way at a time; the others wait their turn. More at a time is not more per second, but costs an etcd
/// more for each; and one that has 5,000 to catch up with refuses whatever comes.
const IN_FLIGHT: usize = 32;

/// A connection that requests can be sent on.
pub(super) struct Connection {
    index: usize,
    pub(super) url: String,
    prefix: Vec<u8>,
    kv: KvClient,
    lease: LeaseClient,
    watch: WatchClient,
    maintenance: MaintenanceClient,
    channel: TonicChannel,
    /// A newer connection was answered while this one was silent.
    suspected: Notify,
}

pub(super) struct Connections {
    pub(super) settings: EtcdSettings,
    endpoints: Vec<Slot>,
    pub(super) login: Arc<Login>,
    /// One for each request under way.
    pub(super) turns: Semaphore,
    pub(super) failover: Failover,
    pub(super) metrics: Metrics,
}

/// An endpoint and its connection, once it was needed.
struct Slot {
    url: String,
    dial: Dial,
    connection: Mutex<Option<Arc<Connection>>>,
    /// One that is known to work, to make the next connection of.
    adopted: Mutex<Option<TonicChannel>>,
    /// Held by whoever makes the connection.
    making: tokio::sync::Mutex<()>,
}

impl Slot {
    fn connection(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.connection.lock().expect("no code panics while it holds this lock")
    }

    fn adopted(&self) -> MutexGuard<'_, Option<TonicChannel>> {
        self.adopted.lock().expect("no code panics while it holds this lock")
    }
}

impl Connections {
    pub(super) fn new(settings: EtcdSettings, metrics: Metrics) -> Result<Self> {
        let wrong = |what| Error::new(ErrorKind::Settings, what);
        settings.check().map_err(|error| wrong(CONNECT).because(error))?;
        let pem = settings.tls.as_ref().map(Pem::load).transpose()?;

        let slot = |url: String| -> Result<Slot> {
            let dial = Dial::new(&url, pem.as_ref(), settings.connect_timeout);
            let dial = dial.map_err(|error| wrong(CONNECT).endpoint(&url).because(error))?;
            let (connection, adopted) = (Mutex::new(None), Mutex::new(None));
            Ok(Slot { url, dial, connection, adopted, making: tokio::sync::Mutex::new(()) })
        };
        let endpoints = settings.urls().into_iter().map(slot).collect::<Result<Vec<_>>>()?;
        let failover = Failover::new(&settings.endpoints);
        let turns = Semaphore::new(IN_FLIGHT);
        let login = Login::new(settings.credentials.clone(), settings.request_timeout, endpoints.len());
        Ok(Connections { settings, endpoints, login, turns, failover, metrics })
    }

    /// The connection in use.
    pub(super) async fn current(&self) -> Result<Arc<Connection>> {
        let at = self.failover.current();
        self.at(at).await.inspect_err(|_| self.failover.failed(at))
    }

    /// Moves on from a connection that failed, unless somebody has.
    pub(super) fn failed(&self, connection: &Connection) {
        self.failover.failed(connection.index);
    }

    /// Moves on from the server of a connection, unless somebody has.
    pub(super) fn move_on(&self, from: &Link) {
        self.failover.failed(from.index);
    }

    /// A new connection to whichever endpoint takes one before `deadline`, past those that may hang.
    ///
    /// A try begins with every `step`, and goes on beside the next ones: the first packet of one that was lost in a cut
    /// is sent again only after a second, and one over a long way must have the time for it.
    ///
    /// The first is the one in use; `past` it and as many after it, which take connections and do not answer.
    pub(super) async fn fresh(&self, past: usize, step: Duration, deadline: Instant) -> Result<Link> {
        let mut tries = FuturesUnordered::new();
        let mut at = (self.failover.current() + past) % self.endpoints.len();
        let mut next = Instant::now();
        let mut failure = Error::new(ErrorKind::Unreachable, CONNECT).endpoint(self.url(at));
        loop {
            tokio::select! {
                () = sleep_until(next.min(deadline)) => {
                    if next >= deadline {
                        return Err(failure);
                    }
                    tries.push(self.link(at));
                    at = (at + 1) % self.endpoints.len();
                    // Clients that were cut off together do not come back together.
                    next = Instant::now() + step.mul_f64(0.7 + 0.3 * fastrand::f64());
                }
                Some(tried) = tries.next() => match tried {
                    Ok(link) => return Ok(link),
                    Err(error) => failure = error,
                }
            }
        }
    }

    /// A new connection to an endpoint.
    pub(super) async fn link(&self, index: usize) -> Result<Link> {
        let Slot { url, dial, .. } = &self.endpoints[index];
        let failed = |error| {
            let error = etcd_client::Error::TransportError(error);
            Error::new(classify(&error), CONNECT).endpoint(url).because(Said(error))
        };
        let channel = dial.connect().await.map_err(failed)?;
        Ok(Link { index, url: url.clone(), channel })
    }

    /// Sends all requests on over a connection that was answered.
    pub(super) fn adopt(&self, link: &Link) {
        self.failover.settle(link.index);
        // Whatever was in use before, at this server or at another, has been silent.
        for other in self.endpoints.iter().enumerate().filter(|(index, _)| *index != link.index) {
            if let Some(old) = &*other.1.connection() {
                old.suspected.notify_one();
            }
        }
        let slot = &self.endpoints[link.index];
        *slot.adopted() = Some(link.channel.clone());
        if let Some(old) = slot.connection().take() {
            old.suspected.notify_one();
        }
    }

    /// Finds an endpoint that answers, and stays with it.
    pub(super) async fn connect(&self) -> Result<()> {
        let deadline = after(self.settings.connect_timeout);
        let ask = async |at: usize| {
            let answer = timeout_at(deadline, self.answers(at)).await;
            answer.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Timeout, CONNECT).endpoint(&self.endpoints[at].url))
            })
        };
        self.failover.connect(deadline, ask).await
    }

    /// How many endpoints there are.
    pub(super) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// The URL of an endpoint.
    pub(super) fn url(&self, at: usize) -> &str {
        &self.endpoints[at].url
    }

    async fn answers(&self, at: usize) -> Result<()> {
        let connection = self.at(at).await?;
        let status = connection.maintenance().status().await;
        match status.map_err(|error| connection.error("connect", error)) {
            // Since 3.5.30 only root is told more than that.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            status => status.map(|_| ()),
        }
    }

    /// The connection to an endpoint. Asks the server only where the password must be shown first.
    pub(super) async fn at(&self, index: usize) -> Result<Arc<Connection>> {
        let made = self.endpoints[index].connection().clone();
        // Both in boxes, as they are rare: what waits for a request would be three times as large with them.
        let connection = match made {
            Some(connection) => connection,
            None => Box::pin(self.make(index)).await?,
        };
        if self.login.pass().is_none() {
            Box::pin(self.login.pass_on(&connection.link())).await?;
        }
        Ok(connection)
    }

    async fn make(&self, index: usize) -> Result<Arc<Connection>> {
        let slot = &self.endpoints[index];
        let _making = slot.making.lock().await;
        if let Some(connection) = slot.connection().clone() {
            return Ok(connection);
        }
        let adopted = slot.adopted().take();
        let channel = adopted.unwrap_or_else(|| slot.dial.connect_lazily());
        let options = ConnectOptions::new().with_require_leader(true);
        let client = etcd_client::Client::from_channel(self.login.channel(channel.clone()), Some(options));
        let invalid = |error| Error::new(classify(&error), CONNECT).endpoint(&slot.url).because(Said(error));
        let client = client.await.map_err(invalid)?;
        let connection = Arc::new(Connection {
            index,
            url: slot.url.clone(),
            prefix: self.settings.prefix.clone().into_bytes(),
            kv: client.kv_client().max_decoding_message_size(MAX_ANSWER),
            lease: client.lease_client(),
            watch: client.watch_client().max_decoding_message_size(MAX_ANSWER),
            maintenance: client.maintenance_client(),
            channel,
            suspected: Notify::new(),
        });
        *slot.connection() = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn kv(&self) -> KvClientPrefix {
        KvClientPrefix::new(self.kv.clone(), self.prefix.clone())
    }

    pub(super) fn lease(&self) -> LeaseClient {
        self.lease.clone()
    }

    pub(super) fn watch(&self) -> WatchClient {
        self.watch.clone()
    }

    pub(super) fn maintenance(&self) -> MaintenanceClient {
        self.maintenance.clone()
    }

    /// It without the token.
    pub(super) fn link(&self) -> Link {
        Link { index: self.index, url: self.url.clone(), channel: self.channel.clone() }
    }

    /// Waits for a reason to doubt that it still works.
    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    pub(super) fn error(&self, what: &'static str, error: etcd_client::Error) -> Error {
        Error::new(classify(&error), what).endpoint(&self.url).because(Said(error))
    }
}
