//! What misbehaves does so in exactly the way it says.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may unwrap as the tests do")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Proxy, Silent, closed_port, refused_endpoint};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_closed_port_refuses_and_stays_closed() {
    let endpoint = refused_endpoint();
    assert_eq!(TcpStream::connect(&endpoint).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // The kernel hands it to nobody who asks for any port.
    let taken = closed_port();
    let others: Vec<_> = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    assert!(others.iter().all(|other| other.local_addr().unwrap().port() != taken));
}

#[test]
fn a_silent_server_takes_connections_and_requests_and_says_nothing() {
    let silent = Silent::start();
    let mut streams: Vec<_> = (0..20).map(|_| connect(&silent.endpoint())).collect();
    for stream in &mut streams {
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    }
    assert!(is_silent(&mut streams[0]) && is_silent(&mut streams[19]));
}

#[test]
fn a_proxy_passes_bytes_both_ways_and_the_end_of_them() {
    let proxy = Proxy::start(&echo());
    let mut stream = connect(&proxy.endpoint());
    assert_eq!(ask(&mut stream), Some(*b"ping"));
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(proxy.accepted(), 1);
}

#[test]
fn a_cut_closes_live_connections_and_serves_new_ones() {
    let proxy = Proxy::start(&echo());
    let mut stream = connect(&proxy.endpoint());
    assert_eq!(ask(&mut stream), Some(*b"ping"));
    proxy.cut();
    assert_eq!(ask(&mut stream), None);
    assert_eq!(ask(&mut connect(&proxy.endpoint())), Some(*b"ping"));
}

#[test]
fn refusing_closes_new_connections_and_leaves_live_ones() {
    let proxy = Proxy::start(&echo());
    let mut live = connect(&proxy.endpoint());
    assert_eq!(ask(&mut live), Some(*b"ping"));
    proxy.refuse(true);
    assert_eq!(ask(&mut connect(&proxy.endpoint())), None);
    assert_eq!(ask(&mut live), Some(*b"ping"));
    proxy.refuse(false);
    assert_eq!(ask(&mut connect(&proxy.endpoint())), Some(*b"ping"));
}

#[test]
fn a_delay_holds_back_both_ways() {
    let proxy = Proxy::start(&echo());
    let mut stream = connect(&proxy.endpoint());
    assert_eq!(ask(&mut stream), Some(*b"ping"));
    proxy.delay(SHORT);
    let began = Instant::now();
    assert_eq!(ask(&mut stream), Some(*b"ping"));
    assert!(began.elapsed() >= SHORT * 2, "{:?}", began.elapsed());
    proxy.delay(Duration::ZERO);
    assert_eq!(ask(&mut stream), Some(*b"ping"));
}

#[test]
fn dropped_replies_are_lost_while_requests_arrive() {
    let (requests, inbox) = std::sync::mpsc::channel();
    let target = serve(move |request| requests.send(request).unwrap());
    let proxy = Proxy::start(&target);
    let mut stream = connect(&proxy.endpoint());
    proxy.drop_replies(true);
    stream.write_all(b"lost").unwrap();
    assert_eq!(inbox.recv_timeout(LONG).unwrap(), *b"lost");
    assert!(is_silent(&mut stream));
    proxy.cut();
    proxy.drop_replies(false);
    assert_eq!(ask(&mut connect(&proxy.endpoint())), Some(*b"ping"));
}

#[test]
fn a_dropped_proxy_listens_no_more() {
    let proxy = Proxy::start(&echo());
    let endpoint = proxy.endpoint();
    let mut live = connect(&endpoint);
    assert_eq!(ask(&mut live), Some(*b"ping"));
    drop(proxy);
    assert_eq!(ask(&mut live), None);
    assert_eq!(TcpStream::connect(endpoint).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

fn echo() -> String {
    serve(|_| {})
}

/// A server that shows each four bytes to `see` and sends them back.
fn serve(see: impl Fn([u8; 4]) + Send + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, see) = (stream.unwrap(), see.clone());
            thread::spawn(move || {
                let mut request = [0; 4];
                while stream.read_exact(&mut request).is_ok() {
                    see(request);
                    if stream.write_all(&request).is_err() {
                        return;
                    }
                }
            });
        }
    });
    endpoint
}

fn connect(endpoint: &str) -> TcpStream {
    let stream = TcpStream::connect(endpoint).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The echo of a request, or none if the connection is closed.
fn ask(stream: &mut TcpStream) -> Option<[u8; 4]> {
    let mut answer = [0; 4];
    stream.write_all(b"ping").ok()?;
    match stream.read_exact(&mut answer) {
        Ok(()) => Some(answer),
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the connection hangs"),
        Err(_) => None,
    }
}

/// Whether nothing comes, neither bytes nor the end.
fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}
