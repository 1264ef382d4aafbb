//! The client of etcd's v2 API, over HTTP.
//!
//! - [`Client`]: the keys of one cluster, with failover and retries.
//! - [`Put`], [`Get`], [`Delete`]: what a request can be told beyond its key.
//! - [`Watcher`]: the changes of a key since an index, across cuts and restarts.
//! - [`Response`], [`Node`]: what comes back; [`Refusal`] and its [`Code`]: what comes back instead.
//!
//! etcd serves this API only with `--enable-v2`, up to version 3.5.

mod client;
mod code;
mod options;
mod path;
mod refusal;
mod response;
mod transport;
mod watch;

pub use client::Client;
pub use code::Code;
pub use options::{Delete, Get, MAX_TTL, Put};
pub use refusal::Refusal;
pub use response::{Action, Lookup, Node, Response, Version};
pub use transport::{MAX_FORM, MAX_REPLY, NO_V2};
pub use watch::{Watched, Watcher};
