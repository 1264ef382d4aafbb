//! Programs that are talked to line by line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process;

/// Importing torch alone takes seconds, and many on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running program. Dropped, it is killed.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Program {
    /// Starts `program` with these arguments and, beside this process's own, these environment variables.
    #[must_use]
    pub fn start(program: &Path, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = process::command(program);
        command
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = process::spawn(command);

        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let stdin = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Program { child, stdin, lines, stderr: Some(stderr) }
    }

    /// The next line it prints.
    #[must_use]
    pub fn read_line(&mut self) -> String {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => self.fail("printed nothing in time"),
            Err(RecvTimeoutError::Disconnected) => self.fail("ended before it printed the line waited for"),
        }
    }

    /// Gives it a line to read from its standard input.
    pub fn write_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open until `finish`");
        if let Err(error) = writeln!(stdin, "{line}") {
            self.fail(&format!("does not read its standard input ({error})"));
        }
    }

    /// Closes its standard input and waits for its end; what it printed and nobody read yet.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.stdin = None;
        let deadline = Instant::now() + TIMEOUT;
        let mut output = String::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    output.push_str(&line);
                    output.push('\n');
                }
                Err(RecvTimeoutError::Timeout) => self.fail("did not end in time"),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.child.wait().expect("a child can be waited for");
        if !status.success() {
            self.fail(&format!("failed ({status})"));
        }
        output
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn fail(&mut self, what: &str) -> ! {
        self.kill();
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        panic!("the program {what}. Its error output:\n{stderr}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
