//! A metric for each value of a label.

use prometheus_client::metrics::family::Family;

/// The labels of one series.
pub(crate) type Labels = Vec<(&'static str, &'static str)>;

/// A metric for each value of a label, or of two. All are there from the start, and found without a lock.
#[derive(Debug, Clone)]
pub struct Labelled<M> {
    family: Family<Labels, M, fn() -> M>,
    of: Vec<(Labels, M)>,
}

impl<M: Clone> Labelled<M> {
    /// One for each of these labels; what is asked for and not among them is counted with the last.
    pub(crate) fn new(series: impl IntoIterator<Item = Labels>, make: fn() -> M) -> Self {
        let family = Family::<Labels, M, fn() -> M>::new_with_constructor(make);
        let of = series.into_iter().map(|labels| (labels.clone(), family.get_or_create_owned(&labels)));
        Labelled { of: of.collect(), family }
    }

    /// One for each value of one label.
    pub(crate) fn of_one(label: &'static str, values: &[&'static str], make: fn() -> M) -> Self {
        Labelled::new(values.iter().map(|value| vec![(label, *value)]), make)
    }

    /// The metric with these values, in the order of the labels.
    pub fn get(&self, values: &[&str]) -> &M {
        let found = self.of.iter().find(|(labels, _)| {
            labels.len() == values.len() && labels.iter().zip(values).all(|(label, value)| label.1 == *value)
        });
        &found.unwrap_or_else(|| self.of.last().expect("a label has values")).1
    }

    /// What is registered.
    pub(crate) fn family(&self) -> Family<Labels, M, fn() -> M> {
        self.family.clone()
    }

    /// All of them, each with the value of its first label.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &M)> {
        self.of.iter().map(|(labels, metric)| (labels[0].1, metric))
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn what_is_not_among_the_values_is_counted_with_the_last() {
        let counters: Labelled<Counter> = Labelled::of_one("kind", &["get", "other"], Counter::default);
        counters.get(&["get"]).inc();
        counters.get(&["strange"]).inc();
        let counts: Vec<_> = counters.iter().map(|(kind, counter)| (kind, counter.get())).collect();
        assert_eq!(counts, [("get", 1), ("other", 1)]);
    }
}
