//! Whether a node is fit for a run.
//!
//! - [`Check`]: one check, by name (`clock`, `disk`, `gpu`, `port`) or a command of one's own.
//! - [`Checks`]: those of a node; [`Checks::look`] carries them out, side by side, and tells what is wrong as [`Sick`].
//! - `command`, `clock`, `disk`, `gpu`: each kind. None of them can hold up who asks for longer than it may take, be it a disk
//!   that hangs or a driver that does.
//!
//! `port` needs the other nodes: who has met them carries it out (`rallypoint-agent`).

mod blocking;
mod check;
mod clock;
mod command;
mod disk;
mod gpu;
mod sick;

use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::EtcdSettings;

use self::blocking::Blocking;
pub use self::check::{BUILT_IN, Check};
use self::gpu::Gpus;
pub use self::sick::Sick;

/// What the checks need to know.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The folders that must take files: those of logs, and the temporary one.
    pub folders: Vec<PathBuf>,
    /// The etcd whose clock this machine's is held against.
    pub etcd: Option<EtcdSettings>,
    /// Set for commands, or taken away from them.
    pub environment: Vec<(&'static str, Option<String>)>,
}

/// The checks of a node.
#[derive(Debug)]
pub struct Checks {
    checks: Vec<(Check, Blocking)>,
    surroundings: Surroundings,
    limit: Duration,
    gpus: Gpus,
}

impl Checks {
    /// These checks, each of which may take so long.
    #[must_use]
    pub fn new(checks: impl IntoIterator<Item = Check>, surroundings: Surroundings, limit: Duration) -> Self {
        let checks: Vec<_> = checks.into_iter().map(|check| (check, Blocking::default())).collect();
        let gpus = Gpus::default();
        if checks.iter().any(|(check, _)| matches!(check, Check::Gpu { .. })) {
            // What a GPU reports before somebody listens is lost.
            gpus.listen();
        }
        Checks { checks, surroundings, limit, gpus }
    }

    /// Whether `port` is among them.
    #[must_use]
    pub fn among_nodes(&self) -> bool {
        self.checks.iter().any(|(check, _)| *check == Check::Port)
    }

    /// Carries out all that this node can by itself, at once. What it finds; nothing, if the node is fit.
    pub async fn look(&self) -> Vec<Sick> {
        let looks = self.checks.iter().map(|(check, blocking)| self.one(check, blocking));
        futures::future::join_all(looks).await.into_iter().filter_map(Result::err).collect()
    }

    async fn one(&self, check: &Check, blocking: &Blocking) -> Result<(), Sick> {
        let sick = |why: String| Sick::new(check, why);
        match check {
            Check::Command(text) => command::run(text, self.limit, &self.surroundings.environment)
                .await
                .map_err(|failed| Sick::of_command(check, failed)),
            Check::Clock { most } => {
                clock::look(self.surroundings.etcd.as_ref(), *most, self.limit).await.map_err(sick)
            }
            Check::Disk { least, folder } => {
                let folders = folder
                    .as_ref()
                    .map_or_else(|| self.surroundings.folders.clone(), |one| vec![one.clone()]);
                let least = *least;
                let look = move || disk::look(&folders, least);
                blocking.within(self.limit, "the disk", look).await.map_err(sick)
            }
            Check::Gpu { count } => {
                let (gpus, count) = (self.gpus.clone(), *count);
                let look = move || gpus.look(count);
                blocking.within(self.limit, "NVIDIA's driver", look).await.map_err(sick)
            }
            Check::Port => Ok(()),
        }
    }
}

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
