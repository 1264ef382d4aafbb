//! The servers, each a process of its own, and the process of the clients of each.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rallypoint::tcpstore::{Secret, StoreProxy, TcpStoreServer, Upstream};
use rallypoint_testkit::{Program, torch_python};

use crate::parts::server::process;

/// A server, killed when dropped.
pub(super) struct Server {
    child: Child,
    port: String,
}

impl Server {
    pub(super) fn ours() -> Self {
        let mut command = command(&this_program());
        command.arg("worker-store-server");
        Server::start(command)
    }

    /// One of ours to which only proxies come.
    pub(super) fn behind_proxies() -> Self {
        let mut command = command(&this_program());
        command.arg("worker-store-behind-proxies");
        Server::start(command)
    }

    /// So many proxies of it, in one process, to which clients can connect.
    pub(super) fn proxies(&self, count: usize) -> Self {
        let mut command = command(&this_program());
        command.arg("worker-store-proxies").args(self.port.split(' ')).arg(count.to_string());
        Server::start(command)
    }

    /// PyTorch's, with libuv, as its clients have it by default.
    pub(super) fn pytorchs() -> Self {
        let mut command = command(&torch_python());
        command.args(["-u", "bench/python/worker_store.py"]);
        Server::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut port = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        said.read_line(&mut port).expect("it says its port");
        Server { child, port: port.trim().to_owned() }
    }

    /// Processor time so far, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        process::cpu(self.child.id())
    }

    /// How many files and sockets it has open.
    pub(super) fn descriptors(&self) -> f64 {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).expect("it runs").count() as f64
    }

    /// Resident memory, in MB.
    pub(super) fn memory(&self) -> f64 {
        process::memory(self.child.id())
    }

    pub(super) fn clients(&self) -> Clients {
        Clients(Program::start(&this_program(), &["worker-store-clients", &self.port], &[]))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The clients of a server.
pub(super) struct Clients(Program);

impl Clients {
    /// What `client.rs` makes of this.
    pub(super) fn ask(&mut self, what: &str, amount: impl std::fmt::Display) -> f64 {
        self.0.write_line(&format!("{what} {amount}"));
        self.0.read_line().parse().expect("a figure")
    }
}

/// It ends with this process, however that one ends.
fn command(program: &std::path::Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).stdin(Stdio::null());
    command
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

/// Serves until it is killed, on one thread, as a launcher does.
pub(crate) fn serve() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let server = TcpStoreServer::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        println!("{}", server.local_addr().port());
        std::future::pending::<()>().await;
    });
}

/// Serves proxies until it is killed. Says its port and what lets them in.
pub(crate) fn serve_proxies() {
    let listen = || std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let (own, agents, secret) = (listen(), listen(), Secret::random().expect("the system has randomness"));
    let port = agents.local_addr().expect("it is bound").port();
    let metrics = rallypoint::metrics::WorkerStore::default();
    let served = TcpStoreServer::for_round_of_proxies(own, agents, secret, None, metrics);
    let _server = served.expect("its sockets can be used");
    println!("{port} {}", secret.to_hex());
    loop {
        std::thread::park();
    }
}

/// So many proxies until it is killed. Says their ports.
pub(crate) fn proxies(port: u16, secret: &str, count: usize) {
    let secret = Secret::from_hex(secret).expect("as the server said it");
    let upstream = Upstream { host: "127.0.0.1".to_owned(), port, secret, tls: None };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        let (mut proxies, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let proxy = StoreProxy::connect(&upstream, std::time::Duration::from_secs(30)).await;
            let proxy = proxy.expect("the server lets it in");
            ports.push(proxy.local_addr().port().to_string());
            proxies.push(proxy);
        }
        println!("{}", ports.join(","));
        std::future::pending::<()>().await;
    });
}
