//! The servers to measure, each a process of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::Client;
use rallypoint_testkit::{Etcd, Version};

/// A server to measure.
pub(super) enum Server {
    Ours(Ours),
    Etcd(Etcd),
}

/// The `rallypoint-server` command, killed when dropped.
#[derive(Debug)]
pub(crate) struct Ours {
    child: Child,
    endpoint: String,
    pub(super) ready: Duration,
    /// Where it keeps its data.
    _folder: Option<tempfile::TempDir>,
}

impl Ours {
    pub(crate) fn start() -> Self {
        Ours::start_in(None)
    }

    /// One that keeps its data in a folder, which goes with it.
    pub(super) fn start_in(folder: Option<tempfile::TempDir>) -> Self {
        let began = Instant::now();
        // It ends with this process, however that one ends.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program())
            .args(["--listen-client-urls", "http://127.0.0.1:0"])
            .args(folder.iter().flat_map(|folder| [OsStr::new("--data-dir"), folder.path().as_os_str()]))
            .stderr(Stdio::piped())
            .spawn()
            .expect("rallypoint-server is built beside this program");
        let log = BufReader::new(child.stderr.take().expect("its log is a pipe"));
        let endpoint = log
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("address=")?.1.split_whitespace().next()?.to_owned()))
            .expect("it says where it listens");
        std::net::TcpStream::connect(&endpoint).expect("it listens");
        Ours { child, endpoint, ready: began.elapsed(), _folder: folder }
    }

    /// `host:port`.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let here = std::env::current_exe().expect("this program has a path");
    here.with_file_name("rallypoint-server")
}

impl Server {
    pub(super) fn ours() -> Self {
        Server::Ours(Ours::start())
    }

    /// Ours, with its data on the disk that etcd has its own on.
    pub(super) fn ours_in_a_folder() -> Self {
        Server::Ours(Ours::start_in(Some(tempfile::tempdir().expect("a temporary folder can be made"))))
    }

    /// A real one that does not wait for its disk: the fair rival of a server in memory.
    pub(super) fn etcd() -> Self {
        Server::Etcd(Etcd::builder(Version::V35).unsafe_no_fsync().start())
    }

    /// A real one as it comes.
    pub(super) fn etcd_with_fsync() -> Self {
        Server::Etcd(Etcd::start(Version::V35))
    }

    /// `host:port`.
    pub(super) fn endpoint(&self) -> String {
        match self {
            Server::Ours(ours) => ours.endpoint(),
            Server::Etcd(etcd) => etcd.endpoint(),
        }
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect([self.endpoint()], None).await.expect("the server answers")
    }

    fn pid(&self) -> u32 {
        match self {
            Server::Ours(ours) => ours.child.id(),
            Server::Etcd(etcd) => etcd.pid(),
        }
    }

    /// Processor time so far, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        cpu(self.pid())
    }

    /// Resident memory, in MB.
    pub(super) fn memory(&self) -> f64 {
        memory(self.pid())
    }
}

/// Processor time of a process so far, in seconds.
pub(crate) fn cpu(process: u32) -> f64 {
    /// Of a second, in which Linux counts.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // The second field is a name in parentheses; the 14th and 15th are what we want.
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
    let ticks = |at| fields.split(' ').nth(at).and_then(|ticks| ticks.parse::<f64>().ok()).expect("a number");
    (ticks(11) + ticks(12)) / TICKS
}

/// Resident memory of a process, in MB.
pub(crate) fn memory(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.expect("it has memory") / 1024.0
}
