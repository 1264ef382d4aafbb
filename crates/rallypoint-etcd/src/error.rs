//! The one error of both clients: what was tried, on which key, at which endpoint, and why it failed.

use std::error::Error as StdError;
use std::fmt;

use rallypoint_core::text::Key;

use crate::v2;

/// Result of a request to etcd.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request to etcd that failed.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    what: &'static str,
    key: Option<Vec<u8>>,
    endpoint: Option<String>,
    tries: u32,
    /// An earlier try may have been carried out, whatever became of the last one.
    maybe_applied: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What went wrong, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Settings that cannot work, or a certificate file that cannot be read.
    Settings,
    /// No connection came about; the request was never sent.
    Unreachable,
    /// The two sides do not accept each other's certificates.
    Tls,
    /// The user or the password is wrong, or etcd wants one and none was given.
    Auth,
    /// The user may not touch that key.
    PermissionDenied,
    /// No answer in time. The request may have been carried out.
    Timeout,
    /// The connection broke, or the server gave up, after the request was sent. It may have been carried out.
    Interrupted,
    /// The server has no leader at the moment, or too much to do; it did not carry out the request.
    Busy,
    /// The server is a learner of its cluster, which serves no clients; it did not carry out the request.
    Learner,
    /// Larger than the server takes.
    TooLarge,
    /// The server's disk quota is used up.
    NoSpace,
    /// The revision asked for is no longer kept.
    Compacted,
    /// No such lease: it ended or was revoked.
    LeaseNotFound,
    /// The lease id is taken.
    LeaseExists,
    /// An error of the v2 API.
    V2(v2::Code),
    /// The server refused the request.
    Rejected,
    /// The answer makes no sense.
    Protocol,
}

impl ErrorKind {
    /// Whether the same request can succeed later, without anybody changing anything.
    #[must_use]
    pub fn is_transient(self) -> bool {
        match self {
            ErrorKind::Unreachable
            | ErrorKind::Timeout
            | ErrorKind::Interrupted
            | ErrorKind::Busy
            | ErrorKind::Learner => true,
            ErrorKind::V2(code) => code.is_transient(),
            _ => false,
        }
    }

    /// Whether the request may have been carried out although it failed.
    #[must_use]
    pub fn may_have_applied(self) -> bool {
        match self {
            ErrorKind::Timeout | ErrorKind::Interrupted | ErrorKind::Protocol => true,
            ErrorKind::V2(code) => code.is_transient(),
            _ => false,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Settings => "the settings cannot work",
            ErrorKind::Unreachable => "no connection",
            ErrorKind::Tls => "TLS failed",
            ErrorKind::Auth => "the user, password or token was not accepted",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::Timeout => "no answer in time",
            ErrorKind::Interrupted => "interrupted before an answer came",
            ErrorKind::Busy => "the server is busy or has no leader",
            ErrorKind::Learner => "the server is a learner of its cluster, which serves no clients",
            ErrorKind::TooLarge => "larger than the server takes in one request",
            ErrorKind::NoSpace => "the server's database is full (its quota is --quota-backend-bytes)",
            ErrorKind::Compacted => "that revision is no longer kept",
            ErrorKind::LeaseNotFound => "no such lease",
            ErrorKind::LeaseExists => "the lease id is taken",
            ErrorKind::V2(_) => "the v2 API refused",
            ErrorKind::Rejected => "refused",
            ErrorKind::Protocol => "the answer makes no sense",
        }
    }
}

/// What was being done when a file with a certificate or a key could not be used.
pub(crate) const LOAD_TLS_FILES: &str = "load TLS files";

impl Error {
    /// An error of `kind` while doing `what` ("put", "watch", ...).
    #[must_use]
    pub fn new(kind: ErrorKind, what: &'static str) -> Self {
        Error(Box::new(Inner {
            kind,
            what,
            key: None,
            endpoint: None,
            tries: 1,
            maybe_applied: false,
            source: None,
        }))
    }

    /// The key it was about.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// Where it was tried.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.0.endpoint = Some(endpoint.into());
        self
    }

    /// How often it was tried.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.0.tries = tries;
        self
    }

    /// Says that an earlier try of the same request may have been carried out.
    #[must_use]
    pub fn maybe_applied(mut self, maybe: bool) -> Self {
        self.0.maybe_applied |= maybe;
        self
    }

    /// What caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a file with a certificate or a key cannot be used.
    #[must_use]
    pub fn is_of_tls_files(&self) -> bool {
        self.0.what == LOAD_TLS_FILES
    }

    /// See [`ErrorKind::is_transient`].
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// Whether the request may have been carried out although it failed, by this try or an earlier one.
    #[must_use]
    pub fn may_have_applied(&self) -> bool {
        self.0.maybe_applied || self.0.kind.may_have_applied()
    }
}

