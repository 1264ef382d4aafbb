//! The listener: one port for HTTP/2 and HTTP/1.1, in the clear or over TLS, until it is told to stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use rallypoint_core::EtcdSettings;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::admission::Budget;
use crate::auth::Passwords;
use crate::connections::{Connections, Front, Times};
use crate::durable::{Folder, Halves, Journal, Opened, V2Batch, V3Batch, Writer};
use crate::gateway::{Gateway, GatewayConfig};
use crate::grpc::Grpc;
use crate::identity::Identity;
use crate::mvcc::{Retention, Store};
use crate::shared::{Settings, Shared};
use crate::state::{Limits, State};
use crate::stopped::stopped;
use crate::tls::Certificates;
use crate::traffic::Traffic;
use crate::v2_users::V2Users;
use crate::{Config, ServerError, files, http as http1, metrics, v2};

/// What etcd adds to the size of a request for the size of a message.
const MESSAGE_OVERHEAD: usize = 512 << 10;
/// Connections that may wait to be taken in: all nodes of a job come at once. The system may allow less.
const BACKLOG: u32 = 4096;

/// A running server. Dropped, it stops at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    url: String,
    stop: watch::Sender<bool>,
    open: watch::Receiver<usize>,
    tls: Option<Arc<Certificates>>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Listens where the configuration says and serves in the background, on the tokio runtime this is
    /// called in. On return it can be connected to.
    pub fn bind(config: Config) -> Result<Server, ServerError> {
        let listener = listen(config.listen)?;
        Ok(Server::start(Prepared::new(listener, config)?))
    }

    /// Serves the v2 API in front of a cluster of etcd, in the background as [`Server::bind`] does. What the
    /// configuration says of data is for nothing: all of it is in the cluster.
    pub async fn gateway(config: Config, gateway: GatewayConfig) -> Result<Server, ServerError> {
        let listener = listen(config.listen)?;
        Ok(Server::start(Prepared::gateway(listener, config, gateway).await?))
    }

    fn start(prepared: Prepared) -> Server {
        let (stop, mut told) = watch::channel(false);
        let (address, url, tls) = (prepared.address, prepared.url.clone(), prepared.tls.clone());
        let (connections, open) = watch::channel(0);
        let task = tokio::spawn(prepared.run(async move { stopped(&mut told).await }, connections));
        Server { address, url, stop, open, tls, task }
    }

    /// Serves on a listener until `shutdown` is there and open requests have ended, or had their time to.
    pub async fn serve(
        listener: TcpListener,
        config: Config,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServerError> {
        Prepared::new(listener, config)?.run(shutdown, watch::Sender::new(0)).await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients connect, as `host:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Where clients connect, with `http://` or `https://`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Looks whether its certificates have changed. It does so by itself too, every few seconds, when a connection comes.
    pub fn reload(&self) {
        if let Some(certificates) = &self.tls {
            certificates.reload();
        }
    }

    /// Waits until nobody is connected.
    pub async fn left_alone(&self) {
        self.left_with(0).await;
    }

    /// Waits until at most `own` connections are open: those of the program that the server is in.
    pub async fn left_with(&self, own: usize) {
        // An error means that it has ended, and with it all connections.
        let _ = self.open.clone().wait_for(|open| *open <= own).await;
    }

    /// Stops it, and waits until open requests have ended or had their time to.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Stops at once, as a drop does: no request ends well.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Waits until it has ended. It does so by itself only when its data can no longer be kept.
    pub async fn ended(&mut self) -> Result<(), ServerError> {
        (&mut self.task).await.map_err(|source| ServerError::Ended { source })?
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let bound = (|| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    })();
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })
}

/// All that can fail is done.
struct Prepared {
    listener: TcpListener,
    address: SocketAddr,
    url: String,
    tls: Option<Arc<Certificates>>,
    config: Config,
    front: Front,
    behind: Behind,
    stop: watch::Sender<bool>,
}

/// What is behind the front.
enum Behind {
    /// Its own data. Its folder may have some of an earlier start.
    Data {
        halves: Halves,
        writer: Option<Writer>,
        goes_on: bool,
    },
    Cluster {
        gateway: Arc<Gateway>,
        endpoints: String,
    },
}

impl Prepared {
    fn new(listener: TcpListener, config: Config) -> Result<Self, ServerError> {
        let (address, tls, url) = place(&listener, &config)?;
        let data = config.data_dir.as_deref().map(Folder::open).transpose()?;
        let goes_on = matches!(data, Some((_, Opened::Something(_))));
        let (stop, stopping) = watch::channel(false);
        let Parts { front, halves, writer } = parts(&url, &config, data, stopping)?;
        let behind = Behind::Data { halves, writer, goes_on };
        Ok(Prepared { listener, address, url, tls, config, front, behind, stop })
    }

