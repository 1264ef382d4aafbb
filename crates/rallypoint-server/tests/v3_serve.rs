//! Starting, stopping, TLS, and errors that say what is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::error::Error;
use std::time::Duration;

use etcd_client::proto::{PbStatusRequest, PbStatusResponse};
use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, TlsOptions, UserAddOptions};
use rallypoint_server::{Config, Server, ServerError, Tls};
use rallypoint_testkit::Certs;
use tokio::net::TcpListener;
use v3_support::{Raw, Target, Watch, within};

fn anywhere() -> Config {
    Config::on("127.0.0.1:0".parse().unwrap())
}

#[tokio::test]
async fn it_serves_only_this_machine_unless_told_otherwise() {
    assert!(Config::default().listen.ip().is_loopback());
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = Server::bind(anywhere()).unwrap();
    let error = Server::bind(Config::on(server.address())).unwrap_err();
    assert!(matches!(error, ServerError::AddressInUse { .. }));
    assert!(error.to_string().contains(&server.endpoint()), "{error}");
}

/// How long that takes is a row of the benchmark.
#[tokio::test]
async fn bound_it_is_ready() {
    let server = Server::bind(anywhere()).unwrap();
    // One try, with no wait before it: a server that still had to come up would refuse the connection.
    drop(tokio::net::TcpStream::connect(server.address()).await.unwrap());
    Raw::connect(server.url().to_owned()).await.put_kv("a", "1").await;
}

#[tokio::test]
async fn it_stops_when_told_to_and_ends_the_watches() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(Server::serve(listener, Config::default(), async {
        let _ = stopped.await;
    }));
    let client = Raw::connect(url.clone()).await;
    let mut watcher = client.watching(Watch::key("a")).await;
    let lease = client.grant(0, 60).await.unwrap().id;
    client.keep_alive(lease).await;
    stop.send(()).unwrap();
    let status = within(watcher.answers.message()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    within(server).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(url.trim_start_matches("http://")).await.is_err());
}

