//! One node's side of a run, as torchrun's handler uses it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rallypoint::agent::checks::Surroundings;
use rallypoint::agent::{Health, HealthSettings, StoreTls, Unreachable, WorkerStore, describe_change, gone};
use rallypoint_rendezvous::native::NativeSettings;
use rallypoint_rendezvous::{
    CloseOutcome, GroupChange, Registry, RendezvousError, RendezvousHandler, RendezvousParameters, Result,
    is_finish,
};

use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, wait};
use crate::torch_round::TorchRound;
use crate::waiting;

/// Longer than any job lasts.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One node's side of a run: it meets the others, is told when the group is no longer whole, and meets again.
///
/// `backend` is "rallypoint" or "etcd"; `config` has its options by name, each as text. For `patience` it waits for
/// an etcd that is not there yet.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct TorchRendezvous {
    handler: OfProcess<Arc<dyn RendezvousHandler>>,
    health: Option<Health>,
    /// Each node has a proxy for the store that the workers meet at; with TLS, or in the clear.
    proxies: Option<Option<StoreTls>>,
}

/// What the options say of proxies; takes them out.
fn take_proxies(config: &mut BTreeMap<String, String>) -> PyResult<Option<Option<StoreTls>>> {
    let proxies = config.get("worker_store").is_some_and(|choice| choice == "proxy");
    config.remove("worker_store");
    let files = ["store_cacert", "store_cert", "store_key"].map(|name| config.remove(name));
    let tls = match &files {
        [None, None, None] => None,
        [Some(ca), Some(cert), Some(key)] => Some(
            StoreTls::load(ca.as_ref(), cert.as_ref(), key.as_ref())
                .map_err(|problem| error::settings(&problem))?,
        ),
        _ => {
            let words = "TLS for the workers' store needs all three: store_cacert, store_cert and store_key";
            return Err(PyValueError::new_err(words));
        }
    };
    Ok(proxies.then_some(tls))
}

impl TorchRendezvous {
    fn handler(&self, py: Python<'_>) -> PyResult<Arc<dyn RendezvousHandler>> {
        self.handler.get().cloned().ok_or_else(|| error::forked_rendezvous(py))
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

impl TorchRendezvous {
    fn meet(&self, py: Python<'_>, serves: bool) -> PyResult<Option<TorchRound>> {
        let handler = self.handler(py)?;
        let progress = handler.progress();
        let met = async {
            let met = async {
                match &self.health {
                    Some(health) => health.next_rendezvous(&*handler, |_| {}, |_| {}).await,
                    None => handler.next_rendezvous().await,
                }
            };
            tokio::select! {
                met = met => met,
                never = waiting::tell(&*handler) => match never {},
            }
        };
        let round = match wait(py, met)? {
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
        let server = match &self.proxies {
            _ if !serves => WorkerStore::Rank0,
            Some(tls) => WorkerStore::Proxies(tls.clone()),
            None => WorkerStore::Agent,
        };
        TorchRound::new(py, handler, round, &server).map(Some)
    }

    /// Whether nodes of the round cannot reach each other, where that is looked at.
    fn is_unreachable(&self, py: Python<'_>, round: &TorchRound) -> PyResult<bool> {
        let Some((health, limit)) =
            self.health.as_ref().and_then(|health| Some((health, health.looks_at_others()?)))
        else {
            return Ok(false);
        };
        let handler = self.handler(py)?;
        let found = round.unreachable(py, handler.address().unwrap_or_default(), limit)?;
        let Some(Unreachable { node, why }) = found else {
            health.all_is_well();
            return Ok(false);
        };
        if node == round.rank() {
            health.found(why);
        } else {
            tracing::warn!("node {node} stays away: {why}; meeting again");
        }
        Ok(true)
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
        let health = HealthSettings::take(&mut parameters.config).map_err(PyValueError::new_err)?;
        let proxies = take_proxies(&mut parameters.config)?;
        let tls = ["protocol", "cacert", "ca_cert", "cert", "ssl_cert"];
        let tls = tls.iter().any(|name| parameters.config.get(*name).is_some_and(|value| value != "http"));
        let registry = Registry::with_defaults();
        let patience = patience.map_or(Duration::ZERO, |time| time.0);
        let handler = wait(py, registry.create_within(&parameters, patience))?
            .map_err(|problem| error::torch_connection(py, &problem, tls))?;
        let etcd = NativeSettings::from_parameters(&parameters).ok().map(|settings| settings.etcd);
        let environment = vec![("RALLYPOINT_RUN_ID", Some(run_id.to_owned()))];
        let health = health.health(Surroundings { folders: vec![std::env::temp_dir()], etcd, environment });
        Ok(TorchRendezvous { handler: OfProcess::new(handler), health, proxies })
    }

    /// Meets the others: waits until a round with this node in it is complete. With `serves`, the one with rank 0 serves
    /// the store that the workers meet at. None where the run has ended well and this node, a spare, was not needed.
    #[pyo3(signature = (serves=false))]
    fn next_rendezvous(&self, py: Python<'_>, serves: bool) -> PyResult<Option<TorchRound>> {
        loop {
            let Some(round) = self.meet(py, serves)? else { return Ok(None) };
            // Who is to blame stays away; all others ask for the next round.
            if !self.is_unreachable(py, &round)? {
                return Ok(Some(round));
            }
        }
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

    /// How the other nodes know this one; none where the backend has no names.
    fn node_name(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.handler(py)?.node_name().map(str::to_owned))
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
