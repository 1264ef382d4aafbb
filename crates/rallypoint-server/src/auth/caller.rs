//! Who asks.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};

/// Who sent a request, as far as it shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// A token, and when it was shown. It comes before the certificate.
    shown: Option<(HeaderValue, Instant)>,
    /// The name in the certificate of its connection, which was checked.
    certificate: Option<Arc<str>>,
}

impl Caller {
    /// From the headers of a request, and the certificate of its connection.
    pub(crate) fn of(headers: &HeaderMap, certificate: Option<&Arc<str>>) -> Self {
        // The second is what etcd's gateway makes of the first.
        let token = headers.get("token").or_else(|| headers.get("authorization"));
        Caller {
            shown: token.map(|token| (token.clone(), Instant::now())),
            certificate: certificate.map(Arc::clone),
        }
    }

    /// On a stream, each request shows the token anew.
    pub(crate) fn again(&mut self) {
        if let Some((_, at)) = &mut self.shown {
            *at = Instant::now();
        }
    }

    pub(super) fn token(&self) -> Option<(&[u8], Instant)> {
        self.shown.as_ref().map(|(token, at)| (token.as_bytes(), *at))
    }

    pub(super) fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }
}
