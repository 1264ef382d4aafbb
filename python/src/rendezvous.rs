//! How a program without torch meets the other nodes of a run: for threads that wait, and for asyncio.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint_core::text::nearest;
use rallypoint_rendezvous::native::{BACKEND, NativeSettings, OPTIONS};
use rallypoint_rendezvous::{CloseOutcome, Registry, RendezvousHandler, RendezvousParameters, Result};

use crate::completions::start;
use crate::error;
use crate::key::Time;
use crate::operations::Results;
use crate::round::{GroupChange, Member, Met};
use crate::runtime::{OfProcess, wait};

type Handler = Arc<dyn RendezvousHandler>;

/// What a node is started with. `max_nodes` is `min_nodes` where it is not given.
fn parameters(
    endpoint: &str,
    run_id: &str,
    (min_nodes, max_nodes): (usize, Option<usize>),
    local_addr: Option<String>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<RendezvousParameters> {
    let max_nodes = max_nodes.unwrap_or(min_nodes);
    let mut parameters = RendezvousParameters::new(BACKEND, endpoint, run_id, min_nodes, max_nodes)
        .map_err(|problem| error::settings(&problem))?;
    parameters.local_addr = local_addr;
    for (name, value) in options.into_iter().flatten() {
        // An option that is None was not given.
        if value.is_none() {
            continue;
        }
        let name = match name.extract::<String>()? {
            // The store's name for it.
            name if name == "request_timeout" => "read_timeout".to_owned(),
            name => name,
        };
        if OPTIONS.iter().all(|(known, _)| *known != name) {
            let meant = nearest(&name, OPTIONS.iter().map(|(known, _)| *known));
            let meant = meant.map_or_else(String::new, |known| format!("; did you mean {known:?}?"));
            return Err(PyTypeError::new_err(format!("a rendezvous has no option {name:?}{meant}")));
        }
        let text = if name.ends_with("timeout") {
            value.extract::<Time>()?.0.as_secs_f64().to_string()
        } else if let Ok(path) = value.call_method0("__fspath__") {
            path.extract()?
        } else {
            value.str()?.to_string()
        };
        parameters.config.insert(name, text);
    }
    NativeSettings::from_parameters(&parameters).map_err(|problem| error::settings(&problem))?;
    Ok(parameters)
}

/// Connects; waits for an etcd that is not there yet for as long as a node waits for the others.
async fn connect(parameters: RendezvousParameters) -> Result<Handler> {
    let patience = NativeSettings::from_parameters(&parameters)?.join_timeout;
    Registry::with_defaults().create_within(&parameters, patience).await
}

/// What `Rendezvous`, which waits, and `AsyncRendezvous`, which gives futures, can do.
#[pyclass(frozen, subclass, weakref, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct RendezvousOperations {
    results: Results,
    handler: OfProcess<Handler>,
}

impl RendezvousOperations {
    fn new(results: Results, handler: Handler) -> Self {
        RendezvousOperations { results, handler: OfProcess::new(handler) }
    }

    fn run<T, F>(&self, py: Python<'_>, operation: impl FnOnce(Handler) -> F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let handler = self.handler.get().cloned().ok_or_else(|| error::forked_rendezvous(py))?;
        self.finish(py, operation(handler))
    }

    fn finish<T, F>(&self, py: Python<'_>, operation: F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.results.of(py, operation, error::rendezvous)
    }
}

#[pymethods]
impl RendezvousOperations {
    /// Meets the others: waits until a round with this node in it is complete. A member that calls it again asks for a
    /// new round. A node that is one too many waits as a spare, until a member is gone.
    ///
    /// Returns:
    ///     Round: This node's rank, the number of nodes, and the data that they share.
    ///
    /// Raises:
    ///     RendezvousClosedError: The run is over.
    ///     RendezvousTimeoutError: No round was complete within `join_timeout`.
    ///     RendezvousStateError: This node was started with other settings than the run, or another process has its name.
    ///     RendezvousConnectionError: etcd cannot be reached, or does not let us in.
    fn next_rendezvous(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let results = self.results;
        self.run(py, async move |handler: Handler| Ok(Met(results, handler.next_rendezvous().await?)))
    }

