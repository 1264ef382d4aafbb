//! What clients and monitors ask about the server itself.

use axum::response::Response;
use http::request::Parts;
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::{Site, metrics, reply};
use crate::v2::{Action, Counts};

/// Serves every path but those of keys.
pub(super) async fn serve(site: &Site, path: &[u8], head: &Parts) -> Response {
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let from_cluster = |response| reply::from_cluster(site.keys.cluster_id(), response);
    let response = match path {
        b"/v2/machines" => reply::text(client_urls(site, host).join(", ")),
        b"/v2/members" | b"/v2/members/" => from_cluster(line(&json!({ "members": [member(site, host)] }))),
        b"/v2/members/leader" => from_cluster(line(&member(site, host))),
        b"/v2/stats/self" => object(&self_stats(site)),
        b"/v2/stats/leader" => object(&json!({ "leader": id(site), "followers": {} })),
        b"/v2/stats/store" => object(&store_stats(site)),
        b"/version" => reply::json(StatusCode::OK, versions(&site.keys.version())),
        b"/health" => health(site, head.uri.query().unwrap_or_default()).await,
        b"/metrics" => metrics::serve(site),
        path => match checks_of(path) {
            Some(checks) => checked(site, checks, head.uri.query().unwrap_or_default()).await,
            None => return reply::not_found(),
        },
    };
    let allowed: &[Method] = match path {
        b"/v2/machines" => &[Method::GET, Method::HEAD],
        _ => &[Method::GET],
    };
    reply::allow(&head.method, allowed).map_or_else(|refused| *refused, |()| response)
}

async fn health(site: &Site, query: &str) -> Response {
    let ill = site.keys.ill().await.filter(|why| !is_excluded(query, why.trim_start_matches(ALARM)));
    let (status, health) = match ill {
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "false"),
        None => (StatusCode::OK, "true"),
    };
    let body = json!({ "health": health, "reason": ill.unwrap_or_default() }).to_string();
    reply::text_with(status, body)
}

/// What stands before an alarm, where that is why a server is not well.
const ALARM: &str = "ALARM ";
/// What etcd looks at to tell whether a server lives, and whether it can be asked for something.
const LIVES: &[&str] = &["serializable_read"];
const IS_READY: &[&str] = &["non_learner", "data_corruption", "serializable_read", ASKS_OTHERS];
/// The one that may fail here: with a cluster behind.
const ASKS_OTHERS: &str = "linearizable_read";

/// The checks at a path: all of `/livez` or `/readyz`, or one of them.
fn checks_of(path: &[u8]) -> Option<&'static [&'static str]> {
    let path = std::str::from_utf8(path).ok()?;
    let (all, rest) = match path.strip_prefix("/livez") {
        Some(rest) => (LIVES, rest),
        None => (IS_READY, path.strip_prefix("/readyz")?),
    };
    if rest.is_empty() {
        return Some(all);
    }
    let name = rest.strip_prefix('/')?;
    all.iter().position(|check| *check == name).map(|at| &all[at..=at])
}

async fn checked(site: &Site, checks: &[&str], query: &str) -> Response {
    // An alarm is none of these checks.
    let ill = site.keys.ill().await.filter(|why| !why.starts_with(ALARM));
    let mut said = String::new();
    let mut is_well = true;
    for check in checks.iter().filter(|check| !is_excluded(query, check)) {
        match ill.as_ref().filter(|_| *check == ASKS_OTHERS) {
            Some(why) => {
                said.push_str(&format!("[-]{check} failed: {why}\n"));
                is_well = false;
            }
            None => said.push_str(&format!("[+]{check} ok\n")),
        }
    }
    if !is_well {
        return reply::plain(StatusCode::SERVICE_UNAVAILABLE, said);
    }
    let is_verbose = query.split('&').any(|pair| pair.split('=').next() == Some("verbose"));
    reply::plain(StatusCode::OK, if is_verbose { said + "ok\n" } else { "ok\n".to_owned() })
}

/// Whether the query says that this does not count.
fn is_excluded(query: &str, what: &str) -> bool {
    query.split('&').filter_map(|pair| pair.strip_prefix("exclude=")).any(|excluded| excluded == what)
}

fn object(value: &Value) -> Response {
    reply::json(StatusCode::OK, value.to_string())
}

fn line(value: &Value) -> Response {
    reply::json(StatusCode::OK, format!("{value}\n"))
}

fn id(site: &Site) -> String {
    format!("{:x}", site.identity.member_id)
}

/// The release of the server, and that of the cluster, which has no patch. In etcd's order.
fn versions(release: &str) -> String {
    let minor = release.rsplit_once('.').map_or(release, |(minor, _)| minor);
    format!("{{{},{}}}", field("etcdserver", release), field("etcdcluster", &format!("{minor}.0")))
}

fn field(name: &str, value: &str) -> String {
    format!("{}:{}", json!(name), json!(value))
}

fn member(site: &Site, host: Option<&str>) -> Value {
    let urls = client_urls(site, host);
    // No peers to talk to: what stands there is for show.
    json!({ "id": id(site), "name": site.identity.name, "peerURLs": urls, "clientURLs": urls })
}

fn client_urls(site: &Site, host: Option<&str>) -> Vec<String> {
    site.identity.client_urls.iter().map(|url| reachable(url, host)).collect()
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

fn self_stats(site: &Site) -> Value {
    let (started, uptime) = (site.started.to_string(), site.clock.now().since(site.started));
    json!({
        "name": site.identity.name,
        "id": id(site),
        "state": "StateLeader",
        "startTime": started,
        "leaderInfo": { "leader": id(site), "uptime": format!("{uptime:?}"), "startTime": started },
        "recvAppendRequestCnt": 0,
        "sendAppendRequestCnt": 0,
    })
}

fn store_stats(site: &Site) -> Value {
    let Counts { stats, watchers, .. } = site.keys.counts();
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
    fn checks_are_those_of_their_path() {
        assert_eq!((checks_of(b"/livez"), checks_of(b"/readyz")), (Some(LIVES), Some(IS_READY)));
        assert_eq!(checks_of(b"/readyz/data_corruption"), Some(&IS_READY[1..2]));
        for path in [&b"/readyz/"[..], b"/readyz/nothing", b"/livez/non_learner", b"/livezz", b"/"] {
            assert_eq!(checks_of(path), None);
        }
        assert!(is_excluded("verbose&exclude=NOSPACE", "NOSPACE") && !is_excluded("exclude=", "NOSPACE"));
    }

    #[test]
    fn the_version_of_the_cluster_has_no_patch() {
        assert_eq!(versions("3.5.30"), r#"{"etcdserver":"3.5.30","etcdcluster":"3.5.0"}"#);
    }
}
