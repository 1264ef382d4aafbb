//! The v2 API without IO: a tree of files and directories with an index, TTLs, a history and watchers.
//!
//! Bytes of a request become a [`Request`] in [`request`] (with [`form`] and [`path`]); [`Store::apply`]
//! carries it out at a time that the caller gives, and answers with an [`event::Event`], a [`Watch`] or an
//! [`Error`]; [`event`] and [`error`] write them as etcd does, byte for byte. What ends does so when the
//! caller calls [`Store::expire`]; [`Store::next_end`] says when that is due.
//!
//! All is as in etcd 3.4, but for a few things nobody can want: a stream of the past gets all events and not
//! just the first, the end of a node is told to its streams once and not twice, a TTL longer than etcd can
//! count never ends, and there are limits to depth, memory and watchers.

mod change;
mod error;
mod event;
mod form;
mod history;
mod hub;
mod json;
mod keep;
mod path;
mod request;
mod stats;
mod store;
mod time;
mod tree;

pub(crate) use change::{Change, Kept, Untold};
pub(crate) use error::{Code, Error};
pub(crate) use event::{Action, Event};
pub(crate) use form::{is_form, unescape_percent};
pub(crate) use hub::{Place, Watch};
pub(crate) use path::Path;
pub(crate) use request::Request;
pub(crate) use stats::Stats;
pub(crate) use store::{Answer, Limits, Store};
pub(crate) use time::Time;
pub(crate) use tree::{Content, Node};
