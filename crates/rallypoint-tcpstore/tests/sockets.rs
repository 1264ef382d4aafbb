//! What only sockets show: clients that do not read, and the end of the server.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rallypoint_tcpstore::{Limits, TcpStoreServer};

const VALUE: usize = 4 << 20;

/// On several threads, however few cores there are.
fn serve(address: &str, limits: Limits) -> TcpStoreServer {
    TcpStoreServer::bind_on_threads(address.parse().unwrap(), limits, 3).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    client.write_all(&[0, 0xCE, 0xF7, 0x85, 0x3C]).expect("it reads");
    client
}

fn ping(client: &mut TcpStream) {
    client.write_all(&[13, 1, 2, 3, 4]).expect("it reads");
    let mut pong = [0; 4];
    client.read_exact(&mut pong).expect("it answers");
    assert_eq!(pong, [1, 2, 3, 4]);
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_nobody_up_and_gets_everything_when_it_reads() {
    let server = serve("127.0.0.1:0", Limits::default());
    let address = server.local_addr();
    let clients = move || {
        let (mut slow, mut other) = (connect(address), connect(address));
        other.write_all(&[&[1], string(b"k").as_slice(), &string(&[7; VALUE])].concat()).unwrap();
        ping(&mut other);
        let get = [&[3], string(b"k").as_slice()].concat();
        slow.write_all(&get.repeat(10)).unwrap();
        slow.write_all(&[13, 1, 2, 3, 4]).unwrap();
        // Its replies are far more than sockets take.
        (0..100).for_each(|_| ping(&mut other));
        let mut replies = vec![0; 10 * (8 + VALUE) + 4];
        slow.read_exact(&mut replies).unwrap();
        assert_eq!(replies, [string(&[7; VALUE]).repeat(10), vec![1, 2, 3, 4]].concat());
        ping(&mut slow);
    };
    tokio::task::spawn_blocking(clients).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn stopped_or_dropped_it_has_closed_its_port_and_all_connections() {
    let server = serve("127.0.0.1:0", Limits::default());
    let address = server.local_addr();
    let mut client = tokio::task::spawn_blocking(move || {
        let mut client = connect(address);
        ping(&mut client);
        client
    })
    .await
    .unwrap();
    let error = TcpStoreServer::bind(address).unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    server.stop().await;
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);

    // A client that is still connected does not keep the port from the next, nor is anything of before in it.
    let server = TcpStoreServer::bind(address).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let mut client = connect(address);
        ping(&mut client);
        client
    });
    let mut client = ended.await.unwrap();
    drop(server);
    assert_eq!(tokio::task::spawn_blocking(move || client.read(&mut [0]).unwrap()).await.unwrap(), 0);
}

#[tokio::test]
async fn with_its_port_closed_it_serves_those_who_are_connected_and_another_can_have_the_port() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = TcpStoreServer::for_round(listener).unwrap();
    let connecting = move || {
        let mut client = connect(address);
        ping(&mut client);
        client
    };
    let mut client = tokio::task::spawn_blocking(connecting).await.unwrap();
    server.close_port().await;
    let next = TcpStoreServer::bind(address).unwrap();
    let ask = move || {
        ping(&mut client);
        drop(connecting());
        client
    };
    let mut client = tokio::task::spawn_blocking(ask).await.unwrap();
    server.stop().await;
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    next.stop().await;
}

#[tokio::test]
async fn who_says_nothing_makes_room_or_is_ended_after_a_while() {
    let limits = Limits { newcomers: 2, silence: Duration::from_secs(1), ..Limits::default() };
    let server = serve("127.0.0.1:0", limits);
    let address = server.local_addr();
    let come = move || {
        let silent = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        let mut client = connect(address);
        ping(&mut client);
        (silent, client)
    };
    let (silent, mut client) = tokio::task::spawn_blocking(come).await.unwrap();
    let end = |mut silent: TcpStream| {
        silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        tokio::task::spawn_blocking(move || silent.read(&mut [0]).unwrap())
    };
    let [first, second, third] = silent;
    assert_eq!(end(first).await.unwrap(), 0);
    assert_eq!((end(second).await.unwrap(), end(third).await.unwrap()), (0, 0));
    tokio::task::spawn_blocking(move || ping(&mut client)).await.unwrap();
    server.stop().await;
}

/// As ranks do at a barrier: what one connection says ends waits of connections that other threads have.
#[tokio::test]
async fn waits_end_whichever_threads_have_those_who_wait() {
    const CLIENTS: usize = 40;
    const ROUNDS: usize = 50;
    let server = serve("127.0.0.1:0", Limits::default());
    let address = server.local_addr();
    let meet = move || {
        let meeting = |_| {
            std::thread::spawn(move || {
                let mut client = connect(address);
                for round in 0..ROUNDS {
                    let (count, go) = (format!("count {round}"), format!("go {round}"));
                    let wait = [&[6], 1_u64.to_le_bytes().as_slice(), &string(go.as_bytes())].concat();
                    let add = [&[4], string(count.as_bytes()).as_slice(), &1_u64.to_le_bytes()].concat();
                    client.write_all(&add).unwrap();
                    let mut sum = [0; 8];
                    client.read_exact(&mut sum).unwrap();
                    if u64::from_le_bytes(sum) == CLIENTS as u64 {
                        let set = [&[1], string(go.as_bytes()).as_slice(), &string(b"")].concat();
                        client.write_all(&set).unwrap();
                    }
                    client.write_all(&wait).unwrap();
                    client.read_exact(&mut [9]).unwrap();
                    client
                        .write_all(&[&[3], string(count.as_bytes()).as_slice(), &[13, 1, 2, 3, 4]].concat())
                        .unwrap();
                    let mut replies = [0; 14];
                    client.read_exact(&mut replies).unwrap();
                    assert_eq!(replies.as_slice(), [string(b"40"), vec![1, 2, 3, 4]].concat());
                }
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(meeting).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    };
    tokio::task::spawn_blocking(meet).await.unwrap();
    server.stop().await;
}
