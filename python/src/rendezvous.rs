//! One node's side of a run.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use rallypoint::agent::{ServedStore, WorkerStore};
use rallypoint_rendezvous::{
    CloseOutcome, HeldPort, Master, Registry, Rendezvous as Completed, RendezvousHandler,
    RendezvousParameters, Result,
};

use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, wait};
use crate::store::Store;
use rallypoint_store::Store as Data;

/// Longer than any job lasts.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One node's side of a run: it meets the others, is told when the group is no longer whole, and meets again.
///
/// `backend` is "rallypoint" or "etcd"; `config` has its options by name, each as text. For `patience` it waits for
/// an etcd that is not there yet.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Rendezvous(OfProcess<Arc<dyn RendezvousHandler>>);

impl Rendezvous {
    fn handler(&self, py: Python<'_>) -> PyResult<Arc<dyn RendezvousHandler>> {
        self.0.get().cloned().ok_or_else(|| error::forked_rendezvous(py))
    }

    fn run<T, F>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(Arc<dyn RendezvousHandler>) -> F,
    ) -> PyResult<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        wait(py, operation(self.handler(py)?))?.map_err(|problem| error::rendezvous(py, &problem))
    }
}

#[pymethods]
impl Rendezvous {
    #[new]
    #[pyo3(signature = (backend, endpoint, run_id, min_nodes, max_nodes, local_addr=None, config=None, patience=None))]
    #[expect(clippy::too_many_arguments, reason = "they are what torchrun hands over")]
    fn new(
        py: Python<'_>,
        backend: &str,
        endpoint: &str,
        run_id: &str,
        min_nodes: usize,
        max_nodes: usize,
        local_addr: Option<String>,
        config: Option<BTreeMap<String, String>>,
        patience: Option<Time>,
    ) -> PyResult<Self> {
        let mut parameters = RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes)
            .map_err(|problem| error::settings(&problem))?;
        (parameters.local_addr, parameters.config) = (local_addr, config.unwrap_or_default());
        let registry = Registry::with_defaults();
        let patience = patience.map_or(Duration::ZERO, |time| time.0);
        let handler = wait(py, registry.create_within(&parameters, patience))?
            .map_err(|problem| error::rendezvous(py, &problem))?;
        Ok(Rendezvous(OfProcess::new(handler)))
    }

    /// Meets the others: waits until a round with this node in it is complete. With `serves`, the one with rank 0 serves
    /// the store that the workers meet at.
    #[pyo3(signature = (serves=false))]
    fn next_rendezvous(&self, py: Python<'_>, serves: bool) -> PyResult<Round> {
        let round =
            self.run(py, async |handler: Arc<dyn RendezvousHandler>| handler.next_rendezvous().await)?;
        Round::new(py, round, if serves { WorkerStore::Agent } else { WorkerStore::Rank0 })
    }

    /// Whether the run is closed.
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, async |handler: Arc<dyn RendezvousHandler>| handler.is_closed().await)
    }

    /// Ends the run for all nodes, for good. False if it is not this node's to close: only a member of the last round
    /// can.
    #[pyo3(signature = (reason=""))]
    fn set_closed(&self, py: Python<'_>, reason: &str) -> PyResult<bool> {
        let closed =
            self.run(py, async |handler: Arc<dyn RendezvousHandler>| handler.set_closed(reason).await)?;
        Ok(closed != CloseOutcome::NotAMember)
    }

    /// How many nodes wait to get in; also not 0 when a member is gone.
    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, async |handler: Arc<dyn RendezvousHandler>| handler.num_nodes_waiting().await)
    }

    /// The nodes of the last round this node was in, by rank: name, address, and what it says of itself.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<(String, String, String)>> {
        let members = self.run(py, async |handler: Arc<dyn RendezvousHandler>| handler.members().await)?;
        Ok(members.into_iter().map(|member| (member.node, member.address, member.about)).collect())
    }

    /// Leaves in good order: the others are told at once. The run goes on. After `timeout` it just goes.
    #[pyo3(signature = (timeout=None))]
    fn leave(&self, py: Python<'_>, timeout: Option<Time>) -> PyResult<()> {
        let timeout = timeout.map_or(FOR_EVER, |time| time.0);
        self.run(py, async |handler: Arc<dyn RendezvousHandler>| {
            tokio::time::timeout(timeout, handler.leave()).await.unwrap_or(Ok(()))
        })
    }

    /// Ends this node's part: a member closes the run, others just leave. Says whether that went well.
    #[pyo3(signature = (reason=""))]
    fn shutdown(&self, py: Python<'_>, reason: &str) -> PyResult<bool> {
        self.run(py, async |handler: Arc<dyn RendezvousHandler>| {
            Ok(match handler.shutdown(reason).await {
                Ok(_) => true,
                Err(error) => {
                    tracing::warn!(%error, "the shutdown failed");
                    false
                }
            })
        })
    }
}