    /// Waits until the group of the last round is no longer as it was. At once if it is not. Then stop what the group was
    /// doing, and call `next_rendezvous`.
    ///
    /// Args:
    ///     timeout (timedelta | float | None): How long to wait; for ever if it is not given.
    ///
    /// Returns:
    ///     GroupChange | None: What happened, or None after the timeout: the group is as it was.
    #[pyo3(signature = (timeout=None))]
    fn wait_for_change(&self, py: Python<'_>, timeout: Option<Time>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |handler: Handler| {
            let changed = handler.changed();
            Ok(match timeout {
                None => Some(changed.await),
                Some(timeout) => tokio::time::timeout(timeout.0, changed).await.ok(),
            }
            .map(GroupChange))
        })
    }

    /// The number of nodes that wait to get in. It is also not 0 when a member is gone, and when the run was closed before
    /// its work was done.
    ///
    /// Returns:
    ///     int: That number.
    ///
    /// Raises:
    ///     RendezvousConnectionError: etcd cannot be reached.
    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |handler: Handler| handler.num_nodes_waiting().await)
    }

    /// The nodes of the last round that this node was in.
    ///
    /// Returns:
    ///     list[Member]: Name, rank, address and text of each, by rank.
    ///
    /// Raises:
    ///     RendezvousConnectionError: etcd cannot be reached.
    fn members(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |handler: Handler| {
            Ok(handler.members().await?.into_iter().map(Member::from).collect::<Vec<_>>())
        })
    }

    /// Whether the run is closed.
    ///
    /// Returns:
    ///     bool: True if it is.
    ///
    /// Raises:
    ///     RendezvousConnectionError: etcd cannot be reached.
    fn is_closed(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |handler: Handler| handler.is_closed().await)
    }

    /// Ends the run for all nodes, for good. Those who wait for a round, or ask for one, get a `RendezvousClosedError` with
    /// the reason.
    ///
    /// Args:
    ///     reason (str): Why, in words that the other nodes are told.
    ///
    /// Returns:
    ///     bool: Whether the run is closed now. Only a member of its last round can close it.
    ///
    /// Raises:
    ///     RendezvousConnectionError: etcd cannot be reached.
    fn close(&self, py: Python<'_>, reason: String) -> PyResult<Py<PyAny>> {
        self.run(py, async move |handler: Handler| {
            Ok(handler.set_closed(&reason).await? != CloseOutcome::NotAMember)
        })
    }

    /// Leaves: the others are told at once, and the run goes on without this node. A second call does nothing.
    ///
    /// Args:
    ///     timeout (timedelta | float): How long to try; after that the others notice when this node's lease ends.
    #[pyo3(signature = (timeout=Time(Duration::from_secs(2))), text_signature = "($self, timeout=2)")]
    fn leave(&self, py: Python<'_>, timeout: Time) -> PyResult<Py<PyAny>> {
        // In a process forked off there is nothing to leave: the place is its parent's.
        let handler = self.handler.get().cloned();
        self.finish(py, async move {
            let Some(handler) = handler else { return Ok(()) };
            if let Ok(Err(error)) = tokio::time::timeout(timeout.0, handler.leave()).await {
                tracing::info!(%error, "the others cannot be told that this node leaves");
            }
            Ok(())
        })
    }

    /// The run that this node belongs to.
    #[getter]
    fn run_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.handler.get().ok_or_else(|| error::forked_rendezvous(py))?.run_id())
    }
}

