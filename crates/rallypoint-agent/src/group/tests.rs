//! What the end of many workers costs.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::descendants::PASSES;
use crate::logs::{LogDir, Logs};

#[derive(Debug)]
struct Nobody;

impl Console for Nobody {
    fn write(&self, _: Stream, _: &[u8]) {}
    fn colours(&self, _: Stream) -> bool {
        false
    }
}

fn start(workers: usize, logs: &Logs) -> Group {
    let place = |rank| WorkerRanks {
        rank,
        local_rank: rank,
        role_rank: rank,
        world_size: workers,
        local_world_size: workers,
        role_world_size: workers,
        group_rank: 0,
        group_world_size: 1,
    };
    let start = |rank| Start {
        program: OsStr::new("sleep"),
        args: vec!["600".into()],
        environment: BTreeMap::new(),
        without: &[],
        place: place(rank),
        prefix: String::new(),
        cpus: BTreeSet::new(),
        interactive: None,
        reads: false,
        metrics: rallypoint_metrics::Workers::default(),
        heartbeat: None,
    };
    let attempt = logs.attempt(0, workers, || true).unwrap();
    let console: Arc<dyn Console> = Arc::new(Nobody);
    let starts = (0..workers).map(start).collect();
    Group::start(starts, attempt, logs.settings(), &console, "host", &Workers::default(), || false).unwrap()
}

/// Each pass looks at all processes: one for each worker that ends would be a cost that grows with the square of their number.
#[tokio::test]
async fn workers_that_end_one_after_the_other_are_looked_at_together() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    for workers in [100, 400] {
        let folder = tempfile::tempdir().unwrap();
        let settings = LogSettings {
            redirects: "3".parse().unwrap(),
            ..LogSettings::console(LogDir::Kept(folder.path().to_owned()))
        };
        let logs = Logs::open(settings, "job").unwrap();
        let mut group = start(workers, &logs);
        let pids = group.pids();
        let (before, began) = (PASSES.get(), Instant::now());
        let ends = async {
            for pid in pids {
                kill_process(pid, Signal::KILL).unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // A signal that does nothing to them.
        let (now, over) = (std::future::pending(), std::future::pending());
        tokio::join!(group.stop(Signal::CONT, Duration::from_secs(600), now, over), ends);
        let passes = u32::try_from(PASSES.get() - before).unwrap();
        // The first, the last, and as many as there is time for between them.
        let share = REST_INTERVAL / 100 * u32::try_from(workers).unwrap();
        let most = began.elapsed().div_duration_f64(share) + 3.0;
        assert!(f64::from(passes) <= most, "{passes} passes for {workers}, and at most {most} are due");
        assert!(passes >= 1);
    }
}
