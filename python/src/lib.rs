//! Rallypoint for Python: the extension module `rallypoint._rallypoint`.
//!
//! - `runtime`: the one runtime of the process, how a thread waits on it, and what a fork changes.
//! - `connection`: how to reach an etcd, as Python says it.
//! - `key`: keys and values as Python gives them.
//! - `error`: which exception an error becomes; the classes are in `rallypoint/errors.py`.
//! - `store`: the store, for threads and for asyncio; `operations` is what both can do.
//! - `completions`: how results get from the runtime to an event loop.
//! - `client`, `server`, `local_server`: an etcd to ask, one to start, one to start where none is.
//! - `tcp_store_server`: a store for workers to meet at.
//! - `rendezvous`: one node of a run; `round`: what it is told.
//! - `torch_rendezvous`, `torch_round`: the same for torchrun's handler; `state_backend`: what torch's own handler can have
//!   one on.
//! - `command`: the command `rallypoint`.

mod client;
mod command;
mod completions;
mod connection;
mod error;
mod key;
mod local_server;
mod operations;
mod rendezvous;
mod round;
mod runtime;
mod server;
mod state_backend;
mod store;
mod tcp_store_server;
mod torch_rendezvous;
mod torch_round;
mod waiting;

/// What the package `rallypoint` is made of.
#[pyo3::pymodule]
mod _rallypoint {
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::completions::{Completions, Task};
    #[pymodule_export]
    use crate::local_server::LocalServer;
    #[pymodule_export]
    use crate::rendezvous::{AsyncRendezvous, Rendezvous};
    #[pymodule_export]
    use crate::round::{GroupChange, Member, Round};
    #[pymodule_export]
    use crate::server::EtcdServer;
    #[pymodule_export]
    use crate::state_backend::StateBackend;
    #[pymodule_export]
    use crate::store::{AsyncStore, Store};
    #[pymodule_export]
    use crate::tcp_store_server::TcpStoreServer;
    #[pymodule_export]
    use crate::torch_rendezvous::TorchRendezvous;
    #[pymodule_export]
    use crate::torch_round::TorchRound;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name is Python's")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    const NODE_FINISHED: &str = rallypoint_rendezvous::NODE_FINISHED;
}
