//! Ports, and servers that do not answer.

use std::mem;
use std::net::{Ipv4Addr, TcpListener};

use crate::port::ReservedPort;

/// A port that the kernel gives to nobody else. A server that is told it can listen on it, again and again; while none
/// does, connections are refused.
pub(crate) fn reserved_port() -> ReservedPort {
    ReservedPort::new().unwrap_or_else(|error| panic!("no free port on 127.0.0.1: {error}"))
}

/// A loopback port where nothing listens, now or later: it stays reserved until the process ends.
#[must_use]
pub fn closed_port() -> u16 {
    let reserved = reserved_port();
    let port = reserved.number();
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
