//! One node of ours; see [`crate::nodes`].

use rallypoint_rendezvous::{Registry, RendezvousHandler, RendezvousParameters};
use rustix::process::{Signal, getpid, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Connects to `port` and does what it is told there, until nobody tells it anything.
pub(crate) async fn run(port: u16) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the benchmark listens");
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let mut parameters = None;
    let mut handler: Option<std::sync::Arc<dyn RendezvousHandler>> = None;
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words.as_slice() {
            ["open", _, backend, endpoint, run, min, max] => {
                let (min, max) = (min.parse().expect("a number"), max.parse().expect("a number"));
                let mut given =
                    RendezvousParameters::new(backend, endpoint, run, min, max).expect("they can be used");
                given.local_addr = Some("127.0.0.1".to_owned());
                given.config.insert("last_call_timeout".to_owned(), "1".to_owned());
                parameters = Some(given);
                "ready".to_owned()
            }
            ["meet"] => {
                if handler.is_none() {
                    let given = parameters.clone().expect("it was opened");
                    handler = Some(Registry::with_defaults().create(given).await.expect("etcd answers"));
                }
                let met = handler.as_ref().expect("it was made").next_rendezvous().await.expect("they meet");
                format!("{} {}", met.rank, met.world_size)
            }
            ["watch"] => {
                handler.as_ref().expect("it has met").changed().await;
                "changed".to_owned()
            }
            ["leave"] => {
                handler.take().expect("it has met").leave().await.expect("etcd answers");
                "left".to_owned()
            }
            ["die"] => {
                kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
                unreachable!("it is dead");
            }
            other => panic!("no such command: {other:?}"),
        };
        let is_last = answer == "left";
        writer.write_all(format!("{answer}\n").as_bytes()).await.expect("the benchmark listens");
        if is_last {
            return;
        }
    }
}
