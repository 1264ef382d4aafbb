//! What workers say, line by line: to the console with a prefix, to files as it is.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rallypoint_metrics::prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tracing::warn;

use crate::disk;
use crate::log_file::LogFile;

/// Lines longer than this are cut in pieces: a worker that never ends a line must not fill our memory.
const MAX_LINE: usize = 64 << 10;
/// How much of a worker's standard error a failure report can show.
const TAIL_LINES: usize = 20;
const TAIL_LINE_CHARS: usize = 1_000;

/// Where workers' lines are shown.
pub trait Console: Send + Sync + std::fmt::Debug {
    /// Writes whole lines, all at once. It waits for a console that does not keep up.
    fn write(&self, stream: Stream, lines: &[u8]);
    /// Shows a line that is about to be overwritten, as progress bars are, or takes it away. False where lines cannot
    /// be overwritten; then it is written as a line. `rank` is the worker's, and has one such line at most.
    fn overwrite(&self, _stream: Stream, _rank: usize, _line: Option<&[u8]>) -> bool {
        false
    }
    /// Whether this stream takes colours.
    fn colours(&self, stream: Stream) -> bool;
}

/// One of a worker's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// As metrics have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stream::Out => "stdout",
            Stream::Err => "stderr",
        }
    }
}

/// The last lines that a worker wrote to its standard error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &[u8]) {
        let line: String = String::from_utf8_lossy(line).chars().take(TAIL_LINE_CHARS).collect();
        let mut lines = lock(&self.0);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        lock(&self.0).iter().cloned().collect()
    }

    /// Those of a file that a worker wrote by itself.
    pub(crate) fn of_file(path: &std::path::Path) -> io::Result<Vec<String>> {
        use std::io::Seek;
        if let Some(kind) = disk::no_file(&std::fs::metadata(path)?) {
            // To read it might take for ever.
            return Ok(vec![format!("(its log is {kind} now, and is not read)")]);
        }
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(MAX_LINE as u64)))?;
        let mut text = Vec::new();
        file.take(MAX_LINE as u64).read_to_end(&mut text)?;
        let tail = Tail::default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            tail.push(line);
        }
        Ok(tail.lines())
    }
}

/// Lines with one of the words in them, in a file that all workers share.
#[derive(Debug, Clone)]
pub(crate) struct Filtered {
    pub(crate) file: LogFile,
    pub(crate) words: Arc<[String]>,
}

/// Carries one stream of one worker to where it goes.
#[derive(Debug)]
pub(crate) struct Pump {
    pub(crate) stream: Stream,
    pub(crate) rank: usize,
    pub(crate) prefix: String,
    pub(crate) colour: Option<u8>,
    pub(crate) console: Option<Arc<dyn Console>>,
    pub(crate) file: Option<LogFile>,
    pub(crate) filtered: Option<Filtered>,
    pub(crate) tail: Option<Tail>,
    /// Where its bytes are counted.
    pub(crate) counted: Counter,
}

/// A pump that runs.
#[derive(Debug)]
pub(crate) struct Pumping {
    ended: oneshot::Receiver<()>,
    state: Arc<State>,
    files: Vec<LogFile>,
}

#[derive(Debug, Default)]
struct State {
    writing: AtomicBool,
    moved: AtomicU64,
}

/// How much a pump has carried.
#[derive(Debug, Clone)]
pub(crate) struct Moved(Arc<State>);

impl Moved {
    /// A number that changes whenever something was carried.
    pub(crate) fn count(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }
}

impl Pumping {
    /// Waits until the stream has ended and all of it is where it goes. May be dropped and called again.
    pub(crate) async fn ended(&mut self) {
        // A thread that panicked has ended too.
        let _ = (&mut self.ended).await;
    }

    /// The same, without waiting.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// The files that it writes to.
    pub(crate) fn files(&self) -> &[LogFile] {
        &self.files
    }

