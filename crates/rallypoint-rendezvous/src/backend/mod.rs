//! One record of state with a fencing token: what PyTorch's dynamic rendezvous keeps its state in.
//!
//! - [`RendezvousBackend`]: what it promises.
//! - [`EtcdV2Backend`]: on the v2 wire, byte for byte PyTorch's `etcd-v2`.
//! - [`EtcdV3Backend`]: on etcd v3.

mod v2;
mod v3;

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::parameters::{ParameterError, RendezvousParameters};

pub use v2::EtcdV2Backend;
pub use v3::EtcdV3Backend;

/// How long the state stays after its last change, unless told otherwise.
pub const DEFAULT_TTL: std::time::Duration = std::time::Duration::from_secs(7200);

/// Where PyTorch keeps the state of all runs.
pub const STATE_PREFIX: &str = "/torch/elastic/rendezvous";
/// Where PyTorch keeps the store of all runs.
pub const STORE_PREFIX: &str = "/torch/elastic/store";

/// Keeps one record of state, which nodes change without overwriting each other's changes.
#[async_trait]
pub trait RendezvousBackend: Send + Sync + fmt::Debug {
    /// The name of the backend.
    fn name(&self) -> &str;

    /// The state, and the token to change it with; nothing if there is none.
    async fn get_state(&self) -> Result<Option<(Vec<u8>, Token)>>;

    /// Sets the state if `token` is the current one, or, without a token, if there is no state.
    ///
    /// Returns the state after the call and whether it was set; nothing if there is no state. A token that no
    /// backend has given out is as good as an old one.
    async fn set_state(&self, state: &[u8], token: Option<&Token>) -> Result<Option<Changed>>;
}

/// What a [`set_state`](RendezvousBackend::set_state) came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The state.
    pub state: Vec<u8>,
    /// Its token.
    pub token: Token,
    /// Whether it is what was to be set.
    pub was_set: bool,
}

/// Tells one version of the state from another. To callers it is a text without a meaning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// The number in it, as Python's `int` reads it.
    fn number(&self) -> Option<i64> {
        crate::parameters::integer(&self.0)
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Token(text.to_owned())
    }
}

impl From<u64> for Token {
    fn from(number: u64) -> Self {
        Token(number.to_string())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// On which condition a state is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// There is none.
    Absent,
    /// It is of this index or revision.
    At(u64),
    /// Never.
    Never,
}

impl Fence {
    /// Zero counts as no token, as it does in PyTorch.
    fn of(token: Option<&Token>) -> Fence {
        match token.map(|token| if token.0.is_empty() { Some(0) } else { token.number() }) {
            None | Some(Some(0)) => Fence::Absent,
            Some(Some(number)) => u64::try_from(number).map_or(Fence::Never, Fence::At),
            Some(None) => Fence::Never,
        }
    }
}

fn checked(run_id: &str) -> Result<&str, ParameterError> {
    if run_id.is_empty() {
        return Err(ParameterError("The run id must be a non-empty string.".to_owned()));
    }
    Ok(run_id)
}

/// How the parameters of PyTorch's `etcd-v2` say to reach etcd.
fn settings(parameters: &RendezvousParameters) -> Result<rallypoint_core::EtcdSettings, ParameterError> {
    let read_timeout = parameters.get_as_int("read_timeout")?.unwrap_or(60);
    let read_timeout = match u64::try_from(read_timeout) {
        Ok(seconds) if seconds > 0 => std::time::Duration::from_secs(seconds),
        _ => return Err(ParameterError("The read timeout must be a positive integer.".to_owned())),
    };
    let tls = match parameters.get("protocol").unwrap_or("http").trim().to_lowercase().as_str() {
        "http" => None,
        "https" => Some(crate::barrier::config::tls(parameters, "ca_cert", "ssl_cert", "ssl_cert_key")),
        _ => return Err(ParameterError("The protocol must be HTTP or HTTPS.".to_owned())),
    };
    let mut settings = crate::barrier::config::etcd_settings(parameters)?;
    settings.tls = tls;
    settings.request_timeout = settings.request_timeout.min(read_timeout);
    settings.retry_timeout = read_timeout;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn tokens_are_read_as_pytorch_reads_them() {
        for (token, fence) in [
            (None, Fence::Absent),
            (Some(""), Fence::Absent),
            (Some("0"), Fence::Absent),
            (Some("17"), Fence::At(17)),
            (Some(" 1_7 "), Fence::At(17)),
            (Some("-1"), Fence::Never),
            (Some("abc"), Fence::Never),
        ] {
            assert_eq!(Fence::of(token.map(Token::from).as_ref()), fence, "{token:?}");
        }
    }

    #[test]
    fn bad_parameters_are_named_as_pytorch_names_them() {
        let settings = |key: &str, value: &str| {
            let mut parameters = RendezvousParameters::new("etcd-v2", "", "run", 1, 1).unwrap();
            parameters.config.insert(key.to_owned(), value.to_owned());
            settings(&parameters)
        };
        for value in ["0", "-1"] {
            assert_eq!(
                settings("read_timeout", value).unwrap_err().0,
                "The read timeout must be a positive integer."
            );
        }
        assert!(settings("read_timeout", "x").unwrap_err().0.contains("a valid integer value"));
        assert_eq!(settings("protocol", "ftp").unwrap_err().0, "The protocol must be HTTP or HTTPS.");
        assert!(settings("protocol", " HTTPS ").unwrap().tls.is_some());
        assert_eq!(settings("read_timeout", "7").unwrap().retry_timeout.as_secs(), 7);
    }
}
