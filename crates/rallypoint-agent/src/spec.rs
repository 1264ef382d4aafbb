//! What an agent is to do.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use crate::decision::FailedRounds;
use crate::decision::WhenExhausted;
use crate::environment::DEFAULT_SIGNALS;
use crate::group::Interactive;
use crate::hang::HangSpec;
use crate::preemption::PreemptionSettings;
use crate::prefix::Prefix;
use crate::worker_store::WorkerStore;

/// How long workers have between SIGTERM and SIGKILL: less than the default last call, so that a node that must kill its
/// workers is back in time for the round, and less than Kubernetes' grace.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(25);
/// How long an etcd that does not answer keeps a node that has finished.
pub const DEFAULT_EXIT_BARRIER_TIMEOUT: Duration = Duration::from_secs(60);
/// How many nodes may leave a run because their restarts are used up, where they may at all.
pub const DEFAULT_MAX_DEPARTURES: u32 = 1;

/// What to run on this node, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// The program.
    pub program: OsString,
    /// Its arguments; `${local_rank}` in them is replaced.
    pub args: Vec<OsString>,
    /// The role of this node's workers.
    pub role: String,
    /// The number of workers on this node.
    pub local_world_size: usize,
    /// How often the workers may be started again after a failure.
    pub max_restarts: u32,
    /// When workers have run for so long without a failure of theirs, all restarts are there again; none: never.
    pub restarts_return_after: Option<Duration>,
    /// What happens when there is none left.
    pub when_exhausted: WhenExhausted,
    /// With [`WhenExhausted::Exclude`], for how long this node is kept out. None: for as long as the run lives.
    pub exclude_for: Option<Duration>,
    /// How many rounds in a row may fail with little or no progress before the run is closed. None: any number.
    pub max_failed_rounds: Option<FailedRounds>,
    /// With [`WhenExhausted::Leave`] and [`WhenExhausted::Exclude`], how many nodes of the run may leave so. The next one closes it.
    pub max_departures: u32,
    /// Who serves the store that the workers meet at, where this node has rank 0.
    pub worker_store: WorkerStore,
    /// For how long neither etcd nor another node may have said that the round stands before the workers are stopped.
    /// None: for [the time in which a death is noticed](rallypoint_rendezvous::RendezvousHandler::time_to_notice). Zero: for ever.
    pub fence_timeout: Option<Duration>,
    /// For how long etcd may be away for all members of the round before the workers are stopped. None: for ever.
    pub max_etcd_outage: Option<Duration>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// What happens when this node, or another one, is going to be taken away.
    pub preemption: PreemptionSettings,
    /// When the workers have finished, how long an etcd that does not answer is waited for before that is a success.
    pub exit_barrier_timeout: Duration,
    /// The signals that workers are told about; see [`DEFAULT_SIGNALS`](crate::DEFAULT_SIGNALS).
    pub signals: String,
    /// Each worker sees one GPU, as the first.
    pub virtual_local_rank: bool,
    /// Set for workers beside what torchrun sets.
    pub environment: Vec<(&'static str, OsString)>,
    /// What stands before each of their lines.
    pub prefix: Prefix,
    /// The CPUs that each may run on, by local rank; all that this process may, where there are none.
    pub cpus: Vec<BTreeSet<usize>>,
    /// The worker that has the terminal, for a debugger.
    pub interactive: Option<Interactive>,
    /// When a worker is taken to hang, and when it is looked at what workers do.
    pub hang: HangSpec,
}

impl WorkerSpec {
    /// So many workers of a program, with torchrun's defaults.
    #[must_use]
    pub fn new(program: impl Into<OsString>, local_world_size: usize) -> Self {
        WorkerSpec {
            program: program.into(),
            args: Vec::new(),
            role: "default".to_owned(),
            local_world_size,
            max_restarts: 0,
            restarts_return_after: None,
            when_exhausted: WhenExhausted::Close,
            exclude_for: None,
            max_failed_rounds: None,
            max_departures: DEFAULT_MAX_DEPARTURES,
            worker_store: WorkerStore::Agent,
            fence_timeout: None,
            max_etcd_outage: None,
            grace: DEFAULT_GRACE,
            preemption: PreemptionSettings::default(),
            exit_barrier_timeout: DEFAULT_EXIT_BARRIER_TIMEOUT,
            signals: DEFAULT_SIGNALS.to_owned(),
            virtual_local_rank: false,
            environment: Vec::new(),
            prefix: Prefix::default(),
            cpus: Vec::new(),
            interactive: None,
            hang: HangSpec::default(),
        }
    }
}
