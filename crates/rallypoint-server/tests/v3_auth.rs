//! Users, roles and permissions: the same calls to this server and to a real etcd get the same answers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::collections::HashMap;

use etcd_client::proto::{
    PbAlarmRequest, PbAuthDisableRequest, PbAuthEnableRequest, PbAuthRoleAddRequest, PbAuthRoleDeleteRequest,
    PbAuthRoleGetRequest, PbAuthRoleGrantPermissionRequest, PbAuthRoleListRequest,
    PbAuthRoleRevokePermissionRequest, PbAuthUserAddRequest, PbAuthUserChangePasswordRequest,
    PbAuthUserDeleteRequest, PbAuthUserGetRequest, PbAuthUserGrantRoleRequest, PbAuthUserListRequest,
    PbAuthUserRevokeRoleRequest, PbAuthenticateRequest, PbAuthenticateResponse, PbCompactionRequest,
    PbCompare, PbCompareTarget, PbDefragmentRequest, PbDeleteRequest, PbHashKvRequest, PbHashRequest,
    PbLeaseGrantRequest, PbLeaseLeasesRequest, PbLeaseRevokeRequest, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse, PbMemberListRequest, PbMoveLeaderRequest, PbPutRequest, PbRangeRequest,
    PbRangeResponse, PbStatusRequest, PbTargetUnion, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
    PbTxnResponse,
};
use prost::Message;
use rallypoint_server::Numbering;
use rallypoint_testkit::Version;
use v3_support::bytes::{Answer, ask};
use v3_support::{Raw, Target};

/// Both servers, and who has which token on each.
struct Pair {
    ours: Raw,
    etcd: Raw,
    tokens: HashMap<&'static str, [String; 2]>,
    asked: usize,
    /// Where they differ.
    differences: Vec<String>,
}

/// An answer without what differs between any two servers, in the order that our library writes fields.
fn plain(method: &str, answer: &[u8]) -> Vec<u8> {
    match method {
        // Sizes, ids, tokens and hashes of a server of its own.
        "Maintenance/Status" | "Maintenance/Hash" | "Cluster/MemberList" | "Auth/Authenticate" => Vec::new(),
        // An alarm is the id of a member, and its kind.
        "Maintenance/Alarm" => answer.iter().rev().take(2).copied().collect(),
        "KV/Range" => PbRangeResponse::decode(answer).unwrap().encode_to_vec(),
        "KV/Txn" => PbTxnResponse::decode(answer).unwrap().encode_to_vec(),
        "Lease/LeaseTimeToLive" => {
            let mut lease = PbLeaseTimeToLiveResponse::decode(answer).unwrap();
            lease.keys.sort();
            // They were not granted at the same moment.
            lease.ttl = lease.ttl.signum();
            lease.encode_to_vec()
        }
        _ => answer.to_vec(),
    }
}

impl Pair {
    /// Asks both. Who it is has logged in before, or is nobody, or shows a token that is none.
    async fn ask(&mut self, who: &'static str, method: &str, message: &impl Message) -> Answer {
        let path = match method.split_once('.') {
            Some(_) => format!("/{method}"),
            None => format!("/etcdserverpb.{method}"),
        };
        let tokens = self.tokens.get(who).map(|[ours, etcd]| (ours.clone(), etcd.clone()));
        let (one, other) = match (&tokens, who) {
            (Some((ours, etcd)), _) => (Some(ours.as_str()), Some(etcd.as_str())),
            (None, "wrong") => (Some("nobody.1"), Some("nobody.1")),
            _ => (None, None),
        };
        let message = message.encode_to_vec();
        let (mut ours, mut etcd) = tokio::join!(
            ask(&self.ours, &path, one, message.clone()),
            ask(&self.etcd, &path, other, message)
        );
        if method == "Auth/Authenticate"
            && let (Ok((_, ours)), Ok((_, etcd))) = (&ours, &etcd)
        {
            let token = |bytes: &[u8]| PbAuthenticateResponse::decode(bytes).unwrap().token;
            self.tokens.insert(who, [token(ours), token(etcd)]);
        }
        for (_, rest) in [&mut ours, &mut etcd].into_iter().flatten() {
            *rest = plain(method, rest);
        }
        self.asked += 1;
        if ours != etcd {
            self.differences.push(format!("{who} asks {method}:\n  ours {ours:?}\n  etcd {etcd:?}"));
        }
        ours
    }

