//! The server under attack: a process of its own, whose memory is looked at.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A server, killed when dropped.
pub(crate) struct Serving {
    child: Child,
    pub(crate) endpoint: String,
    _data: tempfile::TempDir,
}

impl Serving {
    /// Ours; or the program that `RALLYPOINT_ATTACKED` names, which takes etcd's flags too.
    pub(crate) fn start() -> Self {
        Self::start_after("")
    }

    /// The same, after a command of the shell.
    pub(crate) fn start_after(command: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let program = std::env::var("RALLYPOINT_ATTACKED")
            .unwrap_or_else(|_| env!("CARGO_BIN_EXE_rallypoint-server").to_owned());
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("127.0.0.1:{port}");
        // What is attacked of ours is in memory.
        let keeps: &[&str] = if program.ends_with("rallypoint-server") { &[] } else { &["--data-dir"] };
        let folder = (!keeps.is_empty()).then(|| data.path());
        let mut child = Command::new("sh")
            .args(["-c", &format!("{command}\nexec \"$@\""), "sh", &program])
            .args(["--listen-client-urls", &format!("http://{endpoint}")])
            .args(["--advertise-client-urls", &format!("http://{endpoint}")])
            .args(["--listen-peer-urls", "http://127.0.0.1:0"])
            .args(keeps)
            .args(folder)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Nobody else reads it, and a full pipe would stop the server.
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(drop));
        let began = std::time::Instant::now();
        while rallypoint_testkit::http_get(port, "/health", Duration::from_secs(1)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "{program} does not serve");
            std::thread::sleep(Duration::from_millis(20));
        }
        Serving { child, endpoint, _data: data }
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(mut self) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let began = std::time::Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_secs(5), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Resident memory, in MiB.
    pub(crate) fn memory(&self) -> u64 {
        memory(self.child.id())
    }

    /// Watches the memory until it is asked for the most that was seen.
    pub(crate) fn watch_memory(&self) -> Peak {
        let (most, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (ended, end) = mpsc::channel::<()>();
        let (pid, seen, stopped) = (self.child.id(), Arc::clone(&most), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                seen.fetch_max(memory(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(ended);
        });
        Peak { most, stop, end }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the memory came to.
pub(crate) struct Peak {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    end: mpsc::Receiver<()>,
}

impl Peak {
    pub(crate) fn most(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.end.recv();
        self.most.load(Ordering::Relaxed)
    }
}

/// 0 for a process that is gone.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10)
}
