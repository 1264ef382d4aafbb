//! Passwords, tokens and permissions: what runs goes on for as long as etcd lets it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::{Credentials, EtcdSettings};
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v3::api::PutOptions;
use rallypoint_etcd::v3::{Client, Event, KeyRange, Lease, LeaseState, Watch, WatchUpdate};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Silent, Version};
use tokio::task::block_in_place;

const TTL: Duration = Duration::from_secs(2);

/// As the user that [`with_passwords`] makes, who may write what begins with `run/`.
async fn connect(endpoints: &str) -> Client {
    connect_within(endpoints, Duration::from_secs(2)).await
}

async fn connect_within(endpoints: &str, request_timeout: Duration) -> Client {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.request_timeout = request_timeout;
    settings.credentials = Some(Credentials::new("trainer", "secret"));
    Client::connect(settings).await.unwrap()
}

fn with_passwords(etcd: Etcd) -> Etcd {
    etcd.ask_for_passwords("trainer", "secret", "run/");
    etcd
}

/// How often the server was shown a password.
fn passwords_shown(etcd: &Etcd) -> f64 {
    etcd.metric(
        "grpc_server_started_total{grpc_method=\"Authenticate\",grpc_service=\"etcdserverpb.Auth\",grpc_type=\"unary\"}",
    )
}

async fn put(client: &Client, key: &str, lease: &Lease) {
    client.put(key, "v", Some(PutOptions::new().with_lease(lease.id()))).await.unwrap();
}

async fn is_there(client: &Client, key: &str) -> bool {
    client.get(key, None).await.unwrap().count() == 1
}

