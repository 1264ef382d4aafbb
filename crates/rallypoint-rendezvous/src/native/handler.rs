//! One node's side of a run.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::round::{
    Change, CloseOutcome, Corrupt, EventRecord, Exclusion, ExclusionAuthor, ExclusionChange, Joined, Keys,
    Refusal, kept_out,
};
use rallypoint_etcd::v3::Client;
use rallypoint_store::{EtcdStore, Store};
use rallypoint_traces::Round;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;

use super::BACKEND;
use super::clusters::Clusters;
use super::command::{Command, Departing, Group, NoRound};
use super::driver::Driver;
use super::identity::{Identity, config, local_address};
use super::news::{change, loss};
use super::operator::{self, Gone};
use super::own_events::OwnEvents;
use super::patience::patiently;
use super::reach::Complaint;
use super::settings::NativeSettings;
use crate::error::{RendezvousError, Result};
use crate::handler::{
    Census, Contact, ExclusionOutcome, GroupChange, Master, Member, Rendezvous, RendezvousHandler, Standing,
    Whom, is_finish, moment,
};
use crate::parameters::{ParameterError, RendezvousParameters};
use crate::port::Ports;
use crate::progress::Progress;

/// Who has not met the others after this long looks whether the endpoints are of one cluster; within twice the time, since
/// others begin to look with it.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// For etcd to take an event of this node: nothing depends on it.
const TO_RECORD: Duration = Duration::from_secs(2);

/// A node of the native backend.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_rendezvous::RendezvousHandler;
/// use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
///
/// let node = NativeHandler::connect(NativeSettings::new("etcd1,etcd2,etcd3", "job42", 2, 4)?).await?;
/// loop {
///     let round = node.next_rendezvous().await?;
///     println!("{} of {}, master {:?}", round.rank, round.world_size, round.master);
///     // ... work, until the group is no longer whole:
///     println!("{:?}", node.changed().await);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct NativeHandler {
    settings: NativeSettings,
    client: Client,
    node: String,
    keys: Keys,
    _identity: Option<Identity>,
    commands: mpsc::UnboundedSender<Command>,
    group: watch::Receiver<Group>,
    progress: watch::Receiver<Progress>,
    /// When etcd last said that this node is in the run.
    contact: watch::Receiver<Option<Instant>>,
    census: watch::Receiver<Census>,
    address: String,
    /// This node's port, should it become the master; held from before it is announced until it is handed over.
    ports: Mutex<Ports>,
    /// Who was gone when the last call of `next_rendezvous` gave up.
    lost: Mutex<Vec<GroupChange>>,
    /// What the last round's data hangs on; 0 before the first.
    lease: AtomicI64,
    /// Events that this node has written of itself.
    events: OwnEvents,
    /// Whether the endpoints are of one cluster.
    clusters: Clusters,
    /// One call of `next_rendezvous` at a time.
    turn: tokio::sync::Mutex<()>,
    driver: JoinHandle<()>,
}

impl NativeHandler {
    /// Connects to etcd. The run hears of this node with the first `next_rendezvous`.
    pub async fn connect(settings: NativeSettings) -> Result<Self> {
        settings.check()?;
        let client = Client::connect_counting(settings.etcd.clone(), settings.metrics.etcd.clone())
            .await
            .map_err(|error| RendezvousError::Connection {
                endpoint: settings.etcd.endpoints.to_string(),
                source: error.into(),
            })?;
        NativeHandler::with_client(settings, client).await
    }

    /// A node that shares a client with others.
    pub async fn with_client(settings: NativeSettings, client: Client) -> Result<Self> {
        settings.check()?;
        let address = match &settings.address {
            Some(address) => address.clone(),
            None => {
                let found = local_address(&settings.etcd.endpoints).await;
                found.map(|ip| ip.to_string()).map_err(|error| RendezvousError::Connection {
                    endpoint: settings.etcd.endpoints.to_string(),
                    source: error.into(),
                })?
            }
        };
        let run = settings.run_prefix();
        let (node, identity) = match &settings.node_id {
            Some(id) => (id.clone(), None),
            None => {
                let identity = Identity::claim(&format!("{}{run}", settings.etcd.prefix), &address).map_err(
                    |error| ParameterError(format!("no name for this node: {error}; set 'node_id'")),
                )?;
                (identity.name.clone(), Some(identity))
            }
        };
        let config = config(&settings, &run, &node, &address);
        let (commands, inbox) = mpsc::unbounded_channel();
        let (group_sender, group) = watch::channel(Group::default());
        let (min_nodes, max_nodes) = (settings.run.min_nodes, settings.run.max_nodes);
        let segment_size = settings.run.policy.segment_size().map(NonZeroUsize::get);
        let (progress_sender, progress) =
            watch::channel(Progress { round: 1, min_nodes, max_nodes, segment_size, ..Progress::default() });
        let driver = Driver::new(config, client.clone(), &settings, inbox, group_sender, progress_sender);
        Ok(NativeHandler {
            contact: driver.contact(),
            census: driver.census(),
            address,
            keys: Keys::new(&run),
            settings,
            client,
            node,
            _identity: identity,
            commands,
            group,
            progress,
            ports: Mutex::default(),
            lost: Mutex::default(),
            lease: AtomicI64::new(0),
            events: OwnEvents::default(),
            clusters: Clusters::default(),
            turn: tokio::sync::Mutex::new(()),
            driver: tokio::spawn(driver.run()),
        })
    }

