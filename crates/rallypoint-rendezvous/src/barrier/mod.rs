//! The barrier of PyTorch's `etcd` rendezvous, on the v2 wire: nodes that run PyTorch's code and nodes that run
//! this one meet in one run.
//!
//! - `config`: the parameters.
//! - `driver`: the task that runs the machine of [`rallypoint_core::barrier`].
//! - `wire`: what the machine asks for, as requests to etcd; `watching`: what it watches.
//! - `bootstrap`: where the workers of a group meet.
//! - `extra_data`: small data that the nodes of a version share beside its store.

mod bootstrap;
pub(crate) mod config;
mod driver;
mod extra_data;
mod watching;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::barrier::{KEEP_ALIVE_TTL, Node, Status};
use rallypoint_core::round::EventRecord;
use rallypoint_etcd::v2::Client;
use rallypoint_store::EtcdV2Store;
use rallypoint_traces::Round;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, info};

use self::config::Config;
use self::driver::{Command, Driver, Group, Joined, NoVersion, PATIENCE};
use self::wire::{Mark, Wire};
use crate::error::{RendezvousError, Result};
use crate::handler::{
    CloseOutcome, Contact, ExclusionOutcome, GroupChange, Master, Member, Rendezvous, RendezvousHandler, Whom,
};
use crate::parameters::{ParameterError, RendezvousParameters};
use crate::progress::Progress;

/// The name of the backend, as in PyTorch.
pub(crate) const NAME: &str = "etcd";

/// One node's side of a run on the v2 wire.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_rendezvous::{EtcdBarrier, RendezvousHandler, RendezvousParameters};
///
/// let parameters = RendezvousParameters::new("etcd", "etcd1,etcd2", "job42", 2, 4)?;
/// let node = EtcdBarrier::connect(&parameters).await?;
/// let met = node.next_rendezvous().await?;
/// println!("rank {} of {}, master {}:{}", met.rank, met.world_size, met.master.address, met.master.port);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EtcdBarrier {
    config: Config,
    wire: Wire,
    commands: mpsc::UnboundedSender<Command>,
    group: watch::Receiver<Group>,
    progress: watch::Receiver<Progress>,
    /// When etcd last did what it was asked.
    contact: watch::Receiver<Option<Instant>>,
    /// One call of `next_rendezvous` at a time.
    turn: Mutex<()>,
    driver: JoinHandle<()>,
}

impl EtcdBarrier {
    /// The backend's name.
    pub const NAME: &str = NAME;

    /// That the parameters can work, before anything is connected to.
    pub fn check(parameters: &RendezvousParameters) -> std::result::Result<(), ParameterError> {
        Config::new(parameters).map(|_| ())
    }

    /// Connects to etcd and makes the folders of the run, where they are missing.
    pub async fn connect(parameters: &RendezvousParameters) -> Result<Self> {
        let config = Config::new(parameters)?;
        let endpoints = config.etcd.endpoints.clone();
        let failed = |error| RendezvousError::connection(&endpoints, error);
        let client = Client::connect_counting(config.etcd.clone(), config.metrics.etcd.clone())
            .await
            .map_err(failed)?;
        let root = &config.machine.root;
        if !client.takes(&format!("{root}/rdzv/v_{}/rank_{}", u64::MAX, usize::MAX)) {
            return Err(ParameterError(format!(
                "The run id or the prefix in '{root}' cannot be part of a key."
            ))
            .into());
        }
        let address = match &config.local_addr {
            Some(address) => address.clone(),
            None => bootstrap::address(&endpoints).await,
        };
        let mark = Mark { node: config.machine.node.clone(), address: address.clone() };
        let wire = Wire::new(client, &config.run_id, root, &mark);
        wire.make_run(0).await?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let (group_sender, group) = watch::channel(Group::default());
        let (min_nodes, max_nodes) = (config.machine.min, config.machine.max);
        let (progress_sender, progress) =
            watch::channel(Progress { min_nodes, max_nodes, ..Progress::default() });
        let machine = Node::new(config.machine.clone(), fastrand::u64(..));
        // What is not answered by the time that a keep-alive is due again, the machine asks for again.
        let driver =
            Driver::new(machine, wire.retrying_for(KEEP_ALIVE_TTL / 3), inbox, group_sender, progress_sender);
        Ok(EtcdBarrier {
            config: Config { local_addr: Some(address), ..config },
            wire,
            commands,
            group,
            progress,
            contact: driver.contact(),
            turn: Mutex::new(()),
            driver: tokio::spawn(driver.run()),
        })
    }

