//! How the workers of a round are started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_rendezvous::Rendezvous;
use tracing::warn;

use super::Round;
use crate::decision::Event;
use crate::environment::{Common, WorkerRanks, environment};
use crate::error::AgentError;
use crate::group::{Group, Start};
use crate::guard::GUARD_VARIABLE;
use crate::logs::Attempt;
use crate::preemption::PREEMPTION_FILE;
use crate::progress::HEARTBEAT_VARIABLE;
use crate::stop::StopListener;

/// For a disk to open the workers' files before it is said that they are waited for.
const DISK_IS_SILENT: Duration = Duration::from_secs(10);

/// What workers do not find in their environment: what is this node's own, and secrets.
const KEPT_BACK: [&str; 6] = [
    GUARD_VARIABLE,
    PREEMPTION_FILE,
    "RALLYPOINT_PASSWORD",
    "RALLYPOINT_TOKEN",
    "RALLYPOINT_DASHBOARD_TOKEN",
    // A password or a token may be in it.
    "PET_RDZV_CONF",
];

/// Files that are opened on another thread; dropped, they are not wanted any more.
#[derive(Debug, Default)]
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Round<'_> {
    /// Opens the workers' files. None if the round is over before the disk has answered.
    pub(super) async fn files(
        &mut self,
        workers: usize,
        stop: &mut StopListener,
    ) -> Result<Option<Attempt>, AgentError> {
        let (logs, restarts) = (Arc::clone(self.agent.logs()), self.agent.restarts());
        let wanted = Wanted::default();
        let wants = wanted.0.clone();
        let wants = move || !wants.load(Ordering::Relaxed);
        let opening = tokio::task::spawn_blocking(move || logs.attempt(restarts, workers, wants));
        let silent = tokio::time::sleep(DISK_IS_SILENT);
        tokio::pin!(opening, silent);
        let mut told = false;
        while self.decision.verdict().is_none() {
            let event = tokio::select! {
                biased;
                opened = &mut opening => {
                    let opened = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                    return Ok(Some(opened?));
                }
                signal = stop.asked() => Event::Asked(signal),
                change = self.change() => Event::Changed(change),
                () = &mut silent, if !told => {
                    told = true;
                    warn!("the disk with the workers' log files does not answer; they are started when it does");
                    continue;
                }
            };
            self.decision.handle(event);
        }
        Ok(None)
    }

    /// Starts the workers. There may be many, and the end may be asked for before all are: then the rest is not.
    pub(super) fn start(
        &self,
        met: &Rendezvous,
        places: &[WorkerRanks],
        attempt: Attempt,
        stop: &StopListener,
    ) -> Result<Group, AgentError> {
        let (agent, spec) = (self.agent, self.agent.spec());
        let (master_addr, master_port) = self.entrance.place(&met.master);
        let common = Common {
            role: &spec.role,
            run_id: self.handler().run_id(),
            master_addr: &master_addr,
            master_port,
            agent_store: self.serving.is_agent(),
            restart_count: agent.restarts(),
            max_restarts: spec.max_restarts,
            signals: &spec.signals,
            virtual_local_rank: spec.virtual_local_rank,
        };
        let mut starts = Vec::new();
        for (place, plan) in places.iter().zip(&attempt.plans).take_while(|_| !stop.is_asked()) {
            let mut environment =
                environment(&common, place, &plan.error_file, |name| std::env::var_os(name))?;
            let heartbeat = spec.hang.heartbeats.as_ref().and_then(|beats| {
                let file = beats.file(place.local_rank);
                let rank = place.rank;
                file.inspect_err(|error| {
                    warn!(
                        "rank {rank} has no place for its heartbeats, and is judged by its output: {error}"
                    );
                })
                .ok()
            });
            environment.extend(heartbeat.iter().map(|file| (HEARTBEAT_VARIABLE, file.into())));
            environment.extend(spec.environment.iter().cloned());
            let file = self.preemption.file(place.local_rank);
            environment.extend(file.map(|file| (PREEMPTION_FILE, file.into())));
            let local_rank = place.local_rank.to_string();
            let args = spec.args.iter().map(|arg| match arg.to_str() {
                // Nothing else is: `$$` and the like belong to the program.
                Some(text) => text.replace("${local_rank}", &local_rank).into(),
                None => arg.clone(),
            });
            starts.push(Start {
                program: &spec.program,
                args: args.collect(),
                environment,
                without: &KEPT_BACK,
                place: place.clone(),
                prefix: spec.prefix.of(place, &spec.role, agent.host()),
                cpus: spec.cpus.get(place.local_rank).cloned().unwrap_or_default(),
                interactive: spec.interactive.filter(|worker| worker.local_rank == place.local_rank),
                reads: spec.interactive.is_none(),
                metrics: agent.metrics().clone(),
                heartbeat,
            });
        }
        let (settings, console) = (agent.logs().settings(), agent.console());
        let asked = || stop.is_asked();
        Group::start(starts, attempt, settings, console, agent.name(), agent.workers(), asked)
            .map(|group| group.adopting(agent.adopts()))
            .map_err(|error| AgentError::Start { program: spec.program.clone(), source: error.source })
    }
}
