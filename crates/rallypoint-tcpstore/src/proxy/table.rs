//! The streams of a proxy, one for each client, and the way of their frames to the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, mpsc};

use crate::trunk::frame::{Broken, Frame, WINDOW};

/// Frames that wait to be written. Clients wait when there are so many.
const QUEUED: usize = 64;

/// What the reader of the trunk knows of a stream.
#[derive(Debug)]
struct Known {
    /// What is for the client. No more than a window of it is under way, so it needs no bound.
    to_client: mpsc::UnboundedSender<Vec<u8>>,
    /// How much the server takes.
    room: Arc<Semaphore>,
    /// How much the server may send.
    may_send: usize,
}

#[derive(Debug, Default)]
struct Streams {
    open: HashMap<u32, Known>,
    /// The last that was opened.
    last: u32,
}

/// The streams that are open.
#[derive(Debug)]
pub(super) struct Table {
    streams: Mutex<Streams>,
    frames: mpsc::Sender<Vec<u8>>,
}

impl Table {
    /// A table without streams, and the frames that are to be written.
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (frames, written) = mpsc::channel(QUEUED);
        (Arc::new(Table { streams: Mutex::default(), frames }), written)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream for a client. None if there are no more numbers, or nobody to tell of it.
    pub(super) async fn open(self: &Arc<Self>) -> Option<Stream> {
        let (to_client, from_server) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(WINDOW));
        let number = {
            let mut streams = self.streams();
            streams.last = streams.last.checked_add(1)?;
            let number = streams.last;
            let known = Known { to_client, room: Arc::clone(&room), may_send: WINDOW };
            streams.open.insert(number, known);
            number
        };
        self.send(number, Frame::Open).await.ok()?;
        Some(Stream { number, table: Arc::clone(self), from_server, room })
    }

    async fn send(&self, stream: u32, frame: Frame<'_>) -> Result<(), mpsc::error::SendError<Vec<u8>>> {
        let mut bytes = Vec::new();
        frame.write(stream, &mut bytes);
        self.frames.send(bytes).await
    }

    /// Takes in what the server says of a stream. It never waits: nobody who does not read holds up others.
    pub(super) fn take(&self, stream: u32, frame: Frame<'_>) -> Result<(), Broken> {
        let mut streams = self.streams();
        if stream == 0 || stream > streams.last {
            return Err(Broken::Stream);
        }
        // One that is over may have been so for less time than this was under way.
        let Some(known) = streams.open.get_mut(&stream) else { return Ok(()) };
        match frame {
            Frame::Open => return Err(Broken::Stream),
            Frame::Data(data) => {
                known.may_send = known.may_send.checked_sub(data.len()).ok_or(Broken::Window)?;
                // The client's task may have ended.
                let _ = known.to_client.send(data.to_vec());
            }
            Frame::Window(more) => {
                if known.room.available_permits() + more as usize > WINDOW {
                    return Err(Broken::Window);
                }
                known.room.add_permits(more as usize);
            }
            Frame::Close => drop(streams.open.remove(&stream)),
        }
        Ok(())
    }
}

/// One client's stream. Dropped, it is over, and the server is told of that by [`Stream::close`] alone.
#[derive(Debug)]
pub(super) struct Stream {
    number: u32,
    table: Arc<Table>,
    from_server: mpsc::UnboundedReceiver<Vec<u8>>,
    room: Arc<Semaphore>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.table.streams().open.remove(&self.number);
    }
}

impl Stream {
    /// The ways of a client's bytes to the server and from it.
    pub(super) fn split(&mut self) -> (Up<'_>, Down<'_>) {
        let (number, table) = (self.number, &*self.table);
        let down = Down { number, table, from_server: &mut self.from_server, read: 0 };
        (Up { number, table, room: &self.room }, down)
    }

    /// Whether nothing goes to the server any more.
    pub(super) fn is_lost(&self) -> bool {
        self.table.frames.is_closed()
    }

    /// Tells the server that the client has gone, unless the server has ended the stream.
    pub(super) async fn close(self) {
        if self.table.streams().open.remove(&self.number).is_some() {
            let _ = self.table.send(self.number, Frame::Close).await;
        }
    }
}

/// The way to the server.
#[derive(Debug)]
pub(super) struct Up<'a> {
    number: u32,
    table: &'a Table,
    room: &'a Semaphore,
}

impl Up<'_> {
    /// Sends this when there is room for it; false if nothing can be sent any more.
    pub(super) async fn send(&self, data: &[u8]) -> bool {
        match self.room.acquire_many(data.len() as u32).await {
            Ok(room) => room.forget(),
            Err(_) => return false,
        }
        self.table.send(self.number, Frame::Data(data)).await.is_ok()
    }
}

/// The way from the server.
#[derive(Debug)]
pub(super) struct Down<'a> {
    number: u32,
    table: &'a Table,
    from_server: &'a mut mpsc::UnboundedReceiver<Vec<u8>>,
    /// What the client has read and the server was not told of yet.
    read: usize,
}

impl Down<'_> {
    /// What is for the client next; none if the server has ended the stream.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.from_server.recv().await
    }

    /// The client has taken so much.
    pub(super) async fn taken(&mut self, count: usize) {
        self.read += count;
        if self.read < WINDOW / 2 {
            return;
        }
        let more = std::mem::take(&mut self.read);
        // Before the server can know of it.
        if let Some(known) = self.table.streams().open.get_mut(&self.number) {
            known.may_send += more;
        }
        let _ = self.table.send(self.number, Frame::Window(more as u32)).await;
    }
}
