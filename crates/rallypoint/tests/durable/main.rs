//! A server with a folder keeps what it promised, whatever ends it.
//!
//! `RALLYPOINT_KILLS=2000 cargo test --package rallypoint --test durable kill -- --nocapture` kills it more often, and
//! says how far it has come.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod full;
mod kills;
mod model;
mod serving;
mod worker;
