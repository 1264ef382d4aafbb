//! What the nodes say, when, and the log of it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Something that a process said, or that it has ended (`{"ended":true}`).
#[derive(Debug, Clone)]
pub(crate) struct Word {
    pub(crate) at: Duration,
    pub(crate) process: usize,
    pub(crate) line: Value,
}

impl Word {
    /// Why the group is no longer as it was, if that is what was said.
    pub(crate) fn change(&self) -> Option<&str> {
        self.line["change"].as_str()
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
    began: Instant,
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    words: Vec<Word>,
}

impl Words {
    pub(crate) fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Words { began: Instant::now(), path, inner: Mutex::new(Inner { file, words: Vec::new() }) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line of the log that no node said.
    pub(crate) fn note(&self, what: &str) {
        let at = self.now().as_secs_f64();
        writeln!(self.inner().file, "[{at:9.3}] {what}").unwrap();
    }

    pub(crate) fn said(&self, process: usize, name: &str, line: Value) {
        let at = self.now();
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
