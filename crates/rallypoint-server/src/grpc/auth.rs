//! The Auth service: users, roles and what they may do.

use std::time::Instant;

use etcd_client::proto::{
    PbAuthDisableRequest, PbAuthDisableResponse, PbAuthEnableRequest, PbAuthEnableResponse,
    PbAuthRoleAddRequest, PbAuthRoleAddResponse, PbAuthRoleDeleteRequest, PbAuthRoleDeleteResponse,
    PbAuthRoleGetRequest, PbAuthRoleGetResponse, PbAuthRoleGrantPermissionRequest,
    PbAuthRoleGrantPermissionResponse, PbAuthRoleListRequest, PbAuthRoleListResponse,
    PbAuthRoleRevokePermissionRequest, PbAuthRoleRevokePermissionResponse, PbAuthUserAddRequest,
    PbAuthUserAddResponse, PbAuthUserChangePasswordRequest, PbAuthUserChangePasswordResponse,
    PbAuthUserDeleteRequest, PbAuthUserDeleteResponse, PbAuthUserGetRequest, PbAuthUserGetResponse,
    PbAuthUserGrantRoleRequest, PbAuthUserGrantRoleResponse, PbAuthUserListRequest, PbAuthUserListResponse,
    PbAuthUserRevokeRoleRequest, PbAuthUserRevokeRoleResponse, PbAuthenticateRequest, PbAuthenticateResponse,
    PbResponseHeader,
};
use tonic::Status;

use super::call::{Call, OwnedCall};
use crate::auth::{self, Auth, AuthError, Caller, Permission};
use crate::durable::{Ticket, kept};
use crate::mvcc::Error;
use crate::shared::Shared;
use crate::state::State;

/// An answer, and the ticket that it must wait for.
type Kept<T> = (Result<T, Status>, Option<Ticket>);

/// How often a password is looked at anew because users have changed meanwhile.
const TRIES: usize = 8;

/// `etcdserverpb.AuthStatusRequest`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct StatusRequest {}

/// `etcdserverpb.AuthStatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<PbResponseHeader>,
    #[prost(bool, tag = "2")]
    enabled: bool,
    #[prost(uint64, tag = "3")]
    revision: u64,
}

pub(super) fn enable(call: Call<'_>, _: PbAuthEnableRequest) -> Kept<PbAuthEnableResponse> {
    let done = manage(call, State::manage, Auth::enable);
    told(done, |header| PbAuthEnableResponse { header })
}

pub(super) fn disable(call: Call<'_>, _: PbAuthDisableRequest) -> Kept<PbAuthDisableResponse> {
    let done = manage(call, State::manage, |auth| {
        auth.disable();
        Ok(())
    });
    told(done, |header| PbAuthDisableResponse { header })
}

pub(super) fn status(call: Call<'_>, _: StatusRequest) -> Kept<StatusResponse> {
    look(call, |auth, caller, header| {
        auth.check_admin(caller)?;
        Ok(StatusResponse { header, enabled: auth.is_enabled(), revision: auth.revision() })
    })
}

/// Checks a password and gives a token for it.
pub(super) async fn authenticate(
    call: OwnedCall,
    request: PbAuthenticateRequest,
) -> Result<PbAuthenticateResponse, Status> {
    let OwnedCall { shared, account, .. } = &call;
    for _ in 0..TRIES {
        let (proof, ticket) = shared.look(|state| state.auth.proof(&request.name));
        kept(ticket).await?;
        let proof = proof?;
        let password = request.password.clone();
        if !shared.passwords.matches(Some(account), password, proof.hash.clone()).await? {
            return Err(AuthError::Failed.into());
        }
        let token = shared.write(|state| {
            let token = state.auth.log_in(&request.name, &proof, Instant::now())?;
            Ok::<_, AuthError>(token.map(|token| (token, state.store.visible())))
        })?;
        if let Some((token, revision)) = token {
            return Ok(PbAuthenticateResponse { header: Some(shared.header_at(revision)), token });
        }
    }
    Err(Error::TooManyRequests.into())
}

pub(super) async fn user_add(
    call: OwnedCall,
    request: PbAuthUserAddRequest,
) -> Result<PbAuthUserAddResponse, Status> {
    let OwnedCall { shared, account, caller } = &call;
    // A hash takes long: who may not add a user gets none made.
    shared.read(|state| {
        state.auth.check_admin(caller)?;
        state.auth.check_user_add(&request.name)
    })?;
    let has_password = request.options.as_ref().is_none_or(|options| !options.no_password);
    let hash = match has_password {
        true => Some(shared.passwords.hash(account, request.password).await?),
        false => None,
    };
    let done = change(shared, caller, State::manage_more, |auth| auth.user_add(&request.name, hash));
    wait(told(done, |header| PbAuthUserAddResponse { header })).await
}

pub(super) async fn change_password(
    call: OwnedCall,
    request: PbAuthUserChangePasswordRequest,
) -> Result<PbAuthUserChangePasswordResponse, Status> {
    let OwnedCall { shared, account, caller } = &call;
    let has_password = shared.read(|state| {
        state.auth.check_admin(caller)?;
        state.auth.check_change_password(&request.name)
    })?;
    let hash = match has_password {
        true => Some(shared.passwords.hash(account, request.password).await?),
        false => None,
    };
    let done = change(shared, caller, State::manage, |auth| auth.change_password(&request.name, hash));
    wait(told(done, |header| PbAuthUserChangePasswordResponse { header })).await
}