    /// What torchrun hands over, as a handler.
    pub async fn create(parameters: RendezvousParameters) -> Result<Self> {
        NativeHandler::connect(NativeSettings::from_parameters(&parameters)?).await
    }

    /// This node's name in the run.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What tells the last round of this node from every other, even from one of the same number that was met after
    /// etcd has lost data. Empty before the first.
    #[must_use]
    pub fn plan(&self) -> String {
        self.group.borrow().plan.clone()
    }

    /// A port that stays this node's until it is handed over.
    fn hold_port(&self) -> Result<u16> {
        let wanted = self.settings.master_port;
        let mut ports = self.ports.lock().expect("no code panics while it holds this lock");
        ports.hold(wanted).map_err(|source| RendezvousError::Port { port: wanted.unwrap_or(0), source })
    }

    fn command<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> oneshot::Receiver<T> {
        let (done, outcome) = oneshot::channel();
        // Without a task to send it to, the outcome says so.
        let _ = self.commands.send(command(done));
        outcome
    }

    fn no_round(&self, reason: NoRound) -> RendezvousError {
        let run_id = self.settings.run_id.clone();
        match reason {
            NoRound::Refused(Refusal::Closed(reason)) => RendezvousError::Closed { run_id, reason },
            NoRound::Refused(Refusal::Mismatch { setting, ours, theirs }) => {
                RendezvousError::Mismatch { run_id, setting, ours, theirs }
            }
            NoRound::Refused(Refusal::Replaced { by }) => {
                RendezvousError::Replaced { run_id, node: self.node.clone(), by }
            }
            NoRound::Refused(Refusal::Excluded(Exclusion { reason, until_ms, .. })) => {
                RendezvousError::Excluded { run_id, reason, until: until_ms.map(moment) }
            }
            NoRound::Refused(Refusal::Corrupt(Corrupt { key, problem })) => {
                RendezvousError::State { run_id, problem: format!("{key}: {problem}"), source: None }
            }
            NoRound::Etcd(complaint) | NoRound::InVain(complaint) => self.complaint(complaint),
            NoRound::Left => RendezvousError::GracefulExit { run_id },
        }
    }

    fn connection(&self, error: rallypoint_etcd::Error) -> RendezvousError {
        self.complaint(Complaint::Refuses(error))
    }

    fn complaint(&self, complaint: Complaint) -> RendezvousError {
        let source = match complaint {
            Complaint::Refuses(error) => error.into(),
            Complaint::Silent(time) => {
                let why = self.client.why_silent().map(|why| format!(": {why}")).unwrap_or_default();
                format!("it has not answered for {} s{why}", time.as_secs()).into()
            }
        };
        RendezvousError::Connection { endpoint: self.settings.etcd.endpoints.to_string(), source }
    }

    fn rendezvous(&self, joined: Joined) -> Rendezvous {
        let lost = joined.without.into_iter().map(loss).collect();
        *self.lost.lock().expect("no code panics while it holds this lock") = lost;
        self.lease.store(joined.lease, Ordering::Relaxed);
        let store = |prefix: &str| Arc::new(EtcdStore::on_lease(self.client.clone(), prefix, joined.lease));
        let held = (joined.rank == 0)
            .then(|| self.ports.lock().expect("no code panics while it holds this lock").hand_over())
            .flatten();
        Rendezvous {
            round: joined.round,
            rank: joined.rank,
            world_size: joined.world_size,
            master: Master { address: joined.address, port: joined.port },
            held_port: held,
            store: store(&self.keys.store(joined.round, &joined.plan)),
            run_store: Some(store(&self.keys.run_store())),
            plan: joined.plan,
            metrics: self.settings.metrics.clone(),
            trace: Round::default(),
        }
    }

    /// Whoever waits for long may be where nobody else is.
    async fn look_for_two_clusters(&self) -> Infallible {
        tokio::time::sleep(LONG_WAIT.mul_f64(1.0 + fastrand::f64())).await;
        self.clusters.look(&self.client);
        std::future::pending().await
    }

