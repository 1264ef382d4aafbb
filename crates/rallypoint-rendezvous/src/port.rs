//! A free port, held until the program that shall listen on it is started.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port that nobody else gets for as long as this is held. It is bound and does not listen, so that whoever
/// connects too early is refused instead of left hanging.
#[derive(Debug)]
pub struct HeldPort {
    socket: Socket,
    port: u16,
}

impl HeldPort {
    /// Holds a free port of this machine, on all its addresses.
    pub fn free() -> io::Result<Self> {
        HeldPort::bind(0)
    }

    /// Holds this port.
    pub fn bind(port: u16) -> io::Result<Self> {
        // IPv6 with IPv4 mapped into it holds the port for both; a machine without IPv6 has only the one.
        let any = |ip: IpAddr, domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::STREAM, None)?;
            if ip.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&SocketAddr::new(ip, port).into())?;
            Ok(socket)
        };
        let socket = any(Ipv6Addr::UNSPECIFIED.into(), Domain::IPV6)
            .or_else(|_| any(Ipv4Addr::UNSPECIFIED.into(), Domain::IPV4))?;
        let bound =
            socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("not an internet socket"))?;
        Ok(HeldPort { socket, port: bound.port() })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on a program that sets `SO_REUSEADDR` can listen on the port. Nobody is given it by chance even so,
    /// which can happen to a port that was let go of before that program had come up.
    pub fn share(&self) -> io::Result<()> {
        self.socket.set_reuse_address(true)
    }

    /// Lets go of the port, for the program that listens on it.
    #[must_use]
    pub fn release(self) -> u16 {
        self.port
    }
}

/// The ports of one process, one after the other. None comes twice: who is still at an earlier round's would take the
/// new one for that.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    held: Option<HeldPort>,
    handed_over: BTreeSet<u16>,
}

impl Ports {
    /// A port that stays this process's until it is handed over: this one, or one that it has not had yet.
    pub(crate) fn hold(&mut self, wanted: Option<u16>) -> io::Result<u16> {
        let held = match (self.held.take(), wanted) {
            (Some(held), _) => held,
            (None, Some(wanted)) => HeldPort::bind(wanted)?,
            (None, None) => another(&self.handed_over, HeldPort::free, HeldPort::port)?,
        };
        Ok(self.held.insert(held).port())
    }

    pub(crate) fn hand_over(&mut self) -> Option<HeldPort> {
        let held = self.held.take()?;
        self.handed_over.insert(held.port());
        Some(held)
    }
}

/// The first that is none of those `had`. The others are held meanwhile, so that they do not come again.
fn another<T>(
    had: &BTreeSet<u16>,
    free: impl Fn() -> io::Result<T>,
    port: impl Fn(&T) -> u16,
) -> io::Result<T> {
    let mut passed_over = Vec::new();
    loop {
        let next = free()?;
        if !had.contains(&port(&next)) {
            return Ok(next);
        }
        passed_over.push(next);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_held_port_is_nobody_elses_and_refuses_until_it_is_released() {
        let held = HeldPort::free().unwrap();
        let port = held.port();
        assert!(TcpListener::bind(("0.0.0.0", port)).is_err());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert_eq!(held.release(), port);
        TcpListener::bind(("0.0.0.0", port)).unwrap();
    }

    #[test]
    fn no_port_comes_twice() {
        let given = std::cell::RefCell::new([7, 9, 8].into_iter());
        let free = || given.borrow_mut().next().ok_or_else(|| io::ErrorKind::AddrInUse.into());
        assert_eq!(another(&BTreeSet::from([7, 9]), free, |port| *port).unwrap(), 8);

        let mut ports = Ports::default();
        let first = ports.hold(None).unwrap();
        assert_eq!(ports.hold(None).unwrap(), first);
        assert_eq!(ports.hand_over().unwrap().release(), first);
        assert_ne!(ports.hold(None).unwrap(), first);
        drop(ports.hand_over());
        assert_eq!(ports.hold(Some(first)).unwrap(), first, "a port that is asked for is kept to");
    }

    #[test]
    fn a_shared_port_can_be_listened_on_and_is_still_given_to_nobody() {
        let held = HeldPort::free().unwrap();
        held.share().unwrap();
        // The standard library's sets the option; ours does not.
        for any in ["0.0.0.0", "[::]"] {
            let listener = TcpListener::bind(format!("{any}:{}", held.port())).unwrap();
            TcpStream::connect(("127.0.0.1", held.port())).unwrap();
            drop(listener);
        }
        assert!(HeldPort::bind(held.port()).is_err());
    }
}
