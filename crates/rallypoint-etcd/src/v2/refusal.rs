//! What the v2 API says when it refuses.

use std::error::Error as StdError;
use std::fmt;

use serde::Deserialize;

use super::Code;
use crate::error::{Error, ErrorKind};

/// The server's own words; the cause of an [`Error`] of kind [`ErrorKind::V2`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// What kind of refusal.
    #[serde(rename = "errorCode")]
    pub code: Code,
    /// The server's sentence for the code.
    #[serde(default)]
    pub message: String,
    /// What it was about; for a comparison, `[what was expected != what is there]`.
    #[serde(default)]
    pub cause: String,
    /// The index of the whole store; 0 where the server did not look.
    #[serde(default)]
    pub index: u64,
}

impl Refusal {
    /// The refusal behind `error`, if the server sent one.
    #[must_use]
    pub fn of(error: &Error) -> Option<&Refusal> {
        StdError::source(error)?.downcast_ref()
    }

    /// The refusal in the body of a reply, if that is what it is.
    pub(super) fn parse(body: &[u8]) -> Option<Refusal> {
        let mut refusal: Refusal = serde_json::from_slice(body).ok()?;
        // etcd 3.5 wraps what a refresh of a directory comes to as if the servers had failed to agree. Without
        // looking closer it would be tried again for ever.
        if refusal.code == Code::RaftInternal && refusal.cause.contains("Not a file") {
            refusal.code = Code::NotAFile;
        }
        Some(refusal)
    }

    pub(super) fn kind(&self) -> ErrorKind {
        match self.code {
            // The server says the same for a wrong password and for a key the user may not touch.
            Code::Unauthorized => ErrorKind::Auth,
            Code::InvalidForm if self.cause.contains("too large") => ErrorKind::TooLarge,
            // All causes that time or another server can mend come from the package that names itself so.
            Code::RaftInternal if !self.cause.starts_with("etcdserver: ") => ErrorKind::Rejected,
            code => ErrorKind::V2(code),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.cause.is_empty() {
            write!(f, ": {}", self.cause)?;
        }
        Ok(())
    }
}

impl StdError for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: u32, cause: &str) -> ErrorKind {
        let body = format!(r#"{{"errorCode":{code},"message":"m","cause":"{cause}","index":3}}"#);
        Refusal::parse(body.as_bytes()).unwrap().kind()
    }

    #[test]
    fn only_what_can_pass_is_transient() {
        let timed_out = kind(300, "etcdserver: request timed out, possibly due to previous leader failure");
        assert!(timed_out.is_transient() && timed_out.may_have_applied());
        assert_eq!(kind(300, "nodePath /1/dd : Not a file ()"), ErrorKind::V2(Code::NotAFile));
        assert_eq!(kind(300, "something new"), ErrorKind::Rejected);
        assert_eq!(kind(210, "http: POST too large"), ErrorKind::TooLarge);
        assert_eq!(kind(210, "missing form body"), ErrorKind::V2(Code::InvalidForm));
        assert_eq!(kind(110, "Insufficient credentials"), ErrorKind::Auth);
    }

    #[test]
    fn what_is_no_refusal_is_none() {
        assert_eq!(Refusal::parse(b"404 page not found"), None);
        assert_eq!(Refusal::parse(br#"{"message":"Not found"}"#), None);
    }
}
