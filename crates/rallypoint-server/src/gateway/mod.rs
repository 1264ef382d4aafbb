//! The gateway: the v2 API in front of a cluster of etcd that has only v3.
//!
//! It holds nothing that matters: any number of gateways on one cluster are one v2 etcd, and any of them can be killed.
//!
//! - [`layout`]: how the tree lies in the keys of v3. Pure, as are [`seen`] (what a request looks at), [`plan`] (what it
//!   comes to: the rules of the tree in memory, asked on the part that was seen) and [`translate`] (what a change means
//!   in v2).
//! - [`write`]: a look, a decision, and a transaction on the condition that what was seen is still so. [`recent`]: a
//!   guess that spares the look. [`queue`]: who writes the same key waits its turn. [`once`]: what became of one whose
//!   answer was lost. [`loose`]: leases of what went with its directory.
//! - [`follow`]: one watch of all keys, into [`feed`], where clients wait. [`past`]: a watch that begins before that.
//! - [`users`]: who a client is to etcd. [`refusal`]: what its failures are in v2.

mod feed;
mod follow;
mod layout;
mod loose;
mod once;
mod past;
mod plan;
mod queue;
mod recent;
mod refusal;
mod seen;
mod translate;
mod users;
mod write;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v3::api::{GetOptions, ResponseHeader};
use rallypoint_etcd::v3::{Client, TwoClusters, revision_of};
use rallypoint_etcd::{Error as EtcdError, ErrorKind};
use rallypoint_metrics::Etcd as Metrics;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::feed::{Feed, Wanted};
use self::loose::LooseLeases;
use self::once::Fence;
use self::past::{Past, Rest, rest_after};
use self::queue::Queue;
use self::recent::Recent;
use self::refusal::refused;
use self::users::Users;
use crate::identity::ETCD_VERSION;
use crate::prometheus::Page;
use crate::v2::{
    Action, Answer, Answered, Clock, Code, Counts, Error, Keys, Login, Op, Path, Request, Stats,
};

/// Time to find out what is behind the gateway, at its start.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Time that etcd has to answer when the gateway's health is asked for. Who asks waits for a second, as a rule.
const HEALTH_LOOK: Duration = Duration::from_millis(700);
const ALARMS_LOOK: Duration = Duration::from_millis(200);
/// How long the endpoints have to say which cluster they are of, and how often they are asked.
const WHICH_CLUSTER: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// How deep a key may be: each directory on the way is an operation, and etcd takes 128 in a transaction.
const MAX_DEPTH: usize = 100;

/// Whole trees that are read at a time.
const LISTINGS: usize = 4;

/// What stands between v2 clients and a cluster.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// How the cluster is reached. Its prefix is before all keys of the gateway, and its user is who the gateway is, and
    /// who clients are that show no password.
    pub etcd: EtcdSettings,
    /// Turns clients away that do not log in as a user of etcd's.
    pub require_login: bool,
}

impl GatewayConfig {
    /// A gateway to this cluster, for all clients alike.
    #[must_use]
    pub fn to(etcd: EtcdSettings) -> Self {
        GatewayConfig { etcd, require_login: false }
    }
}

pub(crate) struct Gateway {
    me: Weak<Gateway>,
    client: Client,
    users: Users,
    feed: Arc<Feed>,
    fence: Fence,
    recent: Recent,
    queue: Queue,
    /// For those who read whole trees.
    listings: Semaphore,
    loose: LooseLeases,
    clock: Arc<Clock>,
    stats: Mutex<Stats>,
    cluster_id: AtomicU64,
    /// Its endpoints turned out to be of two clusters: some of its clients do not see what others write.
    split: Mutex<Option<TwoClusters>>,
    /// Asks for health, on a connection of its own: a gateway that is busy is not ill.
    probe: Client,
    version: OnceLock<String>,
    /// What its clients ask of the etcd.
    etcd: Metrics,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Looks whether the cluster is there. One that is not there yet is waited for; an error is what waiting does not
    /// mend.
    pub(crate) async fn start(config: GatewayConfig) -> Result<Arc<Self>, EtcdError> {
        let GatewayConfig { etcd, require_login } = config;
        let metrics = Metrics::default();
        let client = Client::connect_lazily_counting(etcd.clone(), metrics.clone())?;
        let probe = Client::connect_lazily(etcd.clone())?.retrying_for(HEALTH_LOOK);
        let gateway = Arc::new_cyclic(|me| Gateway {
            me: Weak::clone(me),
            client,
            users: Users::new(etcd, require_login, metrics.clone()),
            feed: Feed::new(),
            fence: Fence::new(),
            recent: Recent::default(),
            queue: Queue::default(),
            listings: Semaphore::new(LISTINGS),
            loose: LooseLeases::default(),
            clock: Arc::new(Clock::new()),
            stats: Mutex::default(),
            cluster_id: AtomicU64::new(0),
            split: Mutex::default(),
            probe,
            version: OnceLock::new(),
            etcd: metrics,
        });
        match gateway.first_look().await {
            Err(error) if error.is_transient() => gateway.warn_of_silence(&error),
            looked => {
                looked?;
                if let Some(two) = gateway.client.two_clusters(WHICH_CLUSTER).await {
                    return Err(EtcdError::new(ErrorKind::Settings, "connect").because(two));
                }
                gateway.warn_of_no_users();
            }
        }
        tokio::spawn(follow::follow(Arc::downgrade(&gateway)));
        tokio::spawn(keep_asking_which_cluster(Arc::downgrade(&gateway)));
        Ok(gateway)
    }

