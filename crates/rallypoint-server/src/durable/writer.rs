//! The thread that brings changes to the disk, all that wait at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::change::{Batch, Loaded};
use super::engine::EngineError;
use super::folder::Folder;
use super::journal::{Lost, Promise};
use super::ledger::{Ledger, Way};
use super::room::Room;
use crate::ServerError;
use crate::shared::Shared;
use crate::state::State;
use crate::v2::Service;
use crate::v2::Untold;

/// How often a full disk is looked at.
const FULL_INTERVAL: Duration = Duration::from_millis(500);

/// The two halves of the server.
#[derive(Debug, Clone)]
pub(crate) struct Halves {
    pub(crate) v3: Arc<Shared>,
    pub(crate) v2: Arc<Service>,
}

/// A writer at work. Dropped, it writes what waits and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    thread: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    bell: SyncSender<()>,
    failed: oneshot::Receiver<ServerError>,
}

impl Writer {
    /// A bell, which holds one ring, and its other end.
    pub(crate) fn bell() -> (SyncSender<()>, Receiver<()>) {
        mpsc::sync_channel(1)
    }

    /// Starts it. Both halves have the bell.
    pub(crate) fn start(
        folder: Folder,
        ledger: Ledger,
        halves: Halves,
        bell: SyncSender<()>,
        rung: Receiver<()>,
    ) -> std::io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (failing, failed) = oneshot::channel();
        let mut work = Work { folder, ledger: Some(ledger), halves, room: Room::default() };
        let told = Arc::clone(&stopping);
        let thread = thread::Builder::new().name("writer".to_owned()).spawn(move || {
            if let Err(error) = work.run(&rung, &told) {
                let error = work.folder.said(error);
                // Nobody may listen any more.
                let _ = failing.send(error);
            }
        })?;
        Ok(Writer { thread: Some(thread), stopping, bell, failed })
    }

    /// Until nothing more can be written, and why. Never, while all is well.
    pub(crate) async fn failed(&mut self) -> Option<ServerError> {
        (&mut self.failed).await.ok()
    }

    /// Writes what waits, closes the folder and ends.
    pub(crate) async fn stop(mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            // Whether it panicked is of no interest any more: who waited was told.
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }

    fn tell_to_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let _ = self.bell.try_send(());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}

struct Work {
    folder: Folder,
    /// None while it is opened anew.
    ledger: Option<Ledger>,
    halves: Halves,
    room: Room,
}

/// What waits for a batch to be on disk.
#[derive(Default)]
struct Waiting {
    /// The revision, and the promise of the v3 half.
    v3: Option<(i64, Promise)>,
    v2: Option<(Vec<Untold>, Promise)>,
}