/// What is said of an etcd that should ask for the token that was given, and does not.
pub(crate) const ASKS_NOBODY: &str = "it is open to all, and a token was given";

impl Error {
    /// Whether the etcd asks for nobody, where it should.
    #[must_use]
    pub fn asks_nobody(&self) -> bool {
        self.kind() == ErrorKind::Auth && self.is_caused_by(&[ASKS_NOBODY])
    }

    /// Whether the etcd asks who this is, and nothing was shown.
    #[must_use]
    pub fn shows_nobody(&self) -> bool {
        self.kind() == ErrorKind::Auth && self.is_caused_by(&["user name is empty"])
    }

    /// Whether a connection came about, and was closed before an etcd had said anything: what listens there speaks
    /// something else, TLS for instance, or is being started.
    #[must_use]
    pub fn hangs_up(&self) -> bool {
        // The words of the HTTP/2 library for what makes no sense to it, and for a connection that was given up for that.
        const CLOSED: [&str; 3] =
            ["connection error detected", "connection closed", "stream closed because of a broken pipe"];
        match self.kind() {
            // What an etcd says itself begins with its name.
            ErrorKind::Interrupted => !self.is_caused_by(&["etcdserver: "]),
            ErrorKind::Unreachable => self.is_caused_by(&CLOSED),
            _ => false,
        }
    }

    /// Whether TLS was spoken to somebody who does not speak it.
    #[must_use]
    pub fn speaks_no_tls(&self) -> bool {
        // An etcd without TLS closes the connection; others answer in plain words.
        const PLAIN: [&str; 2] = ["tls handshake eof", "received corrupt message of type InvalidContentType"];
        matches!(self.kind(), ErrorKind::Unreachable | ErrorKind::Tls) && self.is_caused_by(&PLAIN)
    }

    /// Whether one of these is in the words of a cause.
    fn is_caused_by(&self, words: &[&str]) -> bool {
        let mut cause = StdError::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if words.iter().any(|word| text.contains(word)) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// What is behind it, without what the causes repeat of each other, and without what only programmers look for.
    fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut source = StdError::source(self);
        while let Some(cause) = source {
            let text = plain(&cause.to_string());
            if text != CONNECTOR && causes.last().is_none_or(|last| !last.contains(&text)) {
                causes.push(text);
            }
            source = cause.source();
        }
        causes
    }

    /// Why, without what was tried and where.
    pub(crate) fn why(&self) -> String {
        let causes = self.causes().into_iter();
        std::iter::once(self.0.kind.as_str().to_owned()).chain(causes).collect::<Vec<_>>().join(": ")
    }
}

/// What is tried where there is no request yet.
pub(crate) const CONNECT: &str = "connect";

/// What hyper's connector says above the cause.
const CONNECTOR: &str = "tcp connect error";

/// The system's words without their number: `Connection refused (os error 111)`.
fn plain(cause: &str) -> String {
    match cause.rsplit_once(" (os error ") {
        Some((words, number)) if number.trim_end_matches(')').bytes().all(|byte| byte.is_ascii_digit()) => {
            words.to_owned()
        }
        _ => cause.to_owned(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (ErrorKind::Unreachable, CONNECT, Some(endpoint)) =
            (self.0.kind, self.0.what, &self.0.endpoint)
        {
            write!(f, "cannot reach etcd at {}", endpoint.strip_prefix("http://").unwrap_or(endpoint))?;
        } else {
            write!(f, "etcd: {}", self.0.what)?;
            if let Some(key) = &self.0.key {
                write!(f, " {}", Key(key))?;
            }
            if let Some(endpoint) = &self.0.endpoint {
                write!(f, " at {endpoint}")?;
            }
            write!(f, ": {}", self.0.kind.as_str())?;
        }
        if self.0.tries > 1 {
            write!(f, " ({} tries)", self.0.tries)?;
        }
        // The causes belong to the sentence: most callers print only this line.
        self.causes().into_iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_what_where_and_why() {
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unreachable, "put")
            .key(*b"/a\0b")
            .endpoint("http://etcd1:2379")
            .tries(3)
            .because(cause);
        assert_eq!(
            error.to_string(),
            r#"etcd: put "/a\x00b" at http://etcd1:2379: no connection (3 tries): connection refused"#
        );
        assert_eq!(StdError::source(&error).unwrap().to_string(), "connection refused");
    }

    #[test]
    fn whoever_cannot_connect_is_told_so_in_plain_words() {
        let refused = std::io::Error::from_raw_os_error(111);
        let error =
            Error::new(ErrorKind::Unreachable, CONNECT).endpoint("http://etcd1:2379").because(refused);
        assert_eq!(error.to_string(), "cannot reach etcd at etcd1:2379: Connection refused");
        assert_eq!(plain("odd (os error x)"), "odd (os error x)");
    }
}
