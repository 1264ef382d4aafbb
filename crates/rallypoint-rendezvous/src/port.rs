//! A free port, held until something listens on it: the program that shall, or this process.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};

/// As many clients at once as the system lets wait: it has a limit of its own.
const BACKLOG: i32 = 65_535;

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

    /// Holds this port. What is left of connections to who listened there before does not keep it from that.
    pub fn bind(port: u16) -> io::Result<Self> {
        let any = |reuse| {
            bound(Ipv6Addr::UNSPECIFIED.into(), port, reuse)
                // IPv6 with IPv4 mapped into it holds the port for both; a machine without IPv6 has only the one.
                .or_else(|_| bound(Ipv4Addr::UNSPECIFIED.into(), port, reuse))
        };
        let socket = match any(false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port != 0 => any(true)?,
            socket => socket?,
        };
        // Nobody else may have it as well.
        socket.set_reuse_address(false)?;
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

    /// Listens on the port. Where `address` is an IP address of this machine, only there; nobody else gets the port on
    /// another one for as long as this is held. A name, or an address that others know this machine by, says nothing of
    /// where connections come in: then on all.
    pub fn listen(&self, address: &str) -> io::Result<TcpListener> {
        // Connections have it from their listener: with it the port can be had again while some are left.
        self.share()?;
        let alone = address.parse().ok().and_then(|ip| match bound(ip, self.port, true) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => None,
            socket => Some(socket),
        });
        let listens_here = alone.is_none();
        let socket = alone.unwrap_or_else(|| self.socket.try_clone())?;
        socket.listen(BACKLOG)?;
        // Who listens keeps others away by that. Who only holds the port for the other addresses does not.
        self.socket.set_reuse_address(listens_here)?;
        Ok(socket.into())
    }

    /// Lets go of the port, for the program that listens on it.
    #[must_use]
    pub fn release(self) -> u16 {
        self.port
    }
}

fn bound(ip: IpAddr, port: u16, reuse: bool) -> io::Result<Socket> {
    let socket = Socket::new(if ip.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 }, Type::STREAM, None)?;
    if ip.is_ipv6() {
        socket.set_only_v6(!ip.is_unspecified())?;
    }
    socket.set_reuse_address(reuse)?;
    socket.bind(&SocketAddr::new(ip, port).into())?;
    Ok(socket)
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
        assert!(bound(Ipv6Addr::UNSPECIFIED.into(), held.port(), false).is_err());
    }

    #[test]
    fn it_listens_at_one_address_of_this_machine_or_else_at_all_and_nobody_else_can() {
        for (address, elsewhere) in
            [("127.0.0.1", false), ("127.0.0.2", false), ("localhost", true), ("192.0.2.1", true)]
        {
            let held = HeldPort::free().unwrap();
            let listener = held.listen(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert_eq!(port, held.port());
            let own = if elsewhere { "127.0.0.1" } else { address };
            TcpStream::connect((own, port)).unwrap();
            assert_eq!(TcpStream::connect(("127.0.0.3", port)).is_ok(), elsewhere, "{address}");
            // The standard library's sets SO_REUSEADDR.
            for other in ["0.0.0.0", "[::]", own, "127.0.0.3"] {
                assert!(TcpListener::bind(format!("{other}:{port}")).is_err(), "{address} beside {other}");
            }
        }
    }

    #[test]
    fn connections_that_are_left_do_not_keep_a_port_from_being_held_again() {
        for address in ["127.0.0.1", "localhost"] {
            let held = HeldPort::free().unwrap();
            let port = held.port();
            let listener = held.listen(address).unwrap();
            let _open = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let _kept = listener.accept().unwrap();
            // This one goes through TIME_WAIT here.
            let _other = TcpStream::connect(("127.0.0.1", port)).unwrap();
            drop(listener.accept().unwrap());
            assert!(HeldPort::bind(port).is_err(), "somebody listens there");
            drop((held, listener));
            let again = HeldPort::bind(port).unwrap();
            assert!(HeldPort::bind(port).is_err(), "somebody holds it");
            again.listen(address).unwrap();
        }
    }
}
