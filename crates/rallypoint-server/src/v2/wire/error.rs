//! The errors of the v2 API.

use bytes::Bytes;
use http::StatusCode;

use super::json;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// What a request failed of, as etcd numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    KeyNotFound = 100,
    CompareFailed = 101,
    NotFile = 102,
    NotDirectory = 104,
    KeyExists = 105,
    RootReadOnly = 107,
    DirectoryNotEmpty = 108,
    Unauthorized = 110,
    PrevValueRequired = 201,
    TtlNotANumber = 202,
    IndexNotANumber = 203,
    InvalidField = 209,
    InvalidForm = 210,
    ValueOnRefresh = 211,
    TtlRequiredOnRefresh = 212,
    Internal = 300,
    EventIndexCleared = 401,
}

impl Code {
    fn message(self) -> &'static str {
        match self {
            Code::KeyNotFound => "Key not found",
            Code::CompareFailed => "Compare failed",
            Code::NotFile => "Not a file",
            Code::NotDirectory => "Not a directory",
            Code::KeyExists => "Key already exists",
            Code::RootReadOnly => "Root is read only",
            Code::DirectoryNotEmpty => "Directory not empty",
            Code::Unauthorized => "The request requires user authentication",
            Code::PrevValueRequired => "PrevValue is Required in POST form",
            Code::TtlNotANumber => "The given TTL in POST form is not a number",
            Code::IndexNotANumber => "The given index in POST form is not a number",
            Code::InvalidField => "Invalid field",
            Code::InvalidForm => "Invalid POST form",
            Code::ValueOnRefresh => "Value provided on refresh",
            Code::TtlRequiredOnRefresh => "A TTL must be provided on refresh",
            Code::Internal => "Raft Internal Error",
            Code::EventIndexCleared => "The event in requested index is outdated and cleared",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Code::KeyNotFound => StatusCode::NOT_FOUND,
            Code::CompareFailed | Code::KeyExists => StatusCode::PRECONDITION_FAILED,
            Code::NotFile | Code::DirectoryNotEmpty => StatusCode::FORBIDDEN,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// An error as it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) code: Code,
    /// What the code is about: most often a key, as raw as keys are.
    pub(crate) cause: Vec<u8>,
    /// The index of the tree, 0 where the request never came so far.
    pub(crate) index: u64,
}

impl Error {
    /// An error of the tree, which is at `index`.
    pub(crate) fn new(code: Code, cause: impl Into<Vec<u8>>, index: u64) -> Self {
        Error { code, cause: cause.into(), index }
    }

    /// A request that makes no sense.
    pub(crate) fn parse(code: Code, cause: impl Into<Vec<u8>>) -> Self {
        Error::new(code, cause, 0)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.code.status()
    }

    pub(crate) fn to_json(&self) -> Bytes {
        let mut out = format!("{{\"errorCode\":{},\"message\":", self.code as u16).into_bytes();
        json::push_string(&mut out, self.code.message().as_bytes());
        if !self.cause.is_empty() {
            out.extend_from_slice(b",\"cause\":");
            json::push_string(&mut out, &self.cause);
        }
        out.extend_from_slice(format!(",\"index\":{}}}\n", self.index).as_bytes());
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_status_that_etcd_gives_them() {
        use Code::*;
        for (status, codes) in [
            (404, &[KeyNotFound][..]),
            (412, &[CompareFailed, KeyExists]),
            (403, &[NotFile, DirectoryNotEmpty]),
            (400, &[NotDirectory, RootReadOnly, PrevValueRequired, TtlNotANumber, IndexNotANumber]),
            (400, &[InvalidField, InvalidForm, ValueOnRefresh, TtlRequiredOnRefresh, EventIndexCleared]),
            (401, &[Unauthorized]),
            (500, &[Internal]),
        ] {
            for code in codes {
                assert_eq!(code.status().as_u16(), status, "{code:?}");
            }
        }
    }

    #[test]
    fn an_empty_cause_is_left_out() {
        let error = Error::new(Code::NotFile, "/a", 7);
        let json = "{\"errorCode\":102,\"message\":\"Not a file\",\"cause\":\"/a\",\"index\":7}\n";
        assert_eq!(error.to_json(), json);
        let json = "{\"errorCode\":102,\"message\":\"Not a file\",\"index\":0}\n";
        assert_eq!(Error::parse(Code::NotFile, "").to_json(), json);
    }
}