    async fn log_in(&mut self, who: &'static str, name: &str, password: &str) -> Answer {
        let request = PbAuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        self.ask(who, "Auth/Authenticate", &request).await
    }

    /// Each member has an id of its own.
    async fn alarm(&mut self, who: &'static str, action: i32, alarm: i32) {
        let _ =
            self.ask(who, "Maintenance/Alarm", &PbAlarmRequest { action, alarm, ..Default::default() }).await;
    }

    /// What each may do with keys, leases and the server.
    async fn everything(&mut self) {
        for who in ["nobody", "wrong", "idle", "reader", "writer", "root"] {
            for (key, end) in [
                ("a", ""),
                ("a", "c"),
                ("a", "f"),
                ("b1", ""),
                ("p", "\0"),
                ("\0", "\0"),
                ("c", "d"),
                ("", ""),
            ] {
                let (key, range_end) = (key.into(), end.into());
                let _ =
                    self.ask(who, "KV/Range", &PbRangeRequest { key, range_end, ..Default::default() }).await;
            }
            for key in ["a", "c", "x"] {
                for prev_kv in [false, true] {
                    let _ = self.ask(who, "KV/Put", &PbPutRequest { prev_kv, ..put(key, 0) }).await;
                }
            }
            for (key, end, prev_kv) in
                [("cc", "cd", false), ("cc", "cd", true), ("a", "z", false), ("zz", "", false)]
            {
                let (key, range_end) = (key.into(), end.into());
                let _ = self.ask(who, "KV/DeleteRange", &PbDeleteRequest { key, range_end, prev_kv }).await;
            }
            for txn in transactions() {
                let _ = self.ask(who, "KV/Txn", &txn).await;
            }
            // 7 has a key of the writer's, 8 one that is nobody's, 9 none.
            for id in [7, 8, 9] {
                let _ = self.ask(who, "KV/Put", &put("c", id)).await;
                for keys in [false, true] {
                    let ttl = PbLeaseTimeToLiveRequest { id, keys };
                    let answer = self.ask(who, "Lease/LeaseTimeToLive", &ttl).await;
                    assert!(answer.is_err() || id == 9 || !answer.unwrap().1.is_empty());
                }
            }
            let _ = self.ask(who, "Lease/LeaseRevoke", &PbLeaseRevokeRequest { id: 8 }).await;
            let _ = self.ask(who, "Lease/LeaseRevoke", &PbLeaseRevokeRequest { id: 404 }).await;
            let _ = self.ask(who, "Lease/LeaseGrant", &PbLeaseGrantRequest { id: 9, ttl: 1000 }).await;
            let _ = self
                .ask(who, "KV/Compact", &PbCompactionRequest { revision: 1 << 40, physical: false })
                .await;
            let _ = self.ask(who, "Lease/LeaseLeases", &PbLeaseLeasesRequest {}).await;
            for (action, alarm) in [(0, 0), (1, 1), (0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (0, 0)] {
                self.alarm(who, action, alarm).await;
            }
            self.alarm("root", 2, 1).await;
            let _ = self.ask(who, "Maintenance/Status", &PbStatusRequest {}).await;
            let _ = self.ask(who, "Maintenance/Defragment", &PbDefragmentRequest {}).await;
            let _ = self.ask(who, "Maintenance/Hash", &PbHashRequest {}).await;
            let _ = self.ask(who, "Maintenance/HashKV", &PbHashKvRequest::default()).await;
            let _ = self.ask(who, "Maintenance/MoveLeader", &PbMoveLeaderRequest { target_id: 1 }).await;
            let _ = self.ask(who, "Cluster/MemberList", &PbMemberListRequest::default()).await;
            let _ = self.ask(who, "Auth/AuthStatus", &PbAuthEnableRequest {}).await;
            for name in ["reader", "root", "none"] {
                let _ = self.ask(who, "Auth/UserGet", &PbAuthUserGetRequest { name: name.to_owned() }).await;
            }
            for role in ["reads", "root", "none"] {
                let _ = self.ask(who, "Auth/RoleGet", &PbAuthRoleGetRequest { role: role.to_owned() }).await;
            }
            let _ = self.ask(who, "Auth/UserList", &PbAuthUserListRequest {}).await;
            let _ = self.ask(who, "Auth/RoleList", &PbAuthRoleListRequest {}).await;
        }
    }
}

fn put(key: &str, lease: i64) -> PbPutRequest {
    PbPutRequest { key: key.into(), value: "v".into(), lease, ..Default::default() }
}

fn transactions() -> Vec<PbTxnRequest> {
    let op = |request| vec![PbTxnRequestOp { request: Some(request) }];
    let range =
        |key: &str| PbTxnOpRequest::RequestRange(PbRangeRequest { key: key.into(), ..Default::default() });
    let compare = |key: &str| PbCompare {
        target: PbCompareTarget::Version as i32,
        key: key.into(),
        target_union: Some(PbTargetUnion::Version(1 << 40)),
        ..Default::default()
    };
    let delete = |key: &str, prev_kv| {
        PbTxnOpRequest::RequestDeleteRange(PbDeleteRequest { key: key.into(), prev_kv, ..Default::default() })
    };
    let nested = PbTxnRequest { failure: op(range("zz")), compare: vec![compare("a")], ..Default::default() };
    vec![
        PbTxnRequest { success: op(range("a")), ..Default::default() },
        PbTxnRequest { success: op(range("zz")), ..Default::default() },
        // The branch that is not taken counts too.
        PbTxnRequest { success: op(range("a")), failure: op(range("zz")), ..Default::default() },
        PbTxnRequest { compare: vec![compare("zz")], ..Default::default() },
        PbTxnRequest { success: op(PbTxnOpRequest::RequestPut(put("c", 0))), ..Default::default() },
        PbTxnRequest { success: op(PbTxnOpRequest::RequestPut(put("zz", 0))), ..Default::default() },
        PbTxnRequest { success: op(delete("cc", false)), ..Default::default() },
        PbTxnRequest { success: op(delete("cc", true)), ..Default::default() },
        PbTxnRequest { success: op(PbTxnOpRequest::RequestTxn(nested)), ..Default::default() },
        PbTxnRequest::default(),
    ]
}

fn permission(role: &str, kind: i32, key: &str, end: &str) -> PbAuthRoleGrantPermissionRequest {
    let mut request =
        PbAuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(Default::default()) };
    if let Some(perm) = &mut request.perm {
        (perm.perm_type, perm.key, perm.range_end) = (kind, key.into(), end.into());
    }
    request
}

