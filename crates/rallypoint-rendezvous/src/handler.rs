//! What every backend does, and what a node gets from it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rallypoint_core::round::EventRecord;
pub use rallypoint_core::round::{CloseOutcome, Exclusion, ExclusionOutcome, Whom};
use rallypoint_metrics::Metrics;
use rallypoint_store::Store;
use rallypoint_traces::Round;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Result;
use crate::port::HeldPort;
use crate::progress::Progress;

/// The reason of a run that is closed because all its work is done.
pub const FINISHED: &str = "all workers have finished";
/// The reason of one that is closed by a node whose work is done and that cannot tell about the others, as under
/// torchrun when its barrier at the end has timed out.
pub const NODE_FINISHED: &str = "a node has finished";

/// Whether a run with this reason was closed by somebody who is done. Those who still work need not stop for that.
pub fn is_finish(reason: &str) -> bool {
    [FINISHED, NODE_FINISHED].contains(&reason)
}

/// One node's side of a run: it meets the others, is told when the group is no longer whole, and meets again.
///
/// Dropped without [`leave`](RendezvousHandler::leave), a node is gone when its lease ends.
#[async_trait]
pub trait RendezvousHandler: Send + Sync + std::fmt::Debug {
    /// The name of the backend, as in the [`Registry`](crate::Registry).
    fn backend(&self) -> &str;

    /// The run this node belongs to.
    fn run_id(&self) -> &str;

    /// Meets the others: waits until a round with this node in it is complete.
    ///
    /// A member that calls it again asks for a new round. Dropping the future leaves the node where it was; the
    /// next call goes on from there.
    async fn next_rendezvous(&self) -> Result<Rendezvous>;

    /// Whether the run is closed.
    async fn is_closed(&self) -> Result<bool>;

    /// Ends the run for all nodes, for good, and says what became of that: only a member of the last round can.
    async fn set_closed(&self, reason: &str) -> Result<CloseOutcome>;

    /// The same by a node without which no other can go on, since it has the server that they meet on: whether it is a member or
    /// not, and before the first round too.
    async fn close_as_host(&self, reason: &str) -> Result<()> {
        self.set_closed(reason).await.map(|_| ())
    }

    /// How many nodes wait to get in; also not 0 when a member is gone or the run was closed over work that is not
    /// done, since it is what torchrun polls to learn that it must stop its workers and meet again.
    async fn num_nodes_waiting(&self) -> Result<usize>;

    /// Waits until the group of the last round is no longer as it was, and says why. At once if it is not.
    async fn changed(&self) -> GroupChange;

    /// How long after a member's death [`changed`](RendezvousHandler::changed) tells of it at the latest, while etcd
    /// answers.
    fn time_to_notice(&self) -> Duration;

    /// This node's name in the run; none where the backend gives none.
    fn node_name(&self) -> Option<&str> {
        None
    }

    /// What this node excludes to keep itself out of the run: its machine where it was told which that is, else its name. None
    /// where the backend has no place for it.
    fn itself(&self) -> Option<Whom> {
        None
    }

    /// Where other nodes reach this one; none where the backend does not know.
    fn address(&self) -> Option<&str> {
        None
    }

    /// When etcd last said that this node has its place: by refreshing what that hangs on, while it tells the node of the
    /// others. None before there is one, and where the backend does not say: such a node cannot tell by itself that it
    /// is cut off.
    fn contact(&self) -> Option<Contact> {
        None
    }

    /// How many nodes that are not in the last round stand by. Read when asked for.
    async fn spares(&self) -> Result<usize> {
        Ok(0)
    }

