//! Requests of the v3 client: failover, retries, TLS and passwords, against real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::{Credentials, EtcdSettings, TlsSettings};
use rallypoint_etcd::v3::api::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use rallypoint_etcd::v3::{Client, Repeat};
use rallypoint_etcd::{Error, ErrorKind};
use rallypoint_testkit::{Certs, Cluster, Etcd, Proxy, Silent, Version, refused_endpoint};

/// In time, on a machine that has other things to do: not after all retries.
const SOON: Duration = Duration::from_secs(8);

fn settings(endpoints: &str) -> EtcdSettings {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.connect_timeout = Duration::from_secs(2);
    settings.request_timeout = Duration::from_secs(1);
    settings.retry_timeout = Duration::from_secs(10);
    settings
}

async fn connect(endpoints: &str) -> Client {
    Client::connect(settings(endpoints)).await.unwrap()
}

async fn value(client: &Client, key: &str) -> Option<Vec<u8>> {
    client.get(key, None).await.unwrap().kvs().first().map(|kv| kv.value().to_vec())
}

/// The error of connecting and asking, which must come before `limit`.
async fn refused(settings: EtcdSettings, limit: Duration) -> Error {
    let began = Instant::now();
    let error = match Client::connect(settings).await {
        Err(error) => error,
        Ok(client) => client.get("key", None).await.unwrap_err(),
    };
    assert!(began.elapsed() < limit, "took {:?}: {error}", began.elapsed());
    error
}

#[tokio::test]
async fn keys_are_written_read_compared_and_deleted() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let client = connect(&etcd.endpoint()).await;
        client.put("a", "1", None).await.unwrap();
        assert_eq!(value(&client, "a").await.unwrap(), b"1");
        let swap = |from: &str, to: &str| {
            Txn::new()
                .when([Compare::value("a", CompareOp::Equal, from)])
                .and_then([TxnOp::put("a", to, None)])
                .or_else([TxnOp::get("a", None)])
        };
        assert!(!client.txn(b"a", Repeat::Safe, || swap("2", "3")).await.unwrap().succeeded());
        assert!(client.txn(b"a", Repeat::Safe, || swap("1", "3")).await.unwrap().succeeded());
        assert_eq!(client.delete("a", None).await.unwrap().deleted(), 1);
        assert_eq!(value(&client, "a").await, None);
        assert!(client.status().await.unwrap().version().starts_with("3."));
    }
}

#[tokio::test]
async fn a_prefix_is_put_before_every_key_and_seen_nowhere() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint());
    settings.prefix = "/me/".into();
    let client = Client::connect(settings).await.unwrap();
    client.put("a", "1", None).await.unwrap();
    let _ = etcd.etcdctl(&["put", "/other/a", "2"]);
    assert_eq!(etcd.etcdctl(&["get", "/me/a", "--print-value-only"]).trim(), "1");
    let all = client.get("", Some(GetOptions::new().with_prefix())).await.unwrap();
    let keys: Vec<&[u8]> = all.kvs().iter().map(KeyValue::key).collect();
    assert_eq!(keys, [b"a"]);
    assert_eq!(client.delete("a", None).await.unwrap().deleted(), 1);
}

#[tokio::test]
async fn one_of_three_endpoints_dead_from_the_start_does_no_harm() {
    let cluster = Cluster::start(Version::V35, 3);
    let nodes = cluster.nodes();
    let silent = Silent::start();
    for dead in [refused_endpoint(), silent.endpoint()] {
        let endpoints = format!("{dead},{},{}", nodes[0].endpoint(), nodes[1].endpoint());
        // Several times, as the first endpoint to be asked is drawn by lot.
        // Whoever waited for the dead one would wait for this long.
        let mut patient = settings(&endpoints);
        (patient.connect_timeout, patient.request_timeout) =
            (Duration::from_secs(30), Duration::from_secs(30));
        for i in 0..6 {
            let began = Instant::now();
            let client = Client::connect(patient.clone()).await.unwrap();
            client.put(format!("k{i}"), "v", None).await.unwrap();
            assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
        }
    }
}

