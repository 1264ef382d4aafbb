//! Where an etcd is: `host`, `host:port`, `http://host:port`, `[::1]:2379`, and comma-separated lists.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The port etcd serves clients on unless told otherwise.
pub const DEFAULT_PORT: u16 = 2379;

/// How an endpoint is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS.
    Https,
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// One etcd server.
///
/// ```
/// use rallypoint_core::Endpoint;
///
/// let endpoint: Endpoint = "etcd1".parse()?;
/// assert_eq!(endpoint.url(false), "http://etcd1:2379");
/// assert_eq!(endpoint.url(true), "https://etcd1:2379");
/// # Ok::<(), rallypoint_core::EndpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Only what was written: without a scheme, the TLS settings decide.
    pub scheme: Option<Scheme>,
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Defaults to [`DEFAULT_PORT`].
    pub port: u16,
}

impl Endpoint {
    /// The URL to connect to; `tls` says what an endpoint without a scheme means.
    #[must_use]
    pub fn url(&self, tls: bool) -> String {
        let scheme = self.scheme.unwrap_or(if tls { Scheme::Https } else { Scheme::Http });
        format!("{}://{}", scheme.as_str(), self.authority())
    }

    /// Host and port, without the scheme.
    #[must_use]
    pub fn authority(&self) -> String {
        host_and_port(&self.host, self.port)
    }
}

/// A host, which may be an IPv6 address, and a port, as they are written together.
#[must_use]
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{}://", scheme.as_str())?;
        }
        f.write_str(&self.authority())
    }
}

/// Why a text is not an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{given:?} is not an etcd endpoint: {problem} (write host, host:port or http(s)://host:port)")]
pub struct EndpointError {
    given: String,
    problem: String,
}

const NO_USERS: &str = "a user and a password are given apart from it";

/// Without a password that may be in it: errors go to logs.
fn shown(given: &str) -> String {
    let Some((before, host)) = given.rsplit_once('@') else { return given.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
    format!("{scheme}…@{host}")
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(given: &str) -> Result<Self, EndpointError> {
        let error = |problem: &str| EndpointError { given: shown(given), problem: problem.to_owned() };

        let text = given.trim();
        let (scheme, rest) = match text.split_once("://") {
            None => (None, text),
            Some(("http", rest)) => (Some(Scheme::Http), rest),
            Some(("https", rest)) => (Some(Scheme::Https), rest),
            Some((other, _)) => return Err(error(&format!("unknown scheme {other:?}"))),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err(error(NO_USERS));
        }
        if rest.contains(['/', '?', '#']) || rest.contains(char::is_whitespace) {
            return Err(error("only a host and a port belong there"));
        }

        let (host, port) = if let Some(rest) = rest.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(|| error("a bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(error("brackets are for IPv6 addresses"));
            }
            match after {
                "" => (host, None),
                after => {
                    (host, Some(after.strip_prefix(':').ok_or_else(|| error("a port begins with a colon"))?))
                }
            }
        } else {
            match rest.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(error("an IPv6 address goes in brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            }
        };
        if host.is_empty() {
            return Err(error("the host is missing"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(error(&format!("{port:?} is not a port (1 to 65535)"))),
                Ok(port) => port,
            },
        };
        Ok(Endpoint { scheme, host: host.to_owned(), port })
    }
}

/// One etcd cluster: its servers, in the order they are tried.
///
/// ```
/// use rallypoint_core::Endpoints;
///
/// let endpoints: Endpoints = "etcd1:2379, etcd2,etcd3".parse()?;
/// assert_eq!(endpoints.len(), 3);
/// # Ok::<(), rallypoint_core::EndpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    /// The servers; never none.
    #[must_use]
    pub fn as_slice(&self) -> &[Endpoint] {
        &self.0
    }

    /// How many servers; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromStr for Endpoints {
    type Err = EndpointError;

    fn from_str(given: &str) -> Result<Self, EndpointError> {
        if given.contains('@') {
            return Err(EndpointError { given: shown(given), problem: NO_USERS.to_owned() });
        }
        let mut endpoints = Vec::new();
        for one in given.split(',').filter(|one| !one.trim().is_empty()) {
            let endpoint: Endpoint = one.parse()?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        if endpoints.is_empty() {
            return Err(EndpointError { given: given.to_owned(), problem: "it is empty".to_owned() });
        }
        Ok(Endpoints(endpoints))
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, endpoint) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{endpoint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
        for (given, tls, url) in [
            ("etcd1", false, "http://etcd1:2379"),
            ("etcd1", true, "https://etcd1:2379"),
            ("etcd1:2380", false, "http://etcd1:2380"),
            (" http://etcd1:2380/ ", true, "http://etcd1:2380"),
            ("https://10.0.0.1", false, "https://10.0.0.1:2379"),
            ("[::1]", false, "http://[::1]:2379"),
            ("https://[fe80::1]:99", false, "https://[fe80::1]:99"),
        ] {
            assert_eq!(given.parse::<Endpoint>().unwrap().url(tls), url, "{given}");
        }
    }

    #[test]
    fn a_password_is_not_repeated() {
        for (given, said) in [("user:secret@a", "\"…@a\""), ("http://user:se@cret@a:1", "\"http://…@a:1\"")]
        {
            let error = given.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("are given apart from it"), "{error}");
            assert!(!error.contains("secret") && !error.contains("se@"), "{error}");
        }
        let error = "http://user:se,cret@a".parse::<Endpoints>().unwrap_err().to_string();
        assert!(!error.contains("se,") && !error.contains("cret"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, problem) in [
            ("", "the host is missing"),
            (":2379", "the host is missing"),
            ("a:0", "\"0\" is not a port"),
            ("a:", "\"\" is not a port"),
            ("a:65536", "\"65536\" is not a port"),
            ("a:b", "\"b\" is not a port"),
            ("ftp://a", "unknown scheme \"ftp\""),
            ("a/v2/keys", "only a host and a port"),
            ("::1", "IPv6 address goes in brackets"),
            ("[::1", "bracket is not closed"),
            ("[::1]2379", "begins with a colon"),
            ("[host]:1", "brackets are for IPv6"),
        ] {
            let error = given.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(problem), "{given:?}: {error}");
            assert!(error.contains(&format!("{given:?}")), "{given:?}: {error}");
        }
    }

    #[test]
    fn lists_keep_their_order_and_drop_repeats() {
        let endpoints: Endpoints = "b:1, a:2,,b:1".parse().unwrap();
        assert_eq!(endpoints.to_string(), "b:1,a:2");
        assert_eq!(endpoints.len(), 2);
        assert!(" , ".parse::<Endpoints>().unwrap_err().to_string().contains("it is empty"));
        assert!("a,b:x".parse::<Endpoints>().unwrap_err().to_string().contains("\"b:x\""));
    }
}
