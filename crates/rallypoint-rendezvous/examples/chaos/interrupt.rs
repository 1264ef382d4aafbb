//! Ctrl-C and its like: the program ends from within, so that nothing of it is left.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// What is unwound with.
struct Interrupted;

/// From now on a signal does not end the process: [`sleep`] does.
pub(crate) fn listen() {
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()] {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                signal(kind).unwrap().recv().await;
                SIGNAL.store(kind.as_raw_value(), Ordering::Relaxed);
            });
        });
    }
}

/// The signal that has come, if one has.
pub(crate) fn signal_seen() -> Option<i32> {
    Some(SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Unwinds up to `main` if a signal comes.
pub(crate) fn sleep(time: Duration) {
    let until = Instant::now() + time;
    loop {
        if signal_seen().is_some() {
            resume_unwind(Box::new(Interrupted));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
