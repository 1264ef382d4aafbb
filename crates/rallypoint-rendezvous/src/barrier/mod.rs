//! The barrier of PyTorch's `etcd` rendezvous, on the v2 wire: nodes that run PyTorch's code and nodes that run
//! this one meet in one run.
//!
//! - `config`: the parameters.
//! - `wire`: what the machine of [`rallypoint_core::barrier`] asks for, as requests to etcd.
//! - `keeper`: keeps a node's keep-alive, and the folder of the run.
//! - `group`: watches a group that has met.
//! - `bootstrap`: where the workers of a group meet.
//! - `extra_data`: small data that the nodes of a version share beside its store.

mod bootstrap;
pub(crate) mod config;
mod extra_data;
mod group;
mod keeper;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::barrier::{Machine, Outcome, Place, Reply, Request, Status, Step};
use rallypoint_etcd::v2::Client;
use rallypoint_store::EtcdV2Store;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;
use tracing::{debug, info};
use uuid::Uuid;

use self::config::Config;
use self::group::{Group, Told};
use self::keeper::{Keeper, Task, keep_run};
use self::wire::{Mark, Wire};
use crate::error::{RendezvousError, Result};
use crate::handler::{GroupChange, Master, Member, Progress, Rendezvous, RendezvousHandler};
use crate::parameters::{ParameterError, RendezvousParameters};

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
    /// The moment from which the machine's time counts.
    began: Instant,
    driving: AsyncMutex<Driving>,
    group: Mutex<Option<(Group, Place)>>,
    told: Told,
    progress: watch::Sender<Progress>,
    /// Counts the times that this node was told to leave.
    leaves: watch::Sender<u64>,
    _run: Task,
}

#[derive(Debug)]
struct Driving {
    machine: Machine,
    keeper: Option<Keeper>,
}

