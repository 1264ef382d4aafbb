//! `--event-log-handler console`: what becomes of workers, as torchrun's events, one JSON object a line.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rallypoint_agent::{
    AgentError, ErrorRecord, Events, Exit, Failure, Outcome, WorkerEvent, WorkerSpec, WorkerState,
};
use rallypoint_rendezvous::RendezvousHandler;
use serde_json::{Value, json};

use super::terminal::Terminal;

/// Writes events to the console.
#[derive(Debug)]
pub(crate) struct EventLog {
    run_id: String,
    role: String,
    backend: String,
    host: String,
    entry_point: String,
    began: Instant,
    terminal: Arc<Terminal>,
    /// The last round that workers were started in.
    round: Mutex<Round>,
}

/// This node's place in a round, as far as it has had one.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    rank: Option<usize>,
    nodes: Option<usize>,
    restarts: u32,
}

impl EventLog {
    pub(crate) fn new(spec: &WorkerSpec, handler: &dyn RendezvousHandler, terminal: Arc<Terminal>) -> Self {
        EventLog {
            run_id: handler.run_id().to_owned(),
            role: spec.role.clone(),
            backend: handler.backend().to_owned(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            entry_point: entry_point(&spec.program),
            began: Instant::now(),
            terminal,
            round: Mutex::default(),
        }
    }

    /// What became of the agent. As under torchrun, one that can tell how its workers ended has done its work.
    pub(crate) fn agent(&self, outcome: &Result<Outcome, AgentError>) {
        let done = matches!(
            outcome,
            Ok(Outcome::Succeeded(_) | Outcome::NotNeeded | Outcome::StayedAway | Outcome::Failed(_))
        );
        let state = if done { "SUCCEEDED" } else { "FAILED" };
        let Round { rank, nodes, restarts } =
            *self.round.lock().expect("no code panics while it holds this lock");
        let about = json!({ "group_world_size": nodes, "entry_point": self.entry_point }).to_string();
        self.say(
            "AGENT",
            state,
            json!({ "group_rank": rank, "agent_restarts": restarts, "metadata": about }),
        );
    }

    fn say(&self, source: &str, state: &str, more: Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let mut about = json!({
            "run_id": self.run_id,
            "global_rank": null,
            "group_rank": null,
            "worker_id": null,
            "role": self.role,
            "hostname": self.host,
            "state": state,
            "total_run_time": self.began.elapsed().as_secs(),
            "rdzv_backend": self.backend,
            "raw_error": null,
            "agent_restarts": null,
            "duration_ms": null,
        });
        if let (Value::Object(about), Value::Object(more)) = (&mut about, more) {
            about.extend(more);
        }
        let name = format!("torchelastic.worker.status.{state}");
        let event = json!({ "name": name, "source": source, "timestamp": now as u64, "metadata": about });
        self.terminal.say(&format!("{event}\n"));
    }
}

impl Events for EventLog {
    fn worker(&self, event: &WorkerEvent) {
        let place = &event.place;
        let (rank, nodes) = (Some(place.group_rank), Some(place.group_world_size));
        *self.round.lock().expect("no code panics while it holds this lock") =
            Round { rank, nodes, restarts: event.restarts };
        let state = match event.state {
            WorkerState::Started => "START",
            WorkerState::Succeeded => "SUCCEEDED",
            WorkerState::Failed => "FAILED",
            WorkerState::Terminated => "TERMINATED",
        };
        let exit = event.failure.as_ref().map(|failure| match failure.exit {
            Exit::ExitCode(code) => code,
            Exit::Signal(number) => -number,
            // As it is ended, if not by a kinder one.
            Exit::Hung(_) => -rallypoint_agent::Signal::KILL.as_raw(),
        });
        // Lists of one: torchrun writes them so, and who reads its events expects that.
        let about = json!({
            "group_world_size": place.group_world_size,
            "entry_point": self.entry_point,
            "local_rank": [place.local_rank],
            "role_rank": [place.role_rank],
            "role_world_size": [place.role_world_size],
            "exit_code": [exit],
            "worker_pid": [event.failure.as_ref().map(|failure| failure.pid)],
        });
        self.say(
            "WORKER",
            state,
            json!({
                "global_rank": place.rank,
                "group_rank": place.group_rank,
                "worker_id": event.pid.to_string(),
                "raw_error": event.failure.as_ref().map(raw_error),
                "metadata": about.to_string(),
                "agent_restarts": event.restarts,
            }),
        );
    }
}

/// The program's name without its folder, as torchrun has it.
fn entry_point(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

/// What the worker wrote of its error, or what is known of it, as JSON in a text.
fn raw_error(failure: &Failure) -> String {
    let message = failure.error.as_ref().map_or_else(|| failure.in_short(), |error| error.message.clone());
    let traceback = failure.error.as_ref().and_then(|ErrorRecord { traceback, .. }| traceback.clone());
    json!({ "message": { "message": message, "extraInfo": { "py_callstack": traceback } } }).to_string()
}
