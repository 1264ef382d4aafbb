//! A TCP proxy that breaks connections on demand.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A TCP proxy in front of an endpoint. Dropped, it cuts every connection and listens no more.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    drop_replies: AtomicBool,
    /// In microseconds.
    delay: AtomicU64,
    state: Mutex<State>,
}

/// Under one lock, so that no connection slips in between `refuse(true)` and `cut()`.
#[derive(Debug, Default)]
struct State {
    target: String,
    ended: bool,
    refuse: bool,
    accepted: u64,
    live: HashMap<u64, (TcpStream, TcpStream)>,
}

impl Proxy {
    /// Starts a proxy in front of `target` (`host:port`).
    #[must_use]
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on 127.0.0.1");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            drop_replies: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            state: Mutex::new(State { target: target.to_owned(), ..State::default() }),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Proxy { address, shared, acceptor: Some(acceptor) }
    }

    /// Where it listens, as `127.0.0.1:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// How many connections it has taken so far, those refused included.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Leads new connections to another endpoint. Live ones go on.
    pub fn retarget(&self, target: &str) {
        self.shared.state().target = target.to_owned();
    }

    /// Closes every live connection, on both sides. New ones are served.
    pub fn cut(&self) {
        self.shared.state().cut();
    }

    /// Whether new connections are closed at once. Live ones go on.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// Whether what the server sends is lost; what the client sends still arrives. A connection that lost
    /// something cannot be mended: [`Proxy::cut`] it before replies pass again.
    pub fn drop_replies(&self, drop_replies: bool) {
        self.shared.drop_replies.store(drop_replies, Ordering::SeqCst);
    }

    /// How long what it has read lies before it is passed on, each way. Meanwhile nothing more is read.
    pub fn delay(&self, by: Duration) {
        self.shared.delay.store(by.as_micros().try_into().expect("not that long"), Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.ended = true;
        state.cut();
        drop(state);
        // Wakes the acceptor. A refused connection means that it has ended already.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cut(&mut self) {
        for (_, (client, server)) in self.live.drain() {
            close(&client);
            close(&server);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.state().ended {
            return;
        }
        // Connecting may take long, and must not keep others waiting.
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            if let Ok(client) = client {
                serve(&client, &shared);
            }
        });
    }
}

fn serve(client: &TcpStream, shared: &Shared) {
    let (id, target) = {
        let mut state = shared.state();
        state.accepted += 1;
        if state.refuse {
            return;
        }
        (state.accepted, state.target.clone())
    };
    let Ok(server) = TcpStream::connect(target) else { return };
    // The proxy must not add delays of its own.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    {
        let mut state = shared.state();
        let (Ok(client), Ok(server)) = (client.try_clone(), server.try_clone()) else { return };
        if state.ended || state.refuse {
            return;
        }
        state.live.insert(id, (client, server));
    }
    let server = &server;
    let delay = || thread::sleep(Duration::from_micros(shared.delay.load(Ordering::SeqCst)));
    let requests = || {
        delay();
        true
    };
    let replies = || {
        delay();
        !shared.drop_replies.load(Ordering::SeqCst)
    };
    thread::scope(|both| {
        both.spawn(|| pump(client, server, &requests));
        both.spawn(|| pump(server, client, &replies));
    });
    shared.state().live.remove(&id);
}

/// Passes bytes on until `from` ends, then ends `to`; an error ends both.
fn pump(mut from: &TcpStream, mut to: &TcpStream, pass: &dyn Fn() -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(_) if !pass() => {}
            Ok(n) if to.write_all(&buffer[..n]).is_ok() => {}
            _ => {
                close(from);
                close(to);
                return;
            }
        }
    }
}

/// Fails only for a connection that is closed already.
fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
