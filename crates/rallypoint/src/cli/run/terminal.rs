//! The terminal: workers' lines, the launcher's own messages, and one line below them that changes.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use rallypoint_agent::{Console, Stream};

/// Standard output and error, shared by all who write to them.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The line at the bottom, on standard error.
    line: Mutex<Option<String>>,
    out_colours: bool,
    err_colours: bool,
    err_is_terminal: bool,
}

const CLEAR: &str = "\r\x1b[K";

impl Terminal {
    pub(crate) fn new() -> Arc<Self> {
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Arc::new(Terminal {
            line: Mutex::new(None),
            out_colours: out && colours,
            err_colours: err && colours,
            err_is_terminal: err,
        })
    }

    /// Whether there is a line that can change.
    pub(crate) fn has_line(&self) -> bool {
        self.err_is_terminal
    }

    /// Shows a line at the bottom, or none.
    pub(crate) fn show(&self, line: Option<String>) {
        let mut shown = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if *shown == line || !self.err_is_terminal {
            return;
        }
        // A terminal that is gone has nothing to show.
        let _ = write!(io::stderr().lock(), "{CLEAR}{}", line.as_deref().unwrap_or_default());
        *shown = line;
    }

    fn write_lines(&self, stream: Stream, lines: &[u8]) -> io::Result<()> {
        let shown = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_some() {
            write!(io::stderr().lock(), "{CLEAR}")?;
        }
        match stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()?;
            }
            Stream::Err => io::stderr().lock().write_all(lines)?,
        }
        if let Some(line) = &*shown {
            write!(io::stderr().lock(), "{line}")?;
        }
        Ok(())
    }
}

impl Console for Terminal {
    fn write(&self, stream: Stream, lines: &[u8]) {
        // Nobody reads any more; the workers are not to blame.
        let _ = self.write_lines(stream, lines);
    }

    fn colours(&self, stream: Stream) -> bool {
        match stream {
            Stream::Out => self.out_colours,
            Stream::Err => self.err_colours,
        }
    }
}

/// Writes the launcher's own messages, above the line at the bottom.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter(pub(crate) Arc<Terminal>);

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write_lines(Stream::Err, text)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
