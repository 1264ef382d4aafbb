//! What the tests and benchmarks of Rallypoint run against. Nothing here is a mock.
//!
//! - [`Etcd`] and [`Cluster`]: real etcd servers, on loopback or on machines of a [`Network`], to pause, kill and
//!   restart, to restore from a snapshot, to empty, to fill up, to lock with passwords. [`Version`] says which etcd.
//!   [`GrpcProxy`]: etcd's own, in front of one.
//! - [`Certs`]: certificates for them, and the wrong ones to be refused with.
//! - [`Proxy`], [`Silent`], [`refused_endpoint`]: networks and servers that misbehave. [`Network`]: machines with
//!   addresses of their own ([`Host`]), to be cut off or slowed down.
//! - [`Slurm`]: a real one, of several nodes on this machine. [`Prometheus`] and [`promtool`]: to ask for metrics.
//!   [`OtelCollector`]: to send traces to.
//! - [`Program`]: programs that are talked to line by line; [`Python`]: those that run PyTorch's own code.
//!
//! The API is synchronous, so that plain tests and tokio tests can both use it; its waits are bounded, and
//! whatever goes wrong is a panic that says what to do. Everything ends when its value is dropped, and no
//! process outlives the one that started it, however that one ends.
//!
//! Programs are looked up in `.tools`, where `scripts/setup` puts them; `RALLYPOINT_ETCD_35`, `RALLYPOINT_ETCDCTL`,
//! `RALLYPOINT_ETCD_34`, `RALLYPOINT_ETCDCTL_34` and `RALLYPOINT_TORCH_PYTHON` name others. `RALLYPOINT_ETCD_36` names
//! an etcd 3.6 to try as well, `RALLYPOINT_SLURM` a folder
//! with another Slurm, as `scripts/setup` lays it out, `RALLYPOINT_PROMETHEUS` one with `prometheus` and `promtool`,
//! `RALLYPOINT_COLLECTOR` a program like Rotel's.

mod certs;
mod cluster;
mod collector;
mod disasters;
mod etcd;
mod grpc_proxy;
mod http;
mod net;
mod network;
// One file for both: neither crate can depend on the other, as the tests of each use the test kit.
#[path = "../../rallypoint-server/src/managed/port.rs"]
mod port;
mod process;
mod program;
mod prometheus;
mod proxy;
mod python;
mod slurm;
mod tools;

pub use certs::Certs;
pub use cluster::Cluster;
pub use collector::OtelCollector;
pub use etcd::{Etcd, EtcdBuilder};
pub use grpc_proxy::GrpcProxy;
pub use http::get as http_get;
pub use net::{Silent, closed_port, refused_endpoint};
pub use network::{Host, Network};
pub use program::Program;
pub use prometheus::{Prometheus, promtool};
pub use proxy::Proxy;
pub use python::{Python, run_python};
pub use slurm::Slurm;
pub use tools::{Version, torch_python};
