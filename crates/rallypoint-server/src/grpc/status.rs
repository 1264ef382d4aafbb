//! Errors as gRPC has them.

use tonic::{Code, Status};

use crate::durable::Lost;
use crate::mvcc::Error;

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::EmptyKey
            | Error::KeyNotFound
            | Error::ValueProvided
            | Error::LeaseProvided
            | Error::TooManyOps
            | Error::DuplicateKey
            | Error::InvalidSortOption
            | Error::RequestTooLarge => Code::InvalidArgument,
            Error::Compacted | Error::FutureRevision | Error::LeaseTtlTooLarge => Code::OutOfRange,
            Error::LeaseNotFound => Code::NotFound,
            Error::LeaseExists => Code::FailedPrecondition,
            Error::NoSpace | Error::TooManyRequests | Error::AnswerTooLarge => Code::ResourceExhausted,
        };
        Status::new(code, error.to_string())
    }
}

impl From<Lost> for Status {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::NoSpace => Error::NoSpace.into(),
            Lost::Stopped => Status::unavailable("etcdserver: server stopped"),
        }
    }
}
