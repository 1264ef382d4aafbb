//! What workers say, line by line: to the console with a prefix, to files as it is.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;
use tracing::warn;

use crate::environment::Place;

/// Lines longer than this are cut in pieces: a worker that never ends a line must not fill our memory.
const MAX_LINE: usize = 64 << 10;
/// How much of a worker's standard error a failure report can show.
const TAIL_LINES: usize = 20;
const TAIL_LINE_CHARS: usize = 1_000;

/// Where workers' lines are shown.
pub trait Console: Send + Sync + std::fmt::Debug {
    /// Writes whole lines, all at once.
    fn write(&self, stream: Stream, lines: &[u8]);
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

/// What stands before each line, with torchrun's macros: `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(pub String);

impl Default for Prefix {
    fn default() -> Self {
        Prefix("[${rank}]: ".to_owned())
    }
}

impl Prefix {
    /// The prefix of one worker.
    #[must_use]
    pub fn of(&self, place: &Place, role: &str, host: &str) -> String {
        substitute(
            &self.0,
            &[
                ("role_name", role),
                ("local_rank", &place.local_rank.to_string()),
                ("rank", &place.rank.to_string()),
                ("hostname", host),
            ],
        )
    }
}

/// Puts values in the place of `${name}` and `$name`; `$$` is a dollar, and what is not known stays.
fn substitute(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
            continue;
        }
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, left) = braced.unwrap_or_else(|| {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
            after.split_at(end)
        });
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => {
                text.push_str(value);
                rest = left;
            }
            None => {
                text.push('$');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
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
    pub(crate) file: Arc<Mutex<File>>,
    pub(crate) words: Arc<[String]>,
}

/// Carries one stream of one worker to where it goes.
#[derive(Debug)]
pub(crate) struct Pump {
    pub(crate) stream: Stream,
    pub(crate) prefix: String,
    pub(crate) colour: Option<u8>,
    pub(crate) console: Option<Arc<dyn Console>>,
    pub(crate) file: Option<File>,
    pub(crate) filtered: Option<Filtered>,
    pub(crate) tail: Option<Tail>,
}

impl Pump {
    /// Runs on a thread of its own until the stream ends, which is when nobody holds it any more. A console that
    /// does not keep up makes its worker wait, and nobody else.
    pub(crate) fn start(mut self, mut from: impl Read + Send + 'static) -> io::Result<oneshot::Receiver<()>> {
        let (done, ended) = oneshot::channel();
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            let mut lines = Lines::default();
            let mut buffer = vec![0; MAX_LINE];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => self.carry(&buffer[..length], &mut lines),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        warn!(%error, "a worker's output cannot be read");
                        break;
                    }
                }
            }
            self.show(&lines.rest());
            // Whoever waited may have given up.
            let _ = done.send(());
        })?;
        Ok(ended)
    }

    fn carry(&mut self, bytes: &[u8], lines: &mut Lines) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            warn!(%error, "a worker's log file cannot be written any more");
            self.file = None;
        }
        self.show(&lines.push(bytes));
    }

    fn show(&self, lines: &[Vec<u8>]) {
        if let Some(tail) = &self.tail {
            lines.iter().for_each(|line| tail.push(line));
        }
        if let Some(filtered) = &self.filtered {
            let found = |line: &&Vec<u8>| {
                let text = String::from_utf8_lossy(line);
                filtered.words.iter().any(|word| text.contains(word))
            };
            let chosen = with_prefix(&self.prefix, None, lines.iter().filter(found));
            if let Err(error) = lock(&filtered.file).write_all(&chosen) {
                warn!(%error, "the filtered log cannot be written");
            }
        }
        if let Some(console) = &self.console
            && !lines.is_empty()
        {
            console.write(self.stream, &with_prefix(&self.prefix, self.colour, lines.iter()));
        }
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

/// Cuts a stream into lines. A progress bar's carriage return ends a line too: many workers cannot share one.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    /// The line ended with a carriage return; a newline right after it belongs to it.
    returned: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.returned => {}
                b'\n' | b'\r' => lines.push(std::mem::take(&mut self.begun)),
                byte => {
                    self.begun.push(byte);
                    if self.begun.len() == MAX_LINE {
                        lines.push(std::mem::take(&mut self.begun));
                    }
                }
            }
            self.returned = byte == b'\r';
        }
        lines
    }

    fn rest(&mut self) -> Vec<Vec<u8>> {
        if self.begun.is_empty() { Vec::new() } else { vec![std::mem::take(&mut self.begun)] }
    }
}

/// Nothing that holds these locks can leave what they guard half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_whatever_the_pieces() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\ntw"), [b"one".to_vec()]);
        assert_eq!(lines.push(b"o\r"), [b"two".to_vec()]);
        assert_eq!(lines.push(b"\n\nthree"), [b"".to_vec()]);
        assert_eq!(lines.rest(), [b"three".to_vec()]);
        assert!(lines.rest().is_empty());
        assert_eq!(lines.push(&vec![b'x'; MAX_LINE + 1]).len(), 1);
    }

    #[test]
    fn macros_are_replaced_as_pythons_templates_do() {
        let values = [("rank", "7"), ("role_name", "trainer")];
        for (template, text) in [
            ("[${role_name}${rank}]: ", "[trainer7]: "),
            ("$rank:", "7:"),
            ("$$rank", "$rank"),
            ("${unknown} $5", "${unknown} $5"),
            ("${rank", "${rank"),
            ("", ""),
        ] {
            assert_eq!(substitute(template, &values), text, "{template}");
        }
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
