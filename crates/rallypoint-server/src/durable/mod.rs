//! What survives the process, where the server is given a folder.
//!
//! The state in memory answers all; the engine on disk holds what a start needs to make it again. A request changes the
//! state and leaves [`Change`]s in the [`Journal`] of its half, under the same lock. The [`writer`], a thread, takes all
//! that waits, writes it as one batch and syncs it, while the next gathers. Only then are the requests answered and the
//! watchers told.
//!
//! Nobody sees what a crash could take back. Reads of v3 see the last revision that is on disk, since every revision can
//! be read; whatever else looks at the state gets a [`Ticket`] for what it saw, and its answer waits for that.
//!
//! - [`change`], [`code`], [`journal`], [`room`]: plain values.
//! - [`batch`], [`frame`]: what is written to the log, as bytes, and which of it is to be read.
//! - [`engine`]: the tables. [`log`]: the file before them. [`ledger`]: both, and which of them a batch is written to.
//! - [`folder`]: the files, the lock, and what is said of a folder that cannot be used.

mod batch;
mod change;
mod code;
mod engine;
mod folder;
mod frame;
mod journal;
mod ledger;
mod log;
#[cfg(test)]
mod power_cut;
mod room;
mod writer;

pub(crate) use change::{Change, Ids, LoadedV3, V2Batch, V3Batch};
pub(crate) use folder::{Folder, Opened};
pub(crate) use journal::{Journal, Lost, Promise, Taken, Ticket, kept};
pub(crate) use writer::{Halves, Writer};
