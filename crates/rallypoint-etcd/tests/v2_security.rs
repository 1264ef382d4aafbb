//! TLS, client certificates and passwords of the v2 client: the right ones work, each wrong one is a clear error.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::{Credentials, EtcdSettings, TlsSettings};
use rallypoint_etcd::v2::{Client, Get};
use rallypoint_etcd::{Error, ErrorKind};
use rallypoint_testkit::{Certs, Etcd, Version, run_python};

fn settings(etcd: &Etcd, tls: Option<TlsSettings>) -> EtcdSettings {
    let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    settings.tls = tls;
    settings.request_timeout = Duration::from_secs(3);
    settings
}

fn client(etcd: &Etcd, tls: Option<TlsSettings>) -> Client {
    Client::connect_lazily(settings(etcd, tls)).unwrap()
}

fn trusting(certs: &Certs) -> TlsSettings {
    TlsSettings::trusting(certs.ca())
}

fn with_identity(certs: &Certs) -> TlsSettings {
    trusting(certs).with_identity(certs.client_cert(), certs.client_key())
}

async fn refused(client: &Client) -> Error {
    let began = Instant::now();
    let error = client.get("/k", Get::new()).await.unwrap_err();
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "at once, not after all retries: {:?}",
        began.elapsed()
    );
    error
}

#[tokio::test]
async fn tls_works_with_the_right_authority_and_fails_at_once_with_another() {
    let certs = Certs::generate();
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().tls(&certs).start();
        let ours = client(&etcd, Some(trusting(&certs)));
        ours.set("/k", "1").await.unwrap();
        assert_eq!(ours.get("/k", Get::new()).await.unwrap().node.value.as_deref(), Some("1"));
        Client::connect(settings(&etcd, Some(trusting(&certs)))).await.unwrap();

        let other = TlsSettings::trusting(certs.other_ca());
        let error = refused(&client(&etcd, Some(other.clone()))).await;
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.to_string().contains("https://127.0.0.1:"), "{error}");
        let error = client(&etcd, Some(other)).set("/k", "2").await.unwrap_err();
        assert!(error.kind() == ErrorKind::Tls && !error.may_have_applied(), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused() {
    let certs = Certs::generate();
    let etcd = Etcd::builder(Version::V35).v2().tls_of_elsewhere(&certs).start();
    let error = refused(&client(&etcd, Some(trusting(&certs)))).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    assert!(error.to_string().contains("not valid for"), "{error}");
}

#[tokio::test]
async fn mutual_tls_works_with_a_certificate_and_fails_without() {
    let certs = Certs::generate();
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().mutual_tls(&certs).start();
        client(&etcd, Some(with_identity(&certs))).set("/k", "1").await.unwrap();
        let error = refused(&client(&etcd, Some(trusting(&certs)))).await;
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    }
}

#[tokio::test]
async fn one_bad_endpoint_among_good_ones_does_not_matter() {
    let certs = Certs::generate();
    let good = Etcd::builder(Version::V35).v2().tls(&certs).start();
    let bad = Etcd::builder(Version::V35).v2().tls_of_elsewhere(&certs).start();
    for _ in 0..4 {
        let mut settings = settings(&good, Some(trusting(&certs)));
        settings.endpoints = format!("{},{}", bad.endpoint(), good.endpoint()).parse().unwrap();
        Client::connect_lazily(settings).unwrap().set("/k", "1").await.unwrap();
    }
}

#[tokio::test]
async fn tls_spoken_to_a_plain_server_is_a_tls_error() {
    let certs = Certs::generate();
    let etcd = Etcd::builder(Version::V35).v2().start();
    let error = client(&etcd, Some(trusting(&certs)))
        .retrying_for(Duration::from_secs(2))
        .get("/k", Get::new())
        .await;
    let error = error.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
}

#[tokio::test]
async fn files_that_cannot_work_are_refused_before_anything_is_sent() {
    let certs = Certs::generate();
    let refused = |tls: TlsSettings| {
        let mut settings = EtcdSettings::new("127.0.0.1:1").unwrap();
        settings.tls = Some(tls);
        let error = Client::connect_lazily(settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Settings, "{error}");
        error.to_string()
    };
    let swapped = TlsSettings::default().with_identity(certs.client_key(), certs.client_cert());
    assert!(refused(swapped).contains("no certificate in it"));
    let mixed = trusting(&certs).with_identity(certs.client_cert(), certs.server_key());
    assert!(refused(mixed).contains("do not work together"));
    let missing = TlsSettings::trusting("no-such-file.pem");
    assert!(refused(missing).contains("no-such-file.pem"));
}

/// Turns the v2 API's passwords on, and takes every right from those who show none.
const ENABLE_AUTH: &str = r#"
import base64, json, sys, urllib.request
def call(method, path, body=None, user=None):
    request = urllib.request.Request(sys.argv[1] + "/v2/auth/" + path, method=method)
    request.add_header("Content-Type", "application/json")
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    urllib.request.urlopen(request, None if body is None else json.dumps(body).encode(), timeout=20).read()
call("PUT", "users/root", {"user": "root", "password": "secret:with%colon"})
call("PUT", "enable")
rights = {"kv": {"read": ["/*"], "write": ["/*"]}}
call("PUT", "roles/guest", {"role": "guest", "revoke": rights}, "root:secret:with%colon")
"#;

#[tokio::test]
async fn a_password_works_and_a_wrong_one_is_named_as_such() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let open = client(&etcd, None);
        open.set("/k", "1").await.unwrap();
        let _ = run_python(ENABLE_AUTH, &[&etcd.url()]);

        let with = |password: &str| {
            let mut settings = settings(&etcd, None);
            settings.credentials = Some(Credentials::new("root", password));
            Client::connect_lazily(settings).unwrap()
        };
        assert_eq!(
            with("secret:with%colon").get("/k", Get::new()).await.unwrap().node.value.as_deref(),
            Some("1")
        );
        for wrong in [open, with("wrong")] {
            let error = refused(&wrong).await;
            assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
            assert!(!error.to_string().contains("wrong"), "{error}");
        }
    }
}
