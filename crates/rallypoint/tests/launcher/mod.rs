//! `rallypoint run` as its users run it: started, read, signalled, killed.

#![allow(dead_code, reason = "every test file uses its part")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");
/// Far more than anything here takes; a loaded machine must not fail a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// In the environment of every process that a launcher starts, however far down.
const MARK: &str = "RALLYPOINT_TEST_MARK";

/// A launcher that runs. Dropped, it and all that it started are killed.
pub(crate) struct Launcher {
    pub(crate) child: Child,
    mark: String,
    lines: Receiver<String>,
    said: Vec<String>,
}

/// What a launcher said and how it ended.
pub(crate) struct Ended {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// All lines of both streams, in the order they came.
    pub(crate) lines: Vec<String>,
}

impl Ended {
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n")
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.text());
        self
    }

    /// The lines with this in them.
    pub(crate) fn with(&self, part: &str) -> Vec<&str> {
        self.lines.iter().map(String::as_str).filter(|line| line.contains(part)).collect()
    }
}

/// A command that heeds signals, also where the tests run in the background and are to ignore some.
pub(crate) fn heeding(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=TERM,INT,HUP,QUIT,USR1,USR2", program]);
    command
}

impl Launcher {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| {})
    }

    /// `change` can set the folder, the environment and so on.
    pub(crate) fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = heeding(RALLYPOINT);
        command.arg("run").args(args);
        change(&mut command);
        Self::spawn(command)
    }

    /// Any command that ends up as a launcher.
    pub(crate) fn spawn(command: Command) -> Self {
        let mut launcher = Self::spawn_unread(command);
        let (sender, lines) = mpsc::channel();
        read(launcher.child.stdout.take().unwrap(), sender.clone());
        read(launcher.child.stderr.take().unwrap(), sender);
        launcher.lines = lines;
        launcher
    }

    /// The same with streams that nobody reads; they are in `child`.
    pub(crate) fn spawn_unread(mut command: Command) -> Self {
        let mark = format!("{}-{}", std::process::id(), fastrand::u64(..));
        // What the tests run under must not choose for them; what a test sets itself stays.
        let set: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        for (name, _) in std::env::vars_os().filter(|(name, _)| !set.contains(name)) {
            let chooses = ["PET_", "RALLYPOINT_", "SLURM", "KUBERNETES_"];
            if name.to_str().is_some_and(|name| chooses.iter().any(|chooses| name.starts_with(chooses))) {
                command.env_remove(name);
            }
        }
        command.env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Launcher { child, mark, lines: mpsc::channel().1, said: Vec::new() }
    }

    /// The same with the arguments of `rallypoint run`.
    pub(crate) fn start_unread(args: &[&str]) -> Self {
        let mut command = heeding(RALLYPOINT);
        command.arg("run").args(args);
        Self::spawn_unread(command)
    }

    /// Waits for its end, whatever becomes of its streams; the exit code.
    #[track_caller]
    pub(crate) fn code(&mut self) -> Option<i32> {
        let child = &mut self.child;
        wait_until("it ends", || child.try_wait().unwrap()).code()
    }

    /// Runs it to its end.
    pub(crate) fn run(args: &[&str]) -> Ended {
        Self::start(args).ended()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The three processes: the command, the second guard, and the one that works.
    pub(crate) fn chain(&self) -> [u32; 3] {
        let child = |of: u32| {
            wait_until("there is a launcher", || {
                self.marked().into_iter().find(|pid| parent(*pid) == Some(of))
            })
        };
        let guard = child(self.pid());
        [self.pid(), guard, child(guard)]
    }

    /// The process that does the work.
    pub(crate) fn working(&self) -> u32 {
        self.chain()[2]
    }

    /// Waits for a line with this in it; the line.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, part: &str) -> String {
        if let Some(said) = self.said.iter().find(|line| line.contains(part)) {
            return said.clone();
        }
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(_) => panic!("it never said {part:?}:\n{}", self.said.join("\n")),
            }
        }
    }

    /// Whether it has said this.
    pub(crate) fn heard(&mut self, part: &str) -> bool {
        self.said.extend(self.lines.try_iter());
        self.said.iter().any(|line| line.contains(part))
    }

    /// How many lines it has said with this in them.
    pub(crate) fn count(&mut self, part: &str) -> usize {
        self.said.extend(self.lines.try_iter());
        self.said.iter().filter(|line| line.contains(part)).count()
    }

    /// Forgets what was said, so that `wait_for` waits for something new.
    pub(crate) fn forget(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.said.push(line);
        }
        self.said.clear();
    }

    /// Sends a signal to the command, as a user does.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Ended {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end:\n{}", self.said.join("\n")),
            }
        }
        let code = self.child.wait().unwrap().code();
        self.nothing_is_left();
        Ended { code, lines: std::mem::take(&mut self.said) }
    }

    /// Waits until no process that it started runs.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while let Some(pid) = self.marked().into_iter().find(|pid| *pid != self.pid()) {
            assert!(Instant::now() < deadline, "process {pid} is left: {}", command_line(pid));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The processes that have the mark; those that have ended have nothing.
    pub(crate) fn marked(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        };
        pids.filter(has).collect()
    }

    /// Says what all of them do, for whoever reads why a test has failed.
    fn show_processes(&self) {
        let pids: Vec<u32> = self.marked().into_iter().filter(|pid| runs(*pid)).collect();
        for (pid, process) in pids.iter().zip(rallypoint_stacks::look(&pids, Duration::from_secs(5))) {
            let ticks = [11, 12].map(|field| stat(*pid, field).unwrap_or_default()).join(" and ");
            eprintln!("--- process {pid}, after {ticks} ticks: {}\n{process}", command_line(*pid));
        }
    }

    /// The whole node dies at once, as if somebody had pulled the plug.
    pub(crate) fn pull_the_plug(&mut self) {
        // First the one that could still tell the others.
        signal(self.working(), "KILL");
        let deadline = Instant::now() + TIMEOUT;
        // Stopped first, so that nobody can act on another's death.
        for name in ["STOP", "KILL"] {
            while let Some(pids) = Some(self.marked()).filter(|pids| !pids.is_empty()) {
                assert!(Instant::now() < deadline, "{name} has no effect on some of {pids:?}");
                let still =
                    pids.iter().filter(|pid| name == "KILL" || !is_stopped(**pid)).collect::<Vec<_>>();
                if still.is_empty() {
                    break;
                }
                still.into_iter().for_each(|pid| signal(*pid, name));
                let _ = self.child.try_wait();
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if thread::panicking() {
            self.said.extend(self.lines.try_iter());
            eprintln!("--- the launcher said:\n{}", self.said.join("\n"));
            self.show_processes();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in self.marked() {
            signal(pid, "KILL");
        }
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// A field of what `/proc` says of a process, counted from its state.
fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_owned)
}

pub(crate) fn parent(pid: u32) -> Option<u32> {
    stat(pid, 1)?.parse().ok()
}

pub(crate) fn runs(pid: u32) -> bool {
    stat(pid, 0).is_some_and(|state| !matches!(&*state, "Z" | "X"))
}

pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid, 0).is_none_or(|state| matches!(&*state, "T" | "Z" | "X"))
}