#[tokio::test]
async fn when_a_server_of_a_cluster_dies_requests_go_on() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let client = Client::connect(settings(&cluster.endpoints())).await.unwrap();
    client.put("before", "1", None).await.unwrap();
    let leader = cluster.leader();
    cluster.node(leader).kill();
    assert_eq!(value(&client, "before").await.unwrap(), b"1");
    let txn = Txn::new()
        .when([Compare::create_revision("after", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("after", "2", None)]);
    client.txn(b"after", Repeat::Safe, || txn.clone()).await.unwrap();
    assert_eq!(value(&client, "after").await.unwrap(), b"2");
    // A paused server answers nobody and refuses nobody.
    cluster.node(leader).restart();
    for node in 0..3 {
        cluster.node(node).pause();
        assert_eq!(value(&client, "after").await.unwrap(), b"2");
        cluster.node(node).resume();
    }
}

#[tokio::test]
async fn an_endpoint_nobody_listens_on_is_named_at_once() {
    let endpoint = refused_endpoint();
    let error = refused(settings(&endpoint), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(!error.may_have_applied());
    assert!(error.to_string().contains(&endpoint) && error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_given_up_in_time() {
    let silent = Silent::start();
    let error = refused(settings(&silent.endpoint()), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains(&silent.endpoint()), "{error}");
    // So is a request, with the key in its error.
    let mut lazy = settings(&silent.endpoint());
    lazy.retry_timeout = Duration::from_secs(2);
    let began = Instant::now();
    let error = Client::connect_lazily(lazy).unwrap().put("some/key", "v", None).await.unwrap_err();
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
    assert!(error.to_string().contains("put \"some/key\" at"), "{error}");
    assert!(error.may_have_applied());
}

#[tokio::test]
async fn a_server_that_is_no_etcd_is_an_error_in_time() {
    let http = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = http.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in http.incoming().flatten() {
            let mut stream = stream;
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(settings(&endpoint), SOON).await;
    assert!(error.to_string().contains(&endpoint), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_server_that_is_being_restarted() {
    let mut etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    client.put("a", "1", None).await.unwrap();
    etcd.kill();
    let reading = tokio::spawn({
        let client = client.clone();
        async move { value(&client, "a").await }
    });
    // A write that cannot be sent is safe to send later. (Long enough for a server that takes it while it is
    // still starting.)
    let mut patient = settings(&etcd.endpoint());
    patient.request_timeout = Duration::from_secs(10);
    let fresh = Client::connect_lazily(patient).unwrap();
    let writing = tokio::spawn(async move { fresh.put("b", "2", None).await });
    etcd.restart();
    assert_eq!(reading.await.unwrap().unwrap(), b"1");
    writing.await.unwrap().unwrap();
    assert_eq!(value(&client, "b").await.unwrap(), b"2");
}

#[tokio::test]
async fn what_is_not_safe_to_repeat_is_sent_once() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let client = connect(&proxy.endpoint()).await;
    proxy.drop_replies(true);
    let error = client.put("once", "v", None).await.unwrap_err();
    assert!(error.is_transient() && error.may_have_applied(), "{error}");
    let txn = || Txn::new().and_then([TxnOp::put("txn", "v", None)]);
    let error = client.txn(b"txn", Repeat::Unsafe, txn).await.unwrap_err();
    assert!(error.may_have_applied(), "{error}");
    let error =
        client.retrying_for(Duration::from_secs(4)).txn(b"many", Repeat::Safe, txn).await.unwrap_err();
    assert!(error.to_string().contains("tries"), "{error}");

    let direct = connect(&etcd.endpoint()).await;
    let version = async |key: &str| direct.get(key, None).await.unwrap().kvs()[0].version();
    assert_eq!(version("once").await, 1);
    assert!(version("txn").await > 2, "what is safe to repeat was repeated");
    proxy.drop_replies(false);
    proxy.cut();
    // The client cannot know that the connection is gone before it has used it.
    client.status().await.unwrap();
    client.put("once", "v", None).await.unwrap();
    assert_eq!(version("once").await, 2);
}

fn tls(ca: &std::path::Path, identity: Option<(&std::path::Path, &std::path::Path)>) -> Option<TlsSettings> {
    let trusting = TlsSettings::trusting(ca);
    Some(match identity {
        Some((cert, key)) => trusting.with_identity(cert, key),
        None => trusting,
    })
}

fn with_tls(etcd: &Etcd, tls: Option<TlsSettings>) -> EtcdSettings {
    let mut settings = settings(&etcd.endpoint());
    settings.tls = tls;
    settings
}

#[tokio::test]
async fn tls_is_spoken_and_a_wrong_certificate_is_named() {
    let certs = Certs::generate();
    let identity = Some((certs.client_cert(), certs.client_key()));

    let etcd = Etcd::builder(Version::V35).tls(&certs).start();
    let with = |tls| with_tls(&etcd, tls);
    let client = Client::connect(with(tls(certs.ca(), None))).await.unwrap();
    client.put("a", "1", None).await.unwrap();
    let error = refused(with(tls(certs.other_ca(), None)), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Tls);
    assert!(error.to_string().contains("certificate"), "{error}");
    // Neither the system's roots nor a plain connection will do.
    assert_eq!(refused(with(Some(TlsSettings::default())), SOON).await.kind(), ErrorKind::Tls);
    let error = refused(with(None), SOON).await;
    assert!(error.to_string().contains(&etcd.endpoint()), "{error}");

    let elsewhere = Etcd::builder(Version::V35).tls_of_elsewhere(&certs).start();
    let error = refused(with_tls(&elsewhere, tls(certs.ca(), None)), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Tls);
    assert!(error.to_string().to_lowercase().contains("name"), "{error}");

    let mutual = Etcd::builder(Version::V35).mutual_tls(&certs).start();
    let with = |tls| with_tls(&mutual, tls);
    let client = Client::connect(with(tls(certs.ca(), identity))).await.unwrap();
    client.put("a", "1", None).await.unwrap();
    // The server says so only after the handshake, to a client that writes already.
    for _ in 0..20 {
        let error = refused(with(tls(certs.ca(), None)), SOON).await;
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
        let lazy = Client::connect_lazily(with(tls(certs.ca(), None))).unwrap();
        let error = lazy.put("a", "1", None).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_applied()), (ErrorKind::Tls, false), "{error}");
    }

    let missing = TlsSettings::trusting("no/such.pem");
    let error = refused(with(Some(missing)), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().contains("no/such.pem"), "{error}");
}

#[tokio::test]
async fn passwords_are_shown_and_renewed_and_a_wrong_one_is_named() {
    let etcd = Etcd::builder(Version::V35).arg("--auth-token-ttl=1").start();
    let _ = etcd.etcdctl(&["user", "add", "root:secret"]);
    let _ = etcd.etcdctl(&["user", "grant-role", "root", "root"]);
    let _ = etcd.etcdctl(&["user", "add", "guest:guest"]);
    let _ = etcd.etcdctl(&["auth", "enable"]);
    let as_user = |user: &str, password: &str| {
        let mut settings = settings(&etcd.endpoint());
        settings.credentials = Some(Credentials::new(user, password));
        settings
    };

    let client = Client::connect(as_user("root", "secret")).await.unwrap();
    client.put("key", "1", None).await.unwrap();
    // The server forgets the token; nobody notices.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    client.put("key", "2", None).await.unwrap();

    let error = refused(as_user("root", "wrong"), SOON).await;
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert!(!error.to_string().contains("wrong") && error.to_string().contains("password"), "{error}");
    assert_eq!(refused(settings(&etcd.endpoint()), SOON).await.kind(), ErrorKind::Auth);
    let error = refused(as_user("guest", "guest"), SOON).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("\"key\""), "{error}");

    // A password that nobody asks for is no reason to fail.
    let open = Etcd::start(Version::V35);
    let mut settings = as_user("root", "secret");
    settings.endpoints = open.endpoint().parse().unwrap();
    Client::connect(settings).await.unwrap().put("key", "1", None).await.unwrap();
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_name() {
    let etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    for size in [1_600_000, 4_000_000, 40_000_000] {
        let error = client.put("large", vec![0; size], None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{size}: {error}");
        assert!(!error.may_have_applied());
    }
    client.put("small", "v", None).await.unwrap();
}

#[tokio::test]
async fn a_full_database_is_refused_by_name() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=1048576").start();
    let client = connect(&etcd.endpoint()).await;
    let mut last = Ok(());
    for i in 0..500 {
        last = client.put(format!("k{i}"), vec![b'x'; 400_000], None).await.map(|_| ());
        if last.is_err() {
            break;
        }
    }
    let error = last.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("quota"), "{error}");
}
