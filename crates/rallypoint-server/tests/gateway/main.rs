//! Gateways: several of them are one v2 etcd, whatever becomes of each. What is the same as in etcd's own v2 is for the
//! conformance list, the random runs and the tests of watches to say, which all have a gateway among their servers.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod faults;
mod history;
#[path = "../v2_support/mod.rs"]
mod v2_support;

use std::time::Duration;

use rallypoint_core::{Credentials, EtcdSettings, TlsSettings};
use rallypoint_etcd::v2::Client;
use rallypoint_server::{Config, GatewayConfig, Server, Tls};
use rallypoint_testkit::{Certs, Etcd, Version};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::timeout;
use v2_support::{Answer, TIMEOUT, Target};

/// An etcd, off the thread of the runtime.
async fn etcd(version: Version) -> Etcd {
    tokio::task::spawn_blocking(move || Etcd::start(version)).await.unwrap()
}

async fn etcdctl(etcd: &Etcd, args: &[&str]) -> String {
    tokio::task::block_in_place(|| etcd.etcdctl(args))
}

/// An event as `action key modifiedIndex`.
fn summary(event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap_or_else(|error| panic!("{error}: {event:?}"));
    let (action, node) = (event["action"].as_str().unwrap(), &event["node"]);
    format!("{action} {} {}", node["key"].as_str().unwrap_or("/"), node["modifiedIndex"])
}

async fn only_event(watch: Response) -> String {
    summary(&Answer::read(watch).await.body)
}

