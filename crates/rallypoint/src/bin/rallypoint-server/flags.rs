//! etcd's flags, and what they mean here.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};
use rallypoint::cli::server_token;
use rallypoint::server::{Config, Tls};

use crate::log::Output;

/// What was asked for.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) config: Config,
    pub(super) log_level: String,
    pub(super) log_outputs: Vec<Output>,
    /// Flags that were given and change nothing.
    pub(super) without_meaning: Vec<String>,
}

/// The one flag that etcd has not.
const TOKEN_FILE: &str = "token-file";

/// The flags with a meaning here: name, default, what they do.
const VALUES: &[(&str, &str, &str)] = &[
    ("name", "default", "The name of the one member"),
    ("data-dir", "", "Keep all data in this folder, which is made if need be [default: none, in memory]"),
    ("listen-client-urls", "http://localhost:2379", "Where to listen: one URL"),
    ("advertise-client-urls", "", "What clients are told to use [default: where it listens]"),
    ("cert-file", "", "PEM file of the server's certificate, for https"),
    ("key-file", "", "PEM file of its key"),
    ("trusted-ca-file", "", "PEM file of the authority of clients' certificates"),
    (
        TOKEN_FILE,
        "",
        "File with a token that clients show as the password of the user root, in place of RALLYPOINT_TOKEN",
    ),
    ("max-request-bytes", "1572864", "Bytes of one request that writes"),
    ("max-txn-ops", "128", "Operations in a transaction"),
    ("quota-backend-bytes", "0", "Roughly the bytes of all v3 keys; 0 for 2 GiB"),
    (
        "auto-compaction-mode",
        "periodic",
        "revision: keep as many revisions of the past as the next flag says",
    ),
    ("auto-compaction-retention", "0", "That number; 0 for 65536. Times have no meaning here"),
    ("auth-token-ttl", "300", "Seconds that a token lives after it was shown last; 0 for 300"),
    ("experimental-watch-progress-notify-interval", "10m", "How often idle watches that ask for it hear"),
    ("log-level", "info", "debug, info, warn, error, panic, fatal"),
    ("log-outputs", "default", "stderr, stdout, or files to add to; several with commas [default: stderr]"),
];

const SWITCHES: &[(&str, &str)] = &[
    ("client-cert-auth", "Turn clients without a certificate of the trusted authority away"),
    ("debug", "The same as --log-level=debug, for etcd 3.4's sake"),
];

/// Flags of etcd that a server alone has no use for.
const NO_MEANING: &[&str] = &[
    "wal-dir",
    "snapshot-count",
    "heartbeat-interval",
    "election-timeout",
    "listen-peer-urls",
    "listen-client-http-urls",
    "raft-read-timeout",
    "raft-write-timeout",
    "max-snapshots",
    "max-wals",
    "backend-bbolt-freelist-type",
    "backend-batch-interval",
    "backend-batch-limit",
    "max-concurrent-streams",
    "grpc-keepalive-min-time",
    "grpc-keepalive-interval",
    "grpc-keepalive-timeout",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "discovery",
    "discovery-fallback",
    "discovery-proxy",
    "discovery-srv",
    "discovery-srv-name",
    "v2-deprecation",
    "client-cert-file",
    "client-key-file",
    "peer-cert-file",
    "peer-key-file",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-trusted-ca-file",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "self-signed-cert-validity",
    "peer-crl-file",
    "cipher-suites",
    "tls-max-version",
    "cors",
    "host-whitelist",
    "auth-token",
    "bcrypt-cost",
    "metrics",
    "listen-metrics-urls",
    "logger",
    "log-rotation-config-json",
    "log-package-levels",
    "experimental-distributed-tracing-address",
    "experimental-distributed-tracing-service-name",
    "experimental-distributed-tracing-instance-id",
    "experimental-distributed-tracing-sampling-rate",
    "proxy",
    "proxy-failure-wait",
    "proxy-refresh-interval",
    "proxy-dial-timeout",
    "proxy-write-timeout",
    "proxy-read-timeout",
    "experimental-corrupt-check-time",
    "experimental-enable-v2v3",
    "experimental-backend-bbolt-freelist-type",
    "experimental-compact-hash-check-time",
    "experimental-compaction-batch-limit",
    "experimental-compaction-sleep-interval",
    "experimental-downgrade-check-time",
    "experimental-warning-apply-duration",
    "experimental-bootstrap-defrag-threshold-megabytes",
];