impl EtcdBarrier {
    /// Connects to etcd and makes the folders of the run, where they are missing.
    pub async fn connect(parameters: &RendezvousParameters) -> Result<Self> {
        let config = Config::new(parameters)?;
        let endpoints = config.etcd.endpoints.clone();
        let failed = |error| RendezvousError::connection(&endpoints, error);
        let client = Client::connect(config.etcd.clone()).await.map_err(failed)?;
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
        let mark = Mark { node: Uuid::new_v4().simple().to_string(), address: address.clone() };
        let wire = Wire::new(client, &config.run_id, root, &mark);
        wire.make_run(0).await?;
        let progress =
            Progress { min_nodes: config.machine.min, max_nodes: config.machine.max, ..Progress::default() };
        Ok(EtcdBarrier {
            driving: AsyncMutex::new(Driving { machine: Machine::new(config.machine.clone()), keeper: None }),
            config: Config { local_addr: Some(address), ..config },
            began: Instant::now(),
            group: Mutex::new(None),
            told: Told::new(),
            progress: watch::Sender::new(progress),
            leaves: watch::Sender::new(0),
            _run: Task::spawn(keep_run(wire.clone())),
            wire,
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Does what the machine says until it ends, or until this node is told to leave.
    async fn drive(
        &self,
        driving: &mut Driving,
        time: Duration,
        stop: Option<&mut watch::Receiver<u64>>,
    ) -> Result<Outcome> {
        let deadline = Instant::now() + time.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let driven = self.drive_on(driving, deadline);
        let Some(stop) = stop else { return driven.await };
        tokio::select! {
            outcome = driven => outcome,
            _ = stop.changed() => Ok(Outcome::Left),
        }
    }

    async fn drive_on(&self, driving: &mut Driving, deadline: Instant) -> Result<Outcome> {
        let Driving { machine, keeper } = driving;
        if machine.is_asking() {
            machine.handle(self.now(), fastrand::f64(), Reply::Lost);
        }
        loop {
            match machine.poll(self.now()) {
                Step::End(outcome) => return Ok(outcome),
                Step::Wait(until) => tokio::time::sleep_until(self.began + until).await,
                Step::Send(request) => {
                    if let Request::Release(place) | Request::RunOut(place) = &request {
                        keeper.take_if(|keeper| keeper.place == *place);
                    }
                    let answered = tokio::time::timeout_at(deadline, self.wire.carry_out(&request)).await;
                    let reply = answered.unwrap_or(Ok(Reply::Lost))?;
                    if let (Request::Hold(place), Reply::Done { .. }) = (&request, &reply) {
                        *keeper = Some(Keeper::start(&self.wire, *place, self.told.clone()));
                    }
                    machine.handle(self.now(), fastrand::f64(), reply);
                    self.report(machine);
                }
            }
        }
    }

    fn report(&self, machine: &Machine) {
        self.progress.send_if_modified(|progress| {
            let record = machine.record();
            let next = Progress {
                round: record.and_then(|record| record.version).unwrap_or(progress.round),
                joined: record.map_or(0, rallypoint_core::barrier::Record::joined),
                last_call: machine.last_call_until().map(|until| until.saturating_sub(self.now())),
                spare: machine.is_spare(),
                ..progress.clone()
            };
            let news = (next.round, next.joined, next.spare)
                != (progress.round, progress.joined, progress.spare)
                || next.last_call.is_some() != progress.last_call.is_some();
            *progress = next;
            news
        });
    }

    fn group(&self) -> std::sync::MutexGuard<'_, Option<(Group, Place)>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes this node out of whatever it is in.
    async fn depart(&self, driving: &mut Driving) -> Result<()> {
        const TIME: Duration = Duration::from_secs(5);
        *self.group() = None;
        if driving.machine.is_asking() {
            driving.machine.handle(self.now(), fastrand::f64(), Reply::Lost);
        }
        driving.machine.leave(self.now());
        let outcome = self.drive(driving, TIME, None).await;
        driving.keeper = None;
        outcome.map(|_| ())
    }

    fn closed(&self) -> RendezvousError {
        RendezvousError::Closed { run_id: self.config.run_id.clone(), reason: String::new() }
    }

    /// The data and the master of a group that has met; nothing if the group broke up before they were known.
    async fn settle(&self, place: Place, world: usize) -> Result<Option<Rendezvous>> {
        let store = Arc::new(EtcdV2Store::new(
            self.wire.client.clone(),
            &format!("{}/kv", self.wire.version(place.version)),
        ));
        let local = self.config.local_addr.as_deref().unwrap_or_default();
        let master = bootstrap::agree(&self.wire, place.rank, &*store, local);
        let broken = async {
            loop {
                match self.told.wait().await {
                    // Nobody is missing.
                    GroupChange::Waiting { .. } => tokio::time::sleep(Duration::from_millis(100)).await,
                    change => return change,
                }
            }
        };
        let (Master { address, port }, held_port) = tokio::select! {
            biased;
            agreed = master => agreed?,
            change = broken => {
                debug!(?change, "the group broke up before its master was known");
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
        }))
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
        let mut stop = self.leaves.subscribe();
        let mut driving = self.driving.lock().await;
        let after = self.config.machine.timeout;
        let deadline = Instant::now() + after.min(Duration::from_secs(100 * 365 * 24 * 3600));
        loop {
            *self.group() = None;
            driving.machine.start(self.now());
            let time = deadline.saturating_duration_since(Instant::now());
            match self.drive(&mut driving, time, Some(&mut stop)).await? {
                Outcome::Met { place, world } => {
                    self.told.forget();
                    if let (Some(record), Some(keeper)) = (driving.machine.record(), &driving.keeper) {
                        let _ = keeper.record.set(record.clone());
                        let from = driving.machine.since_record();
                        let group = Group::watch(&self.wire, place, record, from, self.told.clone());
                        *self.group() = Some((group, place));
                    }
                    info!(run = self.config.run_id, ?place, world, "met");
                    if let Some(met) = self.settle(place, world).await? {
                        return Ok(met);
                    }
                }
                Outcome::Closed => {
                    driving.keeper = None;
                    return Err(self.closed());
                }
                Outcome::Left => {
                    self.depart(&mut driving).await?;
                    return Err(RendezvousError::GracefulExit { run_id: self.config.run_id.clone() });
                }
                Outcome::TimedOut => {
                    let left = self.depart(&mut driving).await;
                    debug!(?left, "out of time");
                    let (min, max) = (self.config.machine.min, self.config.machine.max);
                    let what = format!("a group of {min} to {max} nodes");
                    return Err(RendezvousError::Timeout { run_id: self.config.run_id.clone(), what, after });
                }
            }
        }
    }

    async fn is_closed(&self) -> Result<bool> {
        Ok(self.wire.read().await?.record.is_some_and(|(record, _)| record.status == Status::Closed))
    }

    async fn set_closed(&self, reason: &str) -> Result<()> {
        info!(run = self.config.run_id, reason, "closing the run");
        self.wire.close().await
    }

    async fn num_nodes_waiting(&self) -> Result<usize> {
        if self.group().is_some() {
            return Ok(match self.told.now() {
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
        self.told.wait().await
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let Some(place) = self.group().as_ref().map(|(_, place)| *place) else { return Ok(Vec::new()) };
        let members = self.wire.list(place.version).await?;
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

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    async fn leave(&self) -> Result<()> {
        self.leaves.send_modify(|leaves| *leaves += 1);
        let mut driving = self.driving.lock().await;
        self.depart(&mut driving).await
    }

    async fn shutdown(&self, reason: &str) -> bool {
        let member = self.group().is_some();
        let closed = if member { self.set_closed(reason).await } else { Ok(()) };
        let left = self.leave().await;
        for error in [closed.as_ref().err(), left.as_ref().err()].into_iter().flatten() {
            tracing::warn!(run = self.config.run_id, %error, "the shutdown failed");
        }
        closed.is_ok() && left.is_ok()
    }
}