    async fn gateway(
        listener: TcpListener,
        config: Config,
        gateway: GatewayConfig,
    ) -> Result<Self, ServerError> {
        let (address, tls, url) = place(&listener, &config)?;
        let EtcdSettings { endpoints, prefix, .. } = &gateway.etcd;
        let users = if gateway.require_login { ", for its users alone" } else { "" };
        let endpoints = format!("{endpoints}, in keys that begin with {prefix}{users}");
        let gateway = Gateway::start(gateway).await.map_err(|source| ServerError::Etcd { source })?;
        let identity = Arc::new(Identity::new(config.name.clone(), client_urls(&url, &config)));
        let keys = Arc::<Gateway>::clone(&gateway);
        let traffic = Traffic::of_gateway();
        let limits = http1::Limits { body_time: config.request_timeout, ..http1::Limits::default() };
        let http = http1::router(keys, identity, limits, Arc::clone(&traffic), None);
        let front = Front::new(None, http, traffic);
        let behind = Behind::Cluster { gateway, endpoints };
        let (stop, _) = watch::channel(false);
        Ok(Prepared { listener, address, url, tls, config, front, behind, stop })
    }

    /// Tells `open` how many connections there are.
    async fn run(
        self,
        shutdown: impl Future<Output = ()>,
        open: watch::Sender<usize>,
    ) -> Result<(), ServerError> {
        let Prepared { listener, address, tls, config, front, mut behind, stop, .. } = self;
        behind.announce(address, &config);
        let budget = Budget::new(config.inflight_bytes, files::connections_within(config.max_connections));
        front.holds(&budget);
        let times = Times { handshake: config.handshake_timeout, request: config.request_timeout };
        let connections = Connections { times, front, tls, budget, stopping: stop.subscribe() };
        let mut tasks = JoinSet::new();
        let failed = tokio::select! {
            () = shutdown => None,
            () = connections.accept(&listener, &mut tasks, &open) => None,
            failed = behind.work() => failed,
        };

        drop(listener);
        stop.send_replace(true);
        behind.close();
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(config.stop_timeout, ended).await.is_err() {
            tracing::debug!(%address, "requests were cut off");
        }
        if let Behind::Data { writer: Some(writer), .. } = behind {
            writer.stop().await;
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Behind {
    fn announce(&self, address: SocketAddr, config: &Config) {
        let to_whom = match &config.tls {
            None => "",
            Some(tls) if tls.client_ca_file.is_none() => " over TLS",
            Some(_) => " over TLS, to clients with a certificate",
        };
        match (self, &config.data_dir) {
            (Behind::Cluster { endpoints, .. }, _) => tracing::info!(
                %address,
                "serving etcd's v2 protocol{to_whom}; all data is in the etcd at {endpoints}"
            ),
            (Behind::Data { halves, goes_on, .. }, Some(folder)) => tracing::info!(
                %address,
                revision = halves.v3.read(|state| state.store.revision()),
                "serving etcd's v3 and v2 protocols{to_whom}; all data is kept in {}, which {}",
                folder.display(),
                if *goes_on { "has data of an earlier start" } else { "had no data" },
            ),
            (Behind::Data { .. }, None) => tracing::info!(
                %address,
                "serving etcd's v3 and v2 protocols{to_whom}; all data is in memory and ends with this process"
            ),
        }
        if let Behind::Data { halves, .. } = self
            && !address.ip().is_loopback()
            && config.tls.as_ref().is_none_or(|tls| tls.client_ca_file.is_none())
            && !halves.v3.read(|state| state.auth.is_enabled())
        {
            tracing::warn!(
                "whoever reaches {address} can read and change all that is in it: give it and its clients a token (--token-file or RALLYPOINT_TOKEN, token_file in --rdzv-conf), or certificates"
            );
        }
    }

    /// What goes on beside requests. It ends by itself only when data can no longer be kept.
    async fn work(&mut self) -> Option<ServerError> {
        let Behind::Data { halves, writer, .. } = self else { return std::future::pending().await };
        let failed = async {
            match writer {
                Some(writer) => writer.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = halves.v3.expire_leases() => None,
            () = halves.v3.forget() => None,
            failed = failed => failed,
        }
    }

    /// Ends the watches.
    fn close(&self) {
        match self {
            Behind::Data { halves, .. } => {
                halves.v3.write(|state| state.hub.close());
                halves.v2.close();
            }
            Behind::Cluster { gateway, .. } => gateway.close(),
        }
    }
}

/// Where it listens, how it speaks there, and the URL of both.
fn place(
    listener: &TcpListener,
    config: &Config,
) -> Result<(SocketAddr, Option<Arc<Certificates>>, String), ServerError> {
    let address =
        listener.local_addr().map_err(|source| ServerError::Listen { address: config.listen, source })?;
    let tls = config.tls.as_ref().map(Certificates::load).transpose()?.map(Arc::new);
    let scheme = if tls.is_some() { "https" } else { "http" };
    Ok((address, tls, format!("{scheme}://{address}")))
}

fn client_urls(url: &str, config: &Config) -> Vec<String> {
    if config.advertise.is_empty() { vec![url.to_owned()] } else { config.advertise.clone() }
}

/// What answers requests, the two halves behind it, and what keeps them on disk.
struct Parts {
    front: Front,
    halves: Halves,
    writer: Option<Writer>,
}

fn parts(
    url: &str,
    config: &Config,
    data: Option<(Folder, Opened)>,
    stopping: watch::Receiver<bool>,
) -> Result<Parts, ServerError> {
    let client_urls = client_urls(url, config);
    let limits = Limits {
        request_bytes: config.max_request_bytes,
        txn_ops: config.max_txn_ops,
        quota_bytes: config.quota_bytes,
    };
    let retention = Retention { changes: config.history_changes, bytes: config.history_bytes };
    let v2_limits = v2::Limits { nodes: config.quota_bytes, ..v2::Limits::default() };
    let name = config.name.clone();
    let (mut v3, mut v2, identity, data) = match data {
        Some((folder, Opened::Something(something))) => {
            let (ledger, loaded) = *something;
            let identity = Identity::known(loaded.ids, name, client_urls);
            let v3 = State::restored(limits, retention, Instant::now(), loaded.v3);
            (v3, v2::Store::restored(v2_limits, loaded.v2), identity, Some((folder, ledger)))
        }
        fresh => {
            let (store, v2) = match config.numbering.origin(SystemTime::now()) {
                None => (Store::new(retention), v2::Store::new(v2_limits)),
                Some(origin) => {
                    let store = Store::starting_at(retention, origin.cast_signed());
                    (store, v2::Store::starting_at(v2_limits, origin))
                }
            };
            let identity = Identity::new(name, client_urls);
            let data = match fresh {
                Some((folder, _)) => {
                    let (revision, compacted) = (store.revision(), store.compacted());
                    let v3 = V3Batch { changes: Vec::new(), revision, compacted };
                    let (index, raft_index) = (v2.index(), v2.raft_index());
                    let v2 = V2Batch { changes: Vec::new(), index, raft_index };
                    let ledger = folder.create(identity.ids(), &v3, &v2)?;
                    Some((folder, ledger))
                }
                None => None,
            };
            (State::new(limits, store), v2, identity, data)
        }
    };
    v3.auth.set_token_ttl(config.auth_token_ttl);
    let bell = data.is_some().then(Writer::bell);
    if let Some((bell, _)) = &bell {
        v3.keep(Journal::new(bell.clone()));
        v2.keep(bell.clone());
    }

    let message_bytes = config.max_request_bytes + MESSAGE_OVERHEAD;
    let settings = Settings {
        quota_bytes: config.quota_bytes,
        fragment_bytes: message_bytes,
        progress_interval: config.progress_interval,
        request_timeout: config.request_timeout,
    };
    let asked = config.token.as_ref().map(|token| Passwords::with_token(token, v3.auth.root_hash()));
    let asked = asked.transpose().map_err(|source| ServerError::Token { source })?;
    let (passwords, hash) = asked.map_or_else(Default::default, |(passwords, hash)| (passwords, Some(hash)));
    let shared = Arc::new(Shared::new(v3, identity.clone(), settings, passwords));
    if let Some(hash) = hash {
        shared.write(|state| state.ask_for(hash));
    }
    let (numbers, quota) = (Arc::clone(&shared), Arc::clone(&shared));
    let users = V2Users::new(Arc::clone(&shared));
    let v3 = v2::V3 {
        metrics: Box::new(move |page| metrics::v3(&numbers, page)),
        is_full: Box::new(move || quota.read(State::is_full)),
        users: Box::new(move |login| users.check(login)),
    };
    let identity = Arc::new(identity);
    let v2 = v2::Service::start(Arc::clone(&identity), v3, v2);
    let grpc = Grpc::new(Arc::clone(&shared), message_bytes, stopping);
    let traffic = Traffic::of_server(config.quota_bytes);
    let keys = Arc::<v2::Service>::clone(&v2);
    let json = Some(http1::Json::new(grpc.clone(), Arc::clone(&traffic)));
    let limits = http1::Limits { body_time: config.request_timeout, ..http1::Limits::default() };
    let http = http1::router(keys, identity, limits, Arc::clone(&traffic), json);
    let front = Front::new(Some(grpc), http, traffic);
    let halves = Halves { v3: shared, v2 };
    let writer = match data.zip(bell) {
        Some(((folder, ledger), (bell, rung))) => {
            let started = Writer::start(folder, ledger, halves.clone(), bell, rung);
            Some(started.map_err(|source| ServerError::Thread { source })?)
        }
        None => None,
    };
    Ok(Parts { front, halves, writer })
}
