//! A store behind proxies: what their clients see, who is let in, and what becomes of clients when the server is gone.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rallypoint_tcpstore::wire::MESSAGES;
use rallypoint_tcpstore::{ProxyError, Secret, StoreProxy, StoreTls, TcpStoreServer, Upstream};
use rallypoint_testkit::{Certs, run_python};
use tokio::task::spawn_blocking;

const VALUE: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A server behind proxies, and where it is for one.
struct Serving {
    server: TcpStoreServer,
    upstream: Upstream,
}

fn serve(tls: Option<StoreTls>) -> Serving {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, agents, secret) = (listen(), listen(), Secret::random().unwrap());
    let port = agents.local_addr().unwrap().port();
    let metrics = rallypoint_metrics::WorkerStore::default();
    let server = TcpStoreServer::for_round_of_proxies(own, agents, secret, tls.as_ref(), metrics).unwrap();
    Serving { server, upstream: Upstream { host: "127.0.0.1".to_owned(), port, secret, tls } }
}

async fn proxy(upstream: &Upstream) -> StoreProxy {
    StoreProxy::connect(upstream, PATIENCE).await.unwrap()
}

fn tls(certs: &Certs) -> StoreTls {
    StoreTls::load(certs.ca(), certs.server_cert(), certs.server_key()).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(&[0, 0xCE, 0xF7, 0x85, 0x3C]).unwrap();
    client
}

fn ping(client: &mut TcpStream) {
    client.write_all(&[13, 1, 2, 3, 4]).unwrap();
    let mut pong = [0; 4];
    client.read_exact(&mut pong).unwrap();
    assert_eq!(pong, [1, 2, 3, 4]);
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[1], string(key).as_slice(), &string(value)].concat()
}

fn wait(key: &[u8]) -> Vec<u8> {
    [&[6], 1_u64.to_le_bytes().as_slice(), &string(key)].concat()
}

/// All that PyTorch's client does and all messages, waits and their cancellation among them, are compared with PyTorch's own
/// servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pytorchs_client_sees_through_a_proxy_with_tls_what_it_sees_on_pytorchs_servers() {
    let certs = Certs::generate();
    let Serving { server, upstream } = serve(Some(tls(&certs)));
    let proxy = proxy(&upstream).await;
    let port = proxy.local_addr().port().to_string();
    let compare = move || run_python(include_str!("pytorch.py"), &[&port, &MESSAGES.join(" ")]);
    let said = spawn_blocking(compare).await.unwrap();
    let said = said.trim();
    assert!(said.ends_with(" the same, 0 not"), "{said}");
    drop(proxy);
    server.stop().await;
}

/// Two nodes, and a client on the server's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_up_nobody_on_the_same_trunk_and_gets_everything_when_it_reads() {
    for tls in [None, Some(tls(&Certs::generate()))] {
        let Serving { server, upstream } = serve(tls);
        let (first, second) = (proxy(&upstream).await, proxy(&upstream).await);
        let places = [first.local_addr(), second.local_addr(), server.local_addr()];
        let clients = move || {
            let (mut slow, mut other) = (connect(places[0]), connect(places[0]));
            let mut far = connect(places[1]);
            far.write_all(&set(b"k", &[7; VALUE])).unwrap();
            ping(&mut far);
            let get = [&[3], string(b"k").as_slice()].concat();
            slow.write_all(&get.repeat(10)).unwrap();
            slow.write_all(&[13, 1, 2, 3, 4]).unwrap();
            // Its replies are far more than sockets and windows take.
            (0..100).for_each(|_| ping(&mut other));
            // Nor does one that sends much and whose replies are not read.
            let mut own = connect(places[2]);
            own.write_all(&wait(b"later")).unwrap();
            other.write_all(&set(b"later", &[1; VALUE])).unwrap();
            let mut stopped = [9];
            own.read_exact(&mut stopped).unwrap();
            assert_eq!(stopped, [0]);
            let mut replies = vec![0; 10 * (8 + VALUE) + 4];
            slow.read_exact(&mut replies).unwrap();
            assert!(replies == [string(&[7; VALUE]).repeat(10), vec![1, 2, 3, 4]].concat());
            ping(&mut slow);
        };
        spawn_blocking(clients).await.unwrap();
        drop((first, second));
        server.stop().await;
    }
}