    fn warn_of_silence(&self, error: &EtcdError) {
        let hint = match self.client.settings().tls {
            None if error.hangs_up() => {
                "; what listens there is no etcd yet, or one that wants TLS (--cacert)"
            }
            Some(_) if error.speaks_no_tls() => {
                "; what listens there does not speak TLS, or has ended the connection: if it has no TLS, leave out --cacert, --cert and --key (the gateway's own certificate is --server-cert)"
            }
            _ => "",
        };
        tracing::warn!("the etcd does not answer yet; requests fail until it does: {error}{hint}");
    }

    fn warn_of_no_users(&self) {
        // By its certificate it may be a user without a password.
        let settings = self.client.settings();
        let shows =
            settings.credentials.is_some() || settings.tls.as_ref().is_none_or(|tls| tls.cert.is_none());
        if self.users.required && shows && !self.client.has_token() {
            tracing::warn!(
                "a login is required, and this etcd does not ask for users: all clients are turned away until it does (etcdctl auth enable)"
            );
        }
    }

    async fn first_look(&self) -> Result<(), EtcdError> {
        let client = self.client.retrying_for(FIRST_LOOK);
        // It watches all of them, whatever its clients may see.
        let all = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
        let answer = client.get("", Some(all)).await?;
        self.heard_of(answer.header().map_or(0, ResponseHeader::cluster_id));
        Ok(())
    }

    /// Where users are asked for, not everybody is told.
    async fn learn_version(&self, client: &Client) {
        if let Ok(status) = client.status().await {
            self.version.get_or_init(|| status.version().to_owned());
        }
    }

    fn split(&self) -> MutexGuard<'_, Option<TwoClusters>> {
        self.split.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard_of(&self, cluster_id: u64) {
        self.cluster_id.store(cluster_id, Ordering::Relaxed);
    }

    /// Ends the watches: the gateway stops.
    pub(crate) fn close(&self) {
        self.feed.close();
    }

    /// Who a client is to etcd.
    async fn client_of(&self, login: Option<Login>) -> Result<Client, Error> {
        match login {
            Some(login) => self.users.client(login).await.map_err(|error| refused(&error)),
            None if self.users.required => Err(Error::new(Code::Unauthorized, "Insufficient credentials", 0)),
            None => Ok(self.client.clone()),
        }
    }

    async fn serve(&self, request: Request, login: Option<Login>) -> Result<Answered, Error> {
        let depth = request.path.depth() + usize::from(matches!(request.op, Op::Append(_)));
        if depth > MAX_DEPTH {
            let cause = format!("a key has at most {MAX_DEPTH} parts behind a gateway");
            return Err(Error::parse(Code::InvalidField, cause));
        }
        let known = login.is_some();
        let client = self.client_of(login).await?;
        let Op::Watch { recursive, stream, since } = request.op else {
            let action = action(&request.op);
            let answered = match (action, self.me.upgrade()) {
                (Action::Get, _) | (_, None) => self.carry_out(&client, &request).await,
                // A client that hangs up does not leave it half done.
                (_, Some(me)) => {
                    let writes = tokio::spawn(async move { me.carry_out(&client, &request).await });
                    writes.await.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the gateway stops", 0)))
                }
            };
            self.count(|stats| stats.count(action, answered.is_ok()));
            return answered;
        };
        self.count(|stats| stats.watches += 1);
        if known {
            may_read(&client, &request.path, recursive).await.map_err(|error| refused(&error))?;
        }
        self.watch(Wanted { path: request.path, recursive, stream, since }).await
    }

