//! What clients and servers of v2 say to each other, without IO.
//!
//! Bytes of a request become a [`Request`] in [`request`] (with [`form`] and [`path`]); [`event`] and [`error`] write
//! answers as etcd does, byte for byte.

mod error;
mod event;
mod form;
mod json;
mod path;
mod request;
mod time;

pub(crate) use error::{Code, Error, Result};
pub(crate) use event::{Action, Event, View};
pub(crate) use form::{is_form, unescape_percent};
pub(crate) use path::Path;
pub(crate) use request::{Compare, Op, Put, Request};
pub(crate) use time::Time;
