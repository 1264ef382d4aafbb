//! Keeps a lease alive, and says how it is with each refresh: `keep_lease <endpoints> <seconds>`.

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v3::{Client, LeaseState};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let endpoints = args.next().ok_or("which endpoints?")?;
    let seconds = args.next().ok_or("for how many seconds?")?.parse()?;
    let client = Client::connect(EtcdSettings::new(&endpoints)?).await?;
    let mut lease = client.lease(Duration::from_secs(seconds)).await?;
    println!("alive");
    loop {
        match lease.next().await {
            LeaseState::Alive => println!("alive"),
            LeaseState::Unsure { .. } => println!("unsure"),
            LeaseState::Lost => {
                println!("lost");
                return Ok(());
            }
        }
    }
}
