//! Ports for a server that must be told its own. The test kit has this file too.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A loopback port that the system gives to nobody else for as long as this lives.
///
/// The socket is bound and never listens: a server that is told the port can listen on it, as both share the
/// address. Looking for a free port and letting go of it would leave a gap for others.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub(crate) fn new() -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(ReservedPort { number: bound.port(), _socket: socket })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