    fn command<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> oneshot::Receiver<T> {
        let (done, outcome) = oneshot::channel();
        // Without a task to send it to, the outcome says so.
        let _ = self.commands.send(command(done));
        outcome
    }

    async fn within<T>(&self, what: &str, outcome: oneshot::Receiver<T>) -> Result<T> {
        match tokio::time::timeout(PATIENCE, outcome).await {
            Ok(Ok(outcome)) => Ok(outcome),
            _ => Err(RendezvousError::Timeout {
                run_id: self.config.run_id.clone(),
                what: what.to_owned(),
                after: PATIENCE,
            }),
        }
    }

    fn no_version(&self, reason: NoVersion) -> RendezvousError {
        let run_id = self.config.run_id.clone();
        match reason {
            NoVersion::Closed { reason } => RendezvousError::Closed { run_id, reason },
            NoVersion::OutOfTime { silent: Some(silent) } => {
                let why = self.wire.client.why_silent().map(|why| format!(": {why}")).unwrap_or_default();
                let silent = format!("it has not answered for {} s{why}", silent.as_secs());
                RendezvousError::connection(&self.config.etcd.endpoints, silent)
            }
            NoVersion::OutOfTime { silent: None } => {
                let Progress { joined, min_nodes: needed, .. } = *self.progress.borrow();
                let after = self.config.timeout;
                RendezvousError::NotMet { run_id, needed, here: joined.max(1), after, kept_out: None }
            }
            NoVersion::Failed(error) => error,
            NoVersion::Left => RendezvousError::GracefulExit { run_id },
        }
    }

    /// A node that nobody waits for any more must not be counted on.
    async fn out_of_time(&self, silent: Option<Duration>) -> RendezvousError {
        let error = self.no_version(NoVersion::OutOfTime { silent });
        let left = self.leave().await;
        debug!(?left, "out of time");
        error
    }

    /// The data and the master of a group that has met; nothing if the group broke up before they were known.
    async fn settle(&self, Joined { place, world }: Joined) -> Result<Option<Rendezvous>> {
        let store = Arc::new(EtcdV2Store::new(
            self.wire.client.clone(),
            &format!("{}/kv", self.wire.version(place.version)),
        ));
        let local = self.config.local_addr.as_deref().unwrap_or_default();
        let master = bootstrap::agree(&self.wire, place.rank, &*store, local);
        let mut group = self.group.clone();
        let broken = group.wait_for(|group| {
            // Where nodes only wait, nobody is missing.
            group.change.as_ref().is_some_and(|change| !matches!(change, GroupChange::Waiting { .. }))
        });
        let (Master { address, port }, held_port) = tokio::select! {
            biased;
            agreed = master => agreed?,
            change = broken => {
                debug!(change = ?change.map(|group| group.change.clone()), "the group broke up before its master was known");
                return Ok(None);
            }
        };
        Ok(Some(Rendezvous {
            round: place.version,
            rank: place.rank,
            world_size: world,
            master: Master { address, port },
            held_port,
            store,
            run_store: None,
            plan: String::new(),
            metrics: self.config.metrics.clone(),
            trace: Round::default(),
        }))
    }
}

impl Drop for EtcdBarrier {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[async_trait]
impl RendezvousHandler for EtcdBarrier {
    fn backend(&self) -> &str {
        NAME
    }

    fn run_id(&self) -> &str {
        &self.config.run_id
    }

