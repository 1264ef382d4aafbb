//! Where a collector is, as people write it.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// Where signals of this kind go below the collector's URL.
const TRACES: &str = "/v1/traces";

/// The URL of a collector, `http://collector:4318`, as in `OTEL_EXPORTER_OTLP_ENDPOINT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(String);

/// What is no URL of a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no URL of a collector: write one like http://collector:4318")]
pub struct BadEndpoint(String);

impl Endpoint {
    /// Whether it speaks TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.0.starts_with("https:")
    }

    /// Where traces go.
    #[must_use]
    pub fn traces(&self) -> String {
        if self.0.ends_with(TRACES) { self.0.clone() } else { format!("{}{TRACES}", self.0) }
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.to_owned());
        let text = text.trim().trim_end_matches('/');
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        if !known || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(bad());
        }
        Ok(Endpoint(text.to_owned()))
    }
}

/// Without a name and a password, which may be in it.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), self.0.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => write!(f, "{scheme}://...@{place}"),
            _ => f.write_str(&self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let endpoint: Endpoint = "http://me:hunter2@collector:4318".parse().expect("it is a URL");
        assert_eq!(endpoint.to_string(), "http://...@collector:4318");
        assert!(endpoint.traces().contains("hunter2"));
    }

    #[test]
    fn a_collector_is_named_by_its_url() {
        for (text, traces) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("https://a/otlp/", "https://a/otlp/v1/traces"),
            ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().traces(), traces);
        }
        for text in ["", "collector:4318", "grpc://a:4317", "http://", "http://a?b=c", "a b"] {
            assert!(
                text.parse::<Endpoint>().unwrap_err().to_string().contains("http://collector:4318"),
                "{text}"
            );
        }
    }
}
