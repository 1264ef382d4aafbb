//! Users, roles and permissions as etcd writes them: the messages of its `authpb`.

use std::fmt;

use etcd_client::proto::{PbAuthRoleGetResponse, PbAuthRoleGrantPermissionRequest};

/// A user. It does not print its password.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct User {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    /// The hash of its password.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) password: Vec<u8>,
    /// In order.
    #[prost(string, repeated, tag = "3")]
    pub(crate) roles: Vec<String>,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<UserOptions>,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        f.debug_struct("User").field("name", &name).field("roles", &self.roles).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct UserOptions {
    /// It is known by its certificate alone.
    #[prost(bool, tag = "1")]
    pub(crate) no_password: bool,
}

/// A role.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Role {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    /// In the order of their keys.
    #[prost(message, repeated, tag = "2")]
    pub(crate) permissions: Vec<Permission>,
}

/// What a role may do with a key, or with those up to an end.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Permission {
    /// One of `READ`, `WRITE` and `READWRITE`.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) range_end: Vec<u8>,
}

const READ: i32 = 0;
const WRITE: i32 = 1;
const READWRITE: i32 = 2;

/// What is done with keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Permission {
    /// All that the root role may do.
    pub(crate) fn root() -> Self {
        Permission { kind: READWRITE, key: Vec::new(), range_end: vec![0] }
    }

    pub(crate) fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => matches!(self.kind, READ | READWRITE),
            Access::Write => matches!(self.kind, WRITE | READWRITE),
        }
    }

    /// Whether there are keys that it is about.
    pub(crate) fn is_of_keys(&self) -> bool {
        let span = crate::mvcc::Span::new(&self.key[..], &self.range_end[..]);
        !self.key.is_empty() && !span.is_empty()
    }

    /// What a request asks to grant, if it says so.
    pub(crate) fn asked(request: &PbAuthRoleGrantPermissionRequest) -> Option<Self> {
        let asked = request.perm.as_ref()?;
        Some(Permission { kind: asked.perm_type, key: asked.key.clone(), range_end: asked.range_end.clone() })
    }
}

impl User {
    pub(crate) fn has(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    pub(crate) fn has_no_password(&self) -> bool {
        self.options.is_some_and(|options| options.no_password)
    }
}

/// Permissions in the answer about a role. The client's library does not name the type.
pub(crate) fn tell(permissions: &[Permission], answer: &mut PbAuthRoleGetResponse) {
    answer.perm.resize_with(permissions.len(), Default::default);
    for (told, permission) in answer.perm.iter_mut().zip(permissions) {
        told.perm_type = permission.kind;
        told.key.clone_from(&permission.key);
        told.range_end.clone_from(&permission.range_end);
    }
}
