//! How to reach an etcd: the options that every command shares. `docs/connecting.md` describes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rallypoint_agent::disk;
use rallypoint_core::{Credentials, EtcdSettings, TlsSettings, Token};
use rallypoint_etcd::v3::Client;
use rallypoint_etcd::{ErrorKind, read_secret};
use tracing::warn;

use super::exit::{EndpointFlags, Problem, advice, chain, no_etcd, of_etcd, who_is_this};
use crate::server::{Config, Tls};

/// No server is started at an endpoint that begins so.
pub(crate) const ETCD_SCHEME: &str = "etcd://";

/// The token itself, where no file has it. There is no flag for it: everybody on the machine could read that.
const TOKEN: &str = "RALLYPOINT_TOKEN";

/// How long the other endpoints have to say which cluster they are of.
const OTHER_ENDPOINTS: Duration = Duration::from_secs(2);

/// Where the etcd is, and how it is spoken to.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Where the etcd is; several endpoints with commas. If it is an address of this node and nothing listens there, `run`
    /// starts a server there itself; with etcd:// before it, it never does.
    #[arg(
        long = "rdzv-endpoint",
        help_heading = None,
        // Of `run`, after --standalone.
        display_order = 3,
        visible_alias = "endpoint",
        alias = "rdzv_endpoint",
        env = "PET_RDZV_ENDPOINT",
        value_name = "HOST:PORT[,...]",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) endpoint: String,
    /// PEM file of the authority that signed the etcd's certificate. With it, TLS is spoken.
    #[arg(long, env = "RALLYPOINT_CACERT", value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,
    /// PEM file of this client's certificate, where the etcd asks for one.
    #[arg(long, env = "RALLYPOINT_CLIENT_CERT", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// PEM file of that certificate's key.
    #[arg(long, env = "RALLYPOINT_CLIENT_KEY", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// The user, where the etcd asks for one. The password is read from RALLYPOINT_PASSWORD or --password-file.
    #[arg(long, env = "RALLYPOINT_USER", value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// File with the user's password, in place of RALLYPOINT_PASSWORD.
    #[arg(long, env = "RALLYPOINT_PASSWORD_FILE", value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,
    /// File with a token of 16 to 72 characters, in place of RALLYPOINT_TOKEN: what all nodes know and nobody else. The server that
    /// `run` starts asks for it, and one that does not ask for it is not used.
    #[arg(long = "token-file", env = "RALLYPOINT_TOKEN_FILE", value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Put before every key in the etcd. All nodes of a run need the same.
    #[arg(long, env = "RALLYPOINT_PREFIX", value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
}

impl Connection {
    /// The endpoints, without the scheme that says to connect only; empty where none were given.
    pub(crate) fn endpoints(&self) -> &str {
        let endpoint = self.endpoint.trim();
        endpoint.strip_prefix(ETCD_SCHEME).unwrap_or(endpoint)
    }

    /// Whether no server may be started there: it is said to be there, it has users, or it has certificates that are not this
    /// node's.
    pub(crate) fn only_connect(&self) -> bool {
        self.endpoint.trim().starts_with(ETCD_SCHEME)
            || self.endpoints().contains(',')
            || self.user.is_some()
            || !(self.is_plain() || self.server_tls().is_some())
    }

    /// How a server of this node's speaks TLS: with the node's own certificate, to who has one of the same authority.
    pub(crate) fn server_tls(&self) -> Option<Tls> {
        let (ca, cert, key) = (self.cacert.as_ref()?, self.cert.as_ref()?, self.key.as_ref()?);
        let mut tls = Tls::new(cert, key);
        tls.client_ca_file = Some(ca.clone());
        Some(tls)
    }

    /// What a server of this node's is told of TLS.
    pub(crate) fn server(&self) -> Config {
        let mut config = Config::default();
        config.tls = self.server_tls();
        config
    }

    /// What all nodes know, and nobody else.
    pub(crate) fn token(&self) -> Result<Option<Token>, Problem> {
        token(self.secret_file.as_deref())
    }

    /// The endpoint itself says so.
    fn is_https(&self) -> bool {
        self.endpoints().contains("https://")
    }

    /// Whether TLS is not spoken.
    pub(crate) fn is_plain(&self) -> bool {
        !self.has_tls() && !self.is_https()
    }

    fn has_tls(&self) -> bool {
        self.cacert.is_some() || self.cert.is_some()
    }