/// A client that goes takes its wait with it, on the server too; and those who stay are told when the server goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_is_gone_and_a_server_that_goes_resets_its_clients_and_is_named() {
    let Serving { server, upstream } = serve(None);
    let proxy = proxy(&upstream).await;
    let address = proxy.local_addr();
    let clients = move || {
        let mut gone = connect(address);
        gone.write_all(&[wait(b"k"), set(b"before", b"")].concat()).unwrap();
        drop(gone);
        let mut stays = connect(address);
        // What was sent before it went has come.
        stays.write_all(&wait(b"before")).unwrap();
        stays.read_exact(&mut [9]).unwrap();
        // A wait that is given up is over, and a late word of it does not come.
        stays.write_all(&[wait(b"never"), vec![12]].concat()).unwrap();
        let mut answer = [0];
        stays.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [1]);
        stays.write_all(&wait(b"never")).unwrap();
        stays
    };
    let mut stays = spawn_blocking(clients).await.unwrap();
    assert_eq!(proxy.lost(), None);
    server.stop().await;
    let ended = spawn_blocking(move || stays.read(&mut [0]).unwrap_err().kind()).await.unwrap();
    assert_eq!(ended, ErrorKind::ConnectionReset);
    // A client may be reset a moment before that.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let lost = loop {
        if let Some(lost) = proxy.lost() {
            break lost;
        }
        assert!(std::time::Instant::now() < deadline, "nobody is told that the server is gone");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(lost.contains(&format!("at 127.0.0.1:{} is lost", upstream.port)), "{lost}");
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // Nobody is there any more.
    let error = StoreProxy::connect(&upstream, Duration::from_millis(300)).await.unwrap_err();
    let place = format!("at 127.0.0.1:{}", upstream.port);
    assert!(matches!(error, ProxyError::Unreachable { .. }) && error.to_string().contains(&place), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_knows_the_secret_and_shows_a_certificate_is_let_in_and_nobody_else_is_harmed() {
    let certs = Certs::generate();
    for with in [None, Some(tls(&certs))] {
        let Serving { server, upstream } = serve(with.clone());
        let good = proxy(&upstream).await;
        let turned = async |upstream: &Upstream| {
            let error = StoreProxy::connect(upstream, PATIENCE).await.unwrap_err();
            assert!(matches!(error, ProxyError::TurnedAway { .. }), "{error}");
            error.to_string()
        };
        let wrong = Upstream { secret: Secret::random().unwrap(), ..upstream.clone() };
        assert!(turned(&wrong).await.contains("another round"));
        if with.is_some() {
            // A server that does not trust this node's authority, and one whose certificate is for another host.
            for (ca, cert, key, words) in [
                (certs.other_ca(), certs.server_cert(), certs.server_key(), "UnknownCA"),
                (certs.ca(), certs.elsewhere_cert(), certs.elsewhere_key(), "not valid for name"),
            ] {
                let strange = serve(Some(StoreTls::load(ca, cert, key).unwrap()));
                let upstream = Upstream { tls: with.clone(), ..strange.upstream.clone() };
                let why = turned(&upstream).await;
                assert!(why.contains("TLS") && why.contains(words), "{why}");
                strange.server.stop().await;
            }
        }
        let (port, address) = (upstream.port, good.local_addr());
        let strangers = move || {
            // A client of its own, as from a node without a proxy; one that floods; one that says nothing.
            let silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
            for first in [vec![0, 0xCE, 0xF7, 0x85, 0x3C], vec![b'R'; 100 << 10], vec![0x16; 64 << 10]] {
                let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let _ = stranger.write_all(&first);
                let mut said = Vec::new();
                // Up to the end, which may be a reset.
                let _ = stranger.read_to_end(&mut said);
                assert!(said.len() < 100, "{said:?}");
            }
            ping(&mut connect(address));
            drop(silent);
        };
        spawn_blocking(strangers).await.unwrap();
        drop(good);
        server.stop().await;
    }
}

/// As a node that joins round after round does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_proxy_that_is_dropped() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let Serving { server, upstream } = serve(None);
    let round = async || {
        let proxy = proxy(&upstream).await;
        let address = proxy.local_addr();
        let open = spawn_blocking(move || {
            let mut clients: Vec<_> = (0..50).map(|_| connect(address)).collect();
            clients.iter_mut().for_each(ping);
            clients
        });
        let mut open = open.await.unwrap();
        drop(proxy);
        spawn_blocking(move || {
            // Ended one way or the other.
            open.iter_mut().for_each(|client| assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_))));
        });
        address
    };
    let address = round().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let before = descriptors();
    for _ in 0..5 {
        round().await;
    }
    while descriptors() > before + 60 {
        assert!(std::time::Instant::now() < deadline, "{} descriptors, and {before} before", descriptors());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(TcpStream::connect(address).is_err());
    server.stop().await;
}
