//! The loop: meet, start the workers, watch them and the group, and meet again.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rallypoint_core::round::What;
use rallypoint_rendezvous::{FINISHED, GroupChange, Rendezvous, RendezvousError, is_finish};
use rustix::process::Signal;
use tracing::{debug, info, warn};

use super::{Agent, Outcome, Success};
use crate::decision::{Cause, Verdict};
use crate::error::AgentError;
use crate::failure::{Exit, Failure, FailureReport};
use crate::fence::{Fence, Limits, Witness};
use crate::finish::silent_for;
use crate::notice::{Board, Notice};
use crate::patience;
use crate::phase::Phase;
use crate::preemption::Limit;
use crate::round;
use crate::server::SERVER_ENDED;
use crate::stop::{StopListener, Stuck};
use crate::timeline::{self, Keep};
use crate::words::{self, Reason};
use crate::worker_store::ServedStore;

/// For telling the others that this node leaves, when nothing depends on it any more.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same where etcd is silent.
const SILENT: Duration = Duration::from_secs(1);

/// For the others to hear what they are told before the run is closed, and what it had in etcd goes.
const TO_BE_HEARD: Duration = Duration::from_secs(1);

impl Agent {
    /// Runs until all is done, or `stop` asks for the end. The workers are gone when it returns; so is this node
    /// from the run.
    pub async fn run(mut self, mut stop: StopListener) -> Result<Outcome, AgentError> {
        let ended = self.rounds(&mut stop).await;
        self.phase.send_replace(Phase::Ended);
        let reason = match &ended {
            Ok(Outcome::Succeeded(_)) => Some(FINISHED.to_owned()),
            Ok(Outcome::Failed(report)) => Some(report.in_short()),
            Ok(Outcome::Closed { reason }) => Some(reason.clone()),
            _ => None,
        };
        if let Some(reason) = reason {
            self.timeline.note(Keep::Log, self.last_round, What::Closed { reason });
        }
        // Before this node's part of the run is over.
        if !matches!(&ended, Ok(Outcome::Succeeded(success)) if success.without_word) {
            self.part(self.timeline.flush(), &mut stop).await;
        }
        match &ended {
            // An etcd that does not answer cannot be told either. What this node has there ends with its lease.
            Ok(Outcome::Succeeded(success)) if success.without_word => {}
            Ok(Outcome::Succeeded(_)) => self.part(self.handler.shutdown(FINISHED), &mut stop).await,
            Ok(Outcome::Failed(report)) => {
                let reason = report.in_short();
                let untold = self.untold.take();
                let closing = async {
                    if let Some((board, notice)) = untold {
                        let told =
                            patience::until_taken(LEAVE_TIMEOUT, async || board.tell(&notice).await).await;
                        let heard = tokio::time::timeout(TO_BE_HEARD, board.heard()).await;
                        debug!(?told, ?heard, "the others were told why");
                    }
                    self.handler.shutdown(&reason).await
                };
                let closing = async { tokio::join!(closing, self.close()) };
                self.part(closing, &mut stop).await;
            }
            // The run goes on under this node's name.
            Err(error) if error.is_replaced() => {}
            Ok(Outcome::Left(_) | Outcome::Stopped { .. }) | Err(_) if self.hosts_server => {
                let reason = format!("{} {SERVER_ENDED}", self.name());
                // Also where nobody has met yet, or others have met without it: they would wait for a server that is gone.
                let closing = async {
                    let closed = self.handler.close_as_host(&reason).await;
                    debug!(?closed, "the run ends with its server");
                    self.handler.leave().await
                };
                self.part(closing, &mut stop).await;
            }
            // The run goes on without this node.
            Ok(
                Outcome::Left(_)
                | Outcome::NotNeeded
                | Outcome::StayedAway
                | Outcome::Closed { .. }
                | Outcome::Stopped { .. },
            )
            | Err(_) => {
                self.part(self.handler.leave(), &mut stop).await;
            }
        }
        ended
    }

    async fn next_rendezvous(&self) -> Result<Rendezvous, RendezvousError> {
        match &self.health {
            Some(health) => {
                let enter = |phase| self.enter(phase);
                let note = |what: &What| self.timeline.note(Keep::Log, self.last_round, what.clone());
                health.next_rendezvous(self.handler(), enter, note).await
            }
            None => self.handler.next_rendezvous().await,
        }
    }

