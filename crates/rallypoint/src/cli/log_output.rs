//! Where the log goes, for which nobody waits: lines that a full pipe has no room for are dropped, and counted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::MakeWriter;

/// What a pipe that is ready takes at once.
const PIECE: usize = 4096;

/// Where lines of the log go: a file, or what stands behind standard error or output.
#[derive(Debug)]
pub struct LogOutput {
    /// Beside the library's own, which is locked while somebody waits to write.
    file: File,
    /// Lines that were dropped since one was written.
    dropped: AtomicU64,
}

impl LogOutput {
    /// To what is open already.
    pub fn to(open: impl AsFd) -> io::Result<Self> {
        let file = File::from(open.as_fd().try_clone_to_owned()?);
        Ok(LogOutput { file, dropped: AtomicU64::new(0) })
    }

    /// Whether a piece can be written without a wait. What is closed is ready too: to write to it fails at once.
    fn is_ready(&self) -> bool {
        let mut file = [PollFd::new(&self.file, PollFlags::OUT)];
        !matches!(poll(&mut file, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Writes as much as can be written without a wait; whether that was all.
    fn write_now(&self, bytes: &[u8]) -> io::Result<bool> {
        for piece in bytes.chunks(PIECE) {
            if !self.is_ready() {
                return Ok(false);
            }
            (&self.file).write_all(piece)?;
        }
        Ok(true)
    }
}

/// Writes one line.
#[derive(Debug)]
pub struct Line<'a>(&'a LogOutput);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let LogOutput { dropped, .. } = self.0;
        let lost = dropped.swap(0, Ordering::Relaxed);
        let note = match lost {
            0 => String::new(),
            1 => "\n(a line of the log is missing here: nobody read it)\n".to_owned(),
            lost => format!("\n({lost} lines of the log are missing here: nobody read them)\n"),
        };
        match self.0.write_now(note.as_bytes()) {
            Ok(true) => {}
            other => {
                dropped.fetch_add(lost + 1, Ordering::Relaxed);
                return other.map(|_| line.len());
            }
        }
        let written = self.0.write_now(line);
        if !matches!(written, Ok(true)) {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        written.map(|_| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = LogOutput::to(writer).unwrap();
        let line = [b'x'; 99];
        let mut sent = 0;
        while log.dropped.load(Ordering::Relaxed) < 7 {
            let mut to = log.make_writer();
            to.write_all(&line).and_then(|()| to.write_all(b"\n")).unwrap();
            sent += 2;
        }
        // Room for all that was written.
        let mut read = vec![0; 1 << 20];
        let before = reader.read(&mut read).unwrap();
        assert!(before > 4096, "{before} of {sent} lines");
        log.make_writer().write_all(b"again\n").unwrap();
        drop(log);
        let mut after = String::new();
        reader.read_to_string(&mut after).unwrap();
        assert!(
            after.ends_with("\n(7 lines of the log are missing here: nobody read them)\nagain\n"),
            "{after}"
        );
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_and_no_wait() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let log = LogOutput::to(writer).unwrap();
        let error = log.make_writer().write_all(b"nobody\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
