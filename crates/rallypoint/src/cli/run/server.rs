//! Where the nodes meet: an etcd that is there, or the embedded server on one of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rallypoint_core::{Endpoint, Endpoints};
use rallypoint_server::{Config, Server, ServerError};
use tracing::info;

use crate::cli::connection::Connection;
use crate::cli::exit::{NODE, Problem, chain};

/// For a server on this very node to take a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What this node connects to.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// The endpoints, without a scheme of ours.
    pub(crate) endpoints: String,
    /// The embedded server, if it runs here.
    pub(crate) server: Option<Server>,
    /// Another node may yet start a server there.
    pub(crate) may_come: bool,
    /// Something listens there that this node did not start.
    pub(crate) taken: bool,
}

/// The embedded server on a free port, for this node alone.
pub(crate) fn alone() -> Result<Meeting, Problem> {
    let server = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(Meeting { endpoints: server.endpoint(), server: Some(server), may_come: false, taken: false })
}

/// Starts the embedded server if the endpoint is on this node, nothing listens there, and the user does not forbid it.
pub(crate) async fn find(connection: &Connection) -> Result<Meeting, Problem> {
    let endpoints: Endpoints = connection
        .endpoints()
        .parse()
        .map_err(|error| Problem::usage(format!("--rdzv-endpoint: {error}")))?;
    let mut meeting =
        Meeting { endpoints: endpoints.to_string(), server: None, may_come: false, taken: false };
    if connection.only_connect() {
        return Ok(meeting);
    }
    let endpoint = &endpoints.as_slice()[0];
    let Some(address) = local(endpoint).await else {
        meeting.may_come = true;
        return Ok(meeting);
    };
    let probe = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    if let Ok(Ok(_)) = tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        meeting.taken = true;
        return Ok(meeting);
    }
    match Server::bind(Config { listen: address, ..Config::default() }) {
        Ok(server) => {
            info!(endpoint = %endpoint, "nothing listens there: this node starts the embedded server");
            meeting.server = Some(server);
        }
        // Another process of this node was quicker.
        Err(ServerError::AddressInUse { .. }) => meeting.taken = true,
        Err(error) => return Err(cannot_serve(&error)),
    }
    Ok(meeting)
}

fn bind(listen: SocketAddr) -> Result<Server, Problem> {
    Server::bind(Config { listen, ..Config::default() }).map_err(|error| cannot_serve(&error))
}

fn cannot_serve(error: &ServerError) -> Problem {
    Problem::new(NODE, format!("{}; choose another --rdzv-endpoint, or start an etcd yourself", chain(error)))
}

/// Where to listen for this endpoint, if it is an address of this node.
async fn local(endpoint: &Endpoint) -> Option<SocketAddr> {
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await.ok()?.collect();
    let ours = addresses.into_iter().find(|address| is_ours(address.ip()))?;
    Some(SocketAddr::new(listen_on(&endpoint.host, ours.ip()), endpoint.port))
}

/// Only an address of this node can be bound.
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
    async fn only_addresses_of_this_node_are_local() {
        let local = async |text: &str| local(&text.parse().unwrap()).await;
        assert_eq!(local("127.0.0.1:7000").await, Some("127.0.0.1:7000".parse().unwrap()));
        assert_eq!(local("192.0.2.1:7000").await, None, "an address of the documents, nobody's");
    }
}
