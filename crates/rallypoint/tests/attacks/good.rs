//! A client that behaves, beside one that does not.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use etcd_client::Client;
use rallypoint::EtcdSettings;
use rallypoint::etcd::v2;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long it waits for an answer. Longer is a failure.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two rounds of requests.
const PACE: Duration = Duration::from_millis(10);

/// What became of its requests.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) failed: Vec<String>,
    pub(crate) took: Vec<Duration>,
    /// The longest that a read or a keep-alive took: while very many keys are deleted, writes wait.
    pub(crate) worst_read: Duration,
}

impl Report {
    /// 99 of 100 requests took no longer.
    pub(crate) fn p99(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get(took.len() * 99 / 100).copied().unwrap_or_default()
    }

    pub(crate) fn worst(&self) -> Duration {
        self.took.iter().max().copied().unwrap_or_default()
    }

    async fn asks<T, E: std::fmt::Debug>(
        &mut self,
        what: &str,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let began = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, ask).await;
        self.took.push(began.elapsed());
        if ["get", "kept alive"].contains(&what) {
            self.worst_read = self.worst_read.max(began.elapsed());
        }
        match answer {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => self.failed.push(format!("{what}: {error:?}")),
            Err(_) => self.failed.push(format!("{what}: no answer within {PATIENCE:?}")),
        }
        None
    }
}

/// Writes, reads, keeps a lease, comes with new connections and uses v2, until it is asked how that went.
pub(crate) struct Good {
    stop: watch::Sender<bool>,
    works: Vec<JoinHandle<Report>>,
}

impl Good {
    /// On an endpoint; `v2` where that is served. Its lease is for so many seconds.
    pub(crate) async fn start(endpoint: &str, v2: bool, ttl: i64) -> Self {
        let (stop, stopped) = watch::channel(false);
        let endpoint = endpoint.to_owned();
        let apart = apart();
        let works = apart.spawn(async move {
            let client = Client::connect([&endpoint], None).await.unwrap();
            let mut works = vec![
                tokio::spawn(requests(client.clone(), stopped.clone())),
                tokio::spawn(lease(client, ttl, stopped.clone())),
                tokio::spawn(connections(endpoint.clone(), stopped.clone())),
            ];
            if v2 {
                works.push(tokio::spawn(files(endpoint, stopped)));
            }
            works
        });
        Good { stop, works: works.await.unwrap() }
    }

    pub(crate) async fn end(self) -> Report {
        self.stop.send_replace(true);
        let mut all = Report::default();
        for work in self.works {
            let Report { failed, took, worst_read } = work.await.unwrap();
            all.failed.extend(failed);
            all.took.extend(took);
            all.worst_read = all.worst_read.max(worst_read);
        }
        all
    }
}

/// Threads of its own: it is not to wait for a hostile client that is in the same process.
fn apart() -> &'static Runtime {
    static APART: OnceLock<Runtime> = OnceLock::new();
    APART.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    })
}

/// Whether there is time for another round.
async fn goes_on(stopped: &mut watch::Receiver<bool>) -> bool {
    tokio::time::timeout(PACE, stopped.wait_for(|stopped| *stopped)).await.is_err()
}

async fn requests(mut client: Client, mut stopped: watch::Receiver<bool>) -> Report {
    let mut report = Report::default();
    while goes_on(&mut stopped).await {
        report.asks("put", client.put("good/key", "value", None)).await;
        report.asks("get", client.get("good/key", None)).await;
    }
    report
}

async fn lease(mut client: Client, ttl: i64, mut stopped: watch::Receiver<bool>) -> Report {
    let mut report = Report::default();
    let Some(granted) = report.asks("grant", client.lease_grant(ttl, None)).await else { return report };
    let id = granted.id();
    let Some((mut keeper, mut kept)) = report.asks("keep alive", client.lease_keep_alive(id)).await else {
        return report;
    };
    while goes_on(&mut stopped).await {
        report.asks("keep-alive", keeper.keep_alive()).await;
        if let Some(Some(kept)) = report.asks("kept alive", kept.message()).await
            && kept.ttl() == 0
        {
            report.failed.push("its lease is lost".to_owned());
            break;
        }
    }
    report
}

async fn connections(endpoint: String, mut stopped: watch::Receiver<bool>) -> Report {
    let mut report = Report::default();
    while goes_on(&mut stopped).await {
        let Some(mut client) = report.asks("connect", Client::connect([&endpoint], None)).await else {
            continue;
        };
        report.asks("get of a new connection", client.get("good/key", None)).await;
        tokio::time::sleep(PACE * 10).await;
    }
    report
}

async fn files(endpoint: String, mut stopped: watch::Receiver<bool>) -> Report {
    let mut report = Report::default();
    let connecting = v2::Client::connect(EtcdSettings::new(&endpoint).unwrap());
    let Some(client) = report.asks("v2 connect", connecting).await else { return report };
    while goes_on(&mut stopped).await {
        report.asks("v2 put", client.put("/good", v2::Put::value("value"))).await;
    }
    report
}