const NO_MEANING_SWITCHES: &[&str] = &[
    "enable-v2",
    "enable-grpc-gateway",
    "initial-election-tick-advance",
    "socket-reuse-port",
    "socket-reuse-address",
    "strict-reconfig-check",
    "pre-vote",
    "auto-tls",
    "peer-client-cert-auth",
    "peer-auto-tls",
    "enable-pprof",
    "enable-log-rotation",
    "experimental-enable-distributed-tracing",
    "experimental-initial-corrupt-check",
    "experimental-compact-hash-check-enabled",
    "experimental-enable-lease-checkpoint",
    "experimental-enable-lease-checkpoint-persist",
    "experimental-memory-mlock",
    "experimental-stop-grpc-service-on-defrag",
    "experimental-peer-skip-client-san-verification",
    "experimental-txn-mode-write-with-shared-buffer",
    "force-new-cluster",
    "unsafe-no-fsync",
];

/// Flags of etcd that turn clients away. To let those in instead would be no help.
const NOT_SERVED: &[&str] = &["client-crl-file", "client-cert-allowed-hostname", "tls-min-version"];

fn command() -> Command {
    let value =
        |name: &'static str| Arg::new(name).long(name).env(variable(name)).num_args(1).value_name("VALUE");
    // Go's switches stand alone or have their value after an equals sign.
    let switch = |name: &'static str| {
        value(name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(["true", "false", "1", "0", "t", "f"])
            .value_name("true|false")
    };
    let mut command = Command::new("rallypoint-server")
        .next_line_help(true)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves etcd's v3 and v2 protocols, in memory or in a folder, under etcd's own flags")
        .after_help(
            "Each flag can also be given as in etcd's environment, --data-dir as ETCD_DATA_DIR. The other flags \
             of etcd 3.4 and 3.5 are accepted and ignored, with a word in the log.\n\
             Without --data-dir what is stored ends with this process. Exit codes: 0 stopped, 1 cannot serve, 2 wrong usage.",
        )
        .args_override_self(true);
    for (name, default, help) in VALUES {
        let arg = value(name).help(help).action(ArgAction::Set);
        command = command.arg(if default.is_empty() { arg } else { arg.default_value(default) });
    }
    for (name, help) in SWITCHES {
        command = command.arg(switch(name).help(help));
    }
    for name in NO_MEANING.iter().chain(NOT_SERVED) {
        command = command.arg(value(name).hide(true));
    }
    for name in NO_MEANING_SWITCHES {
        command = command.arg(switch(name).hide(true));
    }
    command
}

fn variable(flag: &str) -> String {
    if flag == TOKEN_FILE {
        return "RALLYPOINT_TOKEN_FILE".to_owned();
    }
    format!("ETCD_{}", flag.replace('-', "_").to_uppercase())
}

/// Go takes one dash for two.
fn two_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

