//! What a failure of etcd is in v2.

use rallypoint_etcd::{Error as EtcdError, ErrorKind};

use crate::v2::{Code, Error};

/// The answer to a request that etcd did not carry out, or of which nobody knows.
pub(super) fn refused(error: &EtcdError) -> Error {
    let (code, cause) = match error.kind() {
        ErrorKind::Auth | ErrorKind::PermissionDenied => {
            (Code::Unauthorized, "Insufficient credentials".to_owned())
        }
        ErrorKind::NoSpace => (Code::Internal, "etcdserver: mvcc: database space exceeded".to_owned()),
        ErrorKind::TooLarge => (Code::Internal, "etcdserver: request is too large".to_owned()),
        _ => (Code::Internal, error.to_string()),
    };
    Error::new(code, cause, 0)
}
