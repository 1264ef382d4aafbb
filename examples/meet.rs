//! Worker processes that find each other through a store on etcd.
//!
//! ```text
//! cargo run --example meet -- 127.0.0.1:2379        four workers
//! cargo run --example meet -- 127.0.0.1:2379 16     sixteen
//! ```
//!
//! Each worker draws a number, says where it can be reached, and waits until all have done so. The rendezvous
//! of Rallypoint does this and much more; the example shows what a store alone is good for.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint::{BlockingStore, EtcdSettings, EtcdStore};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [endpoints] => start_workers(endpoints, 4),
        [endpoints, workers] => start_workers(endpoints, workers.parse()?),
        ["worker", endpoints, run, workers] => work(endpoints, run, workers.parse()?),
        _ => Err("usage: meet ENDPOINTS [WORKERS]".into()),
    }
}

fn start_workers(endpoints: &str, workers: u64) -> Result<(), Box<dyn Error>> {
    let run = format!("{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
    let start = |_| -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?).args(["worker", endpoints, &run, &workers.to_string()]).spawn()
    };
    let children: Vec<Child> = (0..workers).map(start).collect::<Result<_, _>>()?;
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    println!("all {workers} workers met");
    Ok(())
}

fn work(endpoints: &str, run: &str, workers: u64) -> Result<(), Box<dyn Error>> {
    let settings = EtcdSettings::new(endpoints)?;
    let prefix = format!("/example/meet/{run}");
    let store = BlockingStore::open(EtcdStore::connect(settings, &prefix))?;
    store.set_timeout(Duration::from_secs(30));

    let rank = store.add(b"arrived", 1)? - 1;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    store.set(format!("address/{rank}").as_bytes(), socket.local_addr()?.to_string().as_bytes())?;

    let keys: Vec<String> = (0..workers).map(|rank| format!("address/{rank}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let addresses = store.multi_get(&keys)?;
    let master = String::from_utf8_lossy(&addresses[0]);
    println!(
        "worker {rank} of {workers}, process {}: all are here, the first is at {master}",
        std::process::id()
    );

    // Nobody leaves, and nobody cleans up, before all have read.
    store.barrier(b"read", workers, None)?;
    if rank == 0 {
        for key in store.list_keys()?.iter().filter(|key| !key.starts_with(b"read")) {
            store.delete_key(key)?;
        }
    }
    Ok(())
}
