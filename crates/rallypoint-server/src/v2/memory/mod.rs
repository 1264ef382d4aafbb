//! The keys in memory: a tree of files and directories with an index, TTLs, a history and watchers.
//!
//! [`Store::apply`] carries a request out at a time that the caller gives, and answers with an event, a watch or an
//! error. What ends does so when the caller calls [`Store::expire`]; [`Store::next_end`] says when that is due. All of
//! it is plain data; [`service`] has the lock, the clock and the task that ends what has a TTL.

mod buried;
mod change;
mod forgetting;
mod history;
mod hub;
mod keep;
mod service;
mod store;
mod tree;

pub(crate) use change::{Change, Kept, Untold};
pub(crate) use history::{History, is_told};
pub(crate) use hub::{Hub, Watch};
pub(crate) use service::{Service, V3};
pub(crate) use store::{Answer, Limits, Store};
pub(crate) use tree::{Content, Listing, Node};
