//! The one runtime of the process, how a thread waits on it, and what a fork changes.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Once};
use std::time::Duration;

use pyo3::prelude::*;
use rallypoint_store::shared_runtime;
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;

/// How long Ctrl-C may go unnoticed.
const SIGNALS: Duration = Duration::from_millis(100);
/// Which diagnostics are written to stderr.
const LOG_LEVEL: &str = "RALLYPOINT_LOG_LEVEL";

/// The runtime of this process. Call it with the GIL: then no thread is in it when another one forks.
pub(crate) fn runtime() -> Arc<Runtime> {
    static LOG: Once = Once::new();
    LOG.call_once(|| {
        let level = std::env::var(LOG_LEVEL);
        let level = level.as_deref().unwrap_or("warn");
        let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("warn"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
        // Whoever was first with a log of its own keeps it.
        let _ = log.with_ansi(false).with_writer(std::io::stderr).try_init();
    });
    shared_runtime()
}

/// What `future` gives. The GIL is released while it is waited for, and a signal handler that raises ends the wait.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let runtime = runtime();
    let mut future = pin!(future);
    loop {
        let step = || runtime.block_on(async { tokio::time::timeout(SIGNALS, future.as_mut()).await });
        match py.detach(step) {
            Ok(result) => return Ok(result),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Something that has threads or connections of the process that made it.
///
/// A process forked off can neither use nor end it: the threads did not come along, and a lock may be held for
/// ever. There it is only forgotten.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess { value: Some(value), process: std::process::id() }
    }

    /// The value, in the process that it belongs to.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.is_ours())
    }

    /// The value, whosever it is; only for what needs no thread and no lock.
    pub(crate) fn look(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Takes the value out, in the process that it belongs to.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_ours() { self.value.take() } else { None }
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // What ends with it may want to tell a server.
            let runtime = shared_runtime();
            let _inside = runtime.enter();
            drop(self.value.take());
        } else {
            std::mem::forget(self.value.take());
        }
    }
}
