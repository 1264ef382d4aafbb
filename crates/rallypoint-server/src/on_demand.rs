//! The embedded server, where a node is told to meet others on this machine and nothing listens there yet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rallypoint_core::Endpoint;

use crate::{Config, Server, ServerError};

/// For a server on this very machine to take a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What is at an endpoint.
#[derive(Debug)]
pub enum OnDemand {
    /// Nothing was there; now the embedded server is.
    Started(Server),
    /// Something listens there.
    Taken,
    /// It is not on this machine.
    Elsewhere,
}

impl Server {
    /// Starts the embedded server at `endpoint` if that is on this machine and nothing listens there. It listens at the address
    /// that the endpoint names, whatever the configuration says of that.
    pub async fn on_demand(endpoint: &Endpoint, config: &Config) -> Result<OnDemand, ServerError> {
        let Some(place) = place(&endpoint.host, &ours(endpoint).await) else {
            return Ok(OnDemand::Elsewhere);
        };
        let probe = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        if let Ok(Ok(_)) = tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            return Ok(OnDemand::Taken);
        }
        let bound = match place {
            Place::At(address) => {
                Server::bind(Config { listen: SocketAddr::new(address, endpoint.port), ..config.clone() })
            }
            Place::Everywhere => Server::on_all_addresses(endpoint.port, config),
        };
        match bound {
            Ok(server) => Ok(OnDemand::Started(server)),
            // Another process of this machine was quicker.
            Err(ServerError::AddressInUse { .. }) => Ok(OnDemand::Taken),
            Err(error) => Err(error),
        }
    }

    /// Starts the embedded server on all addresses of this machine, of both families where it has both.
    pub fn on_all_addresses(port: u16, config: &Config) -> Result<Server, ServerError> {
        let at = |address: IpAddr| Config { listen: SocketAddr::new(address, port), ..config.clone() };
        match Server::bind(at(Ipv6Addr::UNSPECIFIED.into())) {
            Err(ServerError::Listen { .. }) => Server::bind(at(Ipv4Addr::UNSPECIFIED.into())),
            bound => bound,
        }
    }
}

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    At(IpAddr),
    Everywhere,
}

/// The addresses of an endpoint that are this machine's.
async fn ours(endpoint: &Endpoint) -> Vec<IpAddr> {
    let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
    let mut ours = Vec::new();
    for address in found.into_iter().flatten().map(|address| address.ip()) {
        if !ours.contains(&address) && is_ours(address) {
            ours.push(address);
        }
    }
    ours
}

/// Only an address of this machine can be bound.
fn is_ours(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

/// Where to listen for a host that has these addresses of this machine. Nobody else is to be let in than who knows it by that
/// name. A name at a loopback address alone stands for another one elsewhere (many systems have their own name there), and of
/// several, others may know any.
fn place(host: &str, ours: &[IpAddr]) -> Option<Place> {
    let first = *ours.first()?;
    if host == "localhost" || host.parse::<IpAddr>().is_ok() {
        return Some(Place::At(first));
    }
    let mut reached = ours.iter().filter(|address| !address.is_loopback());
    Some(match (reached.next(), reached.next()) {
        (Some(only), None) => Place::At(*only),
        _ => Place::Everywhere,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_name_is_served_where_others_find_it_and_nowhere_else() {
        let [loopback, here, other]: [IpAddr; 3] =
            ["127.0.0.1", "10.0.0.5", "fd00::5"].map(|text| text.parse().unwrap());
        for (host, ours, expected) in [
            ("localhost", &[loopback][..], Some(Place::At(loopback))),
            ("127.0.0.1", &[loopback], Some(Place::At(loopback))),
            ("10.0.0.5", &[here], Some(Place::At(here))),
            ("node1", &[here], Some(Place::At(here))),
            ("node1", &[loopback, here], Some(Place::At(here))),
            ("node1", &[other, loopback], Some(Place::At(other))),
            // What others know it by is not known here.
            ("node1", &[loopback], Some(Place::Everywhere)),
            ("node1", &[here, other], Some(Place::Everywhere)),
            ("node1", &[], None),
        ] {
            assert_eq!(place(host, ours), expected, "{host} at {ours:?}");
        }
    }

    /// A name of this machine, where it has one that other machines may know.
    #[tokio::test]
    async fn a_name_of_one_address_is_bound_there_alone() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        drop(held);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let endpoint: Endpoint = format!("{host}:{port}").parse().unwrap();
        let expected = place(&host, &ours(&endpoint).await);
        match (expected, Server::on_demand(&endpoint, &Config::default()).await.unwrap()) {
            (Some(Place::At(address)), OnDemand::Started(server)) => {
                assert_eq!(server.address().ip(), address);
            }
            (Some(Place::Everywhere), OnDemand::Started(server)) => {
                assert!(server.address().ip().is_unspecified());
            }
            (None, OnDemand::Elsewhere) => {}
            (expected, found) => panic!("{expected:?} is {found:?}"),
        }
    }

    #[tokio::test]
    async fn it_starts_only_here_and_only_where_nothing_listens() {
        // An address of the documents, nobody's.
        let elsewhere =
            Server::on_demand(&"192.0.2.1:7000".parse().unwrap(), &Config::default()).await.unwrap();
        assert!(matches!(elsewhere, OnDemand::Elsewhere));

        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here: Endpoint = held.local_addr().unwrap().to_string().parse().unwrap();
        assert!(matches!(Server::on_demand(&here, &Config::default()).await.unwrap(), OnDemand::Taken));
        drop(held);
        let OnDemand::Started(server) = Server::on_demand(&here, &Config::default()).await.unwrap() else {
            panic!("nothing listens at {here}");
        };
        assert_eq!(server.endpoint(), here.to_string());
        assert!(matches!(Server::on_demand(&here, &Config::default()).await.unwrap(), OnDemand::Taken));
    }
}
