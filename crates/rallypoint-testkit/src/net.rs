//! Ports, and servers that do not answer.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A loopback port that the kernel gives to nobody else as long as this lives.
///
/// The socket is bound and never listens. A server that is told the port can listen on it, since both set
/// SO_REUSEADDR, again and again; while none does, connections are refused. Finding a port and letting go of
/// it before the server starts would leave a gap for another test to fall into.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub(crate) fn new() -> Self {
        Self::reserve().unwrap_or_else(|error| panic!("no free port on 127.0.0.1: {error}"))
    }

    fn reserve() -> std::io::Result<Self> {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &any)?;
        let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(ReservedPort { port: bound.port(), _socket: socket })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// A loopback port where nothing listens, now or later: it stays reserved until the process ends.
#[must_use]
pub fn closed_port() -> u16 {
    let reserved = ReservedPort::new();
    let port = reserved.port();
    mem::forget(reserved);
    port
}

/// An endpoint that refuses connections; see [`closed_port`].
#[must_use]
pub fn refused_endpoint() -> String {
    format!("127.0.0.1:{}", closed_port())
}

/// A server that takes connections and never says a word.
#[derive(Debug)]
pub struct Silent {
    // Nobody accepts: the kernel completes the handshake and buffers what arrives, which from outside is a
    // server that hangs.
    listener: TcpListener,
}

impl Silent {
    /// Starts it on a free loopback port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on 127.0.0.1");
        Silent { listener }
    }

    /// Where it listens, as `127.0.0.1:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.local_addr().expect("a bound socket has an address").to_string()
    }
}
