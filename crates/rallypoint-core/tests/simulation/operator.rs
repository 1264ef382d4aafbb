//! An operator, who closes the run from outside as the command does.

use std::time::Duration;

use rallypoint_core::round::{CloseOutcome, CloseRun, CloseStep, Failure, Reply, Request};

use crate::check::Violation;
use crate::network::TIMEOUT;
use crate::world::{Step, World};

#[derive(Debug, Default)]
pub(crate) struct Operator {
    close: Option<CloseRun>,
    /// Counts the requests: an answer that comes after its time is none.
    asked: u64,
    pub(crate) outcome: Option<CloseOutcome>,
}

impl World {
    /// An operator closes the run.
    pub(crate) fn operator_closes(&mut self, reason: &str) {
        self.trace(|| format!("an operator closes the run: {reason}"));
        self.cause();
        self.check.operator_closes();
        let close = CloseRun::by_operator(&self.keys, reason, self.setup.closed_ttl, 0);
        (self.operator.close, self.operator.outcome) = (Some(close), None);
        self.operator_goes_on(Duration::ZERO);
    }

    fn operator_goes_on(&mut self, pause: Duration) {
        let Some(close) = &self.operator.close else { return };
        match close.poll() {
            CloseStep::Done(outcome) => {
                self.operator.outcome = outcome.ok();
                let unused = close.unused_mark();
                self.operator.close = None;
                self.trace(|| format!("the operator is done: {:?}", self.operator.outcome));
                if let Some(mark) = unused {
                    let (request, history) = (Request::Revoke(mark), self.etcd.history);
                    self.after(Duration::ZERO, Step::OperatorAsks { request, history });
                }
            }
            CloseStep::Send(request) => {
                self.operator.asked += 1;
                let (number, history) = (self.operator.asked, self.etcd.history);
                let lost = Err(Failure::Unknown);
                self.after(pause + TIMEOUT, Step::OperatorHears { number, reply: lost });
                let delay = pause + self.up_to(Duration::from_millis(20));
                if self.rng.f64() >= self.weather.lost {
                    self.after(delay, Step::OperatorAsks { request, history });
                }
            }
        }
    }

    pub(crate) fn operator_asks(&mut self, request: &Request, history: u64) -> Result<(), Violation> {
        if history != self.etcd.history {
            return Ok(());
        }
        if self.now < self.etcd_away_until {
            if !self.etcd_restarts {
                let at = self.etcd_away_until;
                self.at(at, Step::OperatorAsks { request: request.clone(), history });
            }
            return Ok(());
        }
        let reply = self.etcd.apply(self.now, request);
        self.publish()?;
        if self.rng.f64() >= self.weather.lost {
            let (delay, number) = (self.up_to(Duration::from_millis(20)), self.operator.asked);
            self.after(delay, Step::OperatorHears { number, reply });
        }
        Ok(())
    }

    pub(crate) fn operator_hears(&mut self, number: u64, reply: Result<Reply, Failure>) {
        if number != self.operator.asked {
            return;
        }
        let Some(close) = &mut self.operator.close else { return };
        let pause = if close.handle(reply) { Duration::ZERO } else { Duration::from_millis(100) };
        self.operator_goes_on(pause);
    }
}
