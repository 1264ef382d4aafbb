//! The methods of one message each way, and what is said of those that are not served.

use tonic::Status;

use super::unary::{Handler, answer, answer_kept, answer_later};
use super::{admin, auth, election, hash, kv, lease, lock};

/// What answers a method.
pub(super) fn handler(path: &str) -> Option<Handler> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    match service {
        "etcdserverpb.KV" => of_kv(method),
        "etcdserverpb.Lease" => of_lease(method),
        "etcdserverpb.Maintenance" => of_maintenance(method),
        "etcdserverpb.Auth" => of_auth(method),
        "v3lockpb.Lock" => of_lock(method),
        "v3electionpb.Election" => of_election(method),
        _ => match path {
            "/etcdserverpb.Cluster/MemberList" => {
                Some(|call, message| answer(call, message, |ask| admin::members(call, ask)))
            }
            "/grpc.health.v1.Health/Check" => {
                Some(|call, message| answer(call, message, |ask| admin::health(&ask)))
            }
            _ => None,
        },
    }
}

fn of_kv(method: &str) -> Option<Handler> {
    Some(match method {
        "Range" => kv::range,
        "Put" => kv::put,
        "DeleteRange" => kv::delete,
        "Txn" => kv::txn,
        "Compact" => |call, message| answer_later(call, message, kv::compact),
        _ => return None,
    })
}

fn of_lease(method: &str) -> Option<Handler> {
    Some(match method {
        "LeaseGrant" => |call, message| answer_kept(call, message, |ask| lease::grant(call, ask)),
        "LeaseRevoke" => |call, message| answer_later(call, message, lease::revoke),
        "LeaseTimeToLive" => |call, message| answer_kept(call, message, |ask| lease::time_to_live(call, ask)),
        "LeaseLeases" => |call, message| answer_kept(call, message, |ask| lease::list(call, ask)),
        _ => return None,
    })
}

fn of_maintenance(method: &str) -> Option<Handler> {
    Some(match method {
        "Status" => |call, message| answer(call, message, |ask| admin::status(call, ask)),
        "Alarm" => |call, message| answer(call, message, |ask| admin::alarm(call, ask)),
        "Defragment" => |call, message| answer(call, message, |ask| admin::defragment(call, ask)),
        "MoveLeader" => |call, message| answer(call, message, |ask| admin::move_leader(call, ask)),
        "Hash" => |call, message| answer_later(call, message, hash::all),
        "HashKV" => |call, message| answer_later(call, message, hash::keys),
        _ => return None,
    })
}

fn of_auth(method: &str) -> Option<Handler> {
    Some(match method {
        "AuthEnable" => |call, message| answer_kept(call, message, |ask| auth::enable(call, ask)),
        "AuthDisable" => |call, message| answer_kept(call, message, |ask| auth::disable(call, ask)),
        "AuthStatus" => |call, message| answer_kept(call, message, |ask| auth::status(call, ask)),
        "Authenticate" => |call, message| answer_later(call, message, auth::authenticate),
        "UserAdd" => |call, message| answer_later(call, message, auth::user_add),
        "UserChangePassword" => |call, message| answer_later(call, message, auth::change_password),
        "UserGet" => |call, message| answer_kept(call, message, |ask| auth::user_get(call, &ask)),
        "UserList" => |call, message| answer_kept(call, message, |ask| auth::user_list(call, ask)),
        "UserDelete" => |call, message| answer_kept(call, message, |ask| auth::user_delete(call, &ask)),
        "UserGrantRole" => |call, message| answer_kept(call, message, |ask| auth::grant_role(call, &ask)),
        "UserRevokeRole" => |call, message| answer_kept(call, message, |ask| auth::revoke_role(call, &ask)),
        "RoleAdd" => |call, message| answer_kept(call, message, |ask| auth::role_add(call, &ask)),
        "RoleGet" => |call, message| answer_kept(call, message, |ask| auth::role_get(call, &ask)),
        "RoleList" => |call, message| answer_kept(call, message, |ask| auth::role_list(call, ask)),
        "RoleDelete" => |call, message| answer_kept(call, message, |ask| auth::role_delete(call, &ask)),
        "RoleGrantPermission" => {
            |call, message| answer_kept(call, message, |ask| auth::grant_permission(call, &ask))
        }
        "RoleRevokePermission" => {
            |call, message| answer_kept(call, message, |ask| auth::revoke_permission(call, ask))
        }
        _ => return None,
    })
}

fn of_lock(method: &str) -> Option<Handler> {
    Some(match method {
        "Lock" => |call, message| answer_later(call, message, lock::lock),
        "Unlock" => |call, message| answer_later(call, message, lock::unlock),
        _ => return None,
    })
}

fn of_election(method: &str) -> Option<Handler> {
    Some(match method {
        "Campaign" => |call, message| answer_later(call, message, election::campaign),
        "Proclaim" => |call, message| answer_later(call, message, election::proclaim),
        "Leader" => election::leader,
        "Resign" => |call, message| answer_later(call, message, election::resign),
        _ => return None,
    })
}

/// In the words of etcd's gRPC library, for what is not served.
pub(super) fn unknown(path: &str) -> Status {
    const SERVED: [&str; 9] = [
        "etcdserverpb.KV",
        "etcdserverpb.Watch",
        "etcdserverpb.Lease",
        "etcdserverpb.Maintenance",
        "etcdserverpb.Cluster",
        "etcdserverpb.Auth",
        "v3lockpb.Lock",
        "v3electionpb.Election",
        "grpc.health.v1.Health",
    ];
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    Status::unimplemented(if SERVED.contains(&service) {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    })
}