fn user(name: &str, password: &str) -> PbAuthUserAddRequest {
    PbAuthUserAddRequest { name: name.to_owned(), password: password.to_owned(), ..Default::default() }
}

fn without_password(name: &str) -> PbAuthUserAddRequest {
    let mut request = PbAuthUserAddRequest { options: Some(Default::default()), ..user(name, "") };
    if let Some(options) = &mut request.options {
        options.no_password = true;
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_roles_are_those_of_etcd() {
    let etcd = Target::real(Version::V35);
    let ours = Target::ours_with(|config| config.numbering = Numbering::FromOne);
    let (ours, etcd) = (ours.client().await, etcd.client().await);
    let mut pair = Pair { ours, etcd, tokens: HashMap::new(), asked: 0, differences: Vec::new() };
    let pair = &mut pair;
    for key in ["a", "b1", "c", "p", "x"] {
        pair.ask("nobody", "KV/Put", &put(key, 0)).await.unwrap();
    }
    for (id, key) in [(7, "cl"), (8, "zl"), (9, "")] {
        pair.ask("nobody", "Lease/LeaseGrant", &PbLeaseGrantRequest { id, ttl: 1000 }).await.unwrap();
        if !key.is_empty() {
            pair.ask("nobody", "KV/Put", &put(key, id)).await.unwrap();
        }
    }

    manage_while_off(pair).await;
    // Who shows a token while nobody is asked for one has shown nothing.
    pair.ask("wrong", "KV/Range", &PbRangeRequest { key: "a".into(), ..Default::default() }).await.unwrap();
    pair.ask("nobody", "Auth/AuthEnable", &PbAuthEnableRequest {}).await.unwrap();

    for (name, password) in [("root", "no"), ("none", "r"), ("bare", "b"), ("bare", ""), ("", "")] {
        pair.log_in("refused", name, password).await.unwrap_err();
    }
    for name in ["root", "reader", "writer", "idle"] {
        pair.log_in(name, name, name).await.unwrap();
    }
    pair.everything().await;
    manage_while_on(pair).await;
    pair.ask("root", "Auth/AuthDisable", &PbAuthDisableRequest {}).await.unwrap();
    pair.ask("nobody", "Auth/AuthStatus", &PbAuthEnableRequest {}).await.unwrap();
    pair.ask("reader", "KV/Range", &PbRangeRequest { key: "zz".into(), ..Default::default() }).await.unwrap();
    assert!(
        pair.differences.is_empty(),
        "{} of {}:\n{}",
        pair.differences.len(),
        pair.asked,
        pair.differences.join("\n")
    );
}

/// Users and roles are made, with all that can be wrong about it.
async fn manage_while_off(pair: &mut Pair) {
    let who = "nobody";
    pair.ask(who, "Auth/AuthStatus", &PbAuthEnableRequest {}).await.unwrap();
    pair.log_in(who, "root", "root").await.unwrap_err();
    pair.ask(who, "Auth/AuthEnable", &PbAuthEnableRequest {}).await.unwrap_err();
    pair.ask(who, "Auth/AuthDisable", &PbAuthDisableRequest {}).await.unwrap();
    for (name, password) in
        [("root", "root"), ("reader", "reader"), ("writer", "writer"), ("idle", "idle"), ("gone", "gone")]
    {
        pair.ask(who, "Auth/UserAdd", &user(name, password)).await.unwrap();
    }
    pair.ask(who, "Auth/AuthEnable", &PbAuthEnableRequest {}).await.unwrap_err();
    pair.ask(who, "Auth/UserAdd", &without_password("bare")).await.unwrap();
    for wrong in [user("root", "again"), user("", "x"), user("long", &"x".repeat(73))] {
        pair.ask(who, "Auth/UserAdd", &wrong).await.unwrap_err();
    }
    for role in ["reads", "writes", "gone"] {
        pair.ask(who, "Auth/RoleAdd", &PbAuthRoleAddRequest { name: role.to_owned() }).await.unwrap();
    }
    for role in ["reads", ""] {
        pair.ask(who, "Auth/RoleAdd", &PbAuthRoleAddRequest { name: role.to_owned() }).await.unwrap_err();
    }
    for (role, kind, key, end) in [
        ("reads", 0, "a", "b"),
        ("reads", 0, "b", "c"),
        ("reads", 1, "p", "\0"),
        ("reads", 0, "p", "\0"),
        ("writes", 2, "c", "d"),
        ("writes", 1, "x", ""),
        ("writes", 0, "q", "r"),
        ("none", 0, "a", ""),
        ("writes", 0, "", ""),
        ("writes", 0, "", "\0"),
        ("writes", 0, "z", "a"),
        ("writes", 0, "z", "z"),
        ("writes", 7, "w", ""),
    ] {
        let _ = pair.ask(who, "Auth/RoleGrantPermission", &permission(role, kind, key, end)).await;
    }
    let nothing = PbAuthRoleGrantPermissionRequest { name: "writes".to_owned(), perm: None };
    pair.ask(who, "Auth/RoleGrantPermission", &nothing).await.unwrap_err();
    for (role, key, end) in
        [("writes", "q", "r"), ("writes", "q", "r"), ("none", "q", "r"), ("reads", "a", "")]
    {
        let (role, key, range_end) = (role.to_owned(), key.into(), end.into());
        let _ = pair
            .ask(
                who,
                "Auth/RoleRevokePermission",
                &PbAuthRoleRevokePermissionRequest { role, key, range_end },
            )
            .await;
    }
    for (user, role) in [
        ("root", "root"),
        ("reader", "reads"),
        ("reader", "reads"),
        ("reader", "gone"),
        ("writer", "writes"),
        ("none", "reads"),
        ("reader", "none"),
        ("idle", "gone"),
    ] {
        let (user, role) = (user.to_owned(), role.to_owned());
        let _ = pair.ask(who, "Auth/UserGrantRole", &PbAuthUserGrantRoleRequest { user, role }).await;
    }
    for (name, role) in [("idle", "gone"), ("idle", "gone"), ("none", "gone")] {
        let (name, role) = (name.to_owned(), role.to_owned());
        let _ = pair.ask(who, "Auth/UserRevokeRole", &PbAuthUserRevokeRoleRequest { name, role }).await;
    }
    for _ in 0..2 {
        let _ = pair.ask(who, "Auth/RoleDelete", &PbAuthRoleDeleteRequest { role: "gone".to_owned() }).await;
        let _ = pair.ask(who, "Auth/UserDelete", &PbAuthUserDeleteRequest { name: "gone".to_owned() }).await;
    }
    for name in ["bare", "none"] {
        let request = PbAuthUserChangePasswordRequest {
            name: name.to_owned(),
            password: "new".to_owned(),
            ..Default::default()
        };
        let _ = pair.ask(who, "Auth/UserChangePassword", &request).await;
    }
    for role in ["root", "reads", "writes"] {
        let _ = pair.ask(who, "Auth/RoleGet", &PbAuthRoleGetRequest { role: role.to_owned() }).await;
    }
    pair.ask(who, "Auth/UserGet", &PbAuthUserGetRequest { name: "reader".to_owned() }).await.unwrap();
    pair.ask(who, "Auth/AuthStatus", &PbAuthEnableRequest {}).await.unwrap();
}

/// What may not be taken from root, and what becomes of a token when its user changes.
async fn manage_while_on(pair: &mut Pair) {
    for who in ["reader", "nobody", "wrong", "root"] {
        pair.ask(who, "Auth/UserDelete", &PbAuthUserDeleteRequest { name: "root".to_owned() })
            .await
            .unwrap_err();
        let role = PbAuthUserRevokeRoleRequest { name: "root".to_owned(), role: "root".to_owned() };
        pair.ask(who, "Auth/UserRevokeRole", &role).await.unwrap_err();
        pair.ask(who, "Auth/RoleDelete", &PbAuthRoleDeleteRequest { role: "root".to_owned() })
            .await
            .unwrap_err();
        let _ = pair.ask(who, "Auth/UserAdd", &user("late", "late")).await;
    }
    pair.ask("root", "Auth/AuthEnable", &PbAuthEnableRequest {}).await.unwrap();
    let read = PbRangeRequest { key: "a".into(), ..Default::default() };
    // A permission is gone at once, and is back at once.
    let (key, range_end) = ("a".into(), "b".into());
    let revoke = PbAuthRoleRevokePermissionRequest { role: "reads".to_owned(), key, range_end };
    pair.ask("root", "Auth/RoleRevokePermission", &revoke).await.unwrap();
    pair.ask("reader", "KV/Range", &read).await.unwrap_err();
    pair.ask("root", "Auth/RoleGrantPermission", &permission("reads", 0, "a", "b")).await.unwrap();
    pair.ask("reader", "KV/Range", &read).await.unwrap();
    let password = PbAuthUserChangePasswordRequest {
        name: "reader".to_owned(),
        password: "new".to_owned(),
        ..Default::default()
    };
    pair.ask("root", "Auth/UserChangePassword", &password).await.unwrap();
    pair.ask("reader", "KV/Range", &read).await.unwrap_err();
    pair.log_in("reader", "reader", "reader").await.unwrap_err();
    pair.log_in("reader", "reader", "new").await.unwrap();
    pair.ask("reader", "KV/Range", &read).await.unwrap();
    pair.ask("root", "Auth/UserDelete", &PbAuthUserDeleteRequest { name: "writer".to_owned() })
        .await
        .unwrap();
    pair.ask("writer", "KV/Put", &put("c", 0)).await.unwrap_err();
}
