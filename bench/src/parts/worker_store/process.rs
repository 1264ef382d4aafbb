//! The servers, each a process of its own, and the process of the clients of each.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rallypoint::tcpstore::TcpStoreServer;
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
