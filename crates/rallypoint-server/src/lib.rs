//! A server of etcd's v3 and v2 protocols inside any program: one process, one port, in memory or in a folder.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use rallypoint_server::{Config, Server};
//!
//! let server = Server::bind(Config::on("127.0.0.1:0".parse()?))?;
//! println!("etcd clients can use {}", server.url());
//! server.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! What is stored ends with the server, unless [`Config::data_dir`] names a folder: then it is on disk before it is
//! acknowledged. Who needs more than one machine runs a real etcd.
//!
//! # The layout
//!
//! Calls go down; nothing below knows what is above it.
//!
//! - `serve`: the listener, TLS, and the way to stop. `connections`: what speaks on each; tells gRPC from the rest.
//!   `authority` makes up for clients that HTTP/2 would turn away.
//!   `fair` has them take turns.
//! - `traffic` and `handled`: what clients ask for, counted; `prometheus`: how that and all else is told to who asks for `/metrics`.
//! - `admission`: what is held for clients, counted, and who makes room for whom.
//! - `grpc`: the v3 services, a thin shell. `http`: the v2 API and what monitors ask for, another.
//! - `shared`: the v3 state behind its one lock, and the task that ends leases.
//! - `state`: the v3 state, plain data that is told the time: `mvcc` (keys and their history), `lease`, and
//!   `watch` (who is to be told what). `removal`, `removing`: a delete of very many keys, in steps.
//! - `auth`: users, roles and who may do what, plain data too; `v2_users`: what that means for v2. `bolt`: etcd's file, for snapshots.
//! - `durable`: what survives, where there is a folder for it.
//! - `on_demand`: this server where nothing listens yet.
//! - `managed`: a real etcd as a child process, or this server where there is none.
//! - `v2`: the v2 API: its wire, and its tree, plain data too. The two halves share no keys, as in etcd.
//! - `gateway`: the v2 API again, with its keys in a cluster of etcd.

mod admission;
mod aside;
mod auth;
mod authority;
mod bolt;
mod config;
mod connections;
mod descriptors;
mod durable;
mod error;
mod fair;
mod files;
mod gateway;
mod grpc;
mod handled;
mod hang_up;
mod http;
mod identity;
mod lease;
mod managed;
mod metrics;
mod mvcc;
mod on_demand;
mod prometheus;
mod removal;
mod removing;
mod serve;
mod shared;
mod state;
mod stopped;
mod tls;
mod traffic;
mod turns;
mod v2;
mod v2_users;
mod watch;

pub use config::{Config, Numbering, Tls};
pub use error::ServerError;
pub use files::raise_file_limit;
pub use gateway::GatewayConfig;
pub use managed::{BINARY_VARIABLE, EtcdServer, EtcdServerError, EtcdServerOptions};
pub use on_demand::OnDemand;
pub use serve::Server;

#[doc(hidden)]
pub use http::v2_alone;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