pub(super) fn user_get(call: Call<'_>, request: &PbAuthUserGetRequest) -> Kept<PbAuthUserGetResponse> {
    look(call, |auth, caller, header| {
        auth.check_user_get(caller, &request.name)?;
        Ok(PbAuthUserGetResponse { header, roles: auth.user(&request.name)?.roles.clone() })
    })
}

pub(super) fn user_list(call: Call<'_>, _: PbAuthUserListRequest) -> Kept<PbAuthUserListResponse> {
    look(call, |auth, caller, header| {
        auth.check_admin(caller)?;
        let users = auth.users().map(|user| String::from_utf8_lossy(&user.name).into_owned());
        Ok(PbAuthUserListResponse { header, users: users.collect() })
    })
}

pub(super) fn user_delete(
    call: Call<'_>,
    request: &PbAuthUserDeleteRequest,
) -> Kept<PbAuthUserDeleteResponse> {
    let done = manage(call, State::manage, |auth| auth.user_delete(&request.name));
    told(done, |header| PbAuthUserDeleteResponse { header })
}

pub(super) fn grant_role(
    call: Call<'_>,
    request: &PbAuthUserGrantRoleRequest,
) -> Kept<PbAuthUserGrantRoleResponse> {
    let done = manage(call, State::manage_more, |auth| auth.grant_role(&request.user, &request.role));
    told(done, |header| PbAuthUserGrantRoleResponse { header })
}

pub(super) fn revoke_role(
    call: Call<'_>,
    request: &PbAuthUserRevokeRoleRequest,
) -> Kept<PbAuthUserRevokeRoleResponse> {
    let done = manage(call, State::manage, |auth| auth.revoke_role(&request.name, &request.role));
    told(done, |header| PbAuthUserRevokeRoleResponse { header })
}

pub(super) fn role_add(call: Call<'_>, request: &PbAuthRoleAddRequest) -> Kept<PbAuthRoleAddResponse> {
    let done = manage(call, State::manage_more, |auth| auth.role_add(&request.name));
    told(done, |header| PbAuthRoleAddResponse { header })
}

pub(super) fn role_get(call: Call<'_>, request: &PbAuthRoleGetRequest) -> Kept<PbAuthRoleGetResponse> {
    look(call, |auth, caller, header| {
        auth.check_role_get(caller, &request.role)?;
        let mut answer = PbAuthRoleGetResponse { header, perm: Vec::new() };
        auth::tell(&auth.permissions(&request.role)?, &mut answer);
        Ok(answer)
    })
}

pub(super) fn role_list(call: Call<'_>, _: PbAuthRoleListRequest) -> Kept<PbAuthRoleListResponse> {
    look(call, |auth, caller, header| {
        auth.check_admin(caller)?;
        let roles = auth.roles().map(|role| String::from_utf8_lossy(&role.name).into_owned());
        Ok(PbAuthRoleListResponse { header, roles: roles.collect() })
    })
}

pub(super) fn role_delete(
    call: Call<'_>,
    request: &PbAuthRoleDeleteRequest,
) -> Kept<PbAuthRoleDeleteResponse> {
    let done = manage(call, State::manage, |auth| auth.role_delete(&request.role));
    told(done, |header| PbAuthRoleDeleteResponse { header })
}

pub(super) fn grant_permission(
    call: Call<'_>,
    request: &PbAuthRoleGrantPermissionRequest,
) -> Kept<PbAuthRoleGrantPermissionResponse> {
    let granted = Permission::asked(request);
    let done = manage(call, State::manage_more, |auth| auth.grant_permission(&request.name, granted));
    told(done, |header| PbAuthRoleGrantPermissionResponse { header })
}

pub(super) fn revoke_permission(
    call: Call<'_>,
    request: PbAuthRoleRevokePermissionRequest,
) -> Kept<PbAuthRoleRevokePermissionResponse> {
    let PbAuthRoleRevokePermissionRequest { role, key, range_end } = request;
    let done = manage(call, State::manage, |auth| auth.revoke_permission(&role, &key, &range_end));
    told(done, |header| PbAuthRoleRevokePermissionResponse { header })
}

/// Looks at users and roles, which may not be on disk yet.
fn look<T>(
    call: Call<'_>,
    read: impl FnOnce(&Auth, &Caller, Option<PbResponseHeader>) -> Result<T, AuthError>,
) -> Kept<T> {
    let (answer, ticket) = call
        .shared
        .look(|state| read(&state.auth, call.caller, Some(call.shared.header_at(state.store.visible()))));
    (answer.map_err(Status::from), ticket)
}

/// A change of users and roles that was made, or why it was not.
type Done = (Result<PbResponseHeader, Status>, Option<Ticket>);

fn manage<F>(call: Call<'_>, how: impl FnOnce(&mut State, &Caller, F) -> Result<(), Error>, make: F) -> Done
where
    F: FnOnce(&mut Auth) -> Result<(), AuthError>,
{
    change(call.shared, call.caller, how, make)
}

fn change<F>(
    shared: &Shared,
    caller: &Caller,
    how: impl FnOnce(&mut State, &Caller, F) -> Result<(), Error>,
    make: F,
) -> Done
where
    F: FnOnce(&mut Auth) -> Result<(), AuthError>,
{
    let (done, ticket) = shared.change(|state| {
        how(state, caller, make)?;
        Ok::<_, Error>(shared.header_at(state.store.visible()))
    });
    (done.map_err(Status::from), ticket)
}

fn told<T>((done, ticket): Done, answer: impl FnOnce(Option<PbResponseHeader>) -> T) -> Kept<T> {
    (done.map(|header| answer(Some(header))), ticket)
}

async fn wait<T>((answer, ticket): Kept<T>) -> Result<T, Status> {
    kept(ticket).await?;
    answer
}