impl Work {
    fn run(&mut self, rung: &Receiver<()>, stopping: &AtomicBool) -> Result<(), EngineError> {
        self.folder.take_reserve();
        self.look_for_room();
        if !self.room.is_scarce() {
            self.begin_log();
        }
        loop {
            let rang = if self.room.is_full() {
                rung.recv_timeout(FULL_INTERVAL)
            } else {
                rung.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            // What is asked for before it is told to stop is written after.
            let is_last = stopping.load(Ordering::Acquire) || rang == Err(RecvTimeoutError::Disconnected);
            while let Some((batch, waiting)) = self.take() {
                let began = Instant::now();
                // What the log has must find room in the end.
                let way = if self.room.is_scarce() { Way::Engine } else { Way::Log };
                self.folder.check_there()?;
                match self.ledger().write(&batch, way) {
                    Ok(()) => {
                        self.halves.v3.commits.observe(began.elapsed().as_secs_f64());
                        self.look_for_room();
                        self.settle(waiting);
                    }
                    Err(error) if error.is_full() => self.recover(&batch, waiting, stopping)?,
                    Err(error) => return Err(error),
                }
            }
            if self.room.is_full() {
                self.look_for_room();
            }
            if is_last {
                return self.end();
            }
        }
    }

    fn ledger(&mut self) -> &mut Ledger {
        self.ledger.as_mut().expect("it is open")
    }

    /// Begins a log, if there is none. Where it cannot be had, all goes to the engine.
    fn begin_log(&mut self) {
        if self.ledger().has_log() {
            return;
        }
        match self.folder.make_log() {
            Ok(log) => self.ledger().begin_log(log),
            Err(error) => {
                self.folder.remove_log();
                if !error.is_full() {
                    tracing::warn!(%error, "there is no log in the data directory: writes take longer");
                }
            }
        }
    }

    /// Leaves all in one file.
    fn end(&mut self) -> Result<(), EngineError> {
        self.ledger().end_log()?;
        self.folder.remove_log();
        Ok(())
    }

    fn take(&self) -> Option<(Arc<Batch>, Waiting)> {
        let (mut batch, mut waiting) = (Batch::default(), Waiting::default());
        if let Some((v3, promise)) = self.halves.v3.take_changes() {
            waiting.v3 = Some((v3.revision, promise));
            batch.v3 = Some(v3);
        }
        if let Some((v2, untold, promise)) = self.halves.v2.take_changes() {
            waiting.v2 = Some((untold, promise));
            batch.v2 = Some(v2);
        }
        (batch.v3.is_some() || batch.v2.is_some()).then(|| (Arc::new(batch), waiting))
    }

    /// The batch is on disk. Who is answered now must find what it was told, so the state comes first.
    fn settle(&self, waiting: Waiting) {
        if let Some((revision, promise)) = waiting.v3 {
            while !self.halves.v3.write(|state| state.settle(revision)) {}
            promise.resolve(Ok(()));
        }
        if let Some((untold, promise)) = waiting.v2 {
            self.halves.v2.settle(untold);
            promise.resolve(Ok(()));
        }
    }

    /// The disk is full. Nobody says whether the batch was written, so all is opened anew and what is there counts. A batch that was not written is tried once more, with the room that was held back: it may be a delete.
    /// What is not kept then is taken back, and with it all that was built on it.
    fn recover(
        &mut self,
        batch: &Arc<Batch>,
        waiting: Waiting,
        stopping: &AtomicBool,
    ) -> Result<(), EngineError> {
        let batches = self.ledger.take().map_or(0, |ledger| ledger.batches());
        self.ran_out();
        self.folder.give_up_reserve();
        let mut loaded = self.open_anew(stopping)?;
        if loaded.batches == batches {
            match self.ledger().write(batch, Way::Engine) {
                Ok(()) => loaded.batches += 1,
                Err(error) if error.is_full() => {
                    self.ledger = None;
                    loaded = self.open_anew(stopping)?;
                }
                Err(error) => return Err(error),
            }
        }
        if loaded.batches > batches {
            self.settle(waiting);
            return Ok(());
        }
        let mut promises: Vec<Promise> = Vec::new();
        promises.extend(waiting.v3.map(|(_, promise)| promise));
        promises.extend(waiting.v2.map(|(_, promise)| promise));
        promises.extend(self.halves.v3.go_back(loaded.v3));
        promises.extend(self.halves.v2.go_back(loaded.v2));
        // What it weighs now is what the disk has room for.
        self.ran_out();
        for promise in promises {
            promise.resolve(Err(Lost::NoSpace));
        }
        Ok(())
    }

    /// Opens all again, when there is enough room for that.
    fn open_anew(&mut self, stopping: &AtomicBool) -> Result<Loaded, EngineError> {
        loop {
            match self.folder.load() {
                Ok((ledger, loaded)) => {
                    self.ledger = Some(ledger);
                    return Ok(loaded);
                }
                Err(error) if error.is_full() && !stopping.load(Ordering::Acquire) => {
                    thread::sleep(FULL_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn weight(halves: &Halves) -> usize {
        halves.v3.read(State::weight) + halves.v2.weight()
    }

    fn ran_out(&mut self) {
        let was_full = self.room.is_full();
        self.room.ran_out(Work::weight(&self.halves));
        self.tell(was_full);
    }

    fn look_for_room(&mut self) {
        let (was_full, was_scarce) = (self.room.is_full(), self.room.is_scarce());
        let is_full = self.room.look(self.folder.free(), || Work::weight(&self.halves));
        if was_full && !is_full {
            // It may have been given up. If it cannot be had, it goes on without.
            self.folder.take_reserve();
        }
        if was_scarce && !self.room.is_scarce() {
            self.folder.take_reserve();
            self.begin_log();
        }
        self.tell(was_full);
    }

    /// Tells both halves, if it has changed.
    fn tell(&self, was_full: bool) {
        let is_full = self.room.is_full();
        match (was_full, is_full) {
            (false, true) => {
                tracing::error!("the disk is full: nothing is added until there is room; deletes still work");
            }
            (true, false) => tracing::info!("there is room on the disk again"),
            _ => return,
        }
        self.halves.v3.set_full(is_full);
        self.halves.v2.set_full(is_full);
    }
}
