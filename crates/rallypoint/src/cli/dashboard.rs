//! `rallypoint dashboard`, and the same inside `rallypoint serve`: the runs on an etcd as a page.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rallypoint_core::{Credentials, EtcdSettings, Token};
use rallypoint_dashboard::{Config, Dashboard as Page, SHORTEST_TOKEN};
use rallypoint_etcd::v3::{Client, KeyRange};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::connection::{Connection, check_file};
use super::exit::{EndpointFlags, Problem, advice, chain, of_etcd, with_flag};
use super::{LogFormat, listen_address, start_log};
use crate::server::{ServerError, Tls, raise_file_limit};

/// Where the page is, unless told otherwise.
const LISTEN: &str = "127.0.0.1:8300";
/// The token itself, where no file has it. There is no flag for it: everybody on the machine could read that.
const TOKEN: &str = "RALLYPOINT_DASHBOARD_TOKEN";
/// A first try to reach etcd. One that is not there yet is waited for on the page.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Show the runs on an etcd as a page, live.
///
/// All runs, and of each its nodes by rack with their ranks and states, who is missing while it forms, the timeline, and why
/// the last round ended. It only reads, unless it has a token: then whoever knows that can close a run,
/// exclude nodes from it and include them again.
///
/// Everybody who can reach it sees all of that. It listens on this machine alone unless told otherwise; put a proxy that
/// asks for a login before it where others must not look.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: rallypoint dashboard --endpoint etcd1:2379 --token-file /etc/rallypoint/token\n\nThe token can also be in the variable RALLYPOINT_DASHBOARD_TOKEN. There is no flag for it, since all users of a machine see the flags of its processes.\n\nExit codes: 0 stopped by Ctrl-C or SIGTERM, 1 cannot serve, 2 wrong usage, 4 the etcd does not let it in."
)]
pub(crate) struct Dashboard {
    /// Where to listen: an address or a name of this machine, and the port; 0.0.0.0 for all addresses. Anything but a
    /// loopback address lets other machines in.
    #[arg(
        long,
        env = "RALLYPOINT_DASHBOARD_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = LISTEN,
        value_parser = listen_address
    )]
    listen: SocketAddr,
    /// File with the token, of at least 16 characters, for closing runs and for excluding and including nodes. Without one
    /// the page is read-only.
    #[arg(long, env = "RALLYPOINT_DASHBOARD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name that browsers know it by, beside localhost and its addresses; may be given several times. Requests for
    /// other names are refused: somebody's page could have led the browser here.
    #[arg(
        long = "allowed-host",
        env = "RALLYPOINT_DASHBOARD_ALLOWED_HOST",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host_name
    )]
    allowed_hosts: Vec<String>,
    /// PEM file of the page's certificate: serve TLS.
    #[arg(long, env = "RALLYPOINT_DASHBOARD_CERT", value_name = "FILE", requires = "server_key")]
    server_cert: Option<PathBuf>,
    /// PEM file of the certificate's key.
    #[arg(long, env = "RALLYPOINT_DASHBOARD_KEY", value_name = "FILE", requires = "server_cert")]
    server_key: Option<PathBuf>,
    /// error, warn, info, debug or trace.
    #[arg(long, env = "RALLYPOINT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// How diagnostics are written to stderr.
    #[arg(long, env = "RALLYPOINT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    connection: Connection,
}

/// The dashboard of a server, which shows what is in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Beside {
    /// Show the runs on this server as a page, live; at 127.0.0.1:8300, if no address is given. With --cert start
    /// `rallypoint dashboard` instead, which can be told whom to trust.
    #[arg(
        long = "dashboard",
        env = "RALLYPOINT_DASHBOARD",
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = LISTEN,
        value_parser = listen_address,
        conflicts_with = "cert"
    )]
    dashboard: Option<SocketAddr>,
    /// File with the token, of at least 16 characters, for closing runs and for excluding and including nodes on that page,
    /// in place of RALLYPOINT_DASHBOARD_TOKEN. Without one the page is read-only.
    #[arg(long, env = "RALLYPOINT_DASHBOARD_TOKEN_FILE", value_name = "FILE", requires = "dashboard")]
    dashboard_token_file: Option<PathBuf>,
    /// A name that browsers know that page by, beside localhost and its addresses; may be given several times.
    #[arg(
        long = "dashboard-allowed-host",
        env = "RALLYPOINT_DASHBOARD_ALLOWED_HOST",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host_name,
        requires = "dashboard"
    )]
    dashboard_allowed_hosts: Vec<String>,
}

impl Beside {
    /// The token, if there is a page to use it.
    pub(crate) fn token(&self) -> Result<Option<String>, Problem> {
        if self.dashboard.is_none() {
            return Ok(None);
        }
        token("--dashboard-token-file", self.dashboard_token_file.as_deref())
    }

    /// Starts it, if it was asked for. It reads from the server as any client does.
    pub(crate) fn start(
        &self,
        server: SocketAddr,
        shown: Option<&Token>,
        token: Option<String>,
    ) -> Result<Option<Page>, ServerError> {
        let Some(listen) = self.dashboard else { return Ok(None) };
        let settings = EtcdSettings::new(&reached_at(server).to_string());
        let settings = settings.map_err(|error| std::io::Error::other(error.to_string()));
        let mut settings = settings.map_err(|source| ServerError::Listen { address: server, source })?;
        settings.credentials = shown.map(Credentials::token);
        let client = Client::connect_lazily(settings).map_err(|source| ServerError::Etcd { source })?;
        let mut config = Config::on(listen);
        config.token = token;
        config.allowed_hosts.clone_from(&self.dashboard_allowed_hosts);
        let page = Page::bind(&config, &client)?;
        announce(&page, &config);
        Ok(Some(page))
    }
}