    /// How many nodes are there that `whom` does not mean: members, those who wait, and spares, but for those who are excluded
    /// already. Read when asked for; none where the backend does not know.
    async fn others_than(&self, _whom: &Whom) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Data of the run, also for a node that is in no round; none before the first round, or where the backend has no place for it.
    async fn run_store(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// How many nodes wait and stand by, as this node is told of them; none where the backend does not say.
    fn census(&self) -> Option<watch::Receiver<Census>> {
        None
    }

    /// Who is in the last round this node was in, by rank. Read when asked for.
    async fn members(&self) -> Result<Vec<Member>>;

    /// Who died or left, the first few, as the last `next_rendezvous` found them: if it came about, of the members of the
    /// run's round before; if not, of the last round this node was in, or of the run's last where it was in none. None
    /// where the backend does not know.
    fn lost(&self) -> Vec<GroupChange> {
        Vec::new()
    }

    /// Waits until this node is told that its last round has lost somebody besides those with these ranks: `changed` may tell
    /// of the first one alone. For ever where the backend does not say.
    async fn lost_besides(&self, _ranks: &BTreeSet<usize>) -> GroupChange {
        std::future::pending().await
    }

    /// Whom the last round this node was in has lost, the first few, as etcd has it now: what `changed` tells may lag behind. One
    /// small read. None where the backend does not say.
    async fn losses_told(&self) -> Result<Vec<GroupChange>> {
        Ok(Vec::new())
    }

    /// How the last round this node was in stands now, as far as that is known. Read when asked for.
    async fn standing(&self) -> Result<Standing> {
        let change = tokio::time::timeout(Duration::ZERO, self.changed()).await;
        Ok(match change {
            Err(_) | Ok(GroupChange::Waiting { .. } | GroupChange::Closed { .. }) => Standing::default(),
            Ok(change @ GroupChange::Died { .. }) => Standing { lost: vec![change], over: false },
            Ok(_) => Standing { lost: Vec::new(), over: true },
        })
    }

    /// Keeps an event of this node with the run, for operators. It is done as well as it can be: an etcd that does not take it
    /// now is not waited for. Nothing is kept where the backend has no place for it, or before the first round.
    async fn record(&self, event: &EventRecord);

    /// Keeps a node or a machine out of the run, for so long or for as long as the run lives: this node itself, or as a member
    /// of the last round, any other. It ends the round of a member; who is excluded is told, and the others meet again.
    async fn exclude(&self, whom: Whom, reason: &str, time: Option<Duration>) -> Result<ExclusionOutcome>;

    /// How far `next_rendezvous` has come.
    fn progress(&self) -> watch::Receiver<Progress>;

    /// Leaves in good order: the others are told at once. The run goes on.
    async fn leave(&self) -> Result<()>;

    /// Steps back: leaves in good order, and may come again with the next `next_rendezvous`, as a newcomer. False where the
    /// backend has no way back: then it has left for good.
    async fn withdraw(&self) -> Result<bool>;

    /// Ends this node's part, as torchrun does when its workers are done: a member closes the run, others just
    /// leave. Says what became of the close.
    async fn shutdown(&self, reason: &str) -> Result<CloseOutcome>;
}

/// A completed round, as one of its members sees it.
#[derive(Debug)]
pub struct Rendezvous {
    /// Counts the rounds of the run; only grows.
    pub round: u64,
    /// This node's place, from 0.
    pub rank: usize,
    /// The number of nodes in the round.
    pub world_size: usize,
    /// Where the workers meet: on the node with rank 0.
    pub master: Master,
    /// On rank 0, the master's port; let go of it right before something listens there.
    pub held_port: Option<HeldPort>,
    /// Data that the members of this round share.
    pub store: Arc<dyn Store>,
    /// Data of the run, which outlives its rounds; none where the backend has no place for it.
    pub run_store: Option<Arc<dyn Store>>,
    /// What tells this round from every other, even from one of the same number; empty where the backend has nothing.
    pub plan: String,
    /// Where what is done in this round is counted.
    pub metrics: Metrics,
    /// Its trace, for what is done in it.
    pub trace: Round,
}

/// Nodes that are not in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Census {
    /// Those that there is room for.
    pub waiting: usize,
    /// Those that there is no room for.
    pub spares: usize,
}

/// When etcd last answered for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The moment.
    pub at: Instant,
    /// This long without a word, and the node's place may be another's.
    pub lease: Duration,
}

impl Contact {
    /// When this is a silence, unless another answer comes before. A lease is refreshed several times within its time: if
    /// it was not for this part of it, something is wrong.
    #[must_use]
    pub fn silent_at(&self) -> Instant {
        self.at + self.lease.mul_f64(0.6)
    }

    /// Whether etcd is silent for this node.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent_at() <= Instant::now()
    }
}

/// How a completed round stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Standing {
    /// Members that died or left; of a large round the first few.
    pub lost: Vec<GroupChange>,
    /// A member asks for another round, or there is one.
    pub over: bool,
}

/// Where the workers of a round meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// Address or name of the node with rank 0.
    pub address: String,
    /// A port that was free there.
    pub port: u16,
}

/// A node in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's name in the run.
    pub node: String,
    /// Its place.
    pub rank: usize,
    /// The address it gave.
    pub address: String,
    /// What it says of itself.
    pub about: String,
}

/// Why a group is no longer as it was when its round was completed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupChange {
    /// Nodes wait to get in.
    Waiting {
        /// How many.
        count: usize,
    },
    /// A member's lease ended.
    Died {
        /// Its name.
        node: String,
        /// Its place, where that is known.
        rank: Option<usize>,
    },
    /// Another process has a member's name: it was started again, or elsewhere.
    MemberReplaced {
        /// Its name.
        node: String,
        /// Its place, where that is known.
        rank: Option<usize>,
    },
    /// A member left in good order, or asks for a new round.
    Left {
        /// Its name.
        node: String,
        /// Its place, where that is known.
        rank: Option<usize>,
    },
    /// The run is over.
    Closed {
        /// Why, in the words of who closed it.
        reason: String,
    },
    /// A member was excluded from the run.
    MemberKeptOut {
        /// Its name.
        node: String,
        /// Its place, where that is known.
        rank: Option<usize>,
    },
    /// This node lost its place: the others went on without it.
    Excluded,
    /// This node was excluded from the run: there is no round for it until it is let in again.
    KeptOut {
        /// Why, in the words of who did.
        reason: String,
        /// Until about when; none for as long as the run lives.
        until: Option<SystemTime>,
    },
    /// Another process has this node's name now, and with it its place. There is no way back for this one.
    Replaced {
        /// Where that one is.
        by: String,
    },
    /// What etcd had of this round is gone: the run's lease has ended, or etcd itself has lost data. The nodes meet
    /// again.
    StateLost,
    /// The run's record in etcd cannot be read.
    Corrupt {
        /// Where it is, and what is wrong with it.
        problem: String,
    },
}

impl GroupChange {
    /// Whether the group has lost one of its members.
    #[must_use]
    pub fn is_a_loss(&self) -> bool {
        matches!(
            self,
            GroupChange::Died { .. }
                | GroupChange::MemberReplaced { .. }
                | GroupChange::MemberKeptOut { .. }
                | GroupChange::Left { .. }
        )
    }
}

/// A moment in milliseconds since 1970.
pub(crate) fn moment(at_ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at_ms)
}
