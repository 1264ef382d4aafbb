//! The v2 API: what is said on the wire, and who can hold the keys.
//!
//! - [`wire`]: requests, events and errors, as bytes and as values. Pure.
//! - [`Keys`]: whoever holds the keys and answers. The HTTP side knows nothing else of it.
//! - [`memory`]: the keys in a tree in memory, with an index, TTLs, a history and watchers. The other one is the
//!   gateway, whose keys are in a cluster.
//!
//! All is as in etcd 3.4, but for a few things nobody can want: a stream of the past gets all events and not
//! just the first, the end of a node is told to its streams once and not twice, a TTL longer than etcd can
//! count never ends, and there are limits to depth, memory and watchers.

mod clock;
mod keys;
mod memory;
mod stats;
mod wire;

pub(crate) use clock::Clock;
pub(crate) use keys::{Answer, Answered, Counts, Events, Keys, Login};
pub(crate) use memory::{
    Answer as Stored, Change, Content, History, Hub, Kept, Limits, Listing, Node, Service, Store, Untold, V3,
    Watch, is_told,
};
pub(crate) use stats::{Count, Stats};
pub(crate) use wire::{Action, Code, Error, Event, Op, Path, Request, Time, View, is_form, unescape_percent};
