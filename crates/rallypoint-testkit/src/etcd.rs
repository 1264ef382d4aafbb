//! One real etcd server.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use crate::net::reserved_port;
use crate::port::ReservedPort;
use crate::{Certs, Host, Version, http, process};

/// Far more than a start takes; a loaded machine must not fail a test.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
const LOG_TAIL_LINES: usize = 40;

/// A running etcd on loopback ports and a data folder of its own. Dropped, it is killed and the folder removed.
#[derive(Debug)]
pub struct Etcd {
    version: Version,
    name: String,
    tls: Option<Tls>,
    args: Vec<OsString>,
    /// The members of its cluster, as `--initial-cluster` wants them.
    cluster: String,
    /// The machine that it runs on, if not this one.
    host: Option<Host>,
    ports: Ports,
    dir: TempDir,
    /// None while it is dead.
    child: Option<Child>,
    paused: bool,
}

#[derive(Debug)]
struct Ports {
    client: u16,
    peer: u16,
    /// Health and metrics in plain HTTP, whatever the client port speaks.
    metrics: u16,
    _reserved: Vec<ReservedPort>,
}

impl Ports {
    /// On a machine of its own a server has etcd's usual ones.
    fn new(host: Option<&Host>) -> Self {
        if host.is_some() {
            return Ports { client: 2379, peer: 2380, metrics: 2381, _reserved: Vec::new() };
        }
        let reserved = [(); 3].map(|()| reserved_port());
        let [client, peer, metrics] = [0, 1, 2].map(|at| reserved[at].number());
        Ports { client, peer, metrics, _reserved: reserved.into() }
    }
}

#[derive(Debug, Clone)]
struct Tls {
    certs: Certs,
    mutual: bool,
    elsewhere: bool,
}

/// How to start an [`Etcd`].
#[derive(Debug, Clone)]
#[must_use]
pub struct EtcdBuilder {
    version: Version,
    tls: Option<Tls>,
    args: Vec<OsString>,
    host: Option<Host>,
}

impl EtcdBuilder {
    /// Runs on a machine of a network instead of on loopback. One server for each machine.
    pub fn on(mut self, host: &Host) -> Self {
        assert!(self.tls.is_none(), "the certificates are for 127.0.0.1");
        self.host = Some(host.clone());
        self
    }

    /// Serves the v2 API too; see [`Version::WITH_V2`].
    pub fn v2(self) -> Self {
        assert!(Version::WITH_V2.contains(&self.version), "etcd {} has no v2 API", self.version);
        self.arg("--enable-v2")
    }

    /// Serves clients over TLS.
    pub fn tls(self, certs: &Certs) -> Self {
        self.with_tls(certs, false, false)
    }

    /// Serves clients over TLS and asks for their certificate.
    pub fn mutual_tls(self, certs: &Certs) -> Self {
        self.with_tls(certs, true, false)
    }

    /// Serves clients over TLS with the certificate of another host.
    pub fn tls_of_elsewhere(self, certs: &Certs) -> Self {
        self.with_tls(certs, false, true)
    }

    fn with_tls(mut self, certs: &Certs, mutual: bool, elsewhere: bool) -> Self {
        self.tls = Some(Tls { certs: certs.clone(), mutual, elsewhere });
        self
    }

    /// Adds a flag of etcd's own, such as `--quota-backend-bytes=1000000`.
    pub fn arg(mut self, flag: impl Into<OsString>) -> Self {
        self.args.push(flag.into());
        self
    }

    /// Does not wait for the disk. etcd 3.4 cannot.
    pub fn unsafe_no_fsync(self) -> Self {
        assert!(self.version >= Version::V35, "--unsafe-no-fsync came with etcd 3.5");
        self.arg("--unsafe-no-fsync")
    }

    /// Starts it and waits until it answers.
    #[must_use]
    pub fn start(self) -> Etcd {
        let mut etcd = self.prepare("etcd");
        let alone = etcd.peer_entry();
        etcd.join_cluster(&alone);
        etcd.launch();
        etcd.wait_ready();
        etcd
    }