    /// Whether it waits for where it writes to, rather than for its worker.
    pub(crate) fn is_writing(&self) -> bool {
        self.state.writing.load(Ordering::Relaxed)
    }

    /// A number that changes whenever something was carried.
    pub(crate) fn moved(&self) -> u64 {
        self.state.moved.load(Ordering::Relaxed)
    }

    /// The same for whoever looks at it later.
    pub(crate) fn watch(&self) -> Moved {
        Moved(Arc::clone(&self.state))
    }
}

impl Pump {
    /// Runs on a thread of its own until the stream ends, which is when nobody holds it any more. A console or a file
    /// that does not keep up makes its worker wait, and nobody else.
    pub(crate) fn start(self, mut from: impl Read + Send + 'static) -> io::Result<Pumping> {
        let (done, ended) = oneshot::channel();
        let state = Arc::new(State::default());
        let seen = Arc::clone(&state);
        let filtered = self.filtered.iter().map(|filtered| &filtered.file);
        let files = self.file.iter().chain(filtered).cloned().collect();
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            let mut lines = Lines::default();
            let mut buffer = vec![0; MAX_LINE];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => {
                        seen.writing.store(true, Ordering::Relaxed);
                        self.counted.inc_by(length as u64);
                        self.carry(&buffer[..length], &mut lines);
                        seen.writing.store(false, Ordering::Relaxed);
                        seen.moved.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        warn!(%error, "a worker's output cannot be read");
                        break;
                    }
                }
            }
            seen.writing.store(true, Ordering::Relaxed);
            self.show(&lines.rest());
            seen.moved.fetch_add(1, Ordering::Relaxed);
            self.file.iter().for_each(LogFile::flush);
            self.filtered.iter().for_each(|filtered| filtered.file.flush());
            // Whoever waited may have given up.
            let _ = done.send(());
        })?;
        Ok(Pumping { ended, state, files })
    }

    fn carry(&self, bytes: &[u8], lines: &mut Lines) {
        if let Some(file) = &self.file {
            file.write(bytes);
        }
        self.show(&lines.push(bytes));
        if let Some(line) = lines.overwritten() {
            self.overwrite(line);
        }
    }

    fn show(&self, said: &[Said]) {
        let mut lines: Vec<&Vec<u8>> = Vec::new();
        for said in said {
            match said {
                Said::Line(line) => lines.push(line),
                // Where it cannot be overwritten it is a line, unless there is nothing to see.
                Said::Overwritten(line) => {
                    if !line.trim_ascii().is_empty() && !self.overwrite(line) {
                        lines.push(line);
                    }
                }
            }
        }
        if lines.is_empty() {
            return;
        }
        if let Some(tail) = &self.tail {
            lines[lines.len().saturating_sub(TAIL_LINES)..].iter().for_each(|line| tail.push(line));
        }
        if let Some(filtered) = &self.filtered {
            let found = |line: &&&Vec<u8>| {
                let text = String::from_utf8_lossy(line);
                filtered.words.iter().any(|word| text.contains(word))
            };
            filtered.file.write(&with_prefix(&self.prefix, None, lines.iter().filter(found).copied()));
        }
        if let Some(console) = &self.console {
            console.overwrite(self.stream, self.rank, None);
            console.write(self.stream, &with_prefix(&self.prefix, self.colour, lines.into_iter()));
        }
    }

    /// Shows a line that will be overwritten, if that can be; a console that shows nothing of this worker does not.
    fn overwrite(&self, line: &Vec<u8>) -> bool {
        let Some(console) = &self.console else { return false };
        let mut text = with_prefix(&self.prefix, self.colour, [line].into_iter());
        text.pop();
        console.overwrite(self.stream, self.rank, Some(&text))
    }
}

