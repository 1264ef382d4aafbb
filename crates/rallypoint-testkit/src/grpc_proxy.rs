//! etcd's own proxy.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::net::reserved_port;
use crate::port::ReservedPort;
use crate::{Etcd, Program};

/// Far more than a start takes; a loaded machine must not fail a test.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// An `etcd grpc-proxy` on loopback, in front of an etcd. Dropped, it is killed.
#[derive(Debug)]
pub struct GrpcProxy {
    /// None while it is dead.
    program: Option<Program>,
    etcd: String,
    version: crate::Version,
    port: ReservedPort,
}

impl GrpcProxy {
    /// Starts one of the etcd's own version, and waits until it listens.
    #[must_use]
    pub fn start(etcd: &Etcd) -> Self {
        let (version, etcd) = (etcd.version(), etcd.endpoint());
        let mut proxy = GrpcProxy { program: None, etcd, version, port: reserved_port() };
        proxy.restart();
        proxy
    }

    /// Where clients connect, as `127.0.0.1:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.program = None;
    }

    /// Starts it again, at the same address, and waits until it listens.
    pub fn restart(&mut self) {
        self.kill();
        let at = self.endpoint();
        let (of, listen) = (format!("--endpoints={}", self.etcd), format!("--listen-addr={at}"));
        // It connects to itself there, and ends if nobody answers.
        let known = format!("--advertise-client-url={at}");
        let arguments = ["grpc-proxy", "start", &of, &listen, &known];
        self.program = Some(Program::start(&self.version.binary(), &arguments, &[]));
        let began = Instant::now();
        while TcpStream::connect(&at).is_err() {
            assert!(began.elapsed() < START_TIMEOUT, "the proxy does not listen");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