#[tokio::test]
async fn stopped_it_ends_v2_watches_cleanly_and_at_once() {
    // Longer than this test may take: nothing but the stop itself can end them.
    let mut config = anywhere();
    config.stop_timeout = 10 * v3_support::PATIENCE;
    let server = Server::bind(config).unwrap();
    let key = format!("{}/v2/keys/a", server.url());
    // reqwest wants one even for plain HTTP. Another test of the process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let watch = |query: &str| client.get(format!("{key}?wait=true{query}")).send();
    let mut watches =
        [within(watch("")).await.unwrap(), within(watch("&recursive=true&stream=true")).await.unwrap()];
    within(server.stop()).await.unwrap();
    for watch in &mut watches {
        assert_eq!(watch.status(), 200);
        // An end of the body, as opposed to a connection that broke.
        assert_eq!(within(watch.chunk()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_thousand_watches_may_each_have_a_stream_on_one_connection() {
    let target = Target::ours();
    let client = target.client().await;
    let mut watchers = Vec::new();
    for _ in 0..1000 {
        watchers.push(client.watching(Watch::key("a")).await);
    }
    let revision = client.put_kv("a", "1").await;
    for watcher in &mut watchers {
        assert_eq!(watcher.events_until(revision).await.len(), 1);
    }
}

/// More at once than h2 lets a client do by default.
#[tokio::test]
async fn thousands_of_watches_may_be_opened_at_once() {
    let target = Target::ours();
    let client = target.client().await;
    let watching = (0..6000).map(|_| client.watching(Watch::key("a")));
    let mut watchers = futures::future::join_all(watching).await;
    let revision = client.put_kv("a", "1").await;
    for watcher in &mut watchers {
        assert_eq!(watcher.events_until(revision).await.len(), 1);
    }
}

/// etcdctl divides by it.
#[tokio::test]
async fn an_empty_server_has_a_size() {
    let client = Target::ours();
    let status: PbStatusResponse =
        client.client().await.unary("/etcdserverpb.Maintenance/Status", PbStatusRequest {}).await.unwrap();
    assert!(status.db_size > 0 && status.db_size_in_use > 0, "{status:?}");
}

#[tokio::test]
async fn dropped_it_is_gone() {
    let target = Target::ours();
    let client = target.client().await;
    client.put_kv("a", "1").await;
    drop(target);
    assert!(within(client.put(Default::default())).await.is_err());
}

fn tls(certs: &Certs, mutual: bool) -> Config {
    let mut tls = Tls::new(certs.server_cert(), certs.server_key());
    tls.client_ca_file = mutual.then(|| certs.ca().into());
    let mut config = anywhere();
    config.tls = Some(tls);
    config
}

async fn put_over_tls(server: &Server, options: TlsOptions) -> Result<(), etcd_client::Error> {
    let options = ConnectOptions::new().with_tls(options).with_timeout(Duration::from_secs(20));
    let mut client = Client::connect([server.url()], Some(options)).await?;
    client.put("a", "1", None).await.map(drop)
}

#[tokio::test]
async fn tls_and_mutual_tls() {
    let certs = Certs::generate();
    let pem = |path| std::fs::read(path).unwrap();
    let trusting = || TlsOptions::new().ca_certificate(Certificate::from_pem(pem(certs.ca())));
    let known = || trusting().identity(Identity::from_pem(pem(certs.client_cert()), pem(certs.client_key())));

    let server = Server::bind(tls(&certs, false)).unwrap();
    assert!(server.url().starts_with("https://"));
    put_over_tls(&server, trusting()).await.unwrap();
    let stranger = TlsOptions::new().ca_certificate(Certificate::from_pem(pem(certs.other_ca())));
    put_over_tls(&server, stranger).await.unwrap_err();

    let server = Server::bind(tls(&certs, true)).unwrap();
    put_over_tls(&server, known()).await.unwrap();
    put_over_tls(&server, trusting()).await.unwrap_err();
}

fn pipe(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// With a real client before and after. What cannot be used changes nothing.
#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let (old, new) = (Certs::generate(), Certs::generate());
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let install = |certs: &Certs| {
        std::fs::copy(certs.server_key(), &key).unwrap();
        std::fs::copy(certs.server_cert(), &cert).unwrap();
    };
    let trusting = |certs: &Certs| {
        TlsOptions::new().ca_certificate(Certificate::from_pem(std::fs::read(certs.ca()).unwrap()))
    };
    install(&old);
    let mut config = anywhere();
    config.tls = Some(Tls::new(&cert, &key));
    let server = Server::bind(config).unwrap();
    put_over_tls(&server, trusting(&old)).await.unwrap();

    for broken in ["", "no certificate"] {
        std::fs::write(&cert, broken).unwrap();
        server.reload();
        put_over_tls(&server, trusting(&old)).await.unwrap();
    }
    // Nor does a pipe, which would be read for ever.
    std::fs::remove_file(&cert).unwrap();
    pipe(&cert);
    server.reload();
    put_over_tls(&server, trusting(&old)).await.unwrap();
    std::fs::remove_file(&cert).unwrap();
    // A certificate without its key is not used either.
    std::fs::copy(new.server_cert(), &cert).unwrap();
    server.reload();
    put_over_tls(&server, trusting(&old)).await.unwrap();
    install(&new);
    server.reload();
    put_over_tls(&server, trusting(&new)).await.unwrap();
    put_over_tls(&server, trusting(&old)).await.unwrap_err();

    // By itself too, when somebody connects.
    install(&old);
    let noticed = async {
        while put_over_tls(&server, trusting(&old)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(noticed).await;
}

/// Who comes with a certificate is the user whose name is in it, as in etcd.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_a_user() {
    let certs = Certs::generate();
    let ours = Target::Ours(Server::bind(tls(&certs, true)).unwrap());
    let builder = rallypoint_testkit::Etcd::builder(rallypoint_testkit::Version::V35).unsafe_no_fsync();
    let etcd = Target::Real(builder.mutual_tls(&certs).start());
    let pem = |path| std::fs::read(path).unwrap();
    for target in [ours, etcd] {
        let known = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(pem(certs.ca())))
            .identity(Identity::from_pem(pem(certs.client_cert()), pem(certs.client_key())));
        let options = ConnectOptions::new().with_tls(known);
        let mut client = Client::connect([target.url()], Some(options.clone())).await.unwrap();
        client.user_add("root", "secret", None).await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.role_add("own").await.unwrap();
        client.role_grant_permission("own", Permission::read_write("own")).await.unwrap();
        client.user_add("client", "", Some(UserAddOptions::new().with_no_pwd())).await.unwrap();
        client.user_grant_role("client", "own").await.unwrap();
        client.auth_enable().await.unwrap();
        client.put("own", "1", None).await.unwrap();
        for denied in [client.put("other", "1", None).await.map(drop), client.auth_disable().await.map(drop)]
        {
            let denied = denied.unwrap_err().to_string();
            assert!(denied.contains("permission denied"), "{}: {denied}", target.name());
        }
        // A token comes before the certificate.
        let mut root =
            Client::connect([target.url()], Some(options.with_user("root", "secret"))).await.unwrap();
        root.put("other", "1", None).await.unwrap();
        root.auth_disable().await.unwrap();
    }
}

#[tokio::test]
async fn bad_certificate_files_are_named() {
    let certs = Certs::generate();
    let error = |change: &dyn Fn(&mut Tls)| {
        let mut config = tls(&certs, true);
        change(config.tls.as_mut().unwrap());
        Server::bind(config).unwrap_err()
    };
    let missing = error(&|tls| tls.cert_file = "no/such/file.pem".into());
    assert_eq!(missing.to_string(), "cannot read the certificate in no/such/file.pem");
    assert!(missing.source().is_some());
    let swapped = error(&|tls| tls.key_file = tls.cert_file.clone());
    assert!(swapped.to_string().starts_with("cannot read the private key in "), "{swapped}");
    let wrong = error(&|tls| tls.key_file = certs.client_key().into());
    assert!(matches!(wrong, ServerError::Tls { .. }), "{wrong}");
    let empty = error(&|tls| tls.client_ca_file = Some(certs.server_key().into()));
    assert!(empty.to_string().starts_with("cannot read the client authority in "), "{empty}");
    let folder = tempfile::tempdir().unwrap();
    pipe(&folder.path().join("pipe"));
    for endless in [folder.path().join("pipe"), "/dev/zero".into()] {
        let endless = error(&|tls| tls.key_file.clone_from(&endless));
        assert!(endless.source().unwrap().to_string().contains("it is no file"), "{endless}");
    }
}

/// Sends this and no more, and reads until the server hangs up.
async fn left_alone(server: &Server, sent: &[u8]) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(sent).await.unwrap();
    let mut said = Vec::new();
    // A reset is as good an end.
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut said)).await;
    assert!(read.is_ok(), "who has sent {:?} is waited for", String::from_utf8_lossy(sent));
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn who_is_slow_is_not_waited_for_and_who_is_idle_is() {
    let certs = Certs::generate();
    let quick = |mut config: Config| {
        config.handshake_timeout = Duration::from_secs(1);
        config.request_timeout = Duration::from_secs(2);
        Server::bind(config).unwrap()
    };
    let (server, secure) = (quick(anywhere()), quick(tls(&certs, false)));
    let idle = Raw::connect(server.url().to_owned()).await;
    idle.put_kv("a", "1").await;

    assert_eq!(left_alone(&server, b"").await, "", "a silent connection");
    assert_eq!(left_alone(&secure, b"\x16\x03").await, "", "half a handshake");
    left_alone(&server, b"GET /version HT").await;
    // The preface of HTTP/2, and no request.
    left_alone(&server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let body = "PUT /v2/keys/a HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
                content-length: 100\r\n\r\nvalue=";
    let said = left_alone(&server, body.as_bytes()).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    let (_requests, no_message) = futures::channel::mpsc::unbounded::<PbStatusRequest>();
    let asked = idle.stream_of::<_, PbStatusResponse>("/etcdserverpb.KV/Range", no_message);
    assert_eq!(within(asked).await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    // Longer than all of that.
    idle.put_kv("a", "2").await;
}
