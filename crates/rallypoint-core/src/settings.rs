//! What a connection to etcd can be told. The defaults live here and nowhere else.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::endpoint::{Endpoint, EndpointError, Endpoints, Scheme};

/// Time to reach an etcd, or to find out that none can be reached.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time one try of a request may take before the next endpoint is asked.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a request and its retries may take in all, where the caller has no deadline of its own.
pub const DEFAULT_RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// How to reach an etcd.
///
/// ```
/// use rallypoint_core::EtcdSettings;
///
/// let mut settings = EtcdSettings::new("etcd1,etcd2,etcd3")?;
/// settings.prefix = "/jobs/".into();
/// settings.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EtcdSettings {
    /// The servers, in the order they are tried.
    pub endpoints: Endpoints,
    /// TLS, where the endpoints speak it.
    pub tls: Option<TlsSettings>,
    /// User and password, where etcd asks for them.
    pub credentials: Option<Credentials>,
    /// Put before every key.
    pub prefix: String,
    /// See [`DEFAULT_CONNECT_TIMEOUT`].
    pub connect_timeout: Duration,
    /// See [`DEFAULT_REQUEST_TIMEOUT`].
    pub request_timeout: Duration,
    /// See [`DEFAULT_RETRY_TIMEOUT`].
    pub retry_timeout: Duration,
}

impl EtcdSettings {
    /// The defaults, for the etcd at `endpoints` (comma-separated).
    pub fn new(endpoints: &str) -> Result<Self, EndpointError> {
        Ok(EtcdSettings {
            endpoints: endpoints.parse()?,
            tls: None,
            credentials: None,
            prefix: String::new(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            retry_timeout: DEFAULT_RETRY_TIMEOUT,
        })
    }

    /// The URLs of the endpoints.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.endpoints.as_slice().iter().map(|endpoint| endpoint.url(self.tls.is_some())).collect()
    }

    /// Refuses what contradicts itself, before anything is sent.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.tls.is_some() {
            let plain = |endpoint: &&Endpoint| endpoint.scheme == Some(Scheme::Http);
            if let Some(endpoint) = self.endpoints.as_slice().iter().find(plain) {
                return Err(SettingsError::PlainWithTls(endpoint.clone()));
            }
        }
        if let Some(tls) = &self.tls {
            match (&tls.cert, &tls.key) {
                (Some(cert), None) => return Err(SettingsError::CertWithoutKey(cert.clone())),
                (None, Some(key)) => return Err(SettingsError::KeyWithoutCert(key.clone())),
                _ => {}
            }
        }
        for (name, value) in [
            ("connect timeout", self.connect_timeout),
            ("request timeout", self.request_timeout),
            ("retry timeout", self.retry_timeout),
        ] {
            if value.is_zero() {
                return Err(SettingsError::ZeroTimeout(name));
            }
        }
        Ok(())
    }
}

/// Files that prove who is who. Without a CA the system's roots are trusted.
///
/// ```
/// use rallypoint_core::TlsSettings;
///
/// let tls = TlsSettings::trusting("ca.pem").with_identity("client.pem", "client-key.pem");
/// assert_ne!(tls, TlsSettings::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// PEM file of the authority that signed the servers' certificates.
    pub ca: Option<PathBuf>,
    /// PEM file of this client's certificate, where the server asks for one.
    pub cert: Option<PathBuf>,
    /// PEM file of that certificate's key.
    pub key: Option<PathBuf>,
}

impl TlsSettings {
    /// Trusts the authority in this PEM file.
    #[must_use]
    pub fn trusting(ca: impl Into<PathBuf>) -> Self {
        TlsSettings { ca: Some(ca.into()), ..TlsSettings::default() }
    }

    /// Shows this certificate, whose key is in the second file, to servers that ask for one.
    #[must_use]
    pub fn with_identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.cert, self.key) = (Some(cert.into()), Some(key.into()));
        self
    }
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The password, kept out of `Debug`.
    pub password: String,
    /// Whether an etcd that asks for nobody is refused.
    pub required: bool,
}

