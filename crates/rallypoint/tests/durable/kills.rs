//! Killed at any moment, under load.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};

use crate::model::Model;
use crate::serving::Serving;
use crate::worker::{Told, check_told, holdings, look, watch, work};

const CLIENTS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_that_was_promised_and_invents_nothing() {
    let rounds = std::env::var("RALLYPOINT_KILLS").map_or(8, |rounds| rounds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut models: Vec<Model> = (0..CLIENTS).map(Model::new).collect();
    let mut told = Mutex::new(Told::default());
    let began = Instant::now();
    let mut serving = Serving::start(folder.path());
    for round in 1..=rounds {
        let endpoint = serving.endpoint.clone();
        let client = serving.client().await;
        let (work_, told_, client_) = (&endpoint, &told, &client);
        let workers = models.iter_mut().map(|model| work(work_, client_, model, told_));
        let lookers = join(look(&endpoint, &client, &told), watch(&client, &told));
        let end = async {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..150_000))).await;
            // One that is told to stop must keep all as well.
            if round % 8 == 0 {
                assert_eq!(serving.terminate(), Some(0));
                // All of it is in one file then.
                assert!(!folder.path().join("rallypoint.log").exists());
            } else {
                serving.kill();
            }
        };
        join(join(join_all(workers), lookers), end).await;

        // Also while it starts.
        for _ in 0..fastrand::u32(..3) {
            let mut starting = Serving::spawn(folder.path());
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..30_000))).await;
            starting.kill().unwrap();
            starting.wait().unwrap();
        }
        serving = Serving::start(folder.path());
        for model in &mut models {
            let found = holdings(&serving, model).await;
            model.check(found);
        }
        check_told(&serving, told.get_mut().unwrap()).await;
        if round % 100 == 0 {
            let requests: u64 = models.iter().map(|model| model.count).sum();
            println!("{round} times killed, {requests} requests, {:?}", began.elapsed());
        }
    }
    let requests: u64 = models.iter().map(|model| model.count).sum();
    assert!(requests > rounds, "{requests} requests in {rounds} rounds are no load");
}
