//! A completed round, as torchrun's handler uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use rallypoint::agent::{
    ErrorRecord, Exit, Failure, Finish, Nodes, RoundBoard, ServedStore, Serving, StoreProxy, Unreachable,
    WorkerStore, unreachable,
};
use rallypoint_rendezvous::{HeldPort, Master, Rendezvous as Completed, RendezvousHandler};
use rallypoint_store::{Store as Data, StoreError};
use tokio::task::AbortHandle;

use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, runtime, wait};
use crate::store::Store;

/// A completed round, as one of its members sees it. On rank 0 it has the port at which the workers meet: it serves their
/// store there, or holds the port, so that nobody else is given it before the worker that listens there has come up.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct TorchRound {
    /// Counts the rounds of the run; only grows.
    #[pyo3(get)]
    round: u64,
    /// This node's place, from 0.
    #[pyo3(get)]
    rank: usize,
    /// The number of nodes in the round.
    #[pyo3(get)]
    world_size: usize,
    /// Where this node's workers meet the others: an address or name of the node with rank 0, or this node's own proxy.
    #[pyo3(get)]
    master_addr: String,
    /// The port there.
    #[pyo3(get)]
    master_port: u16,
    /// The node with rank 0.
    master: Master,
    /// Data that the members of this round share.
    #[pyo3(get)]
    store: Py<Store>,
    data: OfProcess<Arc<dyn Data>>,
    serves: bool,
    port: Mutex<Port>,
    board: OfProcess<Listener>,
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
    /// A port of this node's proxy.
    Proxied {
        _proxy: OfProcess<StoreProxy>,
    },
}

/// How long the agent with rank 0 may take to answer.
const TO_ANSWER: Duration = Duration::from_secs(30);

/// The way of this node's workers to the store that they meet at, where they go there by a proxy.
async fn proxy(choice: &WorkerStore, met: &Completed) -> Result<Option<StoreProxy>, String> {
    if met.rank == 0 || !matches!(choice, WorkerStore::Proxies(_)) {
        return Ok(None);
    }
    let said = Serving::wait(&*met.store).await;
    let serving =
        said.map_err(|problem| format!("it is not known who serves the workers' store: {problem}"))?;
    serving.proxy(choice, &met.master, TO_ANSWER).await.map_err(|problem| problem.to_string())
}

/// Where the nodes tell each other of failures, and who listens for them.
#[derive(Debug)]
struct Listener {
    board: Arc<RoundBoard>,
    /// Something was told.
    told: Arc<AtomicBool>,
    /// This node has been asked since.
    asked: AtomicBool,
    listens: AbortHandle,
}

impl Listener {
    fn new(board: RoundBoard) -> Self {
        let (board, told) = (Arc::new(board), Arc::new(AtomicBool::new(false)));
        let (listened, heard) = (Arc::clone(&board), Arc::clone(&told));
        let listens = runtime().spawn(async move {
            listened.told().await;
            heard.store(true, Ordering::Relaxed);
        });
        Listener { board, told, asked: AtomicBool::new(false), listens: listens.abort_handle() }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listens.abort();
    }
}

/// A worker that failed, as `rallypoint.torch` tells of it.
#[derive(Debug, FromPyObject)]
pub(crate) struct Failed {
    rank: usize,
    local_rank: usize,
    host: String,
    pid: u32,
    /// Below 0 for a signal.
    exitcode: i32,
    /// Seconds since 1970.
    at: f64,
    message: Option<String>,
    traceback: Option<String>,
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let exit = match failed.exitcode {
            code @ 0.. => Exit::ExitCode(code),
            signal => Exit::Signal(signal.saturating_neg()),
        };
        let at = Duration::try_from_secs_f64(failed.at).ok().and_then(|at| UNIX_EPOCH.checked_add(at));
        let at = at.unwrap_or_else(SystemTime::now);
        let error = failed.message.map(|message| ErrorRecord::new(message, failed.traceback));
        Failure::new((failed.rank, failed.local_rank), &failed.host, failed.pid, exit, at, error)
    }
}