/// Where a server is reached from its own machine.
fn reached_at(server: SocketAddr) -> SocketAddr {
    let ip = match server.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, server.port())
}

/// The token of the nodes, under a flag of its own: the other one is of the page.
pub(crate) fn own_token(file: clap::Arg) -> clap::Arg {
    file.long("etcd-token-file")
        .help("File with the token that the nodes of the runs have, where their server asks for it")
        .long_help("File with the token that the nodes of the runs have, in place of RALLYPOINT_TOKEN, where their server asks for it.")
}

/// Serves until it is told to stop.
pub(crate) fn dashboard(options: Dashboard) -> Result<u8, Problem> {
    start_log(&options.log_level, options.log_format).map_err(Problem::usage)?;
    let mut etcd = options.connection.settings()?;
    etcd.prefix = options.connection.prefix.clone().unwrap_or_default();
    let mut config = Config::on(options.listen);
    config.token = token("--token-file", options.token_file.as_deref())?;
    config.allowed_hosts = options.allowed_hosts;
    config.tls = options.server_cert.zip(options.server_key).map(|(cert, key)| Tls::new(cert, key));
    let cannot = |error: &(dyn std::error::Error + 'static)| Problem::new(1, chain(error));
    let runtime = tokio::runtime::Runtime::new().map_err(|error| cannot(&error))?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| cannot(&error))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| cannot(&error))?;
        raise_file_limit();
        let client =
            Client::connect_lazily(etcd).map_err(|error| Problem::new(of_etcd(&error), chain(&error)))?;
        let page = Page::bind(&config, &client)
            .map_err(|error| Problem::new(1, with_flag(&chain(&error), "--listen")))?;
        let served = async {
            look(&client, options.connection.endpoints()).await?;
            announce(&page, &config);
            std::future::pending::<Result<(), Problem>>().await
        };
        tokio::select! {
            ended = served => ended?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping");
        page.stop().await;
        Ok(0)
    })
}

/// Whether etcd lets it in. That it is not there yet is no reason to end.
async fn look(client: &Client, endpoints: &str) -> Result<(), Problem> {
    let prefix = rallypoint_rendezvous::native::DEFAULT_ROOT;
    let any = KeyRange::prefix(prefix).get_options().with_keys_only().with_limit(1);
    match client.retrying_for(FIRST_LOOK).get(prefix, Some(any)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_transient() => {
            warn!("etcd at {endpoints} does not answer yet; the page says so until it does: {error}");
            Ok(())
        }
        Err(error) => {
            let advice = advice(Some(&error), EndpointFlags::Operator);
            Err(Problem::new(of_etcd(&error), format!("{}{advice}", chain(&error))))
        }
    }
}

fn announce(page: &Page, config: &Config) {
    let access = if config.token.is_some() {
        "with the token runs can be closed, and nodes excluded and included"
    } else {
        "read-only"
    };
    info!("the dashboard is at {} ({access})", page.url());
    if !page.address().ip().is_loopback() {
        let plain =
            if config.tls.is_none() { ", and without TLS whoever listens in learns the token" } else { "" };
        let plain = if config.token.is_some() { plain } else { "" };
        warn!(
            "the dashboard listens on {}: whoever can reach it sees all runs{plain}; docs/dashboard.md tells how to put a proxy before it",
            page.address()
        );
    }
}

/// The token, of the file or of the variable.
fn token(flag: &str, file: Option<&Path>) -> Result<Option<String>, Problem> {
    let (from, text) = match file {
        Some(file) => {
            check_file(flag, file)?;
            warn_if_readable(flag, file);
            let read = std::fs::read_to_string(file);
            let text = read.map_err(|error| Problem::usage(format!("{flag} {}: {error}", file.display())))?;
            (format!("{flag} {}", file.display()), text)
        }
        None => match std::env::var(TOKEN) {
            Ok(text) => (TOKEN.to_owned(), text),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => return Err(Problem::usage(format!("{TOKEN}: {error}"))),
        },
    };
    let token = text.trim();
    let is_header = |letter: char| letter.is_ascii_graphic() || letter == ' ';
    match token.chars().count() {
        0 => Err(Problem::usage(format!(
            "{from} is empty: write a token of {SHORTEST_TOKEN} characters or more"
        ))),
        length if length < SHORTEST_TOKEN => Err(Problem::usage(format!(
            "{from} has a token of {length} characters, which can be guessed: write {SHORTEST_TOKEN} or more"
        ))),
        _ if !token.chars().all(is_header) => {
            Err(Problem::usage(format!("{from} has characters that a browser cannot send: write ASCII")))
        }
        _ => Ok(Some(token.to_owned())),
    }
}

/// Who may read the token may change runs.
fn warn_if_readable(flag: &str, file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o044 != 0) {
        let file = file.display();
        warn!("{flag} {file} can be read by other users of this machine: chmod 600 {file}");
    }
}

/// A name without a scheme, a port or a path.
fn host_name(given: &str) -> Result<String, String> {
    let given = given.trim();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if !given.is_empty() && given.chars().all(is_name) {
        Ok(given.to_owned())
    } else {
        Err("write a name alone, as in ops.example.org, without a scheme and a port".to_owned())
    }
}