/// The next lines of a stream.
async fn lines(stream: &mut Response, count: usize) -> Vec<String> {
    let mut text = Vec::new();
    while text.iter().filter(|&&byte| byte == b'\n').count() < count {
        let chunk = timeout(TIMEOUT, stream.chunk()).await.expect("an event in time").unwrap();
        text.extend(chunk.expect("the stream goes on"));
    }
    String::from_utf8(text).unwrap().lines().map(summary).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_directory_or_a_file_is_one_event_on_every_gateway() {
    let etcd = etcd(Version::V34).await;
    let (one, two) = (Target::gateway_to(&etcd.endpoint()).await, Target::gateway_to(&etcd.endpoint()).await);
    one.put("/d", "dir=true&ttl=3").await;
    one.put("/d/a/b", "value=1").await;
    two.put("/d/own", "value=1&ttl=100").await;
    two.put("/file", "value=1&ttl=3").await;
    let mut ends = Vec::new();
    for gateway in [&one, &two] {
        for (key, fields) in
            [("/d/a/b", ""), ("/d/a", "recursive=true"), ("/d", ""), ("/d/own", "stream=true")]
        {
            ends.push(gateway.watch(key, fields).await);
        }
    }
    let files = [one.watch("/file", "").await, two.watch("", "recursive=true&waitIndex=1").await];
    let mut all = two.watch("", "recursive=true&stream=true").await;
    let mut seen = lines(&mut all, 2).await;
    seen.sort();
    assert!(seen[0].starts_with("expire /d ") && seen[1].starts_with("expire /file "), "{seen:?}");
    for mut end in ends {
        assert_eq!(lines(&mut end, 1).await, seen[..1]);
    }
    let [file, past] = files;
    assert_eq!(only_event(file).await, seen[1]);
    assert!(only_event(past).await.starts_with("set /d "));
    for gateway in [&one, &two] {
        assert_eq!(gateway.get("/d/own", "").await.status, 404);
        assert_eq!(gateway.get("/d", "").await.status, 404);
    }
    // Nothing of it is left, nor comes back with the next of its name.
    let left = etcdctl(&etcd, &["get", "/v2/", "--prefix", "--keys-only"]).await;
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["/v2/action"]);
    two.put("/d", "dir=true").await;
    assert!(!two.get("", "recursive=true").await.body.contains("own"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_kept_until_it_is_compacted_for_a_gateway_that_was_not_there_too() {
    let etcd = etcd(Version::V35).await;
    let one = Target::gateway_to(&etcd.endpoint()).await;
    let at = one.put("/a", "value=0").await.index.unwrap();
    for value in 1..=3 {
        one.put("/a", &format!("value={value}&ttl=100")).await;
        one.put("/a", "refresh=true&ttl=100&prevExist=true").await;
    }
    one.put("/d/_h", "value=1").await;
    one.delete("/d", "recursive=true").await;
    let two = Target::gateway_to(&etcd.endpoint()).await;
    let since = |offset: u64| format!("waitIndex={}", at + offset);
    for gateway in [&one, &two] {
        assert_eq!(only_event(gateway.watch("/a", &since(0)).await).await, format!("set /a {at}"));
        // A refresh is told to nobody.
        assert_eq!(only_event(gateway.watch("/a", &since(2)).await).await, format!("set /a {}", at + 3));
        let mut stream = gateway.watch("", &format!("recursive=true&stream=true&{}", since(1))).await;
        let wanted = ["set /a", "set /a", "set /a", "set /d/_h", "delete /d"].map(str::to_owned);
        let seen = lines(&mut stream, 5).await;
        let of = |seen: &String| seen.rsplit_once(' ').unwrap().0.to_owned();
        assert_eq!(seen.iter().map(of).collect::<Vec<_>>(), wanted);
        // And goes on with what comes.
        let next = gateway.put("/d/_h", "value=2").await.index.unwrap();
        let then = gateway.put("/d/c", "value=2").await.index.unwrap();
        let (hidden, told) = (format!("set /d/_h {next}"), format!("set /d/c {then}"));
        loop {
            let seen = lines(&mut stream, 1).await;
            assert!(!seen.contains(&hidden), "what is hidden is not told once it is no past");
            if seen.contains(&told) {
                break;
            }
        }
    }
    let now = one.get("", "").await.index.unwrap();
    etcdctl(&etcd, &["compact", &now.to_string()]).await;
    for gateway in [&one, &two, &Target::gateway_to(&etcd.endpoint()).await] {
        let cleared = gateway.call(Method::GET, "/a", &format!("wait=true&{}", since(0))).await;
        assert!(cleared.status == 400 && cleared.index >= Some(now), "{}", cleared.body);
        assert!(cleared.body.contains("\"errorCode\":401"), "{}", cleared.body);
        let first = gateway.call(Method::GET, "/a", "wait=true&waitIndex=1").await;
        assert!(first.body.contains("\"errorCode\":401"), "{}", first.body);
        let next = gateway.get("/a", "").await.index.unwrap() + 1;
        let watch = gateway.watch("/a", &format!("waitIndex={next}")).await;
        let set = gateway.put("/a", "value=4").await.index.unwrap();
        assert_eq!(only_event(watch).await, format!("set /a {set}"));
        gateway.delete("/a", "").await;
    }
}

/// The value of one of the gateway's own metrics.
async fn metric(gateway: &Target, name: &str) -> u64 {
    let metrics = gateway.client.get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
}

/// etcd looks after a watch of the past ten times a second: a client that goes from event to event would have ten of
/// them a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_begins_remembers_what_was_before_it() {
    let etcd = etcd(Version::V35).await;
    let one = Target::gateway_to(&etcd.endpoint()).await;
    one.put("/d", "dir=true&ttl=100").await;
    let first = one.put("/a", "value=0").await.index.unwrap();
    for value in 1..=50 {
        one.put("/a", &format!("value={value}")).await;
    }
    let last = one.put("/d/_hidden", "value=1").await.index.unwrap();
    let two = Target::gateway_to(&etcd.endpoint()).await;
    let remembers = async {
        while metric(&two, "rallypoint_gateway_index").await < last {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, remembers).await.expect("it reads what was before");
    for index in first..last {
        let event = two.watch("/a", &format!("waitIndex={index}")).await;
        assert_eq!(only_event(event).await, format!("set /a {index}"));
    }
    let mut stream = two.watch("", &format!("recursive=true&stream=true&waitIndex={last}")).await;
    assert_eq!(lines(&mut stream, 1).await, [format!("set /d/_hidden {last}")]);
    assert_eq!(metric(&two, "rallypoint_gateway_past_watches_total").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_in_order_key_whose_name_is_taken_is_refused_at_once() {
    for target in [Target::etcd(Version::V34).await, Target::gateway(Version::V35).await] {
        let index = target.put("/d/a", "value=1").await.index.unwrap();
        let next = format!("/d/{:020}", index + 2);
        target.put(&next, "value=1").await;
        let refused = target.call(Method::POST, "/d", "value=2").await;
        let cause = format!("\"errorCode\":105,\"message\":\"Key already exists\",\"cause\":\"{next}\"");
        assert!(refused.status == 412 && refused.body.contains(&cause), "{}: {}", target.name, refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nothing_hangs_on_is_given_back() {
    let target = Target::gateway(Version::V35).await;
    let leases = async || {
        let list = etcdctl(target.behind(), &["lease", "list"]).await;
        list.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    target.put("/a", "value=1&ttl=100").await;
    for _ in 0..3 {
        // One for the same time goes on.
        target.put("/a", "value=1&ttl=100").await;
        target.put("/a", "refresh=true&ttl=100&prevExist=true").await;
    }
    assert_eq!(leases().await, 1);
    assert_eq!(target.put("/a", "value=1&ttl=50&prevValue=x").await.status, 412);
    assert_eq!(target.put("/a", "value=1&ttl=50&prevExist=false").await.status, 412);
    target.put("/a", "value=1&ttl=50&prevValue=1").await;
    target.put("/b", "value=1&ttl=50").await;
    target.put("/b", "value=1").await;
    target.put("/d", "dir=true&ttl=50").await;
    target.put("/d", "dir=true&ttl=60&prevExist=true").await;
    target.put("/e", "dir=true&ttl=50").await;
    target.delete("/e", "dir=true").await;
    // What goes with a directory, deleted or at the end of its time.
    target.put("/f/a", "value=1&ttl=50").await;
    target.put("/f/g", "dir=true&ttl=50").await;
    target.delete("/f", "recursive=true").await;
    target.put("/h", "dir=true&ttl=1").await;
    target.put("/h/a", "value=1&ttl=50").await;
    // Writers of one key at once, of which all but one find that they come too late.
    let create = (0..20).map(|_| target.put("/race", "value=1&ttl=50&prevExist=false"));
    let made = futures::future::join_all(create).await;
    assert_eq!(made.iter().filter(|answer| answer.status == 201).count(), 1);
    // Those of /a, /d and /race.
    let given_back = async {
        while leases().await != 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, given_back).await.expect("no other lease is left");
    assert!(target.get("/a", "").await.body.contains("\"ttl\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_writes_the_same_key_gets_its_turn() {
    let etcd = etcd(Version::V35).await;
    let [one, two] = [Target::gateway_to(&etcd.endpoint()).await, Target::gateway_to(&etcd.endpoint()).await];
    let writers = (0..32).map(|writer| {
        let gateway = if writer % 2 == 0 { &one } else { &two };
        async move {
            for step in 0..5 {
                let set = gateway.put("/hot", &format!("value={writer}-{step}")).await;
                assert!(matches!(set.status, 200 | 201), "{}", set.body);
                let made = gateway.call(Method::POST, "/queue", "value=1").await;
                assert_eq!(made.status, 201, "{}", made.body);
            }
        }
    });
    timeout(TIMEOUT, futures::future::join_all(writers)).await.expect("nobody waits for long");
    let made = one.get("/queue", "").await.body.matches("\"key\":\"/queue/").count();
    assert_eq!(made, 160);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_etcd_cannot_take_is_refused_in_words() {
    let target = Target::gateway(Version::V35).await;
    let large = target.put("/a", &format!("value={}", "x".repeat(2 << 20))).await;
    assert_eq!(large.status, 500);
    assert!(large.body.contains("\"errorCode\":300") && large.body.contains("request is too large"));
    let deep = "/d".repeat(101);
    let deep = target.put(&deep, "value=1").await;
    assert!(deep.status == 400 && deep.body.contains("a key has at most 100 parts"), "{}", deep.body);
    let deep = "/d".repeat(100);
    assert_eq!(target.put(&deep, "value=1").await.status, 201);
    assert!(target.get("", "recursive=true").await.body.contains(&deep));
    assert_eq!(target.delete("/d", "recursive=true").await.status, 200);
    let behind = target.behind();
    etcdctl(behind, &["put", "/v2/keys//strange", "what no gateway wrote"]).await;
    let strange = target.get("/strange", "").await;
    assert!(
        strange.status == 500 && strange.body.contains("is not of a gateway: /strange"),
        "{}",
        strange.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_the_user_that_it_says_it_is() {
    // Passwords need not be dear here.
    let start = || Etcd::builder(Version::V35).arg("--bcrypt-cost=4").start();
    let etcd = tokio::task::spawn_blocking(start).await.unwrap();
    for args in [
        &["user", "add", "root:top"][..],
        &["role", "add", "all"],
        &["role", "grant-permission", "all", "readwrite", "/v2/", "--prefix"],
        &["role", "add", "some"],
        &["role", "grant-permission", "some", "read", "/v2/", "--prefix"],
        &["user", "add", "gate:way"],
        &["user", "grant-role", "gate", "all"],
        &["user", "add", "reader:secret"],
        &["user", "grant-role", "reader", "some"],
        &["role", "add", "part"],
        &["role", "grant-permission", "part", "readwrite", "/v2/keys/jobs/", "--prefix"],
        &["role", "grant-permission", "part", "readwrite", "/v2/due/jobs/", "--prefix"],
        &["role", "grant-permission", "part", "readwrite", "/v2/alive/jobs/", "--prefix"],
        &["role", "grant-permission", "part", "readwrite", "/v2/action"],
        &["role", "grant-permission", "part", "read", "/v2/keys//jobs"],
        &["role", "grant-permission", "part", "read", "/v2/root"],
        &["role", "grant-permission", "part", "read", "/v2/fenced/", "--prefix"],
        &["user", "add", "worker:secret"],
        &["user", "grant-role", "worker", "part"],
        &["user", "add", "nobody:secret"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcdctl(&etcd, args).await;
    }
    let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    settings.prefix = "/v2/".to_owned();
    let on = || Config::on(([127, 0, 0, 1], 0).into());
    // It must be somebody itself.
    let refused = Server::gateway(on(), GatewayConfig::to(settings.clone())).await.unwrap_err();
    assert!(format!("{refused:?}").contains("user name is empty"), "{refused:?}");
    // It watches all keys.
    settings.credentials = Some(Credentials::new("worker", "secret"));
    let refused = Server::gateway(on(), GatewayConfig::to(settings.clone())).await.unwrap_err();
    assert!(format!("{refused:?}").contains("PermissionDenied"), "{refused:?}");
    settings.credentials = Some(Credentials::new("gate", "way"));
    let mut config = GatewayConfig::to(settings);
    let open = Server::gateway(on(), config.clone()).await.unwrap();
    config.require_login = true;
    let strict = Server::gateway(on(), config).await.unwrap();
    let client = v2_support::client();
    let call = async |server: &Server, method: Method, key: &str, login: Option<(&str, &str)>| {
        let request = client.request(method, format!("{}/v2/keys{key}", server.url()));
        let request = match login {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        };
        request.send().await.unwrap()
    };
    let (reader, writer) = (Some(("reader", "secret")), Some(("gate", "way")));
    let worker = Some(("worker", "secret"));
    for (server, method, key, login, wanted) in [
        (&open, Method::PUT, "/a?value=1", None, 201),
        (&strict, Method::PUT, "/a?value=1", None, 401),
        (&strict, Method::GET, "/a", None, 401),
        (&strict, Method::GET, "/a?wait=true", None, 401),
        (&strict, Method::PUT, "/a?value=2&ttl=100", writer, 200),
        (&open, Method::PUT, "/a?value=3", reader, 401),
        (&open, Method::DELETE, "/a", reader, 401),
        (&strict, Method::GET, "/?recursive=true", reader, 200),
        (&strict, Method::GET, "/a?wait=true&waitIndex=1", reader, 200),
        (&strict, Method::PUT, "/jobs?dir=true", writer, 201),
        (&strict, Method::PUT, "/jobs/d?dir=true&ttl=100", worker, 201),
        (&strict, Method::PUT, "/jobs/d/a?value=1&ttl=100", worker, 201),
        (&strict, Method::GET, "/jobs/d?recursive=true", worker, 200),
        (&strict, Method::GET, "/jobs/d?wait=true&recursive=true&waitIndex=1", worker, 200),
        (&strict, Method::DELETE, "/jobs/d?recursive=true", worker, 200),
        (&strict, Method::PUT, "/other?value=1", worker, 401),
        (&strict, Method::GET, "/", worker, 401),
        (&strict, Method::GET, "/a", Some(("reader", "wrong")), 401),
        (&strict, Method::GET, "/a", Some(("", "")), 401),
        (&strict, Method::GET, "/a", Some(("nobody", "secret")), 401),
        (&open, Method::GET, "/?wait=true&recursive=true", Some(("nobody", "secret")), 401),
    ] {
        let answer = call(server, method.clone(), key, login).await;
        assert_eq!(answer.status(), wanted, "{method} {key} by {login:?}: {}", answer.text().await.unwrap());
    }
    let refused = call(&open, Method::DELETE, "/a", reader).await.text().await.unwrap();
    assert!(refused.contains("\"errorCode\":110"), "{refused}");
}

/// Any password would do there.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_at_an_etcd_without_users_is_none() {
    let etcd = tokio::task::spawn_blocking(|| Etcd::start(Version::V35)).await.unwrap();
    let mut config = GatewayConfig::to(EtcdSettings::new(&etcd.endpoint()).unwrap());
    config.require_login = true;
    let server = Server::gateway(Config::on(([127, 0, 0, 1], 0).into()), config).await.unwrap();
    let url = format!("{}/v2/keys/a", server.url());
    let put = async |user: &str, password: &str| {
        let put = v2_support::client().put(format!("{url}?value=1")).basic_auth(user, Some(password));
        put.send().await.unwrap().status().as_u16()
    };
    assert_eq!(put("any", "any").await, 401);
    for args in
        [&["user", "add", "root:root"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]]
    {
        etcdctl(&etcd, args).await;
    }
    assert_eq!(put("any", "any").await, 401);
    assert_eq!(put("root", "root").await, 201, "it is heeded from now on");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_two_clusters_are_refused() {
    let start = || tokio::task::spawn_blocking(|| Etcd::start(Version::V35));
    let (one, two) = (start().await.unwrap(), start().await.unwrap());
    let both = format!("{},{}", one.endpoint(), two.endpoint());
    let config = GatewayConfig::to(EtcdSettings::new(&both).unwrap());
    let refused = Server::gateway(Config::on(([127, 0, 0, 1], 0).into()), config).await.unwrap_err();
    assert!(format!("{refused:?}").contains("TwoClusters"), "{refused:?}");
}

/// Who asks for its health waits for a second, as a rule.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_hangs_is_ill_before_a_probe_gives_up() {
    let mut etcd = tokio::task::spawn_blocking(|| Etcd::start(Version::V35)).await.unwrap();
    let config = GatewayConfig::to(EtcdSettings::new(&etcd.endpoint()).unwrap());
    let server = Server::gateway(Config::on(([127, 0, 0, 1], 0).into()), config).await.unwrap();
    let health = async || v2_support::client().get(format!("{}/health", server.url())).send().await.unwrap();
    assert_eq!(health().await.status(), 200);
    etcd.pause();
    let ill = tokio::time::timeout(Duration::from_secs(8), health()).await;
    etcd.resume();
    assert_eq!(ill.expect("it is told in time").status(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_on_both_sides_with_certificates_for_everybody() {
    let certs = Certs::generate();
    let etcd = tokio::task::spawn_blocking({
        let certs = certs.clone();
        move || Etcd::builder(Version::V35).mutual_tls(&certs).start()
    })
    .await
    .unwrap();
    let trusting =
        || TlsSettings::trusting(certs.ca()).with_identity(certs.client_cert(), certs.client_key());
    let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    settings.tls = Some(trusting());
    let mut config = Config::on(([127, 0, 0, 1], 0).into());
    let mut tls = Tls::new(certs.server_cert(), certs.server_key());
    tls.client_ca_file = Some(certs.ca().to_owned());
    config.tls = Some(tls);
    let server = Server::gateway(config, GatewayConfig::to(settings)).await.unwrap();
    let mut settings = EtcdSettings::new(&server.endpoint()).unwrap();
    settings.tls = Some(trusting());
    let client = Client::connect(settings.clone()).await.unwrap();
    client.set("/a", "1").await.unwrap();
    settings.tls = Some(TlsSettings::trusting(certs.ca()));
    settings.connect_timeout = Duration::from_secs(1);
    let stranger = Client::connect(settings).await;
    assert!(stranger.is_err(), "one without a certificate is turned away");
}
