//! Sends spans to a collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use crate::Endpoint;
use crate::client::Client;

/// Spans that wait to be sent. What is beyond that is dropped: a collector that hangs must not fill our memory.
const WAITING: usize = 1024;
/// Spans that are sent at once.
const BATCH: usize = 128;
/// For those that come together to be sent together.
const LINGER: Duration = Duration::from_millis(100);
/// For a collector to take them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends spans to a collector, from a task of its own. Clones share it.
#[derive(Debug, Clone)]
pub struct Tracer {
    messages: mpsc::Sender<Message>,
    trouble: Trouble,
}

/// What is wrong with the collector: told once.
#[derive(Debug, Clone)]
struct Trouble {
    endpoint: Endpoint,
    told: Arc<AtomicBool>,
}

impl Trouble {
    fn tell(&self, why: &str) {
        debug!(why, "spans are lost");
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!("traces cannot be sent to {}: {why}; the run goes on without", self.endpoint);
        }
    }
}

#[derive(Debug)]
enum Message {
    Span(Box<SpanData>),
    /// Say so when all before this is sent.
    Flush(oneshot::Sender<()>),
}

/// There is no way to send spans.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint}: {problem}")]
pub struct CannotTrace {
    /// Where to.
    pub endpoint: Endpoint,
    /// Why not.
    pub problem: String,
}

/// Two that share their task.
impl PartialEq for Tracer {
    fn eq(&self, other: &Self) -> bool {
        self.messages.same_channel(&other.messages)
    }
}

impl Eq for Tracer {}

impl Tracer {
    /// Sends to this collector from now on. It need not be there yet. Headers, for a token for instance, are read from
    /// `OTEL_EXPORTER_OTLP_HEADERS`, the service's name from `OTEL_SERVICE_NAME` (`rallypoint` without it), and more of it
    /// from `OTEL_RESOURCE_ATTRIBUTES`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(endpoint: &Endpoint) -> Result<Self, CannotTrace> {
        let cannot = |problem: String| CannotTrace { endpoint: endpoint.clone(), problem };
        let client =
            Client::new(PATIENCE, endpoint.is_secure()).map_err(|error| cannot(error.to_string()))?;
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.traces())
            .with_timeout(PATIENCE)
            // A node that ends would wait for them.
            .with_retry_policy(RetryPolicy::default().with_max_retries(0))
            .build()
            .map_err(|error| cannot(error.to_string()))?;
        exporter.set_resource(&resource());
        let (sender, spans) = mpsc::channel(WAITING);
        let trouble = Trouble { endpoint: endpoint.clone(), told: Arc::default() };
        tokio::spawn(run(exporter, spans, trouble.clone()));
        Ok(Tracer { messages: sender, trouble })
    }

    /// Has a span sent. Never waits; a span for which there is no room is dropped.
    pub(crate) fn send(&self, span: SpanData) {
        if self.messages.try_send(Message::Span(Box::new(span))).is_err() {
            debug!("a span is dropped: the collector does not keep up");
        }
    }

    /// Waits until all spans of before are sent, or could not be; for so long.
    pub async fn flush(&self, time: Duration) {
        let (done, flushed) = oneshot::channel();
        let flush = async {
            if self.messages.send(Message::Flush(done)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        if timeout(time, flush).await.is_err() {
            self.trouble.tell(&format!("it has not answered for {} s", time.as_secs_f64()));
        }
    }
}

fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty());
    let resource = Resource::builder();
    let resource = if named { resource } else { resource.with_service_name("rallypoint") };
    resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build()
}

/// Sends what comes until all tracers are gone.
async fn run(
    exporter: opentelemetry_otlp::SpanExporter,
    mut messages: mpsc::Receiver<Message>,
    trouble: Trouble,
) {
    while let Some(first) = messages.recv().await {
        let (batch, flush) = batch(first, &mut messages).await;
        if !batch.is_empty() {
            let why = match timeout(PATIENCE, exporter.export(batch)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("it has not answered for {} s", PATIENCE.as_secs())),
            };
            if let Some(why) = why {
                trouble.tell(&why);
            }
        }
        // Whoever waited may have given up.
        if let Some(done) = flush {
            let _ = done.send(());
        }
    }
}

/// What comes within a moment, and whether somebody waits for it.
async fn batch(
    first: Message,
    messages: &mut mpsc::Receiver<Message>,
) -> (Vec<SpanData>, Option<oneshot::Sender<()>>) {
    let (mut batch, until) = (Vec::new(), Instant::now() + LINGER);
    let mut next = Some(first);
    while let Some(message) = next {
        match message {
            Message::Span(span) => batch.push(*span),
            Message::Flush(done) => return (batch, Some(done)),
        }
        next = match batch.len() < BATCH {
            true => timeout_at(until, messages.recv()).await.ok().flatten(),
            false => None,
        };
    }
    (batch, None)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::Round;

    /// A collector that takes connections and says nothing holds up nobody, also when far more is to be sent than can wait.
    #[tokio::test]
    async fn a_collector_that_hangs_is_waited_for_by_nobody() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let tracer = Tracer::start(&endpoint.parse().unwrap()).unwrap();
        let round = Round::new(Some(tracer.clone()), "job", "plan");
        let (began, now) = (Instant::now(), SystemTime::now());
        for _ in 0..10 * WAITING {
            round.span("join", None, now, now, &[]);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        tracer.flush(Duration::from_millis(300)).await;
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_collector_that_is_away_ends_a_wait_at_once() {
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", gone.local_addr().unwrap());
        drop(gone);
        let tracer = Tracer::start(&endpoint.parse().unwrap()).unwrap();
        let (round, now) = (Round::new(Some(tracer.clone()), "job", "plan"), SystemTime::now());
        round.root("rendezvous", now, now, &[]);
        let began = Instant::now();
        tracer.flush(Duration::from_secs(60)).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_collector_that_takes_nothing_is_not_tried_again_with_the_same_spans() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let tracer = Tracer::start(&endpoint.parse().unwrap()).unwrap();
        let (round, now) = (Round::new(Some(tracer.clone()), "job", "plan"), SystemTime::now());
        round.root("rendezvous", now, now, &[]);
        let mut tries = 0;
        let hang_up = async {
            loop {
                drop(listener.accept().await.unwrap());
                tries += 1;
            }
        };
        tokio::select! {
            () = tracer.flush(Duration::from_secs(10)) => {}
            () = hang_up => {}
        }
        assert_eq!(tries, 1);
    }
}