    /// That the files for TLS can be read.
    fn check_files(&self) -> Result<(), Problem> {
        for (flag, file) in [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)] {
            if let Some(file) = file {
                check_file(flag, file)?;
            }
        }
        Ok(())
    }

    fn password(&self) -> Result<Option<String>, Problem> {
        if let Some(file) = &self.password_file {
            check_file("--password-file", file)?;
            let read = read_secret(file);
            let unreadable =
                |error| Problem::usage(format!("cannot read the password in {}: {error}", file.display()));
            return Ok(Some(read.map_err(unreadable)?));
        }
        Ok(std::env::var("RALLYPOINT_PASSWORD").ok())
    }

    fn credentials(&self) -> Result<Option<Credentials>, Problem> {
        let token = self.token()?;
        let Some(user) = &self.user else { return Ok(token.as_ref().map(Credentials::token)) };
        if token.is_some() {
            return Err(Problem::usage(format!(
                "there are a token and a user: leave out --user {user} for a server that the nodes start, or RALLYPOINT_TOKEN and --token-file for one that is there"
            )));
        }
        let missing = || {
            // As etcdctl takes it. What is behind the colon is not for a log.
            if let Some((name, _)) = user.split_once(':') {
                return Problem::usage(format!(
                    "--user takes a name without a password: write --user {name}, and set RALLYPOINT_PASSWORD or --password-file"
                ));
            }
            let text = format!("--user {user} has no password: set RALLYPOINT_PASSWORD or --password-file");
            Problem::usage(text)
        };
        let password = self.password()?.ok_or_else(missing)?;
        Ok(Some(Credentials::new(user, password)))
    }

    /// For a client of etcd.
    pub(crate) fn settings(&self) -> Result<EtcdSettings, Problem> {
        if self.endpoints().is_empty() {
            return Err(Problem::usage(
                "no endpoint: say where the etcd is with --endpoint HOST:PORT, or set PET_RDZV_ENDPOINT",
            ));
        }
        let mut settings =
            EtcdSettings::new(self.endpoints()).map_err(|error| Problem::usage(error.to_string()))?;
        self.check_files()?;
        if self.has_tls() {
            let mut tls = TlsSettings::default();
            (tls.ca, tls.cert, tls.key) = (self.cacert.clone(), self.cert.clone(), self.key.clone());
            settings.tls = Some(tls);
        }
        settings.credentials = self.credentials()?;
        settings.check().map_err(|error| Problem::usage(error.to_string()))?;
        Ok(settings)
    }

    /// A client of it, for a command of an operator.
    pub(crate) async fn client(&self) -> Result<Client, Problem> {
        let mut settings = self.settings()?;
        settings.prefix = self.prefix.clone().unwrap_or_default();
        let connected = Client::connect(settings).await.map_err(|error| {
            let endpoint = self.endpoints();
            if self.is_plain() && error.hangs_up() {
                return no_etcd(endpoint, EndpointFlags::Operator);
            }
            if error.shows_nobody() {
                return who_is_this(endpoint, EndpointFlags::Operator);
            }
            let text = match error.kind() {
                ErrorKind::Timeout => format!(
                    "{endpoint} takes connections and says nothing: it is no etcd, or one that hangs; check --endpoint"
                ),
                _ => format!("{}{}", chain(&error), advice(Some(&error), EndpointFlags::Operator)),
            };
            Problem::new(of_etcd(&error), text)
        });
        let client = connected?;
        if let Some(two) = client.two_clusters(OTHER_ENDPOINTS).await {
            warn!("{two}");
        }
        Ok(client)
    }

    /// For a rendezvous backend, by the names it knows; what `--rdzv-conf` says comes before.
    pub(crate) fn configure(&self, config: &mut BTreeMap<String, String>) -> Result<(), Problem> {
        let has_token = config.contains_key("token_file");
        let mut set = |name: &str, value: String| {
            config.entry(name.to_owned()).or_insert(value);
        };
        let text = |path: &Path| path.display().to_string();
        self.check_files()?;
        if !self.is_plain() {
            set("protocol", "https".to_owned());
        }
        for (name, file) in [("cacert", &self.cacert), ("cert", &self.cert), ("key", &self.key)] {
            if let Some(file) = file {
                set(name, text(file));
            }
        }
        match self.credentials()? {
            Some(Credentials { required: true, .. }) if has_token => {}
            Some(Credentials { required: true, password, .. }) => set("token", password),
            Some(Credentials { user, password, .. }) => {
                set("user", user);
                set("password", password);
            }
            None => {}
        }
        if let Some(prefix) = &self.prefix {
            set("etcd_prefix", prefix.clone());
        }
        Ok(())
    }
}

/// What all nodes and their server know, of the file or of the variable.
pub(super) fn token(file: Option<&Path>) -> Result<Option<Token>, Problem> {
    let (from, text) = match file {
        Some(file) => {
            check_file("--token-file", file)?;
            let from = format!("--token-file {}", file.display());
            let text = read_secret(file).map_err(|error| Problem::usage(format!("{from}: {error}")))?;
            (from, text)
        }
        None => match std::env::var(TOKEN) {
            Ok(text) => (TOKEN.to_owned(), text),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => return Err(Problem::usage(format!("{TOKEN}: {error}"))),
        },
    };
    Token::new(&text).map(Some).map_err(|error| Problem::usage(format!("{from} {error}")))
}

/// That a file can be read. What is no file may never end, as a pipe does not, and a disk may not answer.
pub(crate) fn check_file(flag: &str, file: &Path) -> Result<(), Problem> {
    let own = file.to_owned();
    let opened = disk::within(disk::PATIENCE, move || {
        if !std::fs::metadata(&own)?.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        std::fs::File::open(&own).map(drop)
    });
    let problem = match opened {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(unknown) => unknown.to_string(),
    };
    Err(Problem::usage(format!("{flag} {}: {problem}", file.display())))
}
