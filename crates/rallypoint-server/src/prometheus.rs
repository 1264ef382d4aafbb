//! What is told to one who asks for `/metrics`: numbers that are read when they are asked for.

use rallypoint_metrics::prometheus_client::metrics::counter::Counter;
use rallypoint_metrics::prometheus_client::metrics::family::Family;
use rallypoint_metrics::prometheus_client::metrics::gauge::Gauge;
use rallypoint_metrics::prometheus_client::registry::Registry;
use rallypoint_metrics::{process, text};

/// The metrics of one moment.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// What all of them are in; of a counter without the `_total` of its name.
    pub(crate) registry: Registry,
}

impl Page {
    /// One with what every process tells of itself.
    pub(crate) fn new() -> Self {
        let mut page = Page::default();
        process::register(&mut page.registry);
        process::usage(&mut page.registry);
        page
    }

    /// A number as it is now.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.registry.register(name, help, gauge);
    }

    /// A word, as the label of a number that is always 1.
    pub(crate) fn label(&mut self, name: &str, help: &str, label: &'static str, value: &str) {
        let family: Family<[(&'static str, String); 1], Gauge> = Family::default();
        family.get_or_create(&[(label, value.to_owned())]).set(1);
        self.registry.register(name, help, family);
    }

    /// A number that only grows, under the name without `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        self.registry.register(name, help, counter);
    }

    /// The same, for each value of a label.
    pub(crate) fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        let family: Family<[(&str, &str); 1], Counter> = Family::default();
        for (of, value) in values {
            family.get_or_create(&[(label, of)]).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// All of it, in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        text::of(&self.registry)
    }
}
