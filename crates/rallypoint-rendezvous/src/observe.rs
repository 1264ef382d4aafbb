//! A handler that is watched: what it does is counted, for Prometheus, and its rounds are told as traces.
//!
//! It asks etcd for nothing. All that it tells comes from calls that pass through it, and from what a handler knows anyhow.

mod seen;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rallypoint_core::round::EventRecord;
use rallypoint_metrics::{ListenAddress, Listener, Metrics};
use rallypoint_store::{CountedStore, Store};
use rallypoint_traces::{Endpoint, Round, Tracer};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use self::seen::{Seen, Way};
use crate::error::Result;
use crate::handler::{
    Census, CloseOutcome, Contact, ExclusionOutcome, GroupChange, Member, Rendezvous, RendezvousHandler,
    Standing, Whom,
};
use crate::parameters::{ParameterError, RendezvousParameters};
use crate::progress::Progress;

/// The option that says where metrics are served.
pub(crate) const LISTEN: &str = "metrics_listen";
/// The option that says where traces are sent.
pub(crate) const COLLECTOR: &str = "otlp_endpoint";
/// How often it is looked whether etcd has taken what a node says of itself: it is told of that only when asked.
const LOOK: Duration = Duration::from_millis(20);
/// For the last spans, where nobody else sends them.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// Serves `metrics` at `address` until the listener is dropped, and says where. If it cannot, it says so: nobody's training
/// ends for that.
pub async fn serve_metrics(address: &ListenAddress, metrics: &Metrics) -> Option<Listener> {
    let told = metrics.clone();
    match Listener::start(address, move || told.text()).await {
        Ok(listener) => {
            info!("metrics are served at http://{}/metrics", listener.address());
            Some(listener)
        }
        Err(error) => {
            warn!("{error}; the run goes on without");
            None
        }
    }
}

/// Where the parameters say that metrics are to be served.
pub(crate) fn listen_address(
    parameters: &RendezvousParameters,
) -> Result<Option<ListenAddress>, ParameterError> {
    let address = parameters.get(LISTEN).map(str::parse::<ListenAddress>).transpose();
    address.map_err(|problem| ParameterError(format!("the option '{LISTEN}': {problem}")))
}

/// Sends traces to this collector. If it cannot, it says so: nobody's training ends for that.
pub fn send_traces(collector: &Endpoint) -> Option<Tracer> {
    Tracer::start(collector).inspect_err(|error| warn!("{error}; the run goes on without")).ok()
}

/// Where the parameters say that traces are to be sent.
pub(crate) fn collector(parameters: &RendezvousParameters) -> Result<Option<Endpoint>, ParameterError> {
    let collector = parameters.get(COLLECTOR).map(str::parse::<Endpoint>).transpose();
    collector.map_err(|problem| ParameterError(format!("the option '{COLLECTOR}': {problem}")))
}

/// A handler that does what `handler` does, and is counted and traced: as the registry makes them.
#[must_use]
pub fn observed(
    handler: Arc<dyn RendezvousHandler>,
    metrics: Metrics,
    tracer: Option<Tracer>,
) -> Arc<dyn RendezvousHandler> {
    Arc::new(Observed::new(handler, metrics, None, tracer, false))
}

/// A handler that is watched.
#[derive(Debug)]
pub(crate) struct Observed {
    inner: Arc<dyn RendezvousHandler>,
    metrics: Metrics,
    seen: Arc<Mutex<Seen>>,
    /// Listens for what happens to the group of the last round.
    listening: Mutex<Option<JoinHandle<()>>>,
    census: Option<JoinHandle<()>>,
    _listener: Option<Listener>,
    tracer: Option<Tracer>,
    /// Nobody else sends what it has left to tell.
    flushes: bool,
    /// The round that this node is in.
    current: Mutex<Option<Current>>,
}

