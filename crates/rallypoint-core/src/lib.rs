//! The pure part of Rallypoint: no IO, no clock, no randomness of its own.
//!
//! - [`endpoint`]: where an etcd is, parsed from what people write.
//! - [`settings`]: everything a connection to etcd can be told, and the one place its defaults live.
//! - [`backoff`]: how long to wait before the next try.
//! - [`time`], [`text`]: waits that no clock overflows on, moments and keys as people read them.
//! - [`round`]: the native rendezvous, as a machine.
//! - [`timeline`]: what happened in a run of it, in words, and what that cost.
//! - [`barrier`]: the way of one node through the barrier of PyTorch's `etcd` rendezvous.

pub mod backoff;
pub mod barrier;
pub mod endpoint;
pub mod round;
pub mod settings;
pub mod text;
pub mod time;
pub mod timeline;

pub use backoff::Backoff;
pub use endpoint::{Endpoint, EndpointError, Endpoints, Scheme};
pub use settings::{Credentials, EtcdSettings, SettingsError, TlsSettings, Token, TokenError};

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
