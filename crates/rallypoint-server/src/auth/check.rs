//! Whether a request may be carried out, for who it is.

use etcd_client::proto::{
    PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};

use super::{Access, Auth, AuthError, Caller};
use crate::lease::Leases;
use crate::mvcc::Span;

/// Who a caller is.
#[derive(Debug)]
enum Who<'a> {
    /// Nobody asks for users.
    Anybody,
    /// It has shown nothing.
    Nobody,
    User(&'a str),
}

impl Auth {
    fn who<'a>(&'a self, caller: &'a Caller) -> Result<Who<'a>, AuthError> {
        if !self.enabled {
            return Ok(Who::Anybody);
        }
        if let Some((token, at)) = caller.token() {
            return self.tokens.user(token, at).map(Who::User).ok_or(AuthError::InvalidToken);
        }
        Ok(caller.certificate().map_or(Who::Nobody, Who::User))
    }

    /// Whether what it shows is good, if it shows anything.
    fn check_token(&self, caller: &Caller) -> Result<(), AuthError> {
        self.who(caller).map(drop)
    }

    /// Whether it is a user at all.
    pub(crate) fn check_known(&self, caller: &Caller) -> Result<(), AuthError> {
        match self.who(caller)? {
            Who::Anybody | Who::User(_) => Ok(()),
            Who::Nobody => Err(AuthError::UserEmpty),
        }
    }

    /// Whether it may manage users, and the server.
    pub(crate) fn check_admin(&self, caller: &Caller) -> Result<(), AuthError> {
        match self.who(caller)? {
            Who::Anybody => Ok(()),
            Who::Nobody => Err(AuthError::UserEmpty),
            Who::User(name) => match self.users.get(name) {
                None => Err(AuthError::UserNotFound),
                Some(known) if known.is_root() => Ok(()),
                Some(_) => Err(AuthError::PermissionDenied),
            },
        }
    }

    /// Whether it may be told about a user: itself, or any if it may manage them.
    pub(crate) fn check_user_get(&self, caller: &Caller, name: &str) -> Result<(), AuthError> {
        match self.who(caller)? {
            Who::User(own) if own == name => Ok(()),
            _ => self.check_admin(caller),
        }
    }

    /// The same for a role: one of its own.
    pub(crate) fn check_role_get(&self, caller: &Caller, role: &str) -> Result<(), AuthError> {
        match self.who(caller)? {
            Who::User(own) if self.users.get(own).is_some_and(|known| known.user.has(role)) => Ok(()),
            _ => self.check_admin(caller),
        }
    }

    pub(crate) fn check_range(&self, caller: &Caller, request: &PbRangeRequest) -> Result<(), AuthError> {
        self.check(caller, Access::Read, &Span::new(&request.key[..], &request.range_end[..]))
    }

    pub(crate) fn check_put(
        &self,
        caller: &Caller,
        request: &PbPutRequest,
        leases: &Leases,
    ) -> Result<(), AuthError> {
        let key = Span::One(&request.key[..]);
        self.check(caller, Access::Write, &key)?;
        // Who could not revoke a lease must not hang more on it.
        self.check_lease(caller, request.lease, leases)?;
        if request.prev_kv { self.check(caller, Access::Read, &key) } else { Ok(()) }
    }

    pub(crate) fn check_delete(&self, caller: &Caller, request: &PbDeleteRequest) -> Result<(), AuthError> {
        let span = Span::new(&request.key[..], &request.range_end[..]);
        self.check(caller, Access::Write, &span)?;
        if request.prev_kv { self.check(caller, Access::Read, &span) } else { Ok(()) }
    }

    /// All of it, whichever branches it takes.
    pub(crate) fn check_txn(
        &self,
        caller: &Caller,
        request: &PbTxnRequest,
        leases: &Leases,
    ) -> Result<(), AuthError> {
        if !self.enabled {
            return Ok(());
        }
        self.check_token(caller)?;
        for compare in &request.compare {
            self.check(caller, Access::Read, &Span::new(&compare.key[..], &compare.range_end[..]))?;
        }
        for PbTxnRequestOp { request } in request.success.iter().chain(&request.failure) {
            match request {
                Some(PbTxnOpRequest::RequestRange(range)) => self.check_range(caller, range)?,
                Some(PbTxnOpRequest::RequestPut(put)) => self.check_put(caller, put, leases)?,
                Some(PbTxnOpRequest::RequestDeleteRange(delete)) => self.check_delete(caller, delete)?,
                Some(PbTxnOpRequest::RequestTxn(nested)) => self.check_txn(caller, nested, leases)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Whether it may watch these keys.
    pub(crate) fn check_watch<T: AsRef<[u8]>>(
        &self,
        caller: &Caller,
        span: &Span<T>,
    ) -> Result<(), AuthError> {
        self.check(caller, Access::Read, span)
    }

    /// Whether it may write all keys of a lease, and so end it.
    pub(crate) fn check_lease(&self, caller: &Caller, id: i64, leases: &Leases) -> Result<(), AuthError> {
        self.check_keys_of(caller, Access::Write, id, leases)
    }

    /// Whether it may be told the keys of a lease.
    pub(crate) fn check_lease_keys(
        &self,
        caller: &Caller,
        id: i64,
        leases: &Leases,
    ) -> Result<(), AuthError> {
        self.check_keys_of(caller, Access::Read, id, leases)
    }

    /// Whether it may be told all leases: as in etcd, who may read all that hangs on them.
    pub(crate) fn check_leases(&self, caller: &Caller, leases: &Leases) -> Result<(), AuthError> {
        self.check_known(caller)?;
        if self.check_admin(caller).is_ok() {
            return Ok(());
        }
        leases.keys().try_for_each(|key| self.check(caller, Access::Read, &Span::One(key)))
    }

    fn check_keys_of(
        &self,
        caller: &Caller,
        access: Access,
        id: i64,
        leases: &Leases,
    ) -> Result<(), AuthError> {
        if !self.enabled {
            return Ok(());
        }
        self.check_known(caller)?;
        leases.keys_of(id).try_for_each(|key| self.check(caller, access, &Span::One(key)))
    }

    fn check<T: AsRef<[u8]>>(
        &self,
        caller: &Caller,
        access: Access,
        span: &Span<T>,
    ) -> Result<(), AuthError> {
        let known = match self.who(caller)? {
            Who::Anybody => return Ok(()),
            Who::Nobody => return Err(AuthError::UserEmpty),
            Who::User(name) => self.users.get(name).ok_or(AuthError::PermissionDenied)?,
        };
        let covered = match access {
            Access::Read => &known.reads,
            Access::Write => &known.writes,
        };
        if known.is_root() || covered.covers(span) { Ok(()) } else { Err(AuthError::PermissionDenied) }
    }
}
