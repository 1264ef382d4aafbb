//! How the tasks are reached that hold a stream for many.

use std::sync::Mutex;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The way to a task that is started with its first command, and again when it has ended. It ends with this.
#[derive(Debug)]
pub(super) struct Mailbox<C>(Mutex<Option<UnboundedSender<C>>>);

impl<C> Mailbox<C> {
    pub(super) fn new() -> Self {
        Mailbox(Mutex::new(None))
    }

    /// Starts the task if there is none.
    pub(super) fn send(&self, command: C, start: impl FnOnce(UnboundedReceiver<C>)) {
        let mut task = self.0.lock().expect("no code panics while it holds this lock");
        let rejected = match &*task {
            Some(running) => running.send(command).err().map(|rejected| rejected.0),
            None => Some(command),
        };
        if let Some(command) = rejected {
            let (sender, commands) = unbounded_channel();
            sender.send(command).unwrap_or_else(|_| unreachable!("the receiver is right here"));
            start(commands);
            *task = Some(sender);
        }
    }

    /// For what is nothing to a task that has ended.
    pub(super) fn send_if_running(&self, command: C) {
        let task = self.0.lock().expect("no code panics while it holds this lock");
        if let Some(task) = &*task {
            let _ = task.send(command);
        }
    }
}
