//! Work on a disk that may hang, so that nobody hangs with it.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a disk may take for what the end waits for.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Does something on a thread of its own. None if it is not done by then; it may be some time, and nobody is told.
pub fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::channel();
    let work = move || {
        // Whoever waited may have given up.
        let _ = done.send(work());
    };
    thread::Builder::new().name("disk".to_owned()).spawn(work).ok()?;
    result.recv_timeout(patience).ok()
}
