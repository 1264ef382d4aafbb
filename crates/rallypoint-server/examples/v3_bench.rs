//! Measures a server of etcd's v3 protocol: `v3_bench <pid> <host:port> ...`, one table row each.
//!
//! What is measured is one client process with one connection for each server: rates of put, get and
//! transaction at 1, 64 and 1,024 in flight, the time of one put to 10,000 watchers, and the memory with
//! 10,000 leases and 10,000 watches.

use std::error::Error;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, ConnectOptions, Txn, TxnOp, WatchOptions};

const WATCHERS: usize = 10_000;
const LEASES: usize = 10_000;

// On one thread: the other processor is the server's.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    for server in args.chunks(2) {
        let [pid, endpoint] = server else { return Err("give pairs of pid and host:port".into()) };
        let options = ConnectOptions::new().with_tcp_keepalive(Duration::from_secs(60));
        let client = Client::connect([endpoint], Some(options)).await?;
        let mut row = format!("{endpoint:>22}");
        for what in ["put", "get", "txn"] {
            for inflight in [1, 64, 1024] {
                let (before, own) = (cpu(pid)?, cpu("self")?);
                let (rate, count) = rate(&client, what, inflight).await?;
                let (busy, own) = ((cpu(pid)? - before) * 1e6 / count, (cpu("self")? - own) * 1e6 / count);
                row += &format!(
                    "\n  {what:>4}@{inflight:<5} {rate:7.0}/s, processor time {busy:5.1} us in the server, {own:5.1} us here"
                );
            }
        }
        println!("{row}");
        let before = resident(pid)?;
        let fanout = fanout(&client).await?;
        println!(
            "{endpoint:>22} | fan-out to {WATCHERS}: {fanout:?} | memory {before} MiB before, {} MiB with all",
            resident(pid)?
        );
    }
    Ok(())
}

async fn rate(client: &Client, what: &'static str, inflight: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let time = Duration::from_millis(1500);
    let start = Instant::now();
    let tasks: Vec<_> = (0..inflight)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let mut count = 0_u64;
                let key = format!("bench/{}", task % 100);
                while start.elapsed() < time {
                    match what {
                        "put" => drop(
                            client.put(key.as_str(), "a value of some length, not very long", None).await?,
                        ),
                        "get" => drop(client.get(key.as_str(), None).await?),
                        _ => {
                            let txn = Txn::new()
                                .when([Compare::version(key.as_str(), CompareOp::Greater, 0)])
                                .and_then([
                                    TxnOp::put(key.as_str(), "x", None),
                                    TxnOp::get(key.as_str(), None),
                                ])
                                .or_else([TxnOp::put(key.as_str(), "y", None)]);
                            client.txn(txn).await?;
                        }
                    }
                    count += 1;
                }
                Ok::<_, etcd_client::Error>(count)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    Ok((count / start.elapsed().as_secs_f64(), count))
}

/// The best of three.
async fn fanout(client: &Client) -> Result<Duration, Box<dyn Error>> {
    let mut client = client.clone();
    let mut streams = Vec::new();
    for _ in 0..WATCHERS {
        streams.push(client.watch("fan/out", Some(WatchOptions::new())).await?);
    }
    for _ in 0..LEASES {
        client.lease_grant(600, None).await?;
    }
    let (told, mut heard) = tokio::sync::mpsc::channel(WATCHERS);
    let listeners: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let told = told.clone();
            tokio::spawn(async move {
                while let Ok(Some(answer)) = stream.message().await {
                    if !answer.events().is_empty() && told.send(()).await.is_err() {
                        break;
                    }
                }
            })
        })
        .collect();
    let mut best = Duration::MAX;
    for round in 0..3 {
        let start = Instant::now();
        client.put("fan/out", format!("{round}"), None).await?;
        for _ in 0..WATCHERS {
            heard.recv().await;
        }
        best = best.min(start.elapsed());
    }
    drop(listeners);
    Ok(best)
}

fn resident(pid: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<u64>()? / 1024)
}

/// Seconds of processor time that a process has used.
fn cpu(pid: &str) -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name in brackets, user and system time are fields 12 and 13, in hundredths.
    let fields: Vec<&str> = stat.rsplit(')').next().ok_or("no fields")?.split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}