pub(super) fn parse(args: impl Iterator<Item = OsString>) -> Result<Flags, Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(args.map(two_dashes))?;
    let text =
        |name: &str| matches.get_one::<String>(name).map(String::as_str).filter(|text| !text.is_empty());
    let mut wrong = |problem: String| command.error(ErrorKind::ValueValidation, problem);

    if let Some(flag) = NOT_SERVED.iter().find(|flag| text(flag).is_some()) {
        return Err(wrong(format!(
            "--{flag} is not served: clients that it is to turn away would be let in"
        )));
    }
    let url = text("listen-client-urls").unwrap_or_default();
    let (https, listen) = listen_address(url).map_err(&mut wrong)?;
    // An empty name is that of a variable that was not set, and would let everybody in.
    let from = matches.value_source(TOKEN_FILE);
    let is_given = matches!(from, Some(ValueSource::CommandLine | ValueSource::EnvVariable));
    if is_given && text(TOKEN_FILE).is_none() {
        return Err(wrong(format!("--{TOKEN_FILE} names no file: leave it out to let in whoever comes")));
    }
    let asks_for_certificates = text("trusted-ca-file").is_some() || is_on(&matches, "client-cert-auth");
    if !https && asks_for_certificates {
        return Err(wrong(format!(
            "--client-cert-auth and --trusted-ca-file need https://, not {url}: clients that they are to turn away would be let in"
        )));
    }
    let tls = match (https, text("cert-file"), text("key-file")) {
        (false, ..) => None,
        (true, Some(cert), Some(key)) => {
            // As in etcd, to name the authority is to ask for its certificates.
            let client_ca_file = text("trusted-ca-file").map(Into::into);
            if client_ca_file.is_none() && is_on(&matches, "client-cert-auth") {
                return Err(wrong("--client-cert-auth needs --trusted-ca-file".into()));
            }
            let mut tls = Tls::new(cert, key);
            tls.client_ca_file = client_ca_file;
            Some(tls)
        }
        (true, ..) => return Err(wrong(format!("{url} needs --cert-file and --key-file"))),
    };

    let mut config = Config::on(listen);
    let mut number = |name: &str| -> Result<usize, Error> {
        let text = text(name).unwrap_or_default();
        text.parse().map_err(|_| wrong(format!("--{name} {text:?} is not a number")))
    };
    let (max_request_bytes, max_txn_ops) = (number("max-request-bytes")?, number("max-txn-ops")?);
    let quota_bytes = match number("quota-backend-bytes")? {
        0 => config.quota_bytes,
        bytes => bytes,
    };
    let auth_token_ttl = match number("auth-token-ttl")? {
        0 => config.auth_token_ttl,
        seconds => Duration::from_secs(seconds as u64),
    };
    let history_changes = match (text("auto-compaction-mode"), text("auto-compaction-retention")) {
        (Some("revision"), Some(_)) => match number("auto-compaction-retention")? {
            0 => config.history_changes,
            revisions => revisions,
        },
        _ => config.history_changes,
    };
    let interval = text("experimental-watch-progress-notify-interval").unwrap_or_default();
    let progress_interval = duration(interval)
        .ok_or_else(|| wrong(format!("{interval:?} is not a time, such as 10m or 1h30m")))?;

    config.data_dir = text("data-dir").map(Into::into);
    config.name = text("name").unwrap_or_default().to_owned();
    config.advertise = text("advertise-client-urls")
        .map(|urls| urls.split(',').map(str::to_owned).collect())
        .unwrap_or_default();
    config.tls = tls;
    config.token = server_token(text(TOKEN_FILE).map(Path::new)).map_err(&mut wrong)?;
    (config.max_request_bytes, config.max_txn_ops) = (max_request_bytes, max_txn_ops);
    (config.quota_bytes, config.history_changes) = (quota_bytes, history_changes);
    config.progress_interval = progress_interval;
    config.auth_token_ttl = auth_token_ttl;
    let given = |name: &&&str| matches!(matches.value_source(name), Some(ValueSource::CommandLine));
    let mut without_meaning: Vec<String> =
        NO_MEANING.iter().chain(NO_MEANING_SWITCHES).filter(given).map(|name| (*name).to_owned()).collect();
    if text("auto-compaction-mode") != Some("revision") && given(&&"auto-compaction-retention") {
        without_meaning.push("auto-compaction-retention".to_owned());
    }
    if !https {
        let certificates = ["cert-file", "key-file"].into_iter().filter(|flag| text(flag).is_some());
        without_meaning.extend(certificates.map(|flag| format!("{flag} without https://")));
    }
    Ok(Flags {
        config,
        log_level: log_level(&matches).map_err(wrong)?,
        log_outputs: text("log-outputs").unwrap_or_default().split(',').map(log_output).collect(),
        without_meaning,
    })
}

