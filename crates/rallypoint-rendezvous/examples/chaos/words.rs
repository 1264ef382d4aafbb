//! What the nodes say, when, and the log of it.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::planted::Plant;

/// Something that a process said, or that it has ended (`{"ended":true}`).
#[derive(Debug, Clone)]
pub(crate) struct Word {
    /// By its own clock, which is everybody's. When it was heard, where it does not say.
    pub(crate) at: Duration,
    pub(crate) process: usize,
    pub(crate) line: Value,
}

impl Word {
    /// Why the group is no longer as it was, if that is what was said.
    pub(crate) fn change(&self) -> Option<&str> {
        self.line["change"].as_str()
    }

    /// Whether the group is told of, rather than the process itself.
    pub(crate) fn is_news(&self) -> bool {
        self.change().is_some() || self.round().is_some() || self.error().is_some()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.line["error"].as_str()
    }

    pub(crate) fn round(&self) -> Option<u64> {
        self.line["round"].as_u64()
    }

    pub(crate) fn is_end(&self) -> bool {
        self.line["ended"] == true
    }
}

#[derive(Debug)]
pub(crate) struct Words {
    began: Duration,
    path: PathBuf,
    plant: Option<Plant>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    words: Vec<Word>,
}

impl Words {
    /// The log is `folder/name.log`, or `folder/name.1.log` and so on: never over another one.
    pub(crate) fn new(folder: &Path, name: &str, plant: Option<Plant>) -> Self {
        std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let paths = (0..)
            .map(|n| folder.join(if n == 0 { format!("{name}.log") } else { format!("{name}.{n}.log") }));
        let create = |path: PathBuf| match File::create_new(&path) {
            Ok(file) => Some((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let (path, file) = paths.filter_map(create).next().unwrap();
        Words { began: clock(), path, plant, inner: Mutex::new(Inner { file, words: Vec::new() }) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn now(&self) -> Duration {
        clock() - self.began
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line of the log that no node said.
    pub(crate) fn note(&self, what: &str) {
        let at = self.now().as_secs_f64();
        writeln!(self.inner().file, "[{at:9.3}] {what}").unwrap();
    }

    pub(crate) fn said(&self, process: usize, name: &str, mut line: Value) {
        let own = line.as_object_mut().and_then(|line| line.remove("at")?.as_u64());
        let at = own.map_or_else(|| self.now(), |at| Duration::from_micros(at).saturating_sub(self.began));
        if let Some(plant) = self.plant {
            plant.twist(&mut line);
        }
        let mut inner = self.inner();
        writeln!(inner.file, "[{:9.3}]         {name} ({process}): {line}", at.as_secs_f64()).unwrap();
        inner.words.push(Word { at, process, line });
    }

    pub(crate) fn count(&self) -> usize {
        self.inner().words.len()
    }

    /// All that was said, from the word of that number on.
    pub(crate) fn since(&self, from: usize) -> Vec<Word> {
        self.inner().words[from..].to_vec()
    }
}

/// The clock that all processes of a machine share.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap())
}
