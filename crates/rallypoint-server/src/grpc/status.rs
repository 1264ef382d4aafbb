//! Errors as gRPC has them.

use tonic::{Code, Status};

use crate::auth::AuthError;
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
            Error::Auth(error) => code_of(error),
        };
        Status::new(code, error.to_string())
    }
}

/// What etcd answers.
fn code_of(error: AuthError) -> Code {
    match error {
        AuthError::NoRootUser
        | AuthError::NoRootRole
        | AuthError::UserExists
        | AuthError::UserNotFound
        | AuthError::RoleExists
        | AuthError::RoleNotFound
        | AuthError::RoleNotGranted
        | AuthError::PermissionNotGranted
        | AuthError::NotEnabled => Code::FailedPrecondition,
        AuthError::UserEmpty
        | AuthError::RoleEmpty
        | AuthError::Failed
        | AuthError::PermissionNotGiven
        | AuthError::TooLarge
        | AuthError::InvalidManagement => Code::InvalidArgument,
        AuthError::PermissionDenied => Code::PermissionDenied,
        AuthError::InvalidToken => Code::Unauthenticated,
        AuthError::NoPasswordUser | AuthError::PasswordTooLong => Code::Unknown,
    }
}

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        Error::from(error).into()
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
