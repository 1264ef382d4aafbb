//! One node's side of a run, as torchrun's handler uses it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use rallypoint::agent::{WorkerStore, describe_change, gone};
use rallypoint_rendezvous::{
    CloseOutcome, GroupChange, Registry, RendezvousError, RendezvousHandler, RendezvousParameters, Result,
    is_finish,
};

use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, wait};
use crate::torch_round::TorchRound;

/// Longer than any job lasts.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One node's side of a run: it meets the others, is told when the group is no longer whole, and meets again.
///
/// `backend` is "rallypoint" or "etcd"; `config` has its options by name, each as text. For `patience` it waits for
/// an etcd that is not there yet.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct TorchRendezvous(OfProcess<Arc<dyn RendezvousHandler>>);

impl TorchRendezvous {
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
        wait(py, operation(self.handler(py)?))?.map_err(|problem| error::torch_rendezvous(py, &problem))
    }
}

#[pymethods]
impl TorchRendezvous {
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
        let tls = ["protocol", "cacert", "ca_cert", "cert", "ssl_cert"];
        let tls = tls.iter().any(|name| parameters.config.get(*name).is_some_and(|value| value != "http"));
        let registry = Registry::with_defaults();
        let patience = patience.map_or(Duration::ZERO, |time| time.0);
        let handler = wait(py, registry.create_within(&parameters, patience))?
            .map_err(|problem| error::torch_connection(py, &problem, tls))?;
        Ok(TorchRendezvous(OfProcess::new(handler)))
    }

    /// Meets the others: waits until a round with this node in it is complete. With `serves`, the one with rank 0 serves
    /// the store that the workers meet at. None where the run has ended well and this node, a spare, was not needed.
    #[pyo3(signature = (serves=false))]
    fn next_rendezvous(&self, py: Python<'_>, serves: bool) -> PyResult<Option<TorchRound>> {
        let handler = self.handler(py)?;
        let progress = handler.progress();
        let round = match wait(py, handler.next_rendezvous())? {
            Ok(round) => round,
            Err(RendezvousError::Closed { reason, .. }) if is_finish(&reason) && progress.borrow().spare => {
                return Ok(None);
            }
            // Who was there and is not is why there are too few.
            Err(problem @ RendezvousError::NotMet { .. }) => {
                return Err(error::not_met(py, &problem, gone(&handler.lost()).as_deref()));
            }
            Err(problem) => return Err(error::torch_rendezvous(py, &problem)),
        };
        let server = if serves { WorkerStore::Agent } else { WorkerStore::Rank0 };
        TorchRound::new(py, handler, round, server).map(Some)
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

    /// What happened to the group since its round was completed, in a few words. None while it is as it was, and where
    /// the run is closed.
    fn change(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let handler = self.handler(py)?;
        // What happened is told at once.
        let change = wait(py, async { tokio::time::timeout(Duration::ZERO, handler.changed()).await.ok() })?;
        let change = change.filter(|change| !matches!(change, GroupChange::Closed { .. }));
        Ok(change.map(|change| describe_change(&change)))
    }

    /// Who of the run's round before the last one was there no more when that one was formed, in a few words.
    fn gone(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(gone(&self.handler(py)?.lost()))
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