/// A completed round, as one of its members sees it. On rank 0 it has the port at which the workers meet: it serves their
/// store there, or holds the port, so that nobody else is given it before the worker that listens there has come up.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Round {
    /// Counts the rounds of the run; only grows.
    #[pyo3(get)]
    round: u64,
    /// This node's place, from 0.
    #[pyo3(get)]
    rank: usize,
    /// The number of nodes in the round.
    #[pyo3(get)]
    world_size: usize,
    /// Where the workers meet: an address or name of the node with rank 0.
    #[pyo3(get)]
    master_addr: String,
    /// A port that was free there.
    #[pyo3(get)]
    master_port: u16,
    /// Data that the members of this round share.
    #[pyo3(get)]
    store: Py<Store>,
    data: OfProcess<Arc<dyn Data>>,
    serves: bool,
    port: Mutex<Port>,
}

/// The port at which the workers meet.
#[derive(Debug)]
enum Port {
    /// Another node's, or the round is over.
    None,
    /// For the worker that is to listen.
    Held {
        _port: HeldPort,
    },
    Served(OfProcess<ServedStore>),
}

impl Round {
    fn new(py: Python<'_>, mut completed: Completed, choice: WorkerStore) -> PyResult<Self> {
        let serving = async {
            let served = ServedStore::open(choice, &mut completed).map_err(|problem| {
                let port = completed.master.port;
                format!("cannot serve the store that the workers meet at, on port {port}: {problem}")
            })?;
            if served.is_some() && completed.world_size > 1 {
                let said = ServedStore::announce(&*completed.store).await;
                said.map_err(|problem| {
                    format!("the other nodes cannot be told of the workers' store: {problem}")
                })?;
            }
            Ok::<_, String>(served)
        };
        let served = wait(py, serving)?.map_err(|problem| error::no_round(py, &problem))?;
        let Completed { round, rank, world_size, master, held_port, store: data, run_store: _ } = completed;
        let serves = served.is_some();
        let port = match (served, held_port) {
            (Some(served), _) => Port::Served(OfProcess::new(served)),
            (None, Some(held)) => {
                // PyTorch's TCPStore sets the option that lets it listen there.
                held.share()?;
                Port::Held { _port: held }
            }
            (None, None) => Port::None,
        };
        let (store, data, port) =
            (Store::of_round(py, Arc::clone(&data))?, OfProcess::new(data), Mutex::new(port));
        let Master { address: master_addr, port: master_port } = master;
        Ok(Round { round, rank, world_size, master_addr, master_port, store, data, serves, port })
    }

    fn take_port(&self) -> Port {
        let mut port = self.port.lock().expect("no code panics while it holds this lock");
        std::mem::replace(&mut port, Port::None)
    }
}

#[pymethods]
impl Round {
    /// Whether an agent serves the store that the workers meet at: this one, or as the one with rank 0 says. To be asked when
    /// that is known to be ready.
    fn is_served(&self, py: Python<'_>) -> PyResult<bool> {
        if self.rank == 0 || self.world_size == 1 {
            return Ok(self.serves);
        }
        let Some(data) = self.data.get().cloned() else { return Err(error::forked_rendezvous(py)) };
        let said = wait(py, async move { ServedStore::is_announced(&*data).await })?;
        said.map_err(|problem| error::store(py, &problem))
    }

    /// The round is over on this node: the port can be had again. Workers of other nodes, which may not have ended yet, can
    /// still read the store that this one serves.
    fn close_port(&self, py: Python<'_>) -> PyResult<()> {
        let Port::Served(mut of_process) = self.take_port() else { return Ok(()) };
        let Some(mut served) = of_process.take() else { return Ok(()) };
        let served = wait(py, async move {
            served.retire().await;
            served
        })?;
        let mut port = self.port.lock().expect("no code panics while it holds this lock");
        *port = Port::Served(OfProcess::new(served));
        Ok(())
    }

    /// Ends what this node serves of the round.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let Port::Served(mut of_process) = self.take_port() else { return Ok(()) };
        of_process.take().map_or(Ok(()), |served| wait(py, served.stop()))
    }
}