    /// Takes note of who of the last round is missed, while there is a record of it: it may go with the last node. Who was in
    /// no round misses those of the last one. Gives back how many nodes are here, where `joined` have come to the next one.
    /// Those who have waited as long as this node, and gave up a moment before it, were here with it: all say the same.
    async fn note_lost(&self, joined: usize) -> usize {
        let plan = self.group.borrow().plan.clone();
        let gone = operator::gone(&self.client, &self.keys, &plan);
        let gone = tokio::time::timeout(self.patience(), gone).await;
        // An etcd that does not tell now is told of by others.
        let Gone { mut lost, gave_up, members } = gone.ok().and_then(Result::ok).unwrap_or_default();
        let before = lost.len();
        lost.retain(|lost| !gave_up.contains(&lost.node));
        // That they have left may be counted already, or not yet.
        let together = (joined + before - lost.len()).min(members.saturating_sub(lost.len()));
        *self.lost.lock().expect("no code panics while it holds this lock") =
            lost.into_iter().map(loss).collect();
        joined.max(together)
    }

    /// How long leaving may take before it is left to the lease.
    fn patience(&self) -> Duration {
        self.settings.lease.max(Duration::from_secs(2))
    }

    async fn go(&self, departing: Departing) -> Result<()> {
        let outcome = self.command(|done| Command::Leave { departing, done });
        self.within("leaving the run", outcome).await
    }

    async fn within<T>(&self, what: &str, outcome: oneshot::Receiver<T>) -> Result<T> {
        let after = self.patience();
        match tokio::time::timeout(after, outcome).await {
            Ok(Ok(outcome)) => Ok(outcome),
            _ => Err(RendezvousError::Timeout {
                run_id: self.settings.run_id.clone(),
                what: what.to_owned(),
                after,
            }),
        }
    }
}

