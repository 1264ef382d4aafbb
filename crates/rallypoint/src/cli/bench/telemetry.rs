//! What metrics and traces cost: groups that form with them and without, in turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint_metrics::Metrics;
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{RendezvousError, RendezvousHandler, observed, send_traces};
use rallypoint_traces::{Endpoint, Tracer};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::progress::Progress;
use super::{Formation, disband, form_telling};

/// A collector that takes all traces and forgets them, for nodes with metrics and a tracer of their own.
#[derive(Debug)]
pub(super) struct Telemetry {
    collector: Endpoint,
    taken: Arc<AtomicU64>,
    task: JoinHandle<()>,
    /// Of the etcd clients, which nodes share here.
    pub(super) clients: Metrics,
}

impl Telemetry {
    async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let collector = format!("http://{}", listener.local_addr()?);
        let collector = collector.parse().map_err(|problem| io::Error::other(format!("{problem}")))?;
        let taken: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&taken);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                // One that hangs up has nothing more to send.
                tokio::spawn(async move { take(stream, &counted).await.unwrap_or_default() });
            }
        });
        Ok(Telemetry { collector, taken, task, clients: Metrics::default() })
    }

    /// Of one node: what a process has from its start on, before it meets anybody.
    pub(super) fn of_a_node(&self) -> NodeTelemetry {
        NodeTelemetry { metrics: Metrics::default(), tracer: send_traces(&self.collector) }
    }
}

/// The metrics and the tracer of one node.
#[derive(Debug)]
pub(super) struct NodeTelemetry {
    metrics: Metrics,
    tracer: Option<Tracer>,
}

impl NodeTelemetry {
    /// The node, with its metrics and traces.
    pub(super) fn over(self, node: &Arc<NativeHandler>) -> Arc<dyn RendezvousHandler> {
        observed(Arc::clone(node) as _, self.metrics, self.tracer)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers each request with 200, until the client hangs up.
async fn take(stream: TcpStream, counted: &AtomicU64) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        let mut length = 0;
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            match line.trim().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap_or(0),
                None if line.trim().is_empty() => break,
                _ => {}
            }
        }
        tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink()).await?;
        counted.fetch_add(length, Ordering::Relaxed);
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}

/// With metrics and traces, and without.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Comparison {
    /// How many groups of each.
    pub(super) rounds: usize,
    pub(super) on: Middle,
    pub(super) off: Middle,
    /// What was sent to the collector.
    pub(super) trace_bytes: u64,
}

/// The medians.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Middle {
    pub(super) seconds: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) requests_per_node: Option<f64>,
}

impl Middle {
    fn of(formations: &[Formation]) -> Self {
        let sorted = |figure: &dyn Fn(&Formation) -> Option<f64>| {
            let mut all: Vec<f64> = formations.iter().filter_map(figure).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let seconds = sorted(&|formation| Some(formation.seconds));
        let requests = sorted(&|formation| formation.requests_per_node);
        Middle {
            seconds: seconds[seconds.len() / 2],
            least: seconds[0],
            most: seconds[seconds.len() - 1],
            requests_per_node: requests.get(requests.len() / 2).copied(),
        }
    }
}

/// Forms so many groups of each kind, the first of them in turn.
pub(super) async fn compare(
    settings: &NativeSettings,
    nodes: usize,
    connections: usize,
    rounds: usize,
    progress: &Progress,
) -> io::Result<Result<Comparison, RendezvousError>> {
    let telemetry = Telemetry::start().await?;
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for number in 0..2 * rounds {
        // With, without; without, with; and so on.
        let with = number % 4 == 0 || number % 4 == 3;
        let mut settings = settings.clone();
        settings.run_id = format!("{}-{number}", settings.run_id);
        let formed = form_telling(&settings, nodes, connections, progress, with.then_some(&telemetry)).await;
        let group = match formed {
            Ok(group) => group,
            Err(error) => return Ok(Err(error)),
        };
        if with { &mut on } else { &mut off }.push(group.formation.clone());
        disband(group).await;
    }
    let (on, off) = (Middle::of(&on), Middle::of(&off));
    Ok(Ok(Comparison { rounds, on, off, trace_bytes: telemetry.taken.load(Ordering::Relaxed) }))
}
