//! How those that serve are told to close its port, and to stop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

#[derive(Debug)]
struct Shared {
    close: AtomicBool,
    stop: AtomicBool,
    /// Readable when there is an order.
    bell: OwnedFd,
}

impl Shared {
    fn order(&self, what: &AtomicBool) {
        what.store(true, Ordering::Release);
        // It fails only if it has been rung very often, and is heard then too.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// The side that gives orders. Dropped, it stops the other.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
    closed: Option<oneshot::Receiver<()>>,
}

/// The side that takes them.
#[derive(Debug)]
pub(crate) struct Orders {
    shared: Arc<Shared>,
    closed: Option<oneshot::Sender<()>>,
}

pub(crate) fn control() -> io::Result<(Control, Orders)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared { close: AtomicBool::new(false), stop: AtomicBool::new(false), bell });
    let (sender, receiver) = oneshot::channel();
    let control = Control { shared: Arc::clone(&shared), closed: Some(receiver) };
    Ok((control, Orders { shared, closed: Some(sender) }))
}

impl Control {
    /// Has the port closed, and waits until it is.
    pub(crate) async fn close_port(&mut self) {
        if let Some(closed) = self.closed.take() {
            self.shared.order(&self.shared.close);
            // It is not answered by one that has ended.
            let _ = closed.await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.order(&self.shared.stop);
    }
}

impl Orders {
    pub(crate) fn is_to_stop(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Whether the port is to be closed, and was not yet.
    pub(crate) fn is_to_close(&self) -> bool {
        self.closed.is_some() && self.shared.close.load(Ordering::Acquire)
    }

    /// The port is closed.
    pub(crate) fn closed(&mut self) {
        self.closed = None;
    }

    /// They are heard; what they are, the flags tell.
    pub(crate) fn take(&mut self) {
        let _ = rustix::io::read(&self.shared.bell, &mut [0_u8; 8]);
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}