    /// Everything but the start: its ports must be known before a cluster can be told of them.
    pub(crate) fn prepare(self, name: &str) -> Etcd {
        let dir = tempfile::Builder::new()
            .prefix("rallypoint-etcd-")
            .tempdir()
            .expect("a temporary folder can be made");
        Etcd {
            version: self.version,
            name: name.to_owned(),
            tls: self.tls,
            args: self.args,
            cluster: String::new(),
            ports: Ports::new(self.host.as_ref()),
            host: self.host,
            dir,
            child: None,
            paused: false,
        }
    }
}

impl Etcd {
    /// Starts an etcd with nothing special about it.
    #[must_use]
    pub fn start(version: Version) -> Self {
        Self::builder(version).start()
    }

    /// To start an etcd with something special about it.
    pub fn builder(version: Version) -> EtcdBuilder {
        EtcdBuilder { version, tls: None, args: Vec::new(), host: None }
    }

    /// Which etcd it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where clients connect, as `127.0.0.1:port`, or with the address of its machine.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.address(), self.port())
    }

    /// Where clients connect, with `http://` or `https://`.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.endpoint())
    }

    /// The port of [`Etcd::endpoint`].
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.client
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// The folder of its data and its log.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Stops the process (SIGSTOP): connections stay open, nothing answers. On return it has stopped.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        let seen = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(Pid::from_child(self.child())), seen)
            .unwrap_or_else(|error| panic!("cannot see {self} stop: {error}"));
        assert!(
            status.is_some_and(|status| status.stopped()),
            "{self} ended by itself. Its log ends with:\n{}",
            self.log_tail()
        );
        self.paused = true;
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.paused = false;
    }

    /// Asks the process to end (SIGTERM) and waits until it is gone. Requests under way are cut off; what it
    /// has answered is on disk.
    pub fn terminate(&mut self) {
        if self.paused {
            self.resume();
        }
        self.signal(Signal::TERM);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Kills the process (SIGKILL) and waits until it is gone. The data stays for a [`Etcd::restart`].
    ///
    /// Not so on etcd 3.5.0 to 3.5.2: killed under load, they come back without some of the v3 writes that they had
    /// answered. `scripts/setup` brings a later one.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a process that is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.paused = false;
    }

    /// Kills it if it runs, starts it on the same data and ports, and waits until it answers. A member of a
    /// cluster answers only when the cluster has a majority.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        self.wait_ready();
    }

    /// Runs etcdctl against this server; its output. A failure is a panic with what it said.
    ///
    /// After `auth enable`, `--user=name:password` goes among the arguments.
    #[must_use]
    pub fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl(args)
            .unwrap_or_else(|said| panic!("`etcdctl {}` failed on {self}: {said}", args.join(" ")))
    }

    /// As [`Etcd::etcdctl`].
    ///
    /// # Errors
    ///
    /// What it said, if it failed.
    pub fn try_etcdctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.command(&Version::V35.etcdctl());
        // It gives up after 5 s unless told otherwise, and after 2 s where it shows a password; machines that run tests stand
        // still for longer.
        command.env("ETCDCTL_API", "3").args(["--command-timeout=60s", "--dial-timeout=60s"]);
        command.arg("--endpoints").arg(self.url());
        if let Some(tls) = &self.tls {
            command.arg("--cacert").arg(tls.certs.ca());
            if tls.mutual {
                command.arg("--cert").arg(tls.certs.client_cert()).arg("--key").arg(tls.certs.client_key());
            }
        }
        let output = command.args(args).output().expect("etcdctl can be run");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(String::from_utf8(output.stdout).expect("etcdctl prints text"))
    }

    /// Runs a program where the server runs.
    fn command(&self, program: &Path) -> Command {
        let mut command = match &self.host {
            Some(host) => host.command(program),
            None => process::command(program),
        };
        forget_settings(&mut command);
        command
    }

    /// The value of one of its metrics that has no labels.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        self.try_metric(name).unwrap_or_else(|| panic!("{self} does not tell its metric {name}"))
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Whether it leads its cluster, as far as it knows itself.
    pub(crate) fn claims_to_lead(&self) -> bool {
        // A paused one would only be slow not to answer.
        !self.paused && self.try_metric("etcd_server_is_leader") == Some(1.0)
    }

    fn ask(&self, path: &str) -> io::Result<String> {
        let patience = Duration::from_secs(5);
        match &self.host {
            Some(host) => http::get_at(host, self.ports.metrics, path, patience),
            None => http::get(self.ports.metrics, path, patience),
        }
    }

    fn try_metric(&self, name: &str) -> Option<f64> {
        let answer = self.ask("/metrics").ok()?;
        answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
    }

    /// Its entry in `--initial-cluster`.
    pub(crate) fn peer_entry(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    pub(crate) fn join_cluster(&mut self, peer_entries: &str) {
        peer_entries.clone_into(&mut self.cluster);
    }

    /// Puts what a snapshot holds in the place of its data. It must not run.
    pub(crate) fn fill_from(&self, snapshot: &Path, ahead: u64) {
        assert!(self.child.is_none(), "{self} still runs");
        self.forget_data();
        let mut command = self.command(&Version::V35.etcdutl());
        command.args(["snapshot", "restore"]).arg(snapshot);
        command
            .arg(format!("--name={}", self.name))
            .arg(joined("--data-dir=", &self.data()))
            .arg(format!("--initial-cluster={}", self.cluster))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()));
        if ahead > 0 {
            // What clients know of later revisions must not pass for news.
            command.arg(format!("--bump-revision={ahead}")).arg("--mark-compacted");
        }
        let output = command.output().expect("etcdutl can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cannot restore {self}: {}", said.trim());
    }

    /// Removes its data. It must not run.
    pub(crate) fn forget_data(&self) {
        assert!(self.child.is_none(), "{self} still runs");
        fs::remove_dir_all(self.data()).expect("the data of a dead etcd can be removed");
    }

    pub(crate) fn launch(&mut self) {
        let mut command = self.command(&self.version.binary());
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap_or_else(|error| panic!("cannot write the log of {self}: {error}"));
        let log_too = log.try_clone().expect("an open file can be shared");
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--initial-cluster={}", self.cluster))
            .arg(joined("--data-dir=", &self.data()))
            .arg(format!("--listen-client-urls={}", self.url()))
            .arg(format!("--advertise-client-urls={}", self.url()))
            .arg(format!("--listen-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .arg(format!("--listen-metrics-urls=http://{}:{}", self.address(), self.ports.metrics));
        if let Some(Tls { certs, mutual, elsewhere }) = &self.tls {
            let (cert, key) = if *elsewhere {
                (certs.elsewhere_cert(), certs.elsewhere_key())
            } else {
                (certs.server_cert(), certs.server_key())
            };
            command.arg(joined("--cert-file=", cert)).arg(joined("--key-file=", key));
            if *mutual {
                command.arg("--client-cert-auth").arg(joined("--trusted-ca-file=", certs.ca()));
            }
        }
        command.args(&self.args).stdin(Stdio::null()).stdout(log).stderr(log_too);
        self.child = Some(process::spawn(command));
    }

    pub(crate) fn wait_ready(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.is_healthy() {
            if let Some(child) = &mut self.child
                && let Ok(Some(status)) = child.try_wait()
            {
                panic!("{self} ended at once ({status}). Its log ends with:\n{}", self.log_tail());
            }
            assert!(
                Instant::now() < deadline,
                "{self} does not answer after {START_TIMEOUT:?}. Its log ends with:\n{}",
                self.log_tail()
            );
            thread::sleep(POLL);
        }
    }

    /// etcd calls itself healthy when it has a leader and, on 3.5, has read through it. The client port is
    /// open before this one is.
    fn is_healthy(&self) -> bool {
        self.ask("/health").is_ok_and(|answer| answer.contains(r#""health":"true""#))
    }

    fn peer_url(&self) -> String {
        format!("http://{}:{}", self.address(), self.ports.peer)
    }

    fn address(&self) -> String {
        self.host.as_ref().map_or_else(|| "127.0.0.1".to_owned(), Host::address)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn child(&self) -> &Child {
        self.child.as_ref().unwrap_or_else(|| panic!("{self} is not running"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child()), signal)
            .unwrap_or_else(|error| panic!("cannot send {signal:?} to {self}: {error}"));
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd {} at {}", self.version, self.url())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Settings of the caller's environment must not reach the servers of a test.
fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        // etcd 3.4 starts on other processors than amd64 only if this one says so.
        if (text.starts_with("ETCD_") || text.starts_with("ETCDCTL_")) && text != "ETCD_UNSUPPORTED_ARCH" {
            command.env_remove(&name);
        }
    }
}

fn joined(flag: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(flag);
    joined.push(path);
    joined
}
