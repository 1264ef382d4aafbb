//! The barrier of PyTorch's `etcd` rendezvous, as one node goes through it: the same record, keys and times, so
//! that nodes that run PyTorch's code and nodes that run this one meet.
//!
//! A [`Node`] is one node's part in a run, as a machine without IO, clock or randomness of its own: whoever
//! drives it carries out its [`Output`]s and tells it what came of them and what time it is, as with the native
//! rendezvous. The promises are checked by simulation (`tests/barrier_simulation`).
//!
//! - `node`: what goes in and comes out, and which part it is for.
//! - `way`: from no place at all to a final version. `steps` takes its steps one by one; `creating`,
//!   `seat` (with `last_call`) and `waiting` are the parts of it.
//! - `group`: whether a group that has met is still whole. `keep_alive`: a node's keep-alive, and what is done when
//!   etcd has lost it or more. `silence`: how long etcd was not heard of. `patience`: how long a node waits.
//! - `departure`, `closing`, `run_folder`: how a node goes, how a run ends, and why its folder does not.
//! - `record`: what all nodes share, byte for byte as PyTorch writes it. `etcd`: the few words of etcd that the
//!   machine speaks. `output`: what it wants done. `outbox`, `pace`, `context`: what the parts have in common.
//!
//! # The life of a version
//!
//! A node that finds no record writes `setup`, counts up the version and makes its folder, and writes `joinable`.
//! Nodes add themselves, each taking the next rank. With as many nodes as it takes the record is `frozen`; or,
//! with as many as it needs, when the last call is over, which the node that made it enough waits out. Then each
//! node puts its keep-alive key there and adds it to the record; the last one makes it `final`.
//!
//! Who comes later adds itself to the number waiting, so that the members come back. A final version ends when a
//! keep-alive is missing and somebody who waits removes the record. Until it is final, the record has a TTL, so
//! that a node that dies on the way only costs time.
//!
//! # What is not as PyTorch has it
//!
//! - Nobody waits for the keep-alive of a node that has come back. It removes the record by itself, unless
//!   members that run PyTorch's code are alive: those must see the number waiting first, in the record, so they
//!   get the [`GRACE`] that PyTorch's own nodes get at the least.
//! - A node that finds the group full does not count itself as waiting.
//! - The last call ends early when every member of the version before has come back.
//! - Writes that lost a race are repeated after a time that grows with the crowd, and so is looking at a record
//!   that many nodes change; PyTorch's nodes wait at random, up to 0.1 s.

mod closing;
mod context;
mod creating;
mod departure;
mod etcd;
mod group;
mod keep_alive;
mod last_call;
mod node;
mod outbox;
mod output;
mod pace;
mod patience;
mod record;
mod run_folder;
mod seat;
mod settings;
mod silence;
mod steps;
mod waiting;
mod way;

use std::time::Duration;

pub use etcd::{Ending, Failure, KeepAlive, Reply, Request, Update, VersionRank, View, Watched};
pub use node::Node;
pub use output::{Change, Loss, NodeEvent, Output, WatchId};
pub use record::{Record, RecordError, Status, to_python_json};
pub use settings::Settings;

/// How long `next_rendezvous` may take, unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a version that has enough nodes stays open, unless told otherwise.
pub const DEFAULT_LAST_CALL: Duration = Duration::from_secs(30);
/// The folder of all runs, unless told otherwise.
pub const DEFAULT_PREFIX: &str = "/torchelastic/p2p";

/// What a version may take to be set up.
pub const SETUP_TTL: Duration = Duration::from_secs(5);
/// What the nodes of a frozen version may take until the next confirms.
pub const FROZEN_TTL: Duration = Duration::from_secs(10);
/// What is left of a version with enough nodes when the one that waits out its last call dies.
pub const LAST_CALL_TTL: Duration = Duration::from_secs(10);
/// What is left of a node when it dies.
pub const KEEP_ALIVE_TTL: Duration = Duration::from_secs(10);
/// What is left of a run when all its nodes have died.
pub const RUN_TTL: Duration = Duration::from_secs(7200);

/// How long members that run PyTorch's code have to see that somebody waits: the least that is left of a
/// keep-alive that is renewed at half its time.
pub const GRACE: Duration = Duration::from_secs(5);
