//! A process that has no file descriptor left. Alone in its file: the limit is the process's.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rallypoint_tcpstore::TcpStoreServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_that_take_all_descriptors_lock_nobody_out() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum: most }).expect("it can be lowered");
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr();
    let clients = move || {
        // Its own descriptor it has already.
        let late = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // Far more than the server has descriptors left for.
        let mut silent = Vec::new();
        while silent.len() < 60 {
            silent.extend(TcpStream::connect(address));
        }
        late.connect(&address.into()).unwrap();
        let mut late = TcpStream::from(late);
        // Before anybody is ended for being silent too long.
        late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        late.write_all(&[0, 0xCE, 0xF7, 0x85, 0x3C, 13, 1, 2, 3, 4]).unwrap();
        let mut pong = [0; 4];
        late.read_exact(&mut pong).unwrap();
        assert_eq!(pong, [1, 2, 3, 4]);
    };
    tokio::task::spawn_blocking(clients).await.unwrap();
    server.stop().await;
}
