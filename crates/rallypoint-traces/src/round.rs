//! The trace of a round.

use std::borrow::Cow;
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use ring::digest::{Context, SHA256};

use crate::Tracer;

/// The trace of one round. All nodes of the round make the same one, each of its own knowledge. The default traces nothing.
#[derive(Debug, Clone, Default)]
pub struct Round(Option<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    tracer: Tracer,
    trace: TraceId,
    root: SpanId,
}

impl Round {
    /// The trace of the round of this run that has this plan. None is made without a tracer or a plan: it would not be the
    /// same on all nodes.
    #[must_use]
    pub fn new(tracer: Option<Tracer>, run_id: &str, plan: &str) -> Self {
        let tracer = tracer.filter(|_| !plan.is_empty());
        Round(tracer.map(|tracer| {
            let (trace, root) = ids(run_id, plan);
            Inner { tracer, trace, root }
        }))
    }

    /// Its root, which one node of the round tells.
    pub fn root(
        &self,
        name: &'static str,
        start: SystemTime,
        end: SystemTime,
        attributes: &[(&'static str, String)],
    ) {
        if let Some(inner) = &self.0 {
            inner.send(name, inner.root, SpanId::INVALID, start, end, attributes);
        }
    }

    /// A span below `parent`, or below the root without one; its id.
    pub fn span(
        &self,
        name: &'static str,
        parent: Option<SpanId>,
        start: SystemTime,
        end: SystemTime,
        attributes: &[(&'static str, String)],
    ) -> Option<SpanId> {
        let inner = self.0.as_ref()?;
        // Not 0, which is none.
        let id = SpanId::from(fastrand::u64(1..));
        inner.send(name, id, parent.unwrap_or(inner.root), start, end, attributes);
        Some(id)
    }
}

impl Inner {
    fn send(
        &self,
        name: &'static str,
        id: SpanId,
        parent: SpanId,
        start: SystemTime,
        end: SystemTime,
        attributes: &[(&'static str, String)],
    ) {
        let context = SpanContext::new(self.trace, id, TraceFlags::SAMPLED, false, TraceState::default());
        self.tracer.send(SpanData {
            span_context: context,
            parent_span_id: parent,
            // The root may be another node's.
            parent_span_is_remote: parent == self.root,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(name),
            start_time: start,
            // A clock that was set back in between.
            end_time: end.max(start),
            attributes: attributes.iter().map(|(key, value)| KeyValue::new(*key, value.clone())).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("rallypoint")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        });
    }
}

/// The trace's id, and its root's. No other round has this plan.
fn ids(run_id: &str, plan: &str) -> (TraceId, SpanId) {
    let mut context = Context::new(&SHA256);
    for part in ["rallypoint round", run_id, plan] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let digest = context.finish();
    let (trace, rest) = digest.as_ref().split_at(16);
    let trace = TraceId::from_bytes(trace.try_into().expect("it is split there"));
    (trace, SpanId::from_bytes(rest[..8].try_into().expect("there are 16 more")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_round_make_the_same_trace_and_other_rounds_another() {
        let one = ids("job", "plan");
        assert_eq!(one, ids("job", "plan"));
        for other in [ids("job", "other"), ids("other", "plan"), ids("jobp", "lan")] {
            assert!(one.0 != other.0 && one.1 != other.1);
        }
        assert!(one.0 != TraceId::INVALID && one.1 != SpanId::INVALID);
    }

    #[test]
    fn without_a_tracer_or_a_plan_nothing_is_traced() {
        let now = SystemTime::now();
        assert_eq!(Round::default().span("join", None, now, now, &[]), None);
        assert!(Round::new(None, "job", "plan").0.is_none());
    }
}
