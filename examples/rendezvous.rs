//! A node that meets others, works, and meets again when somebody comes, leaves or dies.
//!
//! ```text
//! cargo run --example rendezvous -- 127.0.0.1:2379 job42 2 4 100    on each of two to four machines
//! ```
//!
//! The nodes share a hundred pieces of work. Which are done stands in the store of the run, so that what a dead node had
//! begun is done by others. Kill one of them, or start another: the rest meets again and goes on.

use std::error::Error;
use std::time::Duration;

use rallypoint::rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint::rendezvous::{FINISHED, GroupChange, Rendezvous, RendezvousError, RendezvousHandler};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoints, run, min, max, pieces] = &args[..] else {
        return Err("usage: rendezvous ENDPOINTS RUN MIN MAX PIECES".into());
    };
    let mut settings = NativeSettings::new(endpoints, run, min.parse()?, max.parse()?)?;
    settings.last_call = Duration::from_secs(2);
    let node = NativeHandler::connect(settings).await?;
    let pieces: usize = pieces.parse()?;
    loop {
        let round = match node.next_rendezvous().await {
            Ok(round) => round,
            Err(RendezvousError::Closed { reason, .. }) if reason == FINISHED => break,
            Err(error) => return Err(error.into()),
        };
        println!("round {}: rank {} of {}", round.round, round.rank, round.world_size);
        // Whatever comes first: the work is done, or the group is no longer as it was.
        tokio::select! {
            done = work(&round, pieces) => {
                done?;
                node.set_closed(FINISHED).await?;
                break;
            }
            change = node.changed() => match change {
                GroupChange::Closed { reason } if reason == FINISHED => break,
                change => println!("{change:?}: meeting again"),
            }
        }
    }
    node.leave().await?;
    println!("done");
    Ok(())
}

/// Does this rank's share of what is left, until nothing is.
async fn work(round: &Rendezvous, pieces: usize) -> Result<(), Box<dyn Error>> {
    let done = round.run_store.as_ref().ok_or("this backend has no store of the run")?;
    loop {
        let mut left = 0;
        for piece in 0..pieces {
            let key = format!("done/{piece}");
            if done.check(&[key.as_bytes()]).await? {
                continue;
            }
            left += 1;
            if piece % round.world_size == round.rank {
                tokio::time::sleep(Duration::from_millis(20)).await;
                done.set(key.as_bytes(), b"").await?;
            }
        }
        if left == 0 {
            return Ok(());
        }
    }
}