impl Drop for NativeHandler {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[async_trait]
impl RendezvousHandler for NativeHandler {
    fn backend(&self) -> &str {
        BACKEND
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    async fn next_rendezvous(&self) -> Result<Rendezvous> {
        let _turn = self.turn.lock().await;
        let port = self.hold_port()?;
        let outcome = self.command(|done| Command::Join { port, done });
        let after = self.settings.join_timeout;
        let alone = self.look_for_two_clusters();
        let met = tokio::select! {
            met = patiently(outcome, after, self.progress.clone()) => met,
            never = alone => match never {},
        };
        match met {
            Some(Ok(Ok(joined))) => {
                // One node of each group is enough to find it out.
                if joined.rank == 0 {
                    self.clusters.look(&self.client);
                }
                Ok(self.rendezvous(joined))
            }
            Some(Ok(Err(reason))) => {
                if let NoRound::InVain(_) = &reason {
                    let _ = self.leave().await;
                }
                Err(self.no_round(reason))
            }
            Some(Err(_)) => Err(self.no_round(NoRound::Left)),
            None => {
                let complaint = self.command(|done| Command::Complain { done }).await;
                let kept_out = kept_out(&self.progress.borrow().exclusions);
                let Progress { joined, min_nodes: needed, .. } = *self.progress.borrow();
                let mut here = joined.max(1);
                if let Ok(None) = complaint {
                    here = self.note_lost(here).await;
                }
                // A node that nobody waits for any more must not be counted on.
                let _ = self.go(Departing::InVain).await;
                if let Ok(Some(complaint)) = complaint {
                    return Err(self.complaint(complaint));
                }
                if let Some(two) = self.clusters.found() {
                    return Err(ParameterError(two.to_string()).into());
                }
                let run_id = self.settings.run_id.clone();
                Err(RendezvousError::NotMet { run_id, needed, here, after, kept_out })
            }
        }
    }

    async fn is_closed(&self) -> Result<bool> {
        if let Some(GroupChange::Closed { .. }) = self.group.borrow().change {
            return Ok(true);
        }
        let round = operator::read_round(&self.client, &self.keys).await;
        Ok(round.map_err(|error| self.connection(error))?.is_some_and(|round| round.closed.is_some()))
    }

    async fn set_closed(&self, reason: &str) -> Result<CloseOutcome> {
        let outcome = self.command(|done| Command::Close { reason: reason.to_owned(), done });
        self.within("closing the run", outcome).await
    }

    async fn close_as_host(&self, reason: &str) -> Result<()> {
        let mark = self.settings.closed_ttl;
        let closed = operator::close_by_host(&self.client, &self.keys, &self.node, reason, mark).await;
        closed.map(|_| ()).map_err(|error| self.connection(error))
    }

    async fn num_nodes_waiting(&self) -> Result<usize> {
        Ok(match &self.group.borrow().change {
            None => 0,
            Some(GroupChange::Closed { reason }) => usize::from(!is_finish(reason)),
            Some(GroupChange::Waiting { count }) => *count,
            Some(_) => 1,
        })
    }

    async fn changed(&self) -> GroupChange {
        let mut group = self.group.clone();
        match group.wait_for(|group| group.change.is_some()).await {
            Ok(group) => group.change.clone().unwrap_or(GroupChange::Excluded),
            Err(_) => GroupChange::Excluded,
        }
    }

    fn time_to_notice(&self) -> Duration {
        // The lease may just have been refreshed; then the leader says so, or another one takes over from it first.
        self.settings.lease + Duration::from_secs(5)
    }

    fn node_name(&self) -> Option<&str> {
        Some(&self.node)
    }

    fn itself(&self) -> Option<Whom> {
        let name = || Whom::Node(self.node.clone());
        Some(self.settings.host.clone().map_or_else(name, Whom::Host))
    }

    fn address(&self) -> Option<&str> {
        Some(&self.address)
    }

    fn contact(&self) -> Option<Contact> {
        self.contact.borrow().map(|at| Contact { at, lease: self.settings.lease })
    }

    async fn spares(&self) -> Result<usize> {
        let round = operator::read_round(&self.client, &self.keys).await;
        let round = round.map_err(|error| self.connection(error))?;
        Ok(round.map_or(0, |round| round.news.spares + round.news.waiting))
    }

    async fn others_than(&self, whom: &Whom) -> Result<Option<usize>> {
        let others = operator::others_than(&self.client, &self.keys, whom).await;
        others.map(Some).map_err(|error| self.connection(error))
    }

    async fn run_store(&self) -> Result<Option<Arc<dyn Store>>> {
        let store = operator::run_store(&self.client, &self.keys).await;
        store.map_err(|error| self.connection(error))
    }

    fn census(&self) -> Option<watch::Receiver<Census>> {
        Some(self.census.clone())
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let plan = self.group.borrow().plan.clone();
        let members = operator::members(&self.client, &self.keys, &plan).await;
        members.map_err(|error| self.connection(error))
    }

    async fn lost_besides(&self, ranks: &BTreeSet<usize>) -> GroupChange {
        let mut group = self.group.clone();
        let other = |group: &Group| group.lost.iter().find(|lost| !ranks.contains(&lost.rank)).cloned();
        let lost = group.wait_for(|group| other(group).is_some()).await.ok().and_then(|group| other(&group));
        match lost {
            Some(lost) => change(Change::of_loss(&lost)),
            None => std::future::pending().await,
        }
    }

    async fn losses_told(&self) -> Result<Vec<GroupChange>> {
        let plan = self.group.borrow().plan.clone();
        let round = operator::read_round(&self.client, &self.keys).await;
        let round = round.map_err(|error| self.connection(error))?.filter(|round| round.plan == plan);
        let lost = round.map(|round| round.news.lost).unwrap_or_default();
        Ok(lost.iter().map(|lost| change(Change::of_loss(lost))).collect())
    }

    async fn standing(&self) -> Result<Standing> {
        let plan = self.group.borrow().plan.clone();
        let standing = operator::standing(&self.client, &self.keys, &plan).await;
        let (lost, over) = standing.map_err(|error| self.connection(error))?;
        Ok(Standing { lost: lost.into_iter().map(loss).collect(), over })
    }

    fn lost(&self) -> Vec<GroupChange> {
        self.lost.lock().expect("no code panics while it holds this lock").clone()
    }

    async fn record(&self, event: &EventRecord) {
        let lease = self.lease.load(Ordering::Relaxed);
        let kept = self.events.keep(&self.client, &self.keys, &self.node, lease, event);
        let kept = tokio::time::timeout(TO_RECORD, kept).await;
        debug!(?kept, "an event of this node is kept");
    }

    async fn exclude(&self, whom: Whom, reason: &str, time: Option<Duration>) -> Result<ExclusionOutcome> {
        let change = ExclusionChange::Exclude(whom, reason.to_owned(), time);
        let author = ExclusionAuthor::Node {
            node: self.node.clone(),
            host: self.settings.host.clone(),
            plan: self.plan(),
        };
        let after = self.patience();
        let changed = operator::change(&self.client, &self.keys, change, author);
        match tokio::time::timeout(after, changed).await {
            Ok(outcome) => outcome.map_err(|error| self.connection(error)),
            Err(_) => {
                let (run_id, what) = (self.settings.run_id.clone(), "excluding a node".to_owned());
                Err(RendezvousError::Timeout { run_id, what, after })
            }
        }
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    async fn leave(&self) -> Result<()> {
        self.go(Departing::ForGood).await
    }

    async fn withdraw(&self) -> Result<bool> {
        self.go(Departing::ForNow).await.map(|()| true)
    }

    async fn shutdown(&self, reason: &str) -> Result<CloseOutcome> {
        let closed = self.set_closed(reason).await;
        self.leave().await?;
        closed
    }
}