impl TorchRound {
    pub(crate) fn new(
        py: Python<'_>,
        handler: Arc<dyn RendezvousHandler>,
        mut completed: Completed,
        choice: &WorkerStore,
    ) -> PyResult<Self> {
        let serving = async {
            let served = ServedStore::open(choice, &mut completed).map_err(|problem| {
                let port = completed.master.port;
                format!("cannot serve the store that the workers meet at, on port {port}: {problem}")
            })?;
            if let Some(served) = served.as_ref().filter(|_| completed.world_size > 1) {
                let said = served.serving().announce(&*completed.store).await;
                said.map_err(|problem| {
                    format!("the other nodes cannot be told of the workers' store: {problem}")
                })?;
            }
            let proxy = proxy(choice, &completed).await?;
            Ok::<_, String>((served, proxy))
        };
        let (served, proxy) = wait(py, serving)?.map_err(|problem| error::no_round(py, &problem))?;
        let board = OfProcess::new(Listener::new(RoundBoard::new(handler, &completed)));
        let Completed { round, rank, world_size, master, held_port, store: data, .. } = completed;
        let serves = served.is_some();
        match (&served, &proxy) {
            (Some(_), _) => ServedStore::make_room_for_nodes(world_size),
            (None, Some(_)) => ServedStore::make_room_for_nodes(1),
            (None, None) => {}
        }
        let own = served.as_ref().and_then(ServedStore::own_entrance);
        let own = own.or_else(|| proxy.as_ref().map(StoreProxy::local_addr));
        let port = match (served, proxy, held_port) {
            (Some(served), ..) => Port::Served(OfProcess::new(served)),
            (None, Some(proxy), _) => Port::Proxied { _proxy: OfProcess::new(proxy) },
            (None, None, Some(held)) => {
                // PyTorch's TCPStore sets the option that lets it listen there.
                held.share()?;
                Port::Held { _port: held }
            }
            (None, None, None) => Port::None,
        };
        let (store, data, port) =
            (Store::of_round(py, Arc::clone(&data))?, OfProcess::new(data), Mutex::new(port));
        let (master_addr, master_port) = match own {
            Some(own) => (own.ip().to_string(), own.port()),
            None => (master.address.clone(), master.port),
        };
        let round = TorchRound {
            round,
            rank,
            world_size,
            master_addr,
            master_port,
            master,
            store,
            data,
            serves,
            port,
            board,
        };
        Ok(round)
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Finds out with the others whether they can reach each other.
    pub(crate) fn unreachable(
        &self,
        py: Python<'_>,
        address: &str,
        limit: Duration,
    ) -> PyResult<Option<Unreachable>> {
        let Some(data) = self.data.get().cloned() else { return Err(error::forked_rendezvous(py)) };
        let (rank, world_size) = (self.rank, self.world_size);
        let found = wait(py, async {
            let nodes = Nodes { store: &*data, rank, world_size, master: &self.master, served: None };
            unreachable(nodes, address, limit).await
        })?;
        found.map_err(|problem| error::store(py, &problem))
    }

    fn take_port(&self) -> Port {
        let mut port = self.port.lock().expect("no code panics while it holds this lock");
        std::mem::replace(&mut port, Port::None)
    }

    fn board(&self, py: Python<'_>) -> PyResult<&Listener> {
        self.board.get().ok_or_else(|| error::forked_rendezvous(py))
    }
}

#[pymethods]
impl TorchRound {
    /// Whether an agent serves the store that the workers meet at: this one, or as the one with rank 0 says. To be asked when
    /// that is known to be ready.
    fn is_served(&self, py: Python<'_>) -> PyResult<bool> {
        if self.rank == 0 || self.world_size == 1 {
            return Ok(self.serves);
        }
        let Some(data) = self.data.get().cloned() else { return Err(error::forked_rendezvous(py)) };
        let said = wait(py, async move { Serving::read(&*data).await })?;
        said.map(Serving::is_agent).map_err(|problem| error::store(py, &problem))
    }

    /// To be called whenever this node's workers are found to be well: if another node has told of a failure before, it gets
    /// its answer.
    fn all_is_well(&self, py: Python<'_>) -> PyResult<()> {
        let listener = self.board(py)?;
        // What is told may have happened after the workers were looked at, so it is answered the next time.
        if listener.told.load(Ordering::Relaxed) && listener.asked.swap(true, Ordering::Relaxed) {
            self.answer(py)?;
        }
        Ok(())
    }

    /// Says that no failure on this node came before what was told. Does not wait for it to be said.
    fn answer(&self, py: Python<'_>) -> PyResult<()> {
        let board = Arc::clone(&self.board(py)?.board);
        runtime().spawn(async move { board.answer().await });
        Ok(())
    }

    /// Says that this node is about to stop its workers, because the group has changed. Does not wait for it to be said.
    fn stops(&self, py: Python<'_>, host: String) -> PyResult<()> {
        let board = Arc::clone(&self.board(py)?.board);
        runtime().spawn(async move { board.stops(&host).await });
        Ok(())
    }

    /// Tells the others of a failure here. Does not wait for it to be told.
    fn tell(&self, py: Python<'_>, failure: Failed) -> PyResult<()> {
        let board = Arc::clone(&self.board(py)?.board);
        runtime().spawn(async move { board.tell(failure.into()).await });
        Ok(())
    }

    /// Tells the others of a failure here, and finds out with them what came first, in a few words.
    fn first_failure(&self, py: Python<'_>, failure: Failed) -> PyResult<String> {
        let failure = Failure::from(failure);
        let board = Arc::clone(&self.board(py)?.board);
        wait(py, async move { board.first(failure).await })
    }

    /// Says that this node's workers have finished; to be called before it is counted.
    fn finishes(&self, py: Python<'_>) -> PyResult<()> {
        let board = Arc::clone(&self.board(py)?.board);
        wait(py, async move { board.finishes().await })?.map_err(|problem| error::store(py, &problem))
    }

    /// Waits until the workers of all nodes have finished. Where those who have not are gone: why they are not waited for,
    /// and whether others go on with the run.
    fn all_finished(&self, py: Python<'_>, timeout: Time) -> PyResult<Option<(String, bool)>> {
        let (board, after) = (Arc::clone(&self.board(py)?.board), timeout.0);
        let finish = wait(py, async move { tokio::time::timeout(after, board.all_finished()).await })?;
        let late =
            |_| StoreError::Timeout { what: "wait", keys: vec![b"all nodes to finish".to_vec()], after };
        match finish.map_err(late).flatten() {
            Ok(Finish::All) => Ok(None),
            Ok(Finish::Without { words, goes_on }) => Ok(Some((words, goes_on))),
            Err(problem) => Err(error::store(py, &problem)),
        }
    }

    /// The round is over on this node: its ports can be had again. Workers of other nodes, which may not have ended yet, can
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
