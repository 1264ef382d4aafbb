//! Rates and times, and what to make of several of them.

use std::future::Future;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};

/// The same thing measured several times.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Of one measurement, or a figure that is fixed.
    pub(crate) fn one(sample: f64) -> Self {
        Samples(vec![sample])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    pub(crate) fn extend(&mut self, samples: impl IntoIterator<Item = f64>) {
        self.0.extend(samples);
    }

    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        }
    }

    pub(crate) fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }
}

/// The numbers below `count`, each round beginning with another, so that none is always first.
pub(crate) fn in_turn(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round as usize) % count)
}

/// An operation to be measured; it is told how often it was done before.
pub(crate) type Operation<'a> = Box<dyn Fn(usize) -> BoxFuture<'a, ()> + 'a>;

/// How often a second each operation is done, one after the other. They take turns of a tenth of a second, so
/// that a disk that is slow for a while is slow for all of them.
pub(crate) async fn rates<const N: usize>(turns: u32, operations: [Operation<'_>; N]) -> [f64; N] {
    const TURN: Duration = Duration::from_millis(100);
    let mut done = [0; N];
    let mut spent = [Duration::ZERO; N];
    for _ in 0..turns {
        for (at, operation) in operations.iter().enumerate() {
            let began = Instant::now();
            while began.elapsed() < TURN {
                operation(done[at]).await;
                done[at] += 1;
            }
            spent[at] += began.elapsed();
        }
    }
    std::array::from_fn(|at| done[at] as f64 / spent[at].as_secs_f64())
}

/// How often a second `operation` is done by tasks that run side by side, `each` times each.
pub(crate) async fn parallel_rate<F>(tasks: usize, each: usize, operation: impl Fn(usize) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let began = Instant::now();
    for done in join_all((0..tasks).map(|task| tokio::spawn(operation(task)))).await {
        done.expect("no operation panics");
    }
    (tasks * each) as f64 / began.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_first_in_turn() {
        let orders: Vec<Vec<usize>> = (0..3).map(|round| in_turn(3, round).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let samples = |values: &[f64]| Samples(values.to_vec());
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!((samples(&[4.0, 1.0]).least(), samples(&[4.0, 1.0]).most()), (1.0, 4.0));
        assert!(samples(&[]).median().is_nan());
    }
}