    /// What bounds all that this node does at its end.
    fn limit(&self, stop: &StopListener) -> Limit<'_> {
        Limit::new(&self.spec, self.deadline, stop)
    }

    /// Writes down how a round has ended here. Why the nodes meet again is known later, by its words.
    fn note_end(&self, over: &round::Over, stuck: Option<Stuck>) {
        let own = match &over.verdict {
            Verdict::Regroup { cause: Cause::Own, .. }
            | Verdict::GiveUp { cause: Cause::Own, .. }
            | Verdict::Close
            | Verdict::Leave => first_of(&over.failures),
            // It was to save.
            Verdict::Stop(_) if over.preempted => first_of(&over.failures),
            Verdict::Stop(signal) => first_of(&over.failures).filter(|failure| !is_that_of(failure, *signal)),
            _ => None,
        };
        if let Some(failure) = own {
            let at = failure.moment().unwrap_or_else(SystemTime::now);
            self.timeline.note_at(at, Keep::Run, over.round, timeline::failed(failure));
        }
        let why = match &over.verdict {
            _ if over.ran.is_zero() => return,
            Verdict::Regroup { .. } => return,
            Verdict::Succeed { .. } => "they have finished".to_owned(),
            Verdict::GiveUp { cause: Cause::Other(notice), .. } => notice.in_short(),
            Verdict::Close | Verdict::Leave | Verdict::GiveUp { .. } => {
                own.map(Failure::in_short).unwrap_or_default()
            }
            Verdict::Closed { reason, .. } => format!("the run is closed: {reason}"),
            Verdict::Stop(signal) => match stuck {
                Some(stuck) => format!("node {} leaves: {stuck}", over.rank),
                None => format!("node {} was asked to end by {}", over.rank, Exit::Signal(signal.as_raw())),
            },
        };
        // The run is told of its end by its close. Of a node that goes the others tell, unless all do.
        let keep = match over.verdict {
            Verdict::Stop(_) | Verdict::Leave => round::one_of_all(over.rank),
            _ => Keep::Log,
        };
        self.timeline.note(keep, over.round, What::Stopped { why });
    }

    /// What watches over a round of this node while etcd does not answer it.
    async fn fence(&mut self, met: &Rendezvous) -> Result<Fence, AgentError> {
        let timeout = self.spec.fence_timeout.unwrap_or_else(|| self.handler.time_to_notice());
        let limits = Limits { timeout, outage: self.spec.max_etcd_outage };
        let nobody_to_ask = met.world_size == 1 && limits.outage.is_none();
        if nobody_to_ask || timeout.is_zero() || self.handler.contact().is_none() {
            return Ok(Fence::none());
        }
        if self.witness.is_none() {
            self.witness = Witness::open(Arc::clone(&self.handler)).await.map_err(AgentError::Port)?;
        }
        let witness = self.witness.as_ref();
        Ok(witness.map_or_else(Fence::none, |witness| {
            Fence::start(witness, Arc::clone(&self.handler), met, limits)
        }))
    }

    /// Tells those who ask this node that the run is closed.
    async fn close(&self) {
        if let Some(witness) = &self.witness {
            witness.close().await;
        }
    }

    /// Tells the others, which nothing depends on any more.
    async fn part<T: std::fmt::Debug>(&self, telling: impl Future<Output = T>, stop: &mut StopListener) {
        let time = self.limit(stop).of(LEAVE_TIMEOUT);
        // Who was asked to end does not wait for an etcd that is silent. What it has there ends with its lease.
        let asked = stop.is_asked();
        let in_vain = async {
            if !asked {
                return std::future::pending().await;
            }
            silent_for(self.handler(), Duration::ZERO).await;
            tokio::time::sleep(SILENT).await;
        };
        tokio::select! {
            told = tokio::time::timeout(time, telling) => debug!(?told, "the others were told"),
            () = stop.asked_again() => {}
            () = in_vain => debug!("etcd is silent, and is not told"),
        }
    }

    async fn rounds(&mut self, stop: &mut StopListener) -> Result<Outcome, AgentError> {
        // What failed first in the last round, for when somebody closes the run because of it.
        let mut cause = None;
        // Why that round is over.
        let mut why: Option<Reason> = None;
        // Where its nodes tell of failures.
        let mut board: Option<Board> = None;
        let mut fence = Fence::none();
        // The store that its workers met at, for those of other nodes that have not stopped yet.
        let mut served: Option<ServedStore> = None;
        loop {
            self.phase.send_replace(Phase::Meeting);
            let progress = self.handler.progress();
            let asked = Instant::now();
            let met = tokio::select! {
                biased;
                signal = stop.asked() => return Ok(Outcome::Stopped { signal, failure: None }),
                met = self.next_rendezvous() => met,
                notice = fence.closed() => {
                    let reason = notice.in_short();
                    let report = cause.filter(|cause: &FailureReport| cause.in_short() == reason);
                    let report = report.or_else(|| self.report(Some(notice), Vec::new()));
                    return Ok(report.map_or(Outcome::Closed { reason }, failed));
                }
            };
            let met = match met {
                Err(RendezvousError::Closed { reason, .. })
                    if is_finish(&reason) && *self.phase.borrow() == Phase::Away =>
                {
                    return Ok(Outcome::StayedAway);
                }
                Err(RendezvousError::Closed { reason, .. })
                    if is_finish(&reason) && progress.borrow().spare =>
                {
                    return Ok(Outcome::NotNeeded);
                }
                Err(RendezvousError::Closed { run_id, reason }) => {
                    let had_cause = cause.is_some();
                    return match self.closed_for(&reason, cause, Vec::new(), board.as_ref()).await {
                        Some(report) => Ok(failed(report)),
                        None if had_cause => Ok(Outcome::Closed { reason }),
                        None => Err(RendezvousError::Closed { run_id, reason }.into()),
                    };
                }
                Err(RendezvousError::NotMet { run_id, needed, here, after, kept_out }) if here < needed => {
                    let lost = self.handler.lost();
                    let why = match why {
                        Some(why) => Some(why.with(&lost, here)),
                        None => words::gone(&lost),
                    };
                    return Err(match why {
                        Some(why) => AgentError::NotAgain { run_id, why, needed, here, after, kept_out },
                        None => RendezvousError::NotMet { run_id, needed, here, after, kept_out }.into(),
                    });
                }
                Err(error @ RendezvousError::Connection { .. }) => {
                    let run_id = self.handler.run_id().to_owned();
                    return Err(match self.silent_server() {
                        Some(server) => {
                            let cause = cause.map(|cause| cause.in_short());
                            AgentError::ServerGone { run_id, cause, server, source: Box::new(error) }
                        }
                        None => match why {
                            Some(Reason { words: why, .. }) => {
                                AgentError::Unreachable { run_id, why, source: Box::new(error) }
                            }
                            None => error.into(),
                        },
                    });
                }
                met => met?,
            };
            // All who meet again have stopped their workers.
            drop(served.take());
            self.rounds += 1;
            self.last_round = met.round;
            let waited_ms = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
            let joined = What::Joined { rank: met.rank, world_size: met.world_size, waited_ms };
            self.timeline.note(Keep::Log, met.round, joined);
            self.metrics = met.metrics.workers.clone();
            self.metrics.restarts_left(self.budget.left());
            self.phase.send_replace(Phase::Starting);
            fence = self.fence(&met).await?;
            let mut over = round::run(self, met, fence, stop).await?;
            let own = first_of(&over.failures).map(|failure| failure.exit);
            over.verdict = self.crash_loop.after(self.spec.max_failed_rounds, over.ran, own, over.verdict);
            let (round, rank) = (over.round, over.rank);
            self.deadline = over.deadline;
            self.note_end(&over, stop.stuck());
            (board, fence, served) = (Some(over.board), over.fence, over.served);
            match over.verdict {
                Verdict::Succeed { without_word } => {
                    let (restarts, rounds) = (self.restarts, self.rounds);
                    let (workers, nodes) = (over.workers, over.nodes);
                    let success = Success { workers, nodes, restarts, rounds, without_word };
                    return Ok(Outcome::Succeeded(success));
                }
                Verdict::Regroup { cost, cause: regroup } => {
                    self.budget.charge(over.ran, cost);
                    self.restarts += cost;
                    self.metrics.restarts_left(self.budget.left());
                    self.metrics.restarted(regroup.name());
                    let of_group = matches!(&regroup, Cause::Group(change) if change.is_a_loss());
                    let leaver = match &regroup {
                        Cause::Other(notice) if notice.is_leave() => Some(notice.node),
                        _ => None,
                    };
                    let ends = matches!(&regroup, Cause::Other(notice) if notice.ends_the_run());
                    let (words, report) = self.regroups(regroup, over.failures, stop.is_asked());
                    if !over.ran.is_zero() {
                        let stopped = What::Stopped { why: words.clone() };
                        self.timeline.note(round::one_of_all(rank), round, stopped);
                    }
                    // All close it who know that it ends: the node that is to may be gone before it can, or unable to.
                    if ends && let Some(report) = report {
                        return Ok(failed(report));
                    }
                    why = Some(Reason { words, of_group, leaver, nodes: over.nodes });
                    cause = report;
                }
                Verdict::GiveUp { rounds, cause } => {
                    let told = if let Cause::Other(notice) = cause { Some(notice) } else { None };
                    if let Some(report) = self.report(told, over.failures) {
                        return Ok(failed(report.in_a_row(rounds)));
                    }
                }
                Verdict::Close => {
                    if let Some(report) = self.report(None, over.failures) {
                        self.untold = over.untold.zip(board).map(|(notice, board)| (board, notice));
                        return Ok(failed(report.used_up(Some(self.spec.max_restarts))));
                    }
                }
                Verdict::Leave => {
                    if let Some(report) = self.report(None, over.failures) {
                        return Ok(Outcome::Left(Box::new(report.used_up(Some(self.spec.max_restarts)))));
                    }
                }
                Verdict::Closed { reason, first } => {
                    let cause = self.report(first, over.failures.clone());
                    let cause = self.closed_for(&reason, cause, over.failures, board.as_ref()).await;
                    // Another may have counted this round first, and given the run up.
                    let rules = self.spec.max_failed_rounds;
                    let exit = cause.as_ref().map(|report| report.first.exit);
                    let in_a_row = self.crash_loop.round_is_over(rules, over.ran, exit);
                    let counted = |report: FailureReport| match in_a_row {
                        Some(rounds) => report.in_a_row(rounds),
                        None => report,
                    };
                    return Ok(cause.map(counted).map_or(Outcome::Closed { reason }, failed));
                }
                Verdict::Stop(signal) => {
                    let failures = over.failures.into_iter().filter(|failure| !is_that_of(failure, signal));
                    let report = self.report(None, failures.collect());
                    let failure = report.map(|report| Box::new(report.ended_by(signal)));
                    return Ok(Outcome::Stopped { signal, failure });
                }
            }
        }
    }

    /// Says why the nodes meet again; that, and the report of the failure that is the cause, if it is one.
    /// `is_asked`: it ends instead.
    fn regroups(
        &self,
        why: Cause,
        failures: Vec<Failure>,
        is_asked: bool,
    ) -> (String, Option<FailureReport>) {
        let words = match &why {
            Cause::Own => {
                let words = first_of(&failures).map(Failure::in_short).unwrap_or_default();
                if is_asked {
                    warn!("{words}");
                } else {
                    warn!(restarts = self.restarts, left = self.budget.left(), "{words}; starting again");
                }
                let report = self.report(None, failures);
                return (words, report);
            }
            Cause::Other(notice) => {
                let words = notice.in_short();
                info!("{words}; {}", words::after(notice));
                words
            }
            Cause::Group(change) => {
                let words = words::change(change);
                match change {
                    // As was wished.
                    GroupChange::Waiting { .. } | GroupChange::Left { .. } => info!("{words}; meeting again"),
                    // What comes of that is said next.
                    GroupChange::KeptOut { .. } => warn!("{words}"),
                    _ => warn!("{words}; meeting again"),
                }
                words
            }
            Cause::CutOff(why) => {
                // Why was said when the workers were stopped.
                info!("the workers are stopped; this node meets the others again when etcd serves it");
                why.to_string()
            }
        };
        for failure in &failures {
            info!("{}, which followed from that", failure.in_short());
        }
        let report = match why {
            Cause::Other(notice) => self.report(Some(notice), failures),
            _ => None,
        };
        (words, report)
    }

    /// What failed first, on this node unless another told of it, and what followed here.
    fn report(&self, told: Option<Notice>, ours: Vec<Failure>) -> Option<FailureReport> {
        let used_up = told.as_ref().and_then(Notice::used_up);
        let own = || first_of(&ours).cloned();
        let first = told.and_then(Notice::failure).or_else(own)?;
        Some(FailureReport::new(self.handler.run_id(), self.restarts, first, ours).used_up(used_up))
    }

    /// The failure that the run was closed for, if it was for one. `cause` is what this node knows to have failed first, and
    /// `ours` failed here. It may not have been told: one that was cut off was not, and one that etcd refused tells of its
    /// failure only when it closes the run.
    async fn closed_for(
        &self,
        reason: &str,
        cause: Option<FailureReport>,
        ours: Vec<Failure>,
        board: Option<&Board>,
    ) -> Option<FailureReport> {
        let is_reason = |report: &FailureReport| report.in_short() == *reason;
        if let Some(cause) = cause.filter(is_reason) {
            return Some(cause);
        }
        self.report(Some(board?.said().await?), ours).filter(is_reason)
    }
}

fn first_of(failures: &[Failure]) -> Option<&Failure> {
    failures.iter().min_by_key(|failure| failure.moment())
}

/// Whether it is no more than what this signal has done: a site may send it to each process.
fn is_that_of(failure: &Failure, signal: Signal) -> bool {
    let number = signal.as_raw();
    failure.exit == Exit::Signal(number) || failure.exit == Exit::ExitCode(128 + number)
}

fn failed(report: FailureReport) -> Outcome {
    Outcome::Failed(Box::new(report))
}
