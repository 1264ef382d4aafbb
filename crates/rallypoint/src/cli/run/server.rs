//! Where the nodes meet: an etcd that is there, or the embedded server on one of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rallypoint_core::{Endpoint, Endpoints, Token};
use rallypoint_rendezvous::native;
use tracing::{info, warn};

use crate::cli::connection::Connection;
use crate::cli::exit::{EndpointFlags, NO_SERVER, NODE, Problem, chain};
use crate::server::{Config, OnDemand, Server, ServerError};

/// Whether the embedded server may run on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Where the endpoint is an address of this node.
    OnDemand,
    /// Whatever the address: this is the node that is named by it.
    Here,
    /// The same, and a server that is there already is a stranger's: nobody chose the port.
    Own,
    /// Never: another node has it.
    Elsewhere,
}

/// What this node connects to.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// The endpoints, without a scheme of ours.
    pub(crate) endpoints: String,
    /// The embedded server, if it runs here.
    pub(crate) server: Option<Server>,
    /// Something listens there that this node did not start.
    pub(crate) taken: bool,
}

/// The embedded server on a free port, for this node alone.
pub(crate) fn alone(token: Option<Token>) -> Result<Meeting, Problem> {
    let mut config = Config::on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.token = token;
    let server = Server::bind(config).map_err(|error| Problem::new(NODE, chain(&error)))?;
    Ok(Meeting { endpoints: server.endpoint(), server: Some(server), taken: false })
}

/// Whether `--rdzv-conf` says how a server lets somebody in, which is then one that is there.
fn names_access(conf: &BTreeMap<String, String>) -> bool {
    let names = ["user", "cacert", "ca_cert", "cert", "ssl_cert"];
    names.iter().any(|name| conf.contains_key(*name)) || conf.get("protocol").is_some_and(|it| it == "https")
}

/// What a server of this node's asks for. What `--rdzv-conf` says comes first.
pub(crate) fn token(
    connection: &Connection,
    conf: &BTreeMap<String, String>,
) -> Result<Option<Token>, Problem> {
    let told = native::token(conf).map_err(|error| Problem::usage(format!("--rdzv-conf: {error}")))?;
    told.map_or_else(|| connection.token(), |token| Ok(Some(token)))
}

/// Starts the embedded server if the endpoint is on this node, nothing listens there, and the user does not forbid it.
pub(crate) async fn find(
    connection: &Connection,
    conf: &BTreeMap<String, String>,
    serves: Serves,
    place: EndpointFlags,
    most_nodes: usize,
) -> Result<Meeting, Problem> {
    let endpoints: Endpoints = connection
        .endpoints()
        .parse()
        .map_err(|error| Problem::usage(format!("{}: {error}", place.flags())))?;
    let plain: Vec<String> = endpoints.as_slice().iter().map(Endpoint::authority).collect();
    let mut meeting = Meeting { endpoints: plain.join(","), server: None, taken: false };
    if connection.only_connect() || names_access(conf) || serves == Serves::Elsewhere {
        return Ok(meeting);
    }
    let endpoint = &endpoints.as_slice()[0];
    let mut config = connection.server();
    config.token = token(connection, conf)?;
    let (found, is_plain) = (Server::on_demand(endpoint, &config).await, config.tls.is_none());
    match found.map_err(|error| cannot_serve(&error, place))? {
        OnDemand::Started(server) => {
            let how = match server.address().ip().is_unspecified() {
                true => ", on all its addresses: that name is not known to be one of them",
                false => "",
            };
            let or = if_there_is_an_etcd(endpoint, place);
            info!(endpoint = %endpoint, "nothing listens there: this node starts the embedded server{how}{or}");
            if most_nodes > 1 && is_loopback(endpoint) && place != EndpointFlags::Master {
                let host = &endpoint.host;
                warn!(
                    "{host} is each machine's own: nodes on other machines cannot reach that; give all nodes an address of this node with {}",
                    place.flags()
                );
            }
            meeting.server = Some(server);
        }
        OnDemand::Taken if serves == Serves::Own => return Err(port_in_use(endpoint, place)),
        OnDemand::Taken => meeting.taken = true,
        // A name that is not known yet, or an address that somebody translates.
        OnDemand::Elsewhere if matches!(serves, Serves::Here | Serves::Own) => {
            let started = Server::on_all_addresses(endpoint.port, &config);
            let server = started.map_err(|error| match error {
                ServerError::AddressInUse { .. } if serves == Serves::Own => port_in_use(endpoint, place),
                error => cannot_serve(&error, place),
            })?;
            info!(endpoint = %endpoint, "this node starts the embedded server, on all its addresses");
            // A certificate is of the name.
            if is_plain {
                meeting.endpoints = SocketAddr::from((Ipv4Addr::LOCALHOST, endpoint.port)).to_string();
            }
            meeting.server = Some(server);
        }
        // Another node may yet start one there.
        OnDemand::Elsewhere => {}
    }
    Ok(meeting)
}

/// The port that was taken from the number of the job is another's.
fn port_in_use(endpoint: &Endpoint, place: EndpointFlags) -> Problem {
    let text = format!(
        "the port of {endpoint}, which was taken from the number of the job, is in use: choose one with {}",
        place.flags()
    );
    Problem::new(NO_SERVER, text)
}

/// What to do where an etcd was to be there. Of an address that is node 0's, nobody thinks that.
fn if_there_is_an_etcd(endpoint: &Endpoint, place: EndpointFlags) -> String {
    match place {
        EndpointFlags::Master | EndpointFlags::Scheduler => String::new(),
        _ => {
            format!("; if an etcd should be there, check the port, or write etcd://{}", endpoint.authority())
        }
    }
}

fn is_loopback(endpoint: &Endpoint) -> bool {
    let address = endpoint.host.parse::<IpAddr>();
    endpoint.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The nodes have no place to meet: the others, who wait for this server, end with the same code.
fn cannot_serve(error: &ServerError, place: EndpointFlags) -> Problem {
    let flag = place.port();
    if let ServerError::AddressInUse { address } = error {
        let text = format!(
            "cannot listen on {address}: the address is in use; stop what listens there, choose another {flag}, or start an etcd yourself"
        );
        return Problem::new(NO_SERVER, text);
    }
    Problem::new(NO_SERVER, format!("{}; choose another {flag}, or start an etcd yourself", chain(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_machine_reaches_is_told_from_what_others_can() {
        let is_loopback = |text: &str| is_loopback(&text.parse::<Endpoints>().unwrap().as_slice()[0]);
        assert!(
            ["127.0.0.1:9999", "localhost", "[::1]:2379", "127.0.1.1"].map(is_loopback).iter().all(|it| *it)
        );
        assert!(!is_loopback("node1:2379") && !is_loopback("10.0.0.1:2379"));
    }
}
