//! A server of the protocol that PyTorch's `TCPStore` speaks, from torch 2.4 to 2.15: the store that the workers of a
//! job meet at.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::{Read, Write};
//!
//! use rallypoint_tcpstore::TcpStoreServer;
//!
//! let server = TcpStoreServer::bind("127.0.0.1:0".parse()?)?;
//! let address = server.local_addr();
//!
//! // In Python: torch.distributed.TCPStore(host, port, is_master=False)
//! let answer = tokio::task::spawn_blocking(move || {
//!     let mut client = std::net::TcpStream::connect(address)?;
//!     client.write_all(&[0, 0xCE, 0xF7, 0x85, 0x3C])?; // VALIDATE
//!     client.write_all(&[13, 1, 2, 3, 4])?; // PING
//!     let mut answer = [0; 4];
//!     client.read_exact(&mut answer).map(|()| answer)
//! });
//! assert_eq!(answer.await??, [1, 2, 3, 4]);
//!
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A message means what it means to PyTorch's libuv server, which its clients use by default. All 19 are there.
//!
//! # The layout
//!
//! Calls go down; nothing below knows what is above it.
//!
//! - `server`: its port, its threads, and the way to stop, `control`. `sockets`: the machine and the sockets, on those threads.
//!   `peer`: what one socket has not taken yet.
//! - [`StoreProxy`]: for the clients of a node other than the server's: they come to it, and it has one connection to the
//!   server, a *trunk*, on which each of them is a stream. `trunk` is what both say on it, and who is let in.
//! - [`Machine`]: the server without sockets and without a clock. [`Input`]s go in, [`Output`]s come out. `keys`,
//!   `queues` and `waits` are its parts.
//! - [`wire`]: the messages as bytes, for clients too. `value`: values that the store and replies share.
//! - [`Limits`]: what clients may make it hold. [`Refusal`]: why a connection is ended.
//!
//! # What is not as PyTorch has it
//!
//! - Memory is bounded: see [`Limits`]. A message has at most 64 MiB, and the store 1 GiB.
//! - A client that does not begin with the right message is turned away at once. PyTorch's libuv server leaves it
//!   waiting.
//! - One that has connected and says nothing is ended after 30 to 60 seconds, and before that if there is no room for others:
//!   no more file descriptors, or too many of its kind. In PyTorch's it stays.
//! - A wait for several keys, one of which is a queue that has something, does not wait for that one. PyTorch's does.
//! - For the workers of a round ([`TcpStoreServer::for_round`]), the number of the attempt that PyTorch before 2.6 puts before
//!   its keys is left out: the store is empty for each round, and the nodes may have counted different restarts.
//! - A `compare_set` that sets nothing ends no wait for a key that is not there. PyTorch's libuv server ends it; its older
//!   server ends none, also when the key is set.

mod control;
mod ids;
mod limits;
mod machine;
mod peer;
mod proxy;
mod refusal;
mod server;
mod sockets;
mod tls;
mod trunk;
mod value;
pub mod wire;

pub use limits::Limits;
pub use machine::{ConnectionId, Input, Machine, Output};
pub use proxy::{ProxyError, StoreProxy, Upstream};
pub use refusal::Refusal;
pub use server::{BindError, TcpStoreServer};
pub use tls::{StoreTls, TlsError};
pub use trunk::{Secret, SecretError};
pub use value::Bytes;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
