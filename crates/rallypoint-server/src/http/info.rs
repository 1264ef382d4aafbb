//! What clients and monitors ask about the server itself.

use axum::extract::Request;
use axum::response::Response;
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::service::Service;
use super::{metrics, reply};
use crate::identity::ETCD_VERSION;
use crate::v2::{Action, Stats};

/// Serves every path but those of keys.
pub(super) fn serve(service: &Service, path: &[u8], request: &Request) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let from_cluster = |response| reply::from_cluster(&service.identity, response);
    let response = match path {
        b"/v2/machines" => reply::text(client_urls(service, host).join(", ")),
        b"/v2/members" | b"/v2/members/" => {
            from_cluster(line(&json!({ "members": [member(service, host)] })))
        }
        b"/v2/members/leader" => from_cluster(line(&member(service, host))),
        b"/v2/stats/self" => object(&self_stats(service)),
        b"/v2/stats/leader" => object(&json!({ "leader": id(service), "followers": {} })),
        b"/v2/stats/store" => object(&store_stats(service)),
        b"/version" => object(&json!({ "etcdserver": ETCD_VERSION, "etcdcluster": cluster_version() })),
        b"/health" => health(service),
        b"/metrics" => metrics::serve(service),
        _ => return reply::not_found(),
    };
    let allowed: &[Method] = match path {
        b"/v2/machines" => &[Method::GET, Method::HEAD],
        _ => &[Method::GET],
    };
    reply::allow(request.method(), allowed).map_or_else(|refused| *refused, |()| response)
}

/// A server that takes nothing more in is not well, as etcd has it.
fn health(service: &Service) -> Response {
    let is_full = (service.v3.is_full)() || service.store().is_full();
    let (status, health, reason) = match is_full {
        true => (StatusCode::SERVICE_UNAVAILABLE, "false", "ALARM NOSPACE"),
        false => (StatusCode::OK, "true", ""),
    };
    reply::json(status, json!({ "health": health, "reason": reason }).to_string())
}

fn object(value: &Value) -> Response {
    reply::json(StatusCode::OK, value.to_string())
}

fn line(value: &Value) -> Response {
    reply::json(StatusCode::OK, format!("{value}\n"))
}

fn id(service: &Service) -> String {
    format!("{:x}", service.identity.member_id)
}

/// The release without its patch.
fn cluster_version() -> String {
    let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
    format!("{minor}.0")
}

fn member(service: &Service, host: Option<&str>) -> Value {
    let urls = client_urls(service, host);
    // No peers to talk to: what stands there is for show.
    json!({ "id": id(service), "name": service.identity.name, "peerURLs": urls, "clientURLs": urls })
}

fn client_urls(service: &Service, host: Option<&str>) -> Vec<String> {
    service.identity.client_urls.iter().map(|url| reachable(url, host)).collect()
}

/// The URL as this client can reach it. A server that listens everywhere has a URL that leads nowhere; but
/// the client has found it under the name in `Host`.
fn reachable(url: &str, host: Option<&str>) -> String {
    let Some(name) = host.map(host_name) else { return url.to_owned() };
    url.replace("://0.0.0.0:", &format!("://{name}:")).replace("://[::]:", &format!("://{name}:"))
}

/// The name without the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn self_stats(service: &Service) -> Value {
    let (started, uptime) = (service.started.to_string(), service.now().since(service.started));
    json!({
        "name": service.identity.name,
        "id": id(service),
        "state": "StateLeader",
        "startTime": started,
        "leaderInfo": { "leader": id(service), "uptime": format!("{uptime:?}"), "startTime": started },
        "recvAppendRequestCnt": 0,
        "sendAppendRequestCnt": 0,
    })
}

fn store_stats(service: &Service) -> Value {
    let (stats, watchers): (Stats, usize) = {
        let store = service.store();
        (store.stats().clone(), store.hub().count())
    };
    let mut json = serde_json::Map::new();
    for (action, name) in [
        (Action::Get, "gets"),
        (Action::Set, "sets"),
        (Action::Delete, "delete"),
        (Action::Update, "update"),
        (Action::Create, "create"),
        (Action::CompareAndSwap, "compareAndSwap"),
        (Action::CompareAndDelete, "compareAndDelete"),
    ] {
        json.insert(format!("{name}Success"), stats.of(action).success.into());
        json.insert(format!("{name}Fail"), stats.of(action).fail.into());
    }
    json.insert("expireCount".to_owned(), stats.of(Action::Expire).success.into());
    json.insert("watchers".to_owned(), watchers.into());
    Value::Object(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_no_part_of_the_name() {
        for (host, name) in [
            ("a:1", "a"),
            ("a", "a"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("10.0.0.1:2379", "10.0.0.1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn a_url_that_leads_nowhere_is_replaced_by_the_name_the_client_used() {
        for (url, host, wanted) in [
            ("http://0.0.0.0:2379", Some("node7:99"), "http://node7:2379"),
            ("https://[::]:2379", Some("[fe80::1]:99"), "https://[fe80::1]:2379"),
            ("http://10.0.0.1:2379", Some("node7"), "http://10.0.0.1:2379"),
            ("http://0.0.0.0:2379", None, "http://0.0.0.0:2379"),
        ] {
            assert_eq!(reachable(url, host), wanted);
        }
    }

    #[test]
    fn the_version_of_the_cluster_has_no_patch() {
        assert!(cluster_version().ends_with(".0") && cluster_version().matches('.').count() == 2);
    }
}
