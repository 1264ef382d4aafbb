//! Watches: who is to be told what.
//!
//! Nothing is queued for a watcher but the revision from which it has not been told. What happened since is
//! read from the store when its stream can take it, so a slow reader costs no memory and holds nobody up;
//! one that falls behind the compaction is told so and dropped, as etcd does.

mod hub;
mod index;

pub(crate) use hub::{Filter, Hub, Message, Polled, StreamKey, WatchEvent, WatchRequest};
