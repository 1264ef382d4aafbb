//! What a launcher tells others of itself: metrics to Prometheus, traces to OpenTelemetry.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use rallypoint_metrics::{Listener, Metrics};
use rallypoint_rendezvous::{RendezvousParameters, send_traces, serve_metrics};
use rallypoint_traces::Tracer;

use super::meet::Meet;
use super::options::Run;
use crate::cli::exit::Problem;

/// For the last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Where metrics and traces go, each where somebody asked for it. Dropped, nobody can ask for metrics any more.
#[derive(Debug)]
pub(crate) struct Telemetry {
    metrics: Option<Metrics>,
    tracer: Option<Tracer>,
    _listener: Option<Listener>,
}

impl Telemetry {
    /// Begins with it. The options of the backend, which are for torchrun, mean the same as the flags.
    pub(crate) async fn start(options: &Run, meet: &mut Meet) -> Result<Self, Problem> {
        let place = options.metrics_listen.clone().or(taken(meet, "metrics_listen")?);
        let collector = options.otlp_endpoint.clone().or(taken(meet, "otlp_endpoint")?);
        let metrics = place.is_some().then(Metrics::default);
        let listener = match place.zip(metrics.as_ref()) {
            Some((place, metrics)) => {
                metrics.tell_of_workers();
                serve_metrics(&place, metrics).await
            }
            None => None,
        };
        let tracer = collector.and_then(|collector| send_traces(&collector));
        Ok(Telemetry { metrics, tracer, _listener: listener })
    }

    /// Has a handler tell there what it does.
    pub(crate) fn give_to(&self, parameters: &mut RendezvousParameters) {
        (parameters.metrics, parameters.tracer) = (self.metrics.clone(), self.tracer.clone());
    }

    /// Waits a little for what is not sent yet.
    pub(crate) async fn flush(&self) {
        if let Some(tracer) = &self.tracer {
            tracer.flush(LAST_SPANS).await;
        }
    }
}

/// An option of the backend, taken out.
fn taken<T: FromStr<Err: Display>>(meet: &mut Meet, name: &str) -> Result<Option<T>, Problem> {
    let option = meet.config.remove(name).map(|text| text.parse()).transpose();
    option.map_err(|error| Problem::usage(format!("--rdzv-conf {name}: {error}")))
}
