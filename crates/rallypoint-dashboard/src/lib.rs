//! A page that shows the runs on an etcd while they change.
//!
//! - [`Dashboard`]: a running one; [`Config`]: what it can be told.
//! - `source`: what is read from etcd. `view` makes of it what the page shows, with `missing`, `exclusion`, `away`,
//!   `past`, `cause`, `not_back`, `text` and `timeline`; all are pure.
//!   `change` tells two views apart.
//! - `feed`: one task for each run that somebody looks at, whose views all viewers share.
//! - `http`: what is asked and answered, and who is turned away. `token`: who may change a run.
//! - `serve`: the listener, and what a connection may cost.
//! - `page/`: what runs in the browser, as it stands: nothing builds it.

mod absent;
mod away;
mod cause;
mod change;
mod config;
mod exclusion;
mod feed;
mod gone;
mod http;
mod missing;
mod not_back;
mod outcome;
mod past;
mod serve;
mod source;
mod text;
mod timeline;
mod token;
mod view;

pub use config::{Config, SHORTEST_TOKEN};
pub use serve::Dashboard;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