fn with_prefix<'a>(prefix: &str, colour: Option<u8>, lines: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let prefix = match colour {
        Some(colour) if !prefix.is_empty() => format!("\x1b[{colour}m{prefix}\x1b[0m"),
        _ => prefix.to_owned(),
    };
    let mut text = Vec::new();
    for line in lines {
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

/// The colour of a rank: neighbours differ.
pub(crate) fn colour(rank: usize) -> u8 {
    const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];
    COLOURS[rank % COLOURS.len()]
}

/// A piece of what a worker says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Line(Vec<u8>),
    /// A line that the worker has begun afresh with a carriage return, as progress bars do.
    Overwritten(Vec<u8>),
}

/// Cuts a stream into lines.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    /// The last byte was a carriage return. With a newline after it, it is the end of a line.
    returned: bool,
    /// The line that has begun has taken another's place.
    again: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Said> {
        let mut said = Vec::new();
        let mut rest = bytes;
        while let Some(byte) = rest.first() {
            if std::mem::take(&mut self.returned) && !is_end(byte) {
                if !self.begun.is_empty() {
                    said.push(Said::Overwritten(std::mem::take(&mut self.begun)));
                }
                self.again = true;
            }
            let taken = match byte {
                b'\n' => {
                    said.push(Said::Line(std::mem::take(&mut self.begun)));
                    self.again = false;
                    1
                }
                b'\r' => {
                    self.returned = true;
                    1
                }
                _ => {
                    // As much as there is at once: a worker may write a lot.
                    let text = rest.iter().position(is_end).unwrap_or(rest.len());
                    let text = text.min(MAX_LINE - self.begun.len());
                    self.begun.extend_from_slice(&rest[..text]);
                    if self.begun.len() == MAX_LINE {
                        said.push(Said::Line(std::mem::take(&mut self.begun)));
                    }
                    text
                }
            };
            rest = &rest[taken..];
        }
        said
    }

    /// A line that has begun in the place of another, and so will be overwritten in its turn.
    fn overwritten(&self) -> Option<&Vec<u8>> {
        Some(&self.begun).filter(|begun| self.again && !begun.is_empty())
    }

    fn rest(&mut self) -> Vec<Said> {
        if self.begun.is_empty() { Vec::new() } else { vec![Said::Line(std::mem::take(&mut self.begun))] }
    }
}

/// Whether a line may end there, or begin afresh.
fn is_end(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Nothing that holds these locks can leave what they guard half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Said {
        Said::Line(text.into())
    }

    #[test]
    fn lines_are_whole_whatever_the_pieces() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\ntw"), [line("one")]);
        assert_eq!(lines.push(b"o\r"), []);
        assert_eq!(lines.push(b"\n\nthree"), [line("two"), line("")]);
        assert_eq!(lines.rest(), [line("three")]);
        assert!(lines.rest().is_empty());
        assert_eq!(lines.push(&vec![b'x'; MAX_LINE + 1]).len(), 1);
        assert_eq!(lines.push(&vec![b'x'; 2 * MAX_LINE]).len(), 2);
        assert_eq!(lines.rest(), [line("x")]);
    }

    #[test]
    fn a_progress_bar_is_one_line_that_is_overwritten() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"\r 10%"), []);
        assert_eq!(lines.overwritten(), Some(&b" 10%".to_vec()));
        assert_eq!(lines.push(b"\r 20%"), [Said::Overwritten(b" 10%".to_vec())]);
        assert_eq!(lines.push(b"\r100%\nnext"), [Said::Overwritten(b" 20%".to_vec()), line("100%")]);
        assert_eq!(lines.overwritten(), None, "a line that has just begun is no bar");
        assert_eq!(lines.push(b"\n\r\r"), [line("next")]);
        assert!(lines.rest().is_empty(), "nothing follows");
    }

    #[test]
    fn a_tail_keeps_the_last_lines() {
        let tail = Tail::default();
        for line in 0..TAIL_LINES + 3 {
            tail.push(line.to_string().as_bytes());
        }
        assert_eq!(tail.lines().len(), TAIL_LINES);
        assert_eq!(tail.lines()[0], "3");
    }
}