    async fn watch(&self, mut wanted: Wanted) -> Result<Answered, Error> {
        let since = wanted.since;
        // What the cluster has compacted away is told by no gateway, whatever it remembers.
        // There is no revision before the first: it is compacted away if it cannot be read itself.
        let before = since.checked_sub(1).map(|before| before.max(1));
        let before = before.filter(|before| Some(*before) <= self.feed.last());
        let then =
            before.map(|before| GetOptions::new().with_revision(i64::try_from(before).unwrap_or(i64::MAX)));
        let cleared = match self.client.get(layout::ACTION, then).await {
            Err(error) if error.kind() == ErrorKind::Compacted => None,
            read => Some(read.map_err(|error| refused(&error))?),
        };
        let (is_cleared, now) = match cleared {
            Some(now) => (false, now),
            None => (true, self.client.get(layout::ACTION, None).await.map_err(|error| refused(&error))?),
        };
        let index = revision_of(now.header()).map_err(|error| refused(&error))?.unsigned_abs();
        let header = now.header();
        self.heard_of(header.map_or(0, ResponseHeader::cluster_id));
        if is_cleared {
            return Err(cleared_before(index, since));
        }
        wanted.since = if since == 0 { index + 1 } else { since };
        let events = match self.feed.watch(&wanted, index)? {
            Some(events) => events,
            None => {
                let (aside, client) = (self.feed.aside(index)?, self.client.clone());
                let rest = rest_after(&client, wanted.since - 1).await.map_err(|error| refused(&error))?;
                let readable = self.feed.is_readable_from(wanted.since);
                if wanted.since <= index && (rest != Rest::Kept || !readable) {
                    return Err(cleared_before(index, since));
                }
                let clock = Arc::clone(&self.clock);
                Past { client, wanted, asked_before: index + 1, clock, aside }.events()
            }
        };
        let raft_term = header.map_or(0, ResponseHeader::raft_term);
        Ok(Answered { answer: Answer::Watch(events), index, raft_index: index, raft_term })
    }

    fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// An endpoint that did not answer at the start may be of another cluster.
async fn keep_asking_which_cluster(gateway: Weak<Gateway>) {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        let Some(gateway) = gateway.upgrade() else { return };
        if gateway.client.settings().endpoints.as_slice().len() < 2 {
            return;
        }
        let two = gateway.client.two_clusters(WHICH_CLUSTER).await;
        let before = std::mem::replace(&mut *gateway.split(), two.clone());
        match two {
            Some(two) if before.is_none() => tracing::error!("{two}"),
            None if before.is_some() => tracing::warn!("the endpoints are of one etcd cluster again"),
            _ => {}
        }
    }
}

fn cleared_before(index: u64, since: u64) -> Error {
    let cause = format!("the requested history has been cleared [{index}/{since}]");
    Error::new(Code::EventIndexCleared, cause, index)
}

/// Whether a user may see what it wants to watch, which the gateway does for it.
async fn may_read(client: &Client, path: &Path, recursive: bool) -> Result<(), EtcdError> {
    let count = || GetOptions::new().with_count_only();
    if !path.is_root() {
        client.get(layout::node(path), Some(count())).await?;
    }
    if recursive {
        client.get(layout::below(path), Some(count().with_prefix())).await?;
    }
    Ok(())
}

/// As what a request is counted.
fn action(op: &Op) -> Action {
    match op {
        Op::Get { .. } | Op::Watch { .. } => Action::Get,
        Op::Set(_) => Action::Set,
        Op::Create(_) | Op::Append(_) => Action::Create,
        Op::Update(_) => Action::Update,
        Op::CompareAndSwap(..) => Action::CompareAndSwap,
        Op::Delete { .. } => Action::Delete,
        Op::CompareAndDelete(_) => Action::CompareAndDelete,
    }
}

impl Keys for Gateway {
    fn apply(&self, request: Request, login: Option<Login>) -> BoxFuture<'_, Result<Answered, Error>> {
        self.serve(request, login).boxed()
    }

    fn cluster_id(&self) -> u64 {
        self.cluster_id.load(Ordering::Relaxed)
    }

    fn version(&self) -> String {
        self.version.get().map_or(ETCD_VERSION, String::as_str).to_owned()
    }

    fn ill(&self) -> BoxFuture<'_, Option<String>> {
        let two = self.split().as_ref().map(ToString::to_string);
        let ill = async move {
            if two.is_some() {
                return two;
            }
            match timeout(HEALTH_LOOK, self.probe.get(layout::ACTION, None)).await {
                Err(_) => {
                    let silent = || "the etcd does not answer".to_owned();
                    return Some(self.probe.why_silent().unwrap_or_else(silent));
                }
                Ok(Err(error)) => return Some(error.to_string()),
                Ok(Ok(_)) => {}
            }
            // Alarms. Where passwords are asked for, only root is told of them. Who tells late is well.
            let status = timeout(ALARMS_LOOK, self.probe.status()).await.ok()?.ok()?;
            status.errors().first().cloned()
        };
        ill.boxed()
    }

    fn counts(&self) -> Counts {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (watchers, cut) = self.feed.counts();
        stats.set_success(Action::Expire, self.feed.expired.load(Ordering::Relaxed));
        Counts { stats, watchers, cut }
    }

    fn metrics(&self, page: &mut Page) {
        let (index, silent) = (self.feed.last().unwrap_or(0), self.client.why_silent().is_some());
        page.gauge("rallypoint_gateway_index", "The last index that watchers were told of", index);
        page.gauge(
            "rallypoint_gateway_etcd_silent",
            "Whether the etcd did not answer the last request",
            u64::from(silent),
        );
        page.counter(
            "rallypoint_gateway_past_watches",
            "Watches that began before what this gateway remembers, each read from the etcd, which takes a tenth of a second",
            self.feed.set_aside.load(Ordering::Relaxed),
        );
        self.etcd.register(&mut page.registry);
    }
}