/// etcd's levels, of which the last two are those of its end.
fn log_level(matches: &ArgMatches) -> Result<String, String> {
    if is_on(matches, "debug") {
        return Ok("debug".to_owned());
    }
    match matches.get_one::<String>("log-level").map_or("info", String::as_str) {
        level @ ("debug" | "info" | "warn" | "error") => Ok(level.to_owned()),
        "panic" | "dpanic" | "fatal" => Ok("error".to_owned()),
        other => Err(format!("--log-level {other:?}: give debug, info, warn, error, panic or fatal")),
    }
}

fn log_output(name: &str) -> Output {
    match name {
        "" | "default" | "stderr" | "systemd/journal" => Output::Stderr,
        "stdout" => Output::Stdout,
        file => Output::File(file.into()),
    }
}

fn is_on(matches: &ArgMatches, switch: &str) -> bool {
    matches.get_one::<String>(switch).is_some_and(|value| matches!(value.as_str(), "true" | "1" | "t"))
}

/// Whether the URL is https, and the address it names.
fn listen_address(url: &str) -> Result<(bool, SocketAddr), String> {
    let wrong = |problem: &str| format!("--listen-client-urls {url:?}: {problem}");
    if url.contains(',') {
        return Err(wrong("this server listens on one address; give one URL"));
    }
    let (https, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return Err(wrong("give http://host:port or https://host:port")),
    };
    let addresses: Vec<SocketAddr> =
        rest.trim_end_matches('/').to_socket_addrs().map_err(|error| wrong(&error.to_string()))?.collect();
    // `localhost` may be both; clients that try one after the other find either.
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.map(|address| (https, *address)).ok_or_else(|| wrong("no such host"))
}