/// Waits until there is something.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn command_line(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}

fn read(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

/// Waits until one of them has said this; which one, and the line.
#[track_caller]
pub(crate) fn wait_for_any(launchers: &mut [Launcher], part: &str) -> (usize, String) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        for (at, launcher) in launchers.iter_mut().enumerate() {
            while let Ok(line) = launcher.lines.try_recv() {
                launcher.said.push(line);
            }
            if let Some(line) = launcher.said.iter().find(|line| line.contains(part)) {
                return (at, line.clone());
            }
        }
        assert!(Instant::now() < deadline, "none of them ever said {part:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Traces a thread and never lets go of it: when that is killed or ends, it stays.
const TRACER: &str = "
import ctypes, sys, time
SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace.restype = ctypes.c_long
print(libc.ptrace(SEIZE, int(sys.argv[1]), 0, 0), ctypes.get_errno(), flush=True)
time.sleep(600)
";

/// From now on this thread, or the first one of a process, does not end, until what is returned is killed.
pub(crate) fn hold_thread(id: u32) -> Child {
    let mut tracer = Command::new("python3");
    let mut tracer = tracer.args(["-c", TRACER, &id.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 4];
    tracer.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"0 0\n", "it is traced");
    tracer
}

/// The threads of a process, with their names.
pub(crate) fn threads(of: u32) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir(format!("/proc/{of}/task")).unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| {
        let name = std::fs::read_to_string(format!("/proc/{of}/task/{id}/comm")).ok()?;
        Some((id, name.trim().to_owned()))
    })
    .collect()
}
