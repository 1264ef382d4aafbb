//! What has changed in memory and is not on disk yet, and who waits for that.

use std::sync::mpsc::SyncSender;

use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::Shared;
use thiserror::Error;

/// Why a change was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Lost {
    /// The disk is full. It was taken back.
    #[error("the disk is full")]
    NoSpace,
    /// The server has ended before it was on disk. It may be there or not.
    #[error("the server has stopped")]
    Stopped,
}

type Kept = Result<(), Lost>;

/// For whoever waits until all that it has seen is on disk.
#[derive(Debug, Clone)]
pub(crate) struct Ticket(Shared<oneshot::Receiver<Kept>>);

impl Ticket {
    pub(crate) async fn kept(self) -> Kept {
        self.0.await.unwrap_or(Err(Lost::Stopped))
    }
}

/// Waits for a ticket, where there is one.
pub(crate) async fn kept(ticket: Option<Ticket>) -> Kept {
    match ticket {
        Some(ticket) => ticket.kept().await,
        None => Ok(()),
    }
}

/// The other end of a ticket. Dropped, it says that the server has stopped.
#[derive(Debug)]
pub(crate) struct Promise(oneshot::Sender<Kept>);

impl Promise {
    pub(crate) fn resolve(self, kept: Kept) {
        // Nobody may wait.
        let _ = self.0.send(kept);
    }
}

/// The changes of one half of the server that are not on disk. It is behind the lock of that half.
///
/// At most one batch is being written, and all that comes meanwhile waits for the next.
#[derive(Debug)]
pub(crate) struct Journal<C> {
    changes: Vec<C>,
    /// For what waits in `changes`.
    open: (Promise, Ticket),
    /// For what is being written.
    writing: Option<Ticket>,
    /// Rings for the writer.
    bell: SyncSender<()>,
    /// Whether the writer has to be told of something.
    is_new: bool,
    /// There is no room on the disk: nothing is added.
    is_full: bool,
}

/// What the writer takes.
#[derive(Debug)]
pub(crate) struct Taken<C> {
    pub(crate) changes: Vec<C>,
    pub(crate) promise: Promise,
}

impl<C> Journal<C> {
    /// The writer listens at the other end of the bell, which holds one ring.
    pub(crate) fn new(bell: SyncSender<()>) -> Self {
        Journal { changes: Vec::new(), open: ticket(), writing: None, bell, is_new: false, is_full: false }
    }

    pub(crate) fn push(&mut self, change: C) {
        self.is_new |= self.changes.is_empty();
        self.changes.push(change);
    }

    /// For whoever has seen the state as it is now; none if all of it is on disk.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        if self.changes.is_empty() { self.writing.clone() } else { Some(self.open.1.clone()) }
    }

    /// The bell, if the writer has to be told of something. To be rung once the lock is free.
    pub(crate) fn bell(&mut self) -> Option<SyncSender<()>> {
        std::mem::take(&mut self.is_new).then(|| self.bell.clone())
    }

    /// All that waits, if anything does. It is being written until it has settled.
    pub(crate) fn take(&mut self) -> Option<Taken<C>> {
        if self.changes.is_empty() {
            return None;
        }
        let (promise, writing) = std::mem::replace(&mut self.open, ticket());
        self.writing = Some(writing);
        Some(Taken { changes: std::mem::take(&mut self.changes), promise })
    }

    /// What was being written is on disk.
    pub(crate) fn settle(&mut self) {
        self.writing = None;
    }

    /// What was being written was not kept, and what waits was built on it: all of it is given up. The promise is that of
    /// those who wait.
    pub(crate) fn give_up(&mut self) -> Promise {
        self.writing = None;
        self.changes.clear();
        std::mem::replace(&mut self.open, ticket()).0
    }

    /// How many changes wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is no room on the disk.
    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }
}

fn ticket() -> (Promise, Ticket) {
    let (sender, receiver) = oneshot::channel();
    (Promise(sender), Ticket(receiver.shared()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn now(ticket: Option<Ticket>) -> Option<Kept> {
        ticket.map_or(Some(Ok(())), |ticket| ticket.kept().now_or_never())
    }

    #[test]
    fn who_has_seen_a_change_waits_for_it_and_for_nothing_later() {
        let (bell, ring) = mpsc::sync_channel(1);
        let mut journal = Journal::new(bell);
        assert!(journal.ticket().is_none() && journal.take().is_none() && journal.bell().is_none());
        journal.push(1);
        journal.push(2);
        let first = journal.ticket();
        // One ring for both.
        journal.bell().unwrap().try_send(()).unwrap();
        assert!(journal.bell().is_none() && ring.try_recv().is_ok());
        let taken = journal.take().unwrap();
        assert_eq!(taken.changes, [1, 2]);
        let reader = journal.ticket();
        journal.push(3);
        let second = journal.ticket();
        assert!(now(reader.clone()).is_none() && journal.bell().is_some());
        journal.settle();
        taken.promise.resolve(Ok(()));
        assert_eq!([now(first), now(reader), now(second)], [Some(Ok(())), Some(Ok(())), None]);
    }

    #[test]
    fn what_was_built_on_a_lost_change_is_lost_with_it() {
        let mut journal = Journal::new(mpsc::sync_channel(1).0);
        journal.push(1);
        let taken = journal.take().unwrap();
        let (first, _) = (journal.ticket(), journal.push(2));
        let second = journal.ticket();
        let waiting = journal.give_up();
        for promise in [taken.promise, waiting] {
            promise.resolve(Err(Lost::NoSpace));
        }
        assert_eq!([now(first), now(second)], [Some(Err(Lost::NoSpace)); 2]);
        assert!(journal.ticket().is_none() && journal.take().is_none());
        journal.push(4);
        let last = journal.ticket();
        drop(journal.take().unwrap());
        assert_eq!(now(last), Some(Err(Lost::Stopped)));
    }
}
