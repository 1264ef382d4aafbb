//! Rallypoint brings the nodes of a distributed training job together, on etcd.
//!
//! This crate is the one to depend on; it re-exports what the others make:
//!
//! - [`EtcdSettings`]: how to reach an etcd.
//! - [`Store`] and its implementations: data that the nodes of a job share, with the meaning of PyTorch's c10d
//!   `Store`.
//! - [`rendezvous`]: how the nodes of a run find each other, and [`agent`]: a node that runs workers.
//! - [`etcd`]: the clients beneath, for v3 and for v2.
//! - [`stacks`]: what processes do at this moment.
//! - [`metrics`] and [`traces`]: what is told to Prometheus and to OpenTelemetry.
//! - [`server`]: a server of etcd's protocols inside the program, or a real etcd as its child.

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;

pub use rallypoint_agent as agent;
pub use rallypoint_core::{
    Credentials, Endpoint, EndpointError, Endpoints, EtcdSettings, Scheme, SettingsError, TlsSettings, Token,
    TokenError,
};
#[cfg(feature = "cli")]
pub use rallypoint_dashboard as dashboard;
pub use rallypoint_etcd as etcd;
pub use rallypoint_metrics as metrics;
pub use rallypoint_rendezvous as rendezvous;
pub use rallypoint_server as server;
pub use rallypoint_stacks as stacks;
pub use rallypoint_store::{
    BlockingStore, DEFAULT_TIMEOUT, EtcdStore, EtcdV2Store, MemoryStore, PrefixStore, Store, StoreError,
    TcpStore,
};
pub use rallypoint_tcpstore as tcpstore;
pub use rallypoint_traces as traces;

/// The examples in the documents, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod of_the_crate {}
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/store.md")]
    mod store {}
    #[doc = include_str!("../../../docs/connecting.md")]
    mod connecting {}
    #[doc = include_str!("../../../docs/gateway.md")]
    mod gateway {}
    #[doc = include_str!("../../../docs/server.md")]
    mod server {}
    #[doc = include_str!("../../../docs/launcher.md")]
    mod launcher {}
    #[doc = include_str!("../../../docs/rendezvous-etcd.md")]
    mod rendezvous_etcd {}
}
