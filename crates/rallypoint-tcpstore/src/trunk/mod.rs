//! Many clients on one connection: what a node's proxy and the server say to each other.
//!
//! A *trunk* is the one connection from a node's proxy to the server, and each client of that node is one *stream* in it. A
//! stream is bytes both ways, as on a socket, so all messages of a `TCPStore` mean on it what they mean elsewhere.
//!
//! - `handshake`: who is let in. `frame`: the parts of a trunk as bytes. `streams`: the server's side of one trunk, without
//!   a socket. `link`: its socket, with TLS or not.
//!
//! A library for this would want a task and a pair of buffers for each stream, and a runtime below them. Here a stream at
//! the server is an entry in a table, as a socket's connection is: no task, no socket, no thread.

pub(crate) mod frame;
#[cfg(test)]
mod fuzz;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod streams;

pub use handshake::{Secret, SecretError};