impl Credentials {
    /// A user and the password.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Credentials { user: user.into(), password: password.into(), required: false }
    }

    /// What who has the token shows. An etcd that does not ask for it is not the one that was meant.
    #[must_use]
    pub fn token(token: &Token) -> Self {
        Credentials { required: true, ..Credentials::new(Token::USER, token.as_str()) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What the nodes of a run and their server know, and nobody else. Kept out of `Debug`.
///
/// ```
/// use rallypoint_core::Token;
///
/// let token = Token::new("correct horse battery")?;
/// assert!(!format!("{token:?}").contains("horse"));
/// assert!(Token::new("guessed").is_err());
/// # Ok::<(), rallypoint_core::TokenError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The user whose password it is.
    pub const USER: &'static str = "root";
    /// In bytes: shorter ones can be guessed.
    pub const SHORTEST: usize = 16;
    /// In bytes: what a server's hash of a password looks at.
    pub const LONGEST: usize = 72;

    /// Takes a text for a token, without the white space around it.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let is_sent = |letter: char| letter.is_ascii_graphic() || letter == ' ';
        match text.len() {
            0 => Err(TokenError::Empty),
            _ if !text.chars().all(is_sent) => Err(TokenError::NoAscii),
            length if length < Token::SHORTEST => Err(TokenError::Short(length)),
            length if length > Token::LONGEST => Err(TokenError::Long(length)),
            _ => Ok(Token(text.to_owned())),
        }
    }

    /// The text of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What is no token, and why. It follows what names the place of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is nothing in it.
    #[error("is empty: write a token of {} to {} characters", Token::SHORTEST, Token::LONGEST)]
    Empty,
    /// It is so long.
    #[error("has a token of {0} characters, which can be guessed: write {least} or more", least = Token::SHORTEST)]
    Short(usize),
    /// It is so long.
    #[error("has a token of {0} characters: it may have {most}", most = Token::LONGEST)]
    Long(usize),
    /// Not all of it can be sent in every protocol.
    #[error(
        "has a token with characters that are not of ASCII, or several lines: write one line of letters and digits"
    )]
    NoAscii,
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// TLS files were given, and an endpoint that does not use them.
    #[error("TLS is set, but the endpoint {0} says http: write https, or leave the scheme out")]
    PlainWithTls(Endpoint),
    /// Mutual TLS needs both files.
    #[error("the TLS certificate {} has no key: set the key file too", .0.display())]
    CertWithoutKey(PathBuf),
    /// Mutual TLS needs both files.
    #[error("the TLS key {} has no certificate: set the certificate file too", .0.display())]
    KeyWithoutCert(PathBuf),
    /// Zero would make every request fail.
    #[error("the {0} must be greater than zero")]
    ZeroTimeout(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let plain = EtcdSettings::new("http://a,b").unwrap();
        assert_eq!(plain.check(), Ok(()));
        assert_eq!(plain.urls(), ["http://a:2379", "http://b:2379"]);

        let tls = |tls| EtcdSettings { tls: Some(tls), ..EtcdSettings::new("a").unwrap() };
        let cert = TlsSettings { cert: Some("c.pem".into()), ..TlsSettings::default() };
        let key = TlsSettings { key: Some("k.pem".into()), ..TlsSettings::default() };
        let refused = |settings: EtcdSettings| settings.check().unwrap_err().to_string();
        assert!(
            refused(EtcdSettings { tls: Some(TlsSettings::default()), ..plain.clone() })
                .contains("http://a:2379")
        );
        assert!(refused(tls(cert)).contains("c.pem has no key"));
        assert!(refused(tls(key)).contains("k.pem has no certificate"));
        assert!(
            refused(EtcdSettings { request_timeout: Duration::ZERO, ..plain }).contains("request timeout")
        );
    }

    #[test]
    fn passwords_stay_out_of_debug() {
        let credentials = Credentials::new("root", "hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let token = Token::new(" correct horse battery\n").unwrap();
        assert_eq!(token.as_str(), "correct horse battery");
        assert!(!format!("{token:?} {:?}", Credentials::token(&token)).contains("horse"));
    }

    #[test]
    fn what_can_be_guessed_or_not_be_sent_is_no_token() {
        let refused = |text: &str| Token::new(text).unwrap_err().to_string();
        assert!(refused(" \n").contains("is empty"));
        assert!(refused("fifteen letters").contains("15 characters, which can be guessed"));
        assert!(refused(&"x".repeat(73)).contains("73 characters: it may have 72"));
        assert!(refused("one line here\nanother line").contains("several lines"));
        assert!(Token::new(&"x".repeat(72)).is_ok() && Token::new(&"x".repeat(16)).is_ok());
    }
}
