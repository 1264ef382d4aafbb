//! What an error of the gRPC client means for a caller.
//!
//! What matters most is whether the request may have been carried out: where in doubt, it may.

use std::error::Error as StdError;

use tonic::{Code, ConnectError, Status};

use crate::cause::bottom;
use crate::{Error, ErrorKind};

/// A failure of the gRPC client in the words of this crate, for who speaks to etcd without [`Client`](super::Client).
#[must_use]
pub fn raw_failure(what: &'static str, error: etcd_client::Error) -> Error {
    Error::new(classify(&error), what).because(Said(error))
}

pub(super) fn classify(error: &etcd_client::Error) -> ErrorKind {
    match error {
        etcd_client::Error::GRpcStatus(status) => classify_status(status),
        etcd_client::Error::TransportError(_) | etcd_client::Error::IoError(_) => ErrorKind::Unreachable,
        etcd_client::Error::LeaseKeepAliveError(text) if text == "lease not found" => {
            ErrorKind::LeaseNotFound
        }
        etcd_client::Error::WatchError(_) | etcd_client::Error::LeaseKeepAliveError(_) => {
            ErrorKind::Interrupted
        }
        etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_) => ErrorKind::Settings,
        _ => ErrorKind::Protocol,
    }
}

/// An error of the gRPC client in a few words; its own are a dump of everything down to the system's call.
#[derive(Debug)]
pub(super) struct Said(pub(super) etcd_client::Error);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            etcd_client::Error::GRpcStatus(status) => match (status.message(), status.source()) {
                (TRANSPORT, Some(source)) => write!(f, "{}", lost(source)),
                ("", _) => write!(f, "{}", status.code()),
                (message, _) if NO_GRPC.iter().any(|words| message.contains(words)) => {
                    f.write_str("it answers with HTTP and no gRPC, as an etcd's v2 API does, or a gateway")?;
                    let status = message.rsplit_once("HTTP status code ").map(|(_, status)| status);
                    status.map_or(Ok(()), |status| write!(f, " (status {status})"))
                }
                (message, _) => f.write_str(message),
            },
            etcd_client::Error::TransportError(error) => write!(f, "{}", lost(error)),
            other => write!(f, "{other}"),
        }
    }
}

impl StdError for Said {
    /// What is at the bottom of it: what lies between says no more.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            etcd_client::Error::GRpcStatus(status) => status.source().map(bottom).filter(says_something),
            etcd_client::Error::TransportError(_) => None,
            other => other.source(),
        }
    }
}

/// What the gRPC library says of an answer that is a text, such as `404 page not found`.
const NO_GRPC: [&str; 2] = ["invalid compression flag", "grpc-status header missing"];

/// What the libraries say of every failure that is not the server's.
const TRANSPORT: &str = "transport error";

