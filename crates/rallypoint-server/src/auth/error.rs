//! What users are told, in etcd's own words: clients match on them.

use thiserror::Error;

/// Why a request was refused for who sent it, or why users and roles cannot be changed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum AuthError {
    #[error("etcdserver: root user does not exist")]
    NoRootUser,
    #[error("etcdserver: root user does not have root role")]
    NoRootRole,
    #[error("etcdserver: user name already exists")]
    UserExists,
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    #[error("etcdserver: user name not found")]
    UserNotFound,
    #[error("etcdserver: role name already exists")]
    RoleExists,
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    Failed,
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    #[error("etcdserver: authentication is not enabled")]
    NotEnabled,
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    #[error("etcdserver: invalid auth management")]
    InvalidManagement,
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// The words of Go's library.
    #[error("bcrypt: password length exceeds 72 bytes")]
    PasswordTooLong,
}