/// A round that this node is in, for when it is over.
#[derive(Debug)]
struct Current {
    trace: Round,
    since: SystemTime,
    who: [(&'static str, String); 3],
}

impl Observed {
    pub(crate) fn new(
        inner: Arc<dyn RendezvousHandler>,
        metrics: Metrics,
        listener: Option<Listener>,
        tracer: Option<Tracer>,
        flushes: bool,
    ) -> Self {
        let node = inner.node_name().unwrap_or_default();
        metrics.rendezvous.about(inner.run_id(), node, inner.backend());
        let seen = Arc::new(Mutex::new(Seen::new(metrics.rendezvous.clone())));
        let census = inner.census().map(|census| tokio::spawn(follow(census, metrics.clone())));
        let (listening, current) = (Mutex::default(), Mutex::default());
        Observed { inner, metrics, seen, listening, census, _listener: listener, tracer, flushes, current }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counted(&self, store: &dyn Store) -> Arc<dyn Store> {
        Arc::new(CountedStore::new(store.clone_store(), self.metrics.store.clone()))
    }

    /// Tells of a round that this node has a place in, and of its way there.
    fn tell(&self, met: &Rendezvous, way: &Way) -> Round {
        let run_id = self.run_id();
        let trace = Round::new(self.tracer.clone(), run_id, &met.plan);
        let who = [
            ("rallypoint.node", self.node_name().unwrap_or_default().to_owned()),
            ("rallypoint.rank", met.rank.to_string()),
            ("rallypoint.round", met.round.to_string()),
        ];
        if met.rank == 0 {
            let about = [
                ("rallypoint.run_id", run_id.to_owned()),
                ("rallypoint.round", met.round.to_string()),
                ("rallypoint.world_size", met.world_size.to_string()),
            ];
            trace.root("rendezvous", way.asked, way.joined, &about);
        }
        let address = [("rallypoint.address", self.address().unwrap_or_default().to_owned())];
        let join = trace.span("join", None, way.asked, way.joined, &[&who[..], &address].concat());
        for (phase, start, end) in way.phases() {
            trace.span(phase.name(), join, start, end, &[]);
        }
        *self.current() = Some(Current { trace: trace.clone(), since: way.joined, who });
        trace
    }

    /// The round that this node was in is over for it.
    fn round_is_over(&self) {
        if let Some(Current { trace, since, who }) = self.current().take() {
            trace.span("round", None, since, SystemTime::now(), &who);
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn last_spans(&self) {
        if let Some(tracer) = self.tracer.as_ref().filter(|_| self.flushes) {
            tracer.flush(LAST_SPANS).await;
        }
    }

    /// Waits until etcd has said that this node is in the run, since then.
    async fn is_registered(&self, asked: Instant) {
        while self.inner.contact().is_none_or(|contact| contact.at < asked) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Listens for the first thing that happens to the group, from now on; for what happened to the last one no more.
    fn listen(&self, listens: bool) {
        let (inner, seen) = (Arc::clone(&self.inner), Arc::clone(&self.seen));
        let task = listens.then(|| {
            tokio::spawn(async move {
                let change = inner.changed().await;
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.changed(&change);
                // A backend without a census tells of them only so.
                if let (GroupChange::Waiting { count }, None) = (&change, inner.census()) {
                    seen.others(*count);
                }
            })
        });
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *listening, task) {
            before.abort();
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.listen(false);
        self.census.iter().for_each(JoinHandle::abort);
    }
}

/// Tells how many nodes wait and stand by.
async fn follow(mut census: watch::Receiver<Census>, metrics: Metrics) {
    loop {
        let Census { waiting, spares } = *census.borrow_and_update();
        metrics.rendezvous.others(waiting, spares);
        if census.changed().await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl RendezvousHandler for Observed {
    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn run_id(&self) -> &str {
        self.inner.run_id()
    }

    async fn next_rendezvous(&self) -> Result<Rendezvous> {
        self.listen(false);
        self.round_is_over();
        self.seen().asked();
        let before = self.inner.lost();
        let mut progress = self.inner.progress();
        progress.mark_unchanged();
        let meeting = self.inner.next_rendezvous();
        let registered = self.is_registered(Instant::now());
        tokio::pin!(meeting, registered);
        let mut waits = false;
        let met = loop {
            tokio::select! {
                biased;
                met = &mut meeting => break met,
                () = &mut registered, if !waits => {
                    waits = true;
                    self.seen().registered();
                }
                Ok(()) = progress.changed() => self.seen().progress(&progress.borrow_and_update()),
            }
        };
        // A call that failed may leave there who was lost before, and is counted.
        let lost = self.inner.lost();
        if met.is_ok() || lost != before {
            self.seen().lost(&lost);
        }
        let mut met = met.inspect_err(|_| self.seen().failed())?;
        let way = self.seen().joined(met.round, met.rank, met.world_size);
        met.trace = self.tell(&met, &way);
        self.listen(true);
        met.store = self.counted(&*met.store);
        met.run_store = met.run_store.map(|store| self.counted(&*store));
        met.metrics = self.metrics.clone();
        Ok(met)
    }

    async fn is_closed(&self) -> Result<bool> {
        self.inner.is_closed().await
    }

    async fn set_closed(&self, reason: &str) -> Result<CloseOutcome> {
        self.inner.set_closed(reason).await
    }

    async fn num_nodes_waiting(&self) -> Result<usize> {
        self.inner.num_nodes_waiting().await
    }

    async fn changed(&self) -> GroupChange {
        self.inner.changed().await
    }

    fn time_to_notice(&self) -> Duration {
        self.inner.time_to_notice()
    }

    fn node_name(&self) -> Option<&str> {
        self.inner.node_name()
    }

    fn itself(&self) -> Option<Whom> {
        self.inner.itself()
    }

    fn address(&self) -> Option<&str> {
        self.inner.address()
    }

    fn contact(&self) -> Option<Contact> {
        self.inner.contact()
    }

    async fn spares(&self) -> Result<usize> {
        self.inner.spares().await
    }

    async fn others_than(&self, whom: &Whom) -> Result<Option<usize>> {
        self.inner.others_than(whom).await
    }

    async fn run_store(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(self.inner.run_store().await?.map(|store| self.counted(&*store)))
    }

    fn census(&self) -> Option<watch::Receiver<Census>> {
        self.inner.census()
    }

    async fn members(&self) -> Result<Vec<Member>> {
        self.inner.members().await
    }

    fn lost(&self) -> Vec<GroupChange> {
        self.inner.lost()
    }

    async fn lost_besides(&self, ranks: &BTreeSet<usize>) -> GroupChange {
        self.inner.lost_besides(ranks).await
    }

    async fn losses_told(&self) -> Result<Vec<GroupChange>> {
        self.inner.losses_told().await
    }

    async fn standing(&self) -> Result<Standing> {
        self.inner.standing().await
    }

    async fn record(&self, event: &EventRecord) {
        self.inner.record(event).await;
    }

    async fn close_as_host(&self, reason: &str) -> Result<()> {
        self.inner.close_as_host(reason).await
    }

    async fn exclude(&self, whom: Whom, reason: &str, time: Option<Duration>) -> Result<ExclusionOutcome> {
        self.inner.exclude(whom, reason, time).await
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress()
    }

    async fn leave(&self) -> Result<()> {
        self.listen(false);
        self.seen().left();
        self.round_is_over();
        let left = self.inner.leave().await;
        self.last_spans().await;
        left
    }

    async fn withdraw(&self) -> Result<bool> {
        self.listen(false);
        self.seen().left();
        self.round_is_over();
        self.inner.withdraw().await
    }

    async fn shutdown(&self, reason: &str) -> Result<CloseOutcome> {
        self.listen(false);
        self.seen().left();
        self.round_is_over();
        let closed = self.inner.shutdown(reason).await;
        self.last_spans().await;
        closed
    }
}