/// A time as Go writes it: `1h30m`, `500ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let (unit, seconds) =
            [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)]
                .into_iter()
                .find(|(unit, _)| after.starts_with(unit))?;
        total += number.parse::<f64>().ok()? * seconds;
        rest = &after[unit.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> Result<Flags, String> {
        let args = ["rallypoint-server"].iter().chain(args).map(OsString::from);
        parse(args).map_err(|error| error.to_string())
    }

    #[test]
    fn what_pytorch_starts_an_etcd_with_is_understood() {
        let flags = flags(&[
            "--enable-v2",
            "--data-dir",
            "/tmp/x/0",
            "--listen-client-urls",
            "http://localhost:4001",
            "--advertise-client-urls",
            "http://localhost:4001",
            "--listen-peer-urls",
            "http://localhost:4002",
        ])
        .unwrap();
        assert_eq!(flags.config.listen, "127.0.0.1:4001".parse().unwrap());
        assert_eq!(flags.config.advertise, ["http://localhost:4001"]);
        assert_eq!(flags.config.data_dir, Some("/tmp/x/0".into()));
        assert_eq!(flags.without_meaning, ["listen-peer-urls", "enable-v2"]);
    }

    #[test]
    fn go_writes_flags_in_several_ways() {
        let flags =
            flags(&["-name=a", "-max-txn-ops", "7", "--enable-v2=false", "--pre-vote", "--name", "b"])
                .unwrap();
        assert_eq!((flags.config.name.as_str(), flags.config.max_txn_ops), ("b", 7));
        assert_eq!(flags.config.max_request_bytes, 1_572_864);
    }

    #[test]
    fn tls_takes_its_files_together() {
        let https = "--listen-client-urls=https://127.0.0.1:1";
        let both = flags(&[https, "--cert-file=c", "--key-file=k"]).unwrap().config.tls.unwrap();
        assert_eq!((both.cert_file.to_str(), both.client_ca_file), (Some("c"), None));
        assert!(flags(&[https]).unwrap_err().contains("--cert-file and --key-file"));
        let mutual = [https, "--cert-file=c", "--key-file=k", "--client-cert-auth"];
        assert!(flags(&mutual).unwrap_err().contains("--trusted-ca-file"));
        let mutual = flags(&[&mutual[..], &["--trusted-ca-file=ca"]].concat()).unwrap();
        assert_eq!(mutual.config.tls.unwrap().client_ca_file, Some("ca".into()));
    }

    #[test]
    fn to_name_an_authority_is_to_ask_for_its_certificates() {
        let tls = ["--listen-client-urls=https://127.0.0.1:1", "--cert-file=c", "--key-file=k"];
        let alone = flags(&[&tls[..], &["--trusted-ca-file=ca"]].concat()).unwrap();
        assert_eq!(alone.config.tls.unwrap().client_ca_file, Some("ca".into()));
    }

    #[test]
    fn a_compaction_by_revisions_is_the_history_that_is_kept() {
        let kept = |args: &[&str]| flags(args).unwrap().config.history_changes;
        let by_revision = "--auto-compaction-mode=revision";
        assert_eq!(kept(&[by_revision, "--auto-compaction-retention", "1000"]), 1000);
        assert_eq!(kept(&[by_revision, "--auto-compaction-retention=0"]), Config::default().history_changes);
        let hours = flags(&["--auto-compaction-retention=1h"]).unwrap();
        assert_eq!(hours.config.history_changes, Config::default().history_changes);
        assert_eq!(hours.without_meaning, ["auto-compaction-retention"]);
        assert!(
            flags(&[by_revision, "--auto-compaction-retention=1h"]).unwrap_err().contains("not a number")
        );
    }

    #[test]
    fn tokens_live_for_as_long_as_etcds_flag_says() {
        let ttl = |args: &[&str]| flags(args).unwrap().config.auth_token_ttl;
        assert_eq!(ttl(&["--auth-token-ttl=7"]), Duration::from_secs(7));
        // As in etcd.
        assert_eq!([ttl(&[]), ttl(&["--auth-token-ttl", "0"])], [Duration::from_secs(300); 2]);
        assert!(flags(&["--auth-token-ttl=5m"]).unwrap_err().contains("not a number"));
    }

    #[test]
    fn logs_go_where_and_say_what_etcds_flags_ask_for() {
        let log = |args: &[&str]| {
            let flags = flags(args).unwrap();
            (flags.log_level, flags.log_outputs)
        };
        assert_eq!(log(&[]), ("info".to_owned(), vec![Output::Stderr]));
        let several = log(&["--log-level=fatal", "--log-outputs", "stdout,stderr,/var/log/etcd"]);
        let outputs = vec![Output::Stdout, Output::Stderr, Output::File("/var/log/etcd".into())];
        assert_eq!(several, ("error".to_owned(), outputs));
        assert_eq!(log(&["--debug"]).0, "debug");
        assert!(flags(&["--log-level=loud"]).unwrap_err().contains("\"loud\""));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (args, problem) in [
            (&["--listen-client-urls", "http://a:1,http://b:2"][..], "one address"),
            (&["--listen-client-urls", "127.0.0.1:1"], "http://host:port"),
            (&["--max-txn-ops", "many"], "\"many\" is not a number"),
            (&["--dta-dir", "x"], "--data-dir"),
            (&["--client-crl-file", "x"], "would be let in"),
            (&["--client-cert-auth", "--trusted-ca-file", "ca.pem"], "would be let in"),
            (&["--trusted-ca-file", "ca.pem"], "need https://"),
            (&["--token-file", ""], "names no file"),
            (&["--experimental-watch-progress-notify-interval", "10"], "is not a time"),
        ] {
            let error = flags(args).unwrap_err();
            assert!(error.contains(problem), "{args:?}: {error}");
        }
    }

    #[test]
    fn times_are_read_as_go_writes_them() {
        for (text, seconds) in [("10m", 600.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1.5s", 1.5)] {
            assert_eq!(duration(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "10", "m", "1x", "-1s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
