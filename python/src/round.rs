//! What a node of a rendezvous is told: the round it is in, who else is, and what happened to the group.

use pyo3::prelude::*;
use rallypoint::agent::describe_change;
use rallypoint_rendezvous::{
    GroupChange as Change, HeldPort, Master, Member as InRound, Rendezvous as Completed,
};

use crate::operations::Results;
use crate::store::{AsyncStore, Store};

/// A completed round, as one of its members sees it.
#[pyclass(frozen, generic, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Round {
    /// int: Counts the rounds of the run; only grows.
    #[pyo3(get)]
    round: u64,
    /// int: This node's place, from 0.
    #[pyo3(get)]
    rank: usize,
    /// int: The number of nodes in the round.
    #[pyo3(get)]
    world_size: usize,
    /// str: The address or name of the node with rank 0.
    #[pyo3(get)]
    master_addr: String,
    /// int: A free port of the node with rank 0. On that node nobody else is given it while this object lives; a server
    /// that sets SO_REUSEADDR can listen there.
    #[pyo3(get)]
    master_port: u16,
    /// Store | AsyncStore: Data that the members of this round share. It is empty at first.
    #[pyo3(get)]
    store: Py<PyAny>,
    _port: Option<HeldPort>,
}

#[pymethods]
impl Round {
    fn __repr__(&self) -> String {
        format!("<rallypoint.Round {}: rank {} of {}>", self.round, self.rank, self.world_size)
    }
}

/// What becomes a [`Round`], with a store for threads or for asyncio.
pub(crate) struct Met(pub(crate) Results, pub(crate) Completed);

impl<'py> IntoPyObject<'py> for Met {
    type Target = Round;
    type Output = Bound<'py, Round>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let Met(results, completed) = self;
        let Completed { round, rank, world_size, master, held_port, store, .. } = completed;
        let Master { address: master_addr, port: master_port } = master;
        if let Some(held) = &held_port {
            held.share()?;
        }
        let store = match results {
            Results::AreWaitedFor => Store::of_round(py, store)?.into_any(),
            Results::AreFutures => AsyncStore::of_round(py, store)?.into_any(),
        };
        Bound::new(py, Round { round, rank, world_size, master_addr, master_port, store, _port: held_port })
    }
}

/// A node in a round.
#[pyclass(frozen, get_all, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Member {
    /// str: Its name in the run.
    node: String,
    /// int: Its place.
    rank: usize,
    /// str: The address by which others reach it.
    address: String,
    /// str: What it says of itself.
    about: String,
}

impl From<InRound> for Member {
    fn from(InRound { node, rank, address, about }: InRound) -> Self {
        Member { node, rank, address, about }
    }
}

#[pymethods]
impl Member {
    fn __repr__(&self) -> String {
        format!("<rallypoint.Member {:?}: rank {} at {}>", self.node, self.rank, self.address)
    }
}

/// Why a group is no longer as it was when its round was completed. `str()` says it in a few words.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct GroupChange(pub(crate) Change);

#[pymethods]
impl GroupChange {
    /// str: What happened: "waiting" (nodes wait to get in), "died", "left" (a member left, or asks for a new round),
    /// "member_replaced" (another process has a member's name), "member_kept_out" (a member was excluded from the run),
    /// "closed" (the run is over), "excluded" (the others went on without this node), "kept_out" (this node was excluded from
    /// the run), "replaced" (another process has this node's name), "state_lost" (etcd has lost data) or "corrupt"
    /// (somebody else has written over the run's record).
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            Change::Waiting { .. } => "waiting",
            Change::Died { .. } => "died",
            Change::MemberReplaced { .. } => "member_replaced",
            Change::MemberKeptOut { .. } => "member_kept_out",
            Change::Left { .. } => "left",
            Change::Closed { .. } => "closed",
            Change::Excluded => "excluded",
            Change::KeptOut { .. } => "kept_out",
            Change::Replaced { .. } => "replaced",
            Change::StateLost => "state_lost",
            Change::Corrupt { .. } => "corrupt",
            _ => "other",
        }
    }

    /// str | None: The name of the member that died, left, was replaced or excluded.
    #[getter]
    fn node(&self) -> Option<&str> {
        match &self.0 {
            Change::Died { node, .. }
            | Change::MemberReplaced { node, .. }
            | Change::MemberKeptOut { node, .. }
            | Change::Left { node, .. } => Some(node.as_str()).filter(|node| !node.is_empty()),
            _ => None,
        }
    }

    /// int | None: The rank of that member, where it is known.
    #[getter]
    fn rank(&self) -> Option<usize> {
        match &self.0 {
            Change::Died { rank, .. }
            | Change::MemberReplaced { rank, .. }
            | Change::MemberKeptOut { rank, .. }
            | Change::Left { rank, .. } => *rank,
            _ => None,
        }
    }

    /// str | None: Why the run was closed, or this node excluded, in the words of who did.
    #[getter]
    fn reason(&self) -> Option<&str> {
        match &self.0 {
            Change::Closed { reason } | Change::KeptOut { reason, .. } => Some(reason),
            _ => None,
        }
    }

    fn __str__(&self) -> String {
        describe_change(&self.0)
    }

    fn __repr__(&self) -> String {
        format!("<rallypoint.GroupChange {}: {}>", self.kind(), describe_change(&self.0))
    }
}
