//! The terminal: workers' lines, the launcher's own messages, and one line below them that changes.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rallypoint_agent::{Console, Stream};

use super::writer::{Files, Lost, Writer};

/// Standard output and error, shared by all who write to them.
#[derive(Debug)]
pub(crate) struct Terminal {
    err: Writer,
    /// None where both are one, a terminal or `2>&1`: lines of one stand between those of the other.
    out: Option<Writer>,
    below: Mutex<Below>,
    colours: bool,
    out_is_terminal: bool,
    err_is_terminal: bool,
}

/// What could stand at the bottom; the first comes first.
#[derive(Debug, Default)]
struct Below {
    /// What the launcher waits for.
    waiting: Option<String>,
    /// The last progress bar, and the worker that it is of.
    bar: Option<(usize, Vec<u8>)>,
}

impl Terminal {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let files = || {
            // Not the ones of the standard library, whose locks are held while something is written.
            let out = io::stdout().as_fd().try_clone_to_owned()?;
            let err = io::stderr().as_fd().try_clone_to_owned()?;
            io::Result::Ok(Files { out: out.into(), err: err.into() })
        };
        let both = files()?;
        let (out, err) = (both.out.is_terminal(), both.err.is_terminal());
        let are_one = is_same(&both.out, &both.err)?;
        Ok(Arc::new(Terminal {
            err: Writer::start(both)?,
            out: if are_one { None } else { Some(Writer::start(files()?)?) },
            below: Mutex::default(),
            colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            out_is_terminal: out,
            err_is_terminal: err,
        }))
    }

    /// Whether there is a line that can change.
    pub(crate) fn has_line(&self) -> bool {
        self.err_is_terminal
    }

    /// The letters that its line has room for, where that is known.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// Shows a line at the bottom, or none.
    pub(crate) fn show(&self, line: Option<String>) {
        self.show_below(|below| below.waiting = line);
    }

    /// Says something of the launcher's own, without waiting.
    pub(crate) fn say(&self, text: &str) {
        self.err.say(Stream::Err, text.as_bytes());
    }

    /// Waits until all is written; for a console that takes nothing no longer than `patience`.
    pub(crate) async fn done(&self, patience: Duration) {
        let out = async {
            if let Some(out) = &self.out {
                out.done(patience).await;
            }
        };
        tokio::join!(self.err.done(patience), out);
    }

    /// The workers' lines that could not be written to standard output, where they were lost alone: on standard error
    /// nobody could be told.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.out.as_ref().and_then(|out| out.lost(Stream::Out))
    }

    fn show_below(&self, change: impl FnOnce(&mut Below)) {
        if !self.err_is_terminal {
            return;
        }
        let mut below = self.below.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut below);
        let line = below.waiting.as_deref().map(str::as_bytes);
        let line = line.or_else(|| below.bar.as_ref().map(|(_, bar)| bar.as_slice()));
        // A line that went on in the next one could not be taken away.
        self.err.bottom(line.map(|line| [b"\x1b[?7l", line, b"\x1b[?7h"].concat()));
    }

    fn writer(&self, stream: Stream) -> &Writer {
        match (stream, &self.out) {
            (Stream::Out, Some(out)) => out,
            _ => &self.err,
        }
    }

    fn is_terminal(&self, stream: Stream) -> bool {
        match stream {
            Stream::Out => self.out_is_terminal,
            Stream::Err => self.err_is_terminal,
        }
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

impl Console for Terminal {
    fn write(&self, stream: Stream, lines: &[u8]) {
        self.writer(stream).write(stream, lines);
    }

    fn overwrite(&self, stream: Stream, rank: usize, line: Option<&[u8]>) -> bool {
        if !self.is_terminal(stream) || !self.err_is_terminal {
            return false;
        }
        self.show_below(|below| match line {
            Some(line) => below.bar = Some((rank, line.to_vec())),
            None => below.bar = below.bar.take().filter(|(owner, _)| *owner != rank),
        });
        true
    }

    fn colours(&self, stream: Stream) -> bool {
        self.colours && self.is_terminal(stream)
    }
}

/// Writes the launcher's own messages, above the line at the bottom. It neither waits nor fails.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter(pub(crate) Arc<Terminal>);

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.err.say(Stream::Err, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