/// Reads on until `key` has this value.
async fn expect(watch: &mut Watch, value: &str) {
    let told = async {
        loop {
            let entries = match watch.next().await.unwrap() {
                WatchUpdate::Snapshot { entries, .. } => entries,
                WatchUpdate::Events(events) => events
                    .into_iter()
                    .filter_map(|event| match event {
                        Event::Put(entry) => Some(entry),
                        Event::Delete { .. } => None,
                    })
                    .collect(),
            };
            if entries.last().is_some_and(|entry| entry.value == value.as_bytes()) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("the value is told");
}

/// Waits until the lease was refreshed by a request that was sent from now on.
async fn refreshed(lease: &mut Lease) -> Duration {
    let began = Instant::now();
    let answered = async {
        // The first report may be of a refresh that was under way.
        for _ in 0..2 {
            while lease.next().await != LeaseState::Alive {
                assert_ne!(lease.state(), LeaseState::Lost);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), answered).await.expect("it is refreshed");
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_shown_once_for_requests_watches_leases_and_new_connections() {
    for version in Version::all() {
        let etcd = with_passwords(Etcd::start(version));
        let proxy = Proxy::start(&etcd.endpoint());
        let before = passwords_shown(&etcd);
        let client = connect(&proxy.endpoint()).await;
        let mut lease = client.lease(TTL).await.unwrap();
        put(&client, "run/a", &lease).await;
        let mut watch = client.watch(KeyRange::key("run/n"), 1);
        for n in ["1", "2", "3"] {
            client.get("run/n", None).await.unwrap();
            client.put("run/n", n, None).await.unwrap();
            expect(&mut watch, n).await;
            refreshed(&mut lease).await;
            proxy.cut();
            // Of what is not repeated, the next would be lost with the connection.
            client.get("run/n", None).await.unwrap();
        }
        refreshed(&mut lease).await;
        assert_eq!(passwords_shown(&etcd) - before, 1.0, "on {version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_shows_the_password_to_a_silent_server_holds_up_nobody_at_another() {
    let etcd = with_passwords(Etcd::start(Version::V35));
    let silent = Silent::start();
    let endpoints = format!("{},{}", silent.endpoint(), etcd.endpoint());
    // Several times, as the first endpoint to be asked is drawn by lot.
    for _ in 0..6 {
        let began = Instant::now();
        let client = connect_within(&endpoints, Duration::from_secs(30)).await;
        client.put("run/n", "v", None).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_at_every_server_of_a_cluster() {
    let cluster = Cluster::start(Version::V35, 3);
    cluster.nodes()[0].ask_for_passwords("trainer", "secret", "run/");
    let proxies: Vec<Proxy> = cluster.nodes().iter().map(|node| Proxy::start(&node.endpoint())).collect();
    let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let client = connect(&endpoints.join(",")).await;
    let mut lease = client.lease(Duration::from_secs(5)).await.unwrap();
    put(&client, "run/a", &lease).await;
    let shown = || cluster.nodes().iter().map(passwords_shown).sum::<f64>();
    let before = shown();
    for away in &proxies {
        away.refuse(true);
        away.cut();
        assert!(is_there(&client, "run/a").await);
        refreshed(&mut lease).await;
        away.refuse(false);
    }
    assert_eq!(shown(), before);
}

// The server waits for its clients when it ends: they must run meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_a_restarted_server_has_forgotten_cost_no_lease() {
    for version in Version::all() {
        let mut etcd = with_passwords(Etcd::start(version));
        let client = connect(&etcd.endpoint()).await;
        let mut lease = client.lease(TTL * 2).await.unwrap();
        put(&client, "run/a", &lease).await;
        etcd.terminate();
        block_in_place(|| etcd.restart());
        refreshed(&mut lease).await;
        tokio::time::sleep(TTL * 3).await;
        assert!(is_there(&client, "run/a").await, "on {version:?}");
    }
}

/// The flag for tokens that servers sign, and that last so many seconds; their secret is in `folder`.
fn signed(folder: &tempfile::TempDir, seconds: u32) -> String {
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that only the servers know").unwrap();
    format!("--auth-token=jwt,sign-method=HS256,priv-key={},ttl={seconds}s", secret.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_tokens_that_end_every_few_seconds_are_renewed_for_all_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for version in Version::all() {
        let etcd = with_passwords(Etcd::builder(version).arg(signed(&folder, 2)).start());
        let before = passwords_shown(&etcd);
        let client = connect(&etcd.endpoint()).await;
        let mut lease = client.lease(TTL * 2).await.unwrap();
        put(&client, "run/a", &lease).await;
        let mut watch = client.watch(KeyRange::key("run/n"), 1);
        let mut more = Vec::new();
        let began = Instant::now();
        for n in 0.. {
            client.put("run/n", n.to_string(), None).await.unwrap();
            expect(&mut watch, &n.to_string()).await;
            // Watches that begin on a stream whose token is over.
            let mut late = client.watch_from_now(KeyRange::key("run/late"));
            tokio::time::timeout(Duration::from_secs(10), late.next()).await.unwrap().unwrap();
            more.push(late);
            refreshed(&mut lease).await;
            if began.elapsed() > Duration::from_secs(15) {
                break;
            }
        }
        // Nothing but the lease for several tokens: it renews them itself.
        drop((watch, more));
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(lease.state(), LeaseState::Alive, "on {version:?}");
        assert!(is_there(&client, "run/a").await, "on {version:?}");
        let shown = passwords_shown(&etcd) - before;
        assert!((2.0..=15.0).contains(&shown), "{shown} passwords on {version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_lost_for_a_while_costs_no_lease_and_disturbs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    // Those that are signed are of no use after a change of roles.
    let tokens = ["--auth-token=simple".to_owned(), signed(&folder, 300)];
    for (version, token) in
        Version::all().into_iter().flat_map(|version| tokens.iter().map(move |t| (version, t)))
    {
        let etcd = with_passwords(Etcd::builder(version).arg(token).start());
        let _ = block_in_place(|| etcd.etcdctl(&["--user=root:root", "role", "add", "other"]));
        let _ = block_in_place(|| {
            etcd.etcdctl(&["--user=root:root", "role", "grant-permission", "other", "readwrite", "other"])
        });
        let _ =
            block_in_place(|| etcd.etcdctl(&["--user=root:root", "user", "grant-role", "trainer", "other"]));
        let client = connect(&etcd.endpoint()).await;
        let mut lease = client.lease(Duration::from_secs(8)).await.unwrap();
        put(&client, "run/a", &lease).await;
        let mut others = Vec::new();
        for _ in 0..5 {
            others.push(client.lease(TTL).await.unwrap());
            put(&client, "other", others.last().unwrap()).await;
        }
        refreshed(&mut lease).await;

        block_in_place(|| etcd.revoke_role("trainer"));
        assert_eq!(client.get("run/a", None).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        if version >= Version::V35 {
            let state = tokio::time::timeout(Duration::from_secs(20), lease.changed()).await.unwrap();
            assert!(matches!(state, LeaseState::Unsure { .. }), "{state:?}");
        }
        tokio::time::sleep(TTL * 2).await;
        assert!(others.iter().all(|other| other.state() != LeaseState::Lost), "on {version:?}");
        block_in_place(|| etcd.grant_role("trainer"));
        let took = refreshed(&mut lease).await;
        assert!(took < Duration::from_secs(10), "{took:?}");
        // As long again as it had to live: it is really refreshed.
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(lease.state(), LeaseState::Alive, "on {version:?}");
        assert!(others.iter().all(|other| other.state() == LeaseState::Alive), "on {version:?}");
        assert!(is_there(&client, "run/a").await, "on {version:?}");
        assert!(is_there(&client, "other").await, "on {version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_keys_may_no_longer_be_written_ends_and_that_is_told() {
    for version in Version::all().into_iter().filter(|version| *version >= Version::V35) {
        let etcd = with_passwords(Etcd::start(version));
        let client = connect(&etcd.endpoint()).await;
        let lease = client.lease(TTL).await.unwrap();
        put(&client, "run/a", &lease).await;
        block_in_place(|| etcd.revoke_role("trainer"));
        tokio::time::timeout(Duration::from_secs(20), lease.lost()).await.expect("it is told");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_that_are_asked_for_later_or_no_longer_disturb_nobody() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let client = connect(&etcd.endpoint()).await;
        let mut lease = client.lease(TTL * 2).await.unwrap();
        put(&client, "run/a", &lease).await;
        let mut watch = client.watch(KeyRange::key("run/n"), 1);
        client.put("run/n", "open", None).await.unwrap();
        expect(&mut watch, "open").await;
        // Leases are refreshed meanwhile: to set passwords takes etcd a while.
        block_in_place(|| etcd.ask_for_passwords("trainer", "secret", "run/"));
        client.put("run/n", "asked", None).await.unwrap();
        expect(&mut watch, "asked").await;
        refreshed(&mut lease).await;
        block_in_place(|| etcd.ask_for_no_passwords());
        client.put("run/n", "open again", None).await.unwrap();
        expect(&mut watch, "open again").await;
        refreshed(&mut lease).await;
        assert!(is_there(&client, "run/a").await, "on {version:?}");
    }
}
