//! Clients of etcd: [`v3`] over gRPC, [`v2`] over HTTP.
//!
//! Both take a list of endpoints and stay with one that answers; speak TLS, mutual TLS and passwords; repeat
//! what failed for a passing reason, and never what is not safe to repeat. Both fail with one [`Error`], which
//! says what was tried on which key at which endpoint, and why it failed.

mod cause;
mod date;
mod error;
mod failover;
mod http;
mod reach;
mod secret;
mod tls;
pub mod v2;
pub mod v3;

pub use date::{ServerDate, server_dates};
pub use error::{Error, ErrorKind, Result};
pub use failover::Repeat;
pub use reach::Reach;
pub use secret::read_secret;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