fn says_something(error: &&(dyn StdError + 'static)) -> bool {
    error.to_string() != TRANSPORT
}

/// What became of a connection.
fn lost(error: &(dyn StdError + 'static)) -> String {
    let cause = Some(bottom(error)).filter(says_something);
    cause.map_or_else(|| "the connection was lost".to_owned(), ToString::to_string)
}

/// Whether a server said so: then its connection works.
pub(super) fn is_said_by_server(status: &Status) -> bool {
    status.source().is_none() && !status.message().contains("h2 protocol error")
}

/// Whether the server wants to be shown the password again: the token is no longer good, or its users have changed since,
/// or it did not ask for one before.
pub(super) fn wants_new_token(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else { return false };
    let says = |text: &str| status.message().contains(text);
    says("invalid auth token") || says("user name is empty") || says_outdated_login(status)
}

fn says_outdated_login(status: &Status) -> bool {
    status.message().contains("revision in header is old") || status.message().contains("auth store is old")
}

fn classify_status(status: &Status) -> ErrorKind {
    // Refused before anything was done; shown the password again, it may be accepted.
    if says_outdated_login(status) {
        return ErrorKind::Busy;
    }
    if let Some(kind) = never_sent(status) {
        return kind;
    }
    // The connection was given up, whatever code the library has for that.
    if status.message().contains("h2 protocol error") {
        return ErrorKind::Interrupted;
    }
    refusal(status).unwrap_or(match status.code() {
        Code::Unauthenticated => ErrorKind::Auth,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::Unavailable | Code::Cancelled | Code::Aborted | Code::Unknown | Code::Internal => {
            ErrorKind::Interrupted
        }
        _ => ErrorKind::Rejected,
    })
}

/// What etcd has refused, if it says so in words that we know: nothing was carried out. `etcd grpc-proxy` passes on the words
/// without the code.
fn refusal(status: &Status) -> Option<ErrorKind> {
    const KNOWN: [(Code, &str, ErrorKind); 16] = [
        (Code::Unavailable, "etcdserver: no leader", ErrorKind::Busy),
        (Code::Unavailable, "not supported for learner", ErrorKind::Learner),
        (Code::FailedPrecondition, "not supported for learner", ErrorKind::Learner),
        (Code::ResourceExhausted, "too many requests", ErrorKind::Busy),
        (Code::ResourceExhausted, "database space exceeded", ErrorKind::NoSpace),
        (Code::ResourceExhausted, "larger than max", ErrorKind::TooLarge),
        (Code::OutOfRange, "larger than max", ErrorKind::TooLarge),
        (Code::InvalidArgument, "request is too large", ErrorKind::TooLarge),
        (Code::InvalidArgument, "too many operations in txn", ErrorKind::Rejected),
        (Code::InvalidArgument, "authentication failed", ErrorKind::Auth),
        (Code::InvalidArgument, "user name is empty", ErrorKind::Auth),
        (Code::Unauthenticated, "invalid auth token", ErrorKind::Auth),
        (Code::PermissionDenied, "etcdserver: permission denied", ErrorKind::PermissionDenied),
        (Code::OutOfRange, "has been compacted", ErrorKind::Compacted),
        (Code::NotFound, "lease not found", ErrorKind::LeaseNotFound),
        (Code::FailedPrecondition, "lease already exists", ErrorKind::LeaseExists),
    ];
    let is = |code| status.code() == code || status.code() == Code::Unknown;
    let known = KNOWN.iter().find(|(code, text, _)| is(*code) && status.message().contains(text));
    known.map(|(_, _, kind)| *kind)
}

/// The kind of a failure to connect, if that is what it was: then no request went out.
fn never_sent(status: &Status) -> Option<ErrorKind> {
    let mut connecting = false;
    let mut source = status.source();
    while let Some(error) = source {
        connecting |= error.is::<ConnectError>();
        // Of a connection that closed before the request was handed to it.
        connecting |= error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled);
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<rustls::Error>()
            || inner.is_some_and(|inner| inner.is::<rustls::Error>() || is_complaint(&inner.to_string()))
        {
            return Some(ErrorKind::Tls);
        }
        source = error.source();
    }
    connecting.then_some(ErrorKind::Unreachable)
}

/// Whether this is a server's complaint about our certificate. With TLS 1.3 that comes after the handshake, and by then it
/// passes through the HTTP/2 library, which keeps nothing but the text of an error.
fn is_complaint(text: &str) -> bool {
    let alert = text.strip_prefix("received fatal alert: ");
    alert.is_some_and(|alert| alert.contains("Certificate") || ["UnknownCA", "AccessDenied"].contains(&alert))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_understood() {
        for (code, message, kind) in [
            (Code::Unavailable, "etcdserver: no leader", ErrorKind::Busy),
            (Code::Unavailable, "etcdserver: leader changed", ErrorKind::Interrupted),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", ErrorKind::Learner),
            (Code::Unavailable, "etcdserver: request timed out", ErrorKind::Interrupted),
            (Code::ResourceExhausted, "etcdserver: too many requests", ErrorKind::Busy),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", ErrorKind::NoSpace),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (3 vs. 2)",
                ErrorKind::TooLarge,
            ),
            (Code::InvalidArgument, "etcdserver: request is too large", ErrorKind::TooLarge),
            (Code::InvalidArgument, "etcdserver: key is not provided", ErrorKind::Rejected),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::Auth,
            ),
            (Code::Unauthenticated, "etcdserver: invalid auth token", ErrorKind::Auth),
            (Code::PermissionDenied, "etcdserver: permission denied", ErrorKind::PermissionDenied),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                ErrorKind::Compacted,
            ),
            (Code::NotFound, "etcdserver: requested lease not found", ErrorKind::LeaseNotFound),
            (Code::FailedPrecondition, "etcdserver: lease already exists", ErrorKind::LeaseExists),
            (Code::Unknown, "auth: revision in header is old", ErrorKind::Busy),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", ErrorKind::Busy),
            (Code::Unknown, "transport error", ErrorKind::Interrupted),
            (Code::Unknown, "etcdserver: requested lease not found", ErrorKind::LeaseNotFound),
            (Code::Unknown, "etcdserver: permission denied", ErrorKind::PermissionDenied),
            (Code::Unknown, "etcdserver: request timed out", ErrorKind::Interrupted),
            (Code::ResourceExhausted, "h2 protocol error: http2 error", ErrorKind::Interrupted),
            (Code::Unimplemented, "unknown service", ErrorKind::Rejected),
        ] {
            assert_eq!(classify_status(&Status::new(code, message)), kind, "{code:?} {message}");
        }
    }

    #[tokio::test]
    async fn a_failure_of_the_transport_is_told_by_its_cause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let refused = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap_err();
        let error = raw_failure("connect", etcd_client::Error::TransportError(refused));
        assert!(error.to_string().starts_with("etcd: connect: no connection: Connection refused"), "{error}");
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let mut status = Status::unknown(TRANSPORT);
        status.set_source(std::sync::Arc::new(gone));
        let error = raw_failure("get", etcd_client::Error::GRpcStatus(status));
        assert_eq!(error.to_string(), "etcd: get: interrupted before an answer came: broken pipe");
    }

    #[test]
    fn a_failed_connection_is_known_not_to_have_sent_anything() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert_eq!(classify_status(&status), ErrorKind::Unreachable);
        let handshake = std::io::Error::other(rustls::Error::HandshakeNotComplete);
        let status = Status::from_error(Box::new(ConnectError(Box::new(handshake))));
        assert_eq!(classify_status(&status), ErrorKind::Tls);
    }

    #[test]
    fn a_complaint_about_our_certificate_is_known_from_its_text_alone() {
        use rustls::AlertDescription::{CertificateRequired, InternalError, UnknownCA};
        for (alert, kind) in [
            (CertificateRequired, ErrorKind::Tls),
            (UnknownCA, ErrorKind::Tls),
            (InternalError, ErrorKind::Interrupted),
        ] {
            let text = rustls::Error::AlertReceived(alert).to_string();
            let heard = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
            assert_eq!(classify_status(&Status::from_error(Box::new(heard))), kind, "{alert:?}");
        }
    }
}
