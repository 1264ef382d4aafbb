//! Rendezvous backends whose nodes are processes.

use std::time::Duration;

use rallypoint_testkit::torch_python;

use crate::measure::Samples;
use crate::nodes::{Failure, Nursery, Wire};
use crate::plan::Plan;
use crate::python::rivals_python;
use crate::results::Outcome;

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Torchs,
    Others,
}

/// A backend to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contender {
    /// The name of its column.
    pub(crate) column: &'static str,
    pub(crate) backend: &'static str,
    pub(crate) whose: Whose,
    pub(crate) wire: Wire,
}

pub(crate) const NATIVE: &str = "rallypoint";
pub(crate) const ON_V2: &str = "rallypoint on the v2 wire";
pub(crate) const TORCH_ETCD: &str = "torch etcd";

const ALL: [Contender; 7] = [
    Contender { column: NATIVE, backend: "rallypoint", whose: Whose::Ours, wire: Wire::V3 },
    Contender { column: ON_V2, backend: "etcd", whose: Whose::Ours, wire: Wire::V2 },
    Contender { column: TORCH_ETCD, backend: "etcd", whose: Whose::Torchs, wire: Wire::V2 },
    Contender { column: "torch etcd-v2", backend: "etcd-v2", whose: Whose::Torchs, wire: Wire::V2 },
    Contender { column: "torch c10d", backend: "c10d", whose: Whose::Torchs, wire: Wire::Store },
    Contender { column: "lm-resiliency", backend: "lm_resiliency", whose: Whose::Others, wire: Wire::Store },
    Contender {
        column: "nvidia-resiliency-ext",
        backend: "nvidia_resiliency_ext",
        whose: Whose::Others,
        wire: Wire::Store,
    },
];

/// Imported before their nodes are forked, as torch is.
const OTHERS_MODULES: [&str; 3] = [
    "lm_resiliency.integrations.torchrun._simple_runtime",
    "lm_resiliency.integrations.torchrun.worker_adapter",
    "nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier",
];

/// Those that take part, and where their nodes come from.
pub(crate) struct Field {
    pub(crate) contenders: Vec<Contender>,
    torch: Option<Nursery>,
    others: Option<Nursery>,
}

impl Field {
    /// Ours and, unless they are left out, PyTorch's; with the packages of others if `with_others`.
    pub(crate) fn enter(plan: &Plan, with_others: bool) -> Self {
        let torch = plan.torch.then(|| Nursery::start(&torch_python(), &[]));
        let others = (plan.torch && with_others).then(|| Nursery::start(&rivals_python(), &OTHERS_MODULES));
        let takes_part = |contender: &&Contender| match contender.whose {
            Whose::Ours => true,
            Whose::Torchs => torch.is_some(),
            Whose::Others => others.is_some(),
        };
        let contenders = ALL.iter().filter(takes_part).copied().collect();
        Field { contenders, torch, others }
    }

    pub(crate) fn columns(&self) -> Vec<String> {
        self.contenders.iter().map(|contender| contender.column.to_owned()).collect()
    }

    /// Where others' nodes come from.
    pub(crate) fn nursery(&mut self, whose: Whose) -> Option<&mut Nursery> {
        match whose {
            Whose::Ours => None,
            Whose::Torchs => self.torch.as_mut(),
            Whose::Others => self.others.as_mut(),
        }
    }
}

/// What one contender has done so far in one discipline.
#[derive(Debug, Clone)]
pub(crate) struct Tries {
    samples: Samples,
    failures: Vec<Failure>,
    /// So many failures, and it is not asked again.
    chances: usize,
    left_out: bool,
}

impl Tries {
    pub(crate) fn new(chances: usize, left_out: bool) -> Self {
        Tries { samples: Samples::default(), failures: Vec::new(), chances, left_out }
    }

    /// Whether it should try once more: not if it failed too often, nor if it took that long already.
    pub(crate) fn wants_more(&self, budget: Duration) -> bool {
        !self.left_out && self.failures.len() < self.chances && self.samples.sum() < budget.as_secs_f64()
    }

    pub(crate) fn add(&mut self, tried: Result<f64, Failure>) {
        match tried {
            Ok(seconds) => self.samples.push(seconds),
            Err(failure) => self.failures.push(failure),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.left_out || self.failures.len() >= self.chances
    }

    /// Who was in time in one round and not in another counts with the limit in the latter, which is in its favour.
    pub(crate) fn outcome(mut self) -> Outcome {
        if self.samples.is_empty() {
            return self.failures.pop().map_or(Outcome::NotRun, Outcome::from);
        }
        self.samples.extend(self.failures.iter().filter_map(|failure| match failure {
            Failure::NotWithin(limit) => Some(limit.as_secs_f64()),
            Failure::Failed(_) => None,
        }));
        Outcome::Measured(self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_or_takes_long_does_not_try_again() {
        let budget = Duration::from_secs(60);
        let mut tries = Tries::new(1, false);
        assert!(tries.wants_more(budget));
        tries.add(Ok(40.0));
        assert!(tries.wants_more(budget));
        tries.add(Ok(30.0));
        assert!(!tries.wants_more(budget) && !tries.has_failed());
        assert_eq!(tries.outcome().figure(), 35.0);

        let mut tries = Tries::new(2, false);
        tries.add(Err(Failure::NotWithin(budget)));
        assert!(tries.wants_more(budget) && !tries.has_failed());
        tries.add(Err(Failure::NotWithin(budget)));
        assert!(!tries.wants_more(budget) && tries.has_failed());
        assert_eq!(tries.outcome(), Outcome::NotWithin(60.0));

        let mut tries = Tries::new(1, false);
        tries.add(Ok(40.0));
        tries.add(Err(Failure::NotWithin(budget)));
        assert_eq!(tries.outcome().figure(), 50.0);

        assert!(!Tries::new(1, true).wants_more(budget));
        assert_eq!(Tries::new(1, true).outcome(), Outcome::NotRun);
    }
}
