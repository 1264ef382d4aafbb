//! What processes are doing at this moment: the Python and native stacks of their threads, their state, and what they wait
//! for in the kernel.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! for seen in rallypoint_stacks::look(&[4711, 4712], Duration::from_secs(1)) {
//!     println!("{seen}");
//! }
//! ```
//!
//! Calls go down:
//!
//! - [`look`]: several processes at once, within a bound of time. Whatever cannot be seen is named, with why.
//! - [`Process`], [`Thread`], [`Frame`]: what was seen, and how it is written.
//! - [`fold`]: equal stacks of many processes as one, the odd ones first.
//! - `kernel`: what `/proc` tells. `python`: Python's frames, by py-spy, which reads the memory of the process and does not
//!   stop it. `native`: frames of compiled code, for which each thread is stopped for a moment. `modules`: the libraries that
//!   a process has loaded.
//!
//! Whoever looks must be allowed to trace the process: its parent is, unless a container forbids it.

mod fold;
mod frame;
mod kernel;
mod modules;
mod native;
mod process;
mod python;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::modules::Libraries;

pub use fold::{Folded, fold, numbered, ranges};
pub use frame::Frame;
pub use process::{Process, Thread};

/// So many are looked at side by side: what takes the time is to read the files of their programs.
const AT_ONCE: usize = 8;

/// Looks at processes for so long. Of each there is an answer, in their order; of one that did not answer in time too.
///
/// A process in the kernel may hold up whoever reads its memory. So each is looked at on a thread of its own, which is left
/// alone when the time is up.
#[must_use]
pub fn look(pids: &[u32], time: Duration) -> Vec<Process> {
    look_longer(pids, time, time)
}

/// Like [`look`], and goes on until so long at most while it has seen what none of them does: a machine that is as busy as that tells
/// nothing of any of them.
#[must_use]
pub fn look_longer(pids: &[u32], time: Duration, at_most: Duration) -> Vec<Process> {
    let began = Instant::now();
    let (time_is_up, deadline) = (began + time, began + at_most.max(time));
    let (send, seen) = mpsc::channel();
    let mut found: Vec<Option<Process>> = pids.iter().map(|_| None).collect();
    let (mut next, mut under_way) = (0, 0);
    let libraries = Arc::new(Libraries::default());
    loop {
        while next < pids.len() && under_way < AT_ONCE {
            let (at, pid, send, libraries) = (next, pids[next], send.clone(), Arc::clone(&libraries));
            next += 1;
            let looking = move || {
                // Who asked may have given up.
                process::look(pid, &libraries, deadline, &|seen| drop(send.send((at, Some(seen)))));
                let _ = send.send((at, None));
            };
            match std::thread::Builder::new().name("stacks".to_owned()).spawn(looking) {
                Ok(_) => under_way += 1,
                Err(error) => {
                    let why = format!("no thread can be started to look at it: {error}");
                    found[at] = Some(Process::unseen(pid, why));
                }
            }
        }
        if under_way == 0 {
            break;
        }
        let some_are_seen = found.iter().flatten().any(Process::is_seen);
        let until = if some_are_seen { time_is_up } else { deadline };
        let Ok((at, process)) = seen.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            break;
        };
        match process {
            Some(process) => found[at] = Some(process),
            None => under_way -= 1,
        }
    }
    let looked = if found.iter().flatten().any(Process::is_seen) { time } else { deadline - began };
    let late =
        |pid| Process::unseen(pid, format!("it could not be looked at within {} s", looked.as_secs_f64()));
    found.into_iter().zip(pids).map(|(process, pid)| process.unwrap_or_else(|| late(*pid))).collect()
}

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
