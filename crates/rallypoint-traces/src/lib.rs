//! Rendezvous as traces, for OpenTelemetry.
//!
//! - [`Round`]: the trace of one round, the same on all its nodes: its id is made of the round's plan, which all of them
//!   read, so nothing more has to travel between them.
//! - [`Tracer`]: sends spans to a collector, by OTLP over HTTP, from a task of its own. Whoever makes a span never waits.
//! - [`Endpoint`]: where the collector is.

mod client;
mod endpoint;
mod round;
mod tracer;

pub use endpoint::{BadEndpoint, Endpoint};
pub use opentelemetry::trace::{SpanId, TraceId};
pub use round::Round;
pub use tracer::{CannotTrace, Tracer};

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