/// One node of a run, for programs without torch: it meets the others, is told when the group changes, and meets again.
///
/// Use it in a `with` statement, whose end leaves the run. Operations that wait release the GIL, and Ctrl-C interrupts
/// them. What the nodes do between two rounds is up to you.
///
/// Args:
///     endpoint (str): The etcd servers, with commas: "etcd1:2379,etcd2:2379". One that is not there yet is waited for.
///     run_id (str): The run. Nodes with the same one meet.
///     min_nodes (int): A round needs this many.
///     max_nodes (int | None): A round takes this many; further nodes are spares. `min_nodes` if it is not given.
///     local_addr (str | None): The address by which the others reach this node; found out if it is not given.
///     **options: By name, times as timedelta or seconds: `join_timeout` (600), `last_call_timeout` (30), `lease_timeout`,
///         `rank_policy`, `node_id`, `about` and the others of the backend rallypoint; `cacert`, `cert`, `key`, `user`,
///         `password`, `etcd_prefix`, `connect_timeout` and `request_timeout` say how to connect. docs/python.md has all.
///
/// Raises:
///     ValueError: Settings that cannot work.
///     TypeError: There is no such option.
///     RendezvousConnectionError: etcd cannot be reached within `join_timeout`, or does not let us in.
#[pyclass(frozen, extends = RendezvousOperations, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Rendezvous;

#[pymethods]
impl Rendezvous {
    #[new]
    #[pyo3(signature = (endpoint, run_id, min_nodes=1, max_nodes=None, *, local_addr=None, **options))]
    fn open(
        py: Python<'_>,
        endpoint: &str,
        run_id: &str,
        min_nodes: usize,
        max_nodes: Option<usize>,
        local_addr: Option<String>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let parameters = parameters(endpoint, run_id, (min_nodes, max_nodes), local_addr, options)?;
        let handler = wait(py, connect(parameters))?.map_err(|problem| error::rendezvous(py, &problem))?;
        let operations = RendezvousOperations::new(Results::AreWaitedFor, handler);
        Ok(PyClassInitializer::from(operations).add_subclass(Rendezvous))
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(this: &Bound<'_, Self>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        this.call_method0("leave").map(|_| ())
    }
}

/// One node of a run for asyncio: `met = await node.next_rendezvous()`.
///
/// `connect` makes one. Every operation gives an `asyncio.Future` of what that of `Rendezvous` returns; one that is
/// cancelled ends. Use it with `async with`, whose end leaves the run.
#[pyclass(frozen, extends = RendezvousOperations, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct AsyncRendezvous;

/// What becomes an [`AsyncRendezvous`] on the event loop's thread.
struct Connected(Handler);

impl<'py> IntoPyObject<'py> for Connected {
    type Target = AsyncRendezvous;
    type Output = Bound<'py, AsyncRendezvous>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let operations = RendezvousOperations::new(Results::AreFutures, self.0);
        Bound::new(py, PyClassInitializer::from(operations).add_subclass(AsyncRendezvous))
    }
}

#[pymethods]
impl AsyncRendezvous {
    /// Connects. For the arguments, and what it raises, see `Rendezvous`.
    ///
    /// Returns:
    ///     asyncio.Future[AsyncRendezvous]: This node.
    #[staticmethod]
    #[pyo3(signature = (endpoint, run_id, min_nodes=1, max_nodes=None, *, local_addr=None, **options))]
    fn connect(
        py: Python<'_>,
        endpoint: &str,
        run_id: &str,
        min_nodes: usize,
        max_nodes: Option<usize>,
        local_addr: Option<String>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let parameters = parameters(endpoint, run_id, (min_nodes, max_nodes), local_addr, options)?;
        start(py, async move { connect(parameters).await.map(Connected) }, error::rendezvous)
    }

    fn __aenter__(this: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, node) = (this.py(), this.unbind());
        start(py, async move { Ok(node) }, error::rendezvous)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        this: &Bound<'py, Self>,
        _exception: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        this.call_method0("leave")
    }
}
