//! Rates and times, and what to make of several of them.

use std::future::Future;
use std::time::{Duration, Instant};

use futures::future::join_all;

/// The same thing measured several times.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
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

/// How often a second `operation` is done, one after the other, for as long as `budget`.
pub(crate) async fn rate<F: Future<Output = ()>>(
    budget: Duration,
    mut operation: impl FnMut(usize) -> F,
) -> f64 {
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < budget {
        operation(done).await;
        done += 1;
    }
    done as f64 / began.elapsed().as_secs_f64()
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
    fn the_median_is_in_the_middle() {
        let samples = |values: &[f64]| Samples(values.to_vec());
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!((samples(&[4.0, 1.0]).least(), samples(&[4.0, 1.0]).most()), (1.0, 4.0));
        assert!(samples(&[]).median().is_nan());
    }
}