    async fn next_rendezvous(&self) -> Result<Rendezvous> {
        let _turn = self.turn.lock().await;
        loop {
            let outcome = self.command(|done| Command::Join { time: self.config.timeout, done });
            match outcome.await {
                Ok(Ok(joined)) => {
                    if let Some(met) = self.settle(joined).await? {
                        return Ok(met);
                    }
                }
                Ok(Err(NoVersion::OutOfTime { silent })) => return Err(self.out_of_time(silent).await),
                Ok(Err(reason)) => return Err(self.no_version(reason)),
                Err(_) => return Err(self.no_version(NoVersion::Left)),
            }
        }
    }

    async fn is_closed(&self) -> Result<bool> {
        Ok(self.wire.read().await?.record.is_some_and(|(record, _)| record.status == Status::Closed))
    }

    async fn set_closed(&self, reason: &str) -> Result<CloseOutcome> {
        info!(run = self.config.run_id, reason, "closing the run");
        let outcome = self.command(|done| Command::Close { reason: reason.to_owned(), done });
        self.within("closing the run", outcome).await?.map(|()| CloseOutcome::Closed)
    }

    async fn num_nodes_waiting(&self) -> Result<usize> {
        let Group { place, change } = self.group.borrow().clone();
        if place.is_some() {
            return Ok(match change {
                None | Some(GroupChange::Closed { .. }) => 0,
                Some(GroupChange::Waiting { count }) => count,
                Some(_) => 1,
            });
        }
        let record = self.wire.read().await?.record.map(|(record, _)| record);
        let waiting =
            record.filter(|record| record.status == Status::Final).and_then(|record| record.waiting);
        Ok(waiting.map_or(0, |waiting| usize::try_from(waiting).unwrap_or(usize::MAX)))
    }

    async fn changed(&self) -> GroupChange {
        let mut group = self.group.clone();
        match group.wait_for(|group| group.change.is_some()).await {
            Ok(group) => group.change.clone().unwrap_or(GroupChange::Excluded),
            Err(_) => GroupChange::Excluded,
        }
    }

    fn time_to_notice(&self) -> Duration {
        KEEP_ALIVE_TTL + Duration::from_secs(5)
    }

    fn address(&self) -> Option<&str> {
        self.config.local_addr.as_deref()
    }

    fn contact(&self) -> Option<Contact> {
        let last = (*self.contact.borrow())?;
        let now = Instant::now();
        let at = match self.group.borrow().place {
            Some(_) => last,
            // Who waits has nothing to renew. Its watches tell of a silence.
            None => now.checked_sub(self.wire.client.silent_for().unwrap_or_default()).unwrap_or(last),
        };
        Some(Contact { at, lease: KEEP_ALIVE_TTL })
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let Some(place) = self.group.borrow().place else { return Ok(Vec::new()) };
        let (members, _) = self.wire.list(place.version).await?;
        Ok(members
            .into_iter()
            .map(|(rank, mark)| match mark {
                Some(Mark { node, address }) => Member { node, rank, address, about: String::new() },
                None => Member {
                    node: format!("rank_{rank}"),
                    rank,
                    address: String::new(),
                    about: "PyTorch".to_owned(),
                },
            })
            .collect())
    }

    async fn exclude(&self, _: Whom, _: &str, _: Option<Duration>) -> Result<ExclusionOutcome> {
        let text = "the backend etcd has no place for who is excluded from a run: use the backend rallypoint";
        Err(ParameterError(text.to_owned()).into())
    }

    // PyTorch's nodes would find keys that they do not know.
    async fn record(&self, _: &EventRecord) {}

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    async fn leave(&self) -> Result<()> {
        let outcome = self.command(|done| Command::Leave { done });
        self.within("leaving the run", outcome).await
    }

    async fn withdraw(&self) -> Result<bool> {
        self.leave().await.map(|()| false)
    }

    async fn shutdown(&self, reason: &str) -> Result<CloseOutcome> {
        let member = self.group.borrow().place.is_some();
        let closed = if member { self.set_closed(reason).await } else { Ok(CloseOutcome::NotAMember) };
        self.leave().await?;
        closed
    }
}
