//! `rallypoint gateway`: the v2 API in front of a cluster of etcd.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::connection::Connection;
use super::exit::{Problem, chain, of_etcd, with_flag};
use super::variables::yes_or_no;
use super::{LogFormat, advertised_url, listen_address, serve, start_log};
use crate::server::{Config, GatewayConfig, Server, ServerError, Tls};

/// Serve etcd's v2 protocol in front of an etcd cluster that has only v3.
///
/// For clients that speak nothing else, PyTorch's etcd and etcd-v2 backends among them, on the etcd that is there already:
/// 3.6 has no v2 any more. It keeps nothing itself: run as many as you like on one cluster, beside each node for example.
/// To their clients they are one etcd, and any of them can be killed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: rallypoint gateway --listen 0.0.0.0:2379 --endpoint etcd1:2379,etcd2:2379,etcd3:2379\n\nExit codes: 0 stopped by Ctrl-C or SIGTERM, 1 cannot serve, 2 wrong usage, 4 the etcd does not let it in."
)]
pub(crate) struct Gateway {
    /// Where to listen: an address or a name of this machine, and the port; 0.0.0.0 for all addresses. Anything but a
    /// loopback address lets other machines in.
    #[arg(
        long,
        env = "RALLYPOINT_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:2379",
        value_parser = listen_address
    )]
    listen: SocketAddr,
    /// URL that clients are told to use, if it is not the address above; may be given several times, also for the other
    /// gateways: clients that look for them find them so.
    #[arg(long, env = "RALLYPOINT_ADVERTISE", value_name = "URL", value_delimiter = ',', value_parser = advertised_url)]
    advertise: Vec<String>,
    /// PEM file of the gateway's certificate: serve TLS.
    #[arg(long, env = "RALLYPOINT_CERT", value_name = "FILE", requires = "server_key")]
    server_cert: Option<PathBuf>,
    /// PEM file of the certificate's key.
    #[arg(long, env = "RALLYPOINT_KEY", value_name = "FILE", requires = "server_cert")]
    server_key: Option<PathBuf>,
    /// PEM file of the authority whose clients may connect; others are turned away.
    #[arg(long, env = "RALLYPOINT_CLIENT_CA", value_name = "FILE", requires = "server_cert")]
    client_ca: Option<PathBuf>,
    /// Where its keys are in the etcd. All gateways with the same are one v2 etcd.
    #[arg(long, env = "RALLYPOINT_KEY_PREFIX", value_name = "PREFIX", default_value = "/rallypoint-v2")]
    key_prefix: String,
    /// Turn clients away that do not log in as a user of etcd's. Without it they are who the gateway is: --user, if it is given.
    #[arg(long, env = "RALLYPOINT_REQUIRE_LOGIN", value_parser = yes_or_no)]
    require_login: bool,
    /// error, warn, info, debug or trace.
    #[arg(long, env = "RALLYPOINT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// How diagnostics are written to stderr.
    #[arg(long, env = "RALLYPOINT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    connection: Connection,
}

/// The endpoint under a variable of its own: torchrun's names the gateway, where one is used.
pub(crate) fn own_endpoint(endpoint: clap::Arg) -> clap::Arg {
    endpoint
        .long("endpoint")
        .visible_alias(None)
        .display_order(1)
        .env("RALLYPOINT_ENDPOINT")
        .help("Where the etcd is; several endpoints with commas")
        .long_help("Where the etcd is; several endpoints with commas.")
}

/// Serves until it is told to stop.
pub(crate) fn gateway(options: Gateway) -> Result<u8, Problem> {
    start_log(&options.log_level, options.log_format).map_err(Problem::usage)?;
    if options.connection.endpoints().is_empty() {
        return Err(Problem::usage(
            "no endpoint: say where the etcd is with --endpoint HOST:PORT, or set RALLYPOINT_ENDPOINT",
        ));
    }
    let key_prefix = options.key_prefix.trim_end_matches('/');
    if key_prefix.is_empty() {
        return Err(Problem::usage(
            "--key-prefix is empty: the gateway's keys would lie among all others of the etcd; leave it out, or name a prefix",
        ));
    }
    let mut etcd = options.connection.settings()?;
    let prefix = options.connection.prefix.clone().unwrap_or_default();
    etcd.prefix = format!("{prefix}{key_prefix}/");
    let mut gateway = GatewayConfig::to(etcd);
    gateway.require_login = options.require_login;
    let mut config = Config::on(options.listen);
    config.advertise = options.advertise;
    config.tls = options.server_cert.zip(options.server_key).map(|(cert, key)| {
        let mut tls = Tls::new(cert, key);
        tls.client_ca_file = options.client_ca;
        tls
    });
    let cannot = |error: &(dyn std::error::Error + 'static)| Problem::new(1, chain(error));
    let runtime = tokio::runtime::Runtime::new().map_err(|error| cannot(&error))?;
    runtime.block_on(serve(Server::gateway(config, gateway))).map(|()| 0).map_err(|error| {
        match error.downcast_ref() {
            Some(ServerError::Etcd { source }) => Problem::new(of_etcd(source), chain(source)),
            _ => Problem::new(1, with_flag(&chain(&*error), "--listen")),
        }
    })
}
