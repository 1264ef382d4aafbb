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
    /// Starts the embedded server at `endpoint` if that is on this machine and nothing listens there.
    pub async fn on_demand(endpoint: &Endpoint) -> Result<OnDemand, ServerError> {
        let Some(listen) = local(endpoint).await else { return Ok(OnDemand::Elsewhere) };
        let probe = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        if let Ok(Ok(_)) = tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            return Ok(OnDemand::Taken);
        }
        match Server::bind(Config::on(listen)) {
            Ok(server) => Ok(OnDemand::Started(server)),
            // Another process of this machine was quicker.
            Err(ServerError::AddressInUse { .. }) => Ok(OnDemand::Taken),
            Err(error) => Err(error),
        }
    }
}

/// Where to listen for this endpoint, if it is an address of this machine.
async fn local(endpoint: &Endpoint) -> Option<SocketAddr> {
    let addresses = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await.ok()?;
    let ours = addresses.map(|address| address.ip()).find(|address| is_ours(*address))?;
    Some(SocketAddr::new(listen_on(&endpoint.host, ours), endpoint.port))
}

/// Only an address of this machine can be bound.
fn is_ours(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

/// Loopback and plain addresses mean themselves. A name may stand for another address elsewhere (many systems have
/// their own name at a loopback address), so it means all addresses.
fn listen_on(host: &str, address: IpAddr) -> IpAddr {
    match address {
        address if host == "localhost" || host.parse::<IpAddr>().is_ok() => address,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn names_are_served_on_all_addresses_and_addresses_on_themselves() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(listen_on("localhost", loopback), loopback);
        assert_eq!(listen_on("127.0.0.1", loopback), loopback);
        assert_eq!(listen_on("node1", loopback), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        assert_eq!(listen_on("::1", Ipv6Addr::LOCALHOST.into()), IpAddr::V6(Ipv6Addr::LOCALHOST));
    }

    #[tokio::test]
    async fn it_starts_only_here_and_only_where_nothing_listens() {
        // An address of the documents, nobody's.
        let elsewhere = Server::on_demand(&"192.0.2.1:7000".parse().unwrap()).await.unwrap();
        assert!(matches!(elsewhere, OnDemand::Elsewhere));

        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here: Endpoint = held.local_addr().unwrap().to_string().parse().unwrap();
        assert!(matches!(Server::on_demand(&here).await.unwrap(), OnDemand::Taken));
        drop(held);
        let OnDemand::Started(server) = Server::on_demand(&here).await.unwrap() else {
            panic!("nothing listens at {here}");
        };
        assert_eq!(server.endpoint(), here.to_string());
        assert!(matches!(Server::on_demand(&here).await.unwrap(), OnDemand::Taken));
    }
}
