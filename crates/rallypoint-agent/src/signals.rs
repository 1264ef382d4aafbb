//! Which signals there are to handle, and what a process does about one.

use std::ffi::OsStr;
use std::{fs, io};

use rustix::process::{Pid, Signal, getpid};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

/// Those that a launcher can be sent on purpose, by name. [`DEFAULT_SIGNALS`](crate::DEFAULT_SIGNALS) end it.
pub const KNOWN_SIGNALS: [(&str, Signal); 6] = [
    ("SIGTERM", Signal::TERM),
    ("SIGINT", Signal::INT),
    ("SIGHUP", Signal::HUP),
    ("SIGQUIT", Signal::QUIT),
    ("SIGUSR1", Signal::USR1),
    ("SIGUSR2", Signal::USR2),
];

/// By this the command tells its launcher that the end was asked for again, and is to come at once. Only the command
/// counts: what a site sends to every process that there is was asked for once.
pub const AT_ONCE: Signal = Signal::VTALARM;

/// A name that no signal has that could be handled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no signal that can be handled; there are SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2"
)]
pub struct UnknownSignal(String);

/// The signals of a list such as `SIGTERM,SIGINT`.
pub fn parse_signals(names: &str) -> Result<Vec<Signal>, UnknownSignal> {
    let named = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        let known = KNOWN_SIGNALS.iter().find(|(known, _)| *known == name);
        known.map(|(_, signal)| *signal).ok_or_else(|| UnknownSignal(name.to_owned()))
    };
    named.map(find).collect()
}

/// What a signal is called.
pub(crate) fn name_of(signal: Signal) -> String {
    let known = KNOWN_SIGNALS.iter().find(|(_, known)| *known == signal);
    known.map_or_else(|| format!("signal {}", signal.as_raw()), |(name, _)| (*name).to_owned())
}

/// Makes a write past the limit of a file's size (`ulimit -f`) an error of that write, where SIGXFSZ would end this process.
/// It is handled rather than ignored: what this process starts is to have what the process itself was started with, and a
/// handler does not outlive `exec`. A Python ignores it for itself alone. To be called in a runtime.
pub fn outlive_file_limit() -> io::Result<()> {
    if !is_ignored(Signal::XFSZ) || !is_ours() {
        // The handler stays when nobody listens any more.
        drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    }
    Ok(())
}

/// Whether this program is Rallypoint's own, and not a Python that needs its arguments to become the command.
pub(crate) fn is_ours() -> bool {
    std::env::current_exe().is_ok_and(|path| path.file_name() == Some(OsStr::new("rallypoint")))
}

/// Whether this process was started with the signal ignored, as `nohup` does. To be asked before anybody handles it.
#[must_use]
pub fn is_ignored(signal: Signal) -> bool {
    in_mask(getpid(), "SigIgn:", signal)
}

/// Whether a process has a handler for the signal.
pub(crate) fn is_handled(pid: Pid, signal: Signal) -> bool {
    in_mask(pid, "SigCgt:", signal)
}

fn in_mask(pid: Pid, field: &str, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    mask(&status, field).is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// One of the masks in a process's `status`.
fn mask(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_others_are_refused() {
        assert_eq!(parse_signals("SIGTERM, SIGUSR1"), Ok(vec![Signal::TERM, Signal::USR1]));
        assert_eq!(parse_signals(""), Ok(Vec::new()));
        for names in ["SIGTERM,SIGFOO", "TERM", "SIGKILL", "15"] {
            assert!(parse_signals(names).is_err(), "{names}");
        }
    }

    #[test]
    fn masks_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000200\n";
        assert_eq!((mask(status, "SigIgn:"), mask(status, "SigCgt:")), (Some(1), Some(0x200)));
        assert_eq!(mask(status, "SigBlk:"), None);
    }
}
