//! Signs that workers make progress: heartbeats in a small file of their own, and what they write.
//!
//! A worker that has ever beaten is judged by its heartbeats alone, since a thread beside it may go on to print. One that has
//! not is judged by its output. Before its first sign it is not judged: imports and compilers take minutes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::output::Moved;
use crate::temporary::{self, Held};

/// Where a worker finds the file that it beats in.
pub const HEARTBEAT_VARIABLE: &str = "RALLYPOINT_HEARTBEAT_FILE";
/// What the file begins with. A counter follows, of 8 bytes, the lowest first, and the process that it is of; both are written
/// by `rallypoint.heartbeat()`.
const BEGINS: [u8; 8] = *b"rpbeat1\n";
/// The same, once the program that beats has begun to end.
const ENDS: [u8; 8] = *b"rpends1\n";
/// The file of a worker that has not beaten yet.
const UNTOUCHED: [u8; 24] = *b"rpbeat1\n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Of a file that another program has made something else of, so much is compared.
const MOST: u64 = 64;
/// A sample that comes later than this was kept from coming: the machine or this process was stopped, and so were the workers.
const LATE: Duration = Duration::from_secs(1);

/// The folder with the heartbeats of a launcher's workers, in memory where that can be. Dropped, it is removed.
#[derive(Debug)]
pub struct Heartbeats {
    folder: PathBuf,
    /// Where there is no room in memory.
    beside: PathBuf,
    _held: Option<Held>,
}

impl Heartbeats {
    /// Makes the folder, in memory under the name of `folder`, or else in that.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let in_memory = temporary::in_memory(folder);
        let beside = folder.join("heartbeat");
        // A disk that hangs must not make a heart stop.
        if let Some((folder, held)) =
            in_memory.and_then(|path| Some((path.clone(), temporary::hold(&path).ok()?)))
        {
            return Ok(Heartbeats { folder, beside, _held: Some(held) });
        }
        fs::create_dir_all(&beside)?;
        Ok(Heartbeats { folder: beside.clone(), beside, _held: None })
    }

    /// A file for a worker that is about to be started. What an earlier one still writes is no sign of it.
    pub(crate) fn file(&self, local_rank: usize) -> io::Result<PathBuf> {
        file_in(&self.folder, local_rank).or_else(|_| {
            // Data loaders like to fill it.
            fs::create_dir_all(&self.beside)?;
            file_in(&self.beside, local_rank)
        })
    }
}

fn file_in(folder: &Path, local_rank: usize) -> io::Result<PathBuf> {
    let path = folder.join(local_rank.to_string());
    let new = folder.join(format!(".{local_rank}"));
    fs::write(&new, UNTOUCHED).inspect_err(|_| drop(fs::remove_file(&new)))?;
    fs::rename(&new, &path)?;
    Ok(path)
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        // The guard may have been quicker.
        let _ = crate::disk::remove(self.folder.clone());
    }
}

/// Where signs of one worker are to be found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    pub(crate) heartbeat: Option<PathBuf>,
    /// What is carried for it.
    pub(crate) streams: Vec<Moved>,
    /// What it writes by itself, and how long that was when it was started.
    pub(crate) files: Vec<(PathBuf, u64)>,
}

/// What a worker has shown so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Signs {
    beat: Beat,
    output: u64,
}

/// A heartbeat file at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Beat {
    text: Vec<u8>,
    touched: Option<SystemTime>,
}

impl Source {
    /// Looks for signs. It may wait for a disk with log files.
    pub(crate) fn look(&self) -> Signs {
        let beat = self.heartbeat.as_deref().and_then(|path| Beat::read(path).ok()).unwrap_or_default();
        let carried = self.streams.iter().map(Moved::count);
        let written = self.files.iter().map(|(path, before)| length(path).wrapping_sub(*before));
        Signs { beat, output: carried.chain(written).fold(0, u64::wrapping_add) }
    }
}

/// How long a file is; what is not there has no length.
pub(crate) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

impl Beat {
    fn read(path: &Path) -> io::Result<Self> {
        // Whatever the worker has made of it, it is not waited for.
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits()).unwrap_or_default();
        let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let touched = file.metadata()?.modified().ok();
        let mut text = Vec::new();
        file.take(MOST).read_to_end(&mut text)?;
        Ok(Beat { text, touched })
    }

    /// Whether a worker has written to it before anybody looked. Of a file that was only touched it is not known.
    fn is_changed(&self) -> bool {
        !self.text.is_empty() && self.text != UNTOUCHED
    }

    /// How often `rallypoint.heartbeat()` was called.
    fn count(&self) -> Option<u64> {
        let number = [BEGINS, ENDS].iter().find_map(|begin| self.text.strip_prefix(begin))?.first_chunk()?;
        Some(u64::from_le_bytes(*number)).filter(|count| *count > 0)
    }

    /// The process whose program has said that it is over.
    fn ends(&self) -> Option<Pid> {
        let owner = self.text.strip_prefix(&ENDS)?.get(8..)?.first_chunk()?;
        Pid::from_raw(i32::try_from(u64::from_le_bytes(*owner)).ok()?)
    }
}

/// What all workers of a node have shown so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// The time that they have had for it.
    pub(crate) ran: Duration,
    /// And that which did not count.
    pub(crate) stood: Duration,
    pub(crate) signs: Vec<Signs>,
}

/// Looks at all of them so often, for as long as somebody wants to know, on a thread of its own. What passes while they are
/// paused, while the machine sleeps, or while this process is stopped, does not count.
pub(crate) fn sample(
    sources: Vec<Source>,
    every: Duration,
    are_paused: impl Fn() -> bool + Send + 'static,
) -> io::Result<watch::Receiver<Sample>> {
    let (send, samples) = watch::channel(Sample::default());
    thread::Builder::new().name("progress".to_owned()).spawn(move || {
        let (mut ran, mut stood, mut last) = (Duration::ZERO, Duration::ZERO, Instant::now());
        while !send.is_closed() {
            let passed = last.elapsed();
            last += passed;
            let counts = if are_paused() { Duration::ZERO } else { passed.min(every + LATE) };
            ran += counts;
            stood += passed - counts;
            send.send_replace(Sample { ran, stood, signs: sources.iter().map(Source::look).collect() });
            thread::sleep(every);
        }
    })?;
    Ok(samples)
}

/// What a worker is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sign {
    /// What it writes to its standard output and error.
    Output,
    /// What it writes into its heartbeat file, by `rallypoint.heartbeat()` or otherwise.
    Heartbeat,
    /// What a later version judges it by.
    #[serde(other)]
    Unknown,
}

/// The progress of one worker.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    seen: Option<Signs>,
    last: Option<Sign>,
    /// Since its last sign, or since it was started.
    silent: Duration,
    /// What has not counted of that time.
    stood: Duration,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Progress { seen: None, last: None, silent: Duration::ZERO, stood: Duration::ZERO }
    }

    /// Takes note of what it has shown, so long after the last time, and after time that does not count.
    pub(crate) fn note(&mut self, signs: Signs, passed: Duration, stood: Duration) {
        self.silent += passed;
        self.stood += stood;
        let (beats, writes) = match &self.seen {
            Some(seen) => (signs.beat != seen.beat, signs.output != seen.output),
            None => (signs.beat.is_changed(), signs.output > 0),
        };
        if beats || (writes && self.last != Some(Sign::Heartbeat)) {
            self.last = Some(if beats { Sign::Heartbeat } else { Sign::Output });
            (self.silent, self.stood) = (Duration::ZERO, Duration::ZERO);
        }
        self.seen = Some(signs);
    }

    /// How long it has shown nothing. None before its first sign.
    pub(crate) fn silent(&self) -> Option<Duration> {
        self.last.map(|_| self.silent)
    }

    /// What has not counted since its last sign, as it was paused, or its machine or launcher stood still.
    pub(crate) fn stood(&self) -> Duration {
        self.stood
    }

    /// How long it has run without a first sign.
    pub(crate) fn starts(&self) -> Option<Duration> {
        self.last.is_none().then_some(self.silent)
    }

    /// What it is judged by. None before its first sign.
    pub(crate) fn sign(&self) -> Option<Sign> {
        self.last
    }

    /// The process that beats for it, whose program has said that it is over. What has started that may go on when it is gone.
    pub(crate) fn ends(&self) -> Option<Pid> {
        self.seen.as_ref()?.beat.ends()
    }

    /// How often it has called `rallypoint.heartbeat()`.
    pub(crate) fn beats(&self) -> Option<u64> {
        self.seen.as_ref()?.beat.count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    #[test]
    fn a_worker_that_beats_is_judged_by_that_alone_and_another_by_what_it_writes() {
        let text = |beat: u8| if beat == 0 { UNTOUCHED.to_vec() } else { vec![beat] };
        let signs = |beat: u8, output| Signs { beat: Beat { text: text(beat), touched: None }, output };
        let mut progress = Progress::new();
        for (signs, silent) in [
            (signs(0, 0), None),
            (signs(0, 0), None),
            (signs(0, 1), Some(0)),
            (signs(0, 1), Some(1)),
            (signs(0, 2), Some(0)),
            (signs(1, 2), Some(0)),
            (signs(1, 3), Some(1)),
            (signs(2, 3), Some(0)),
        ] {
            progress.note(signs.clone(), STEP, STEP);
            assert_eq!(progress.silent(), silent.map(|seconds| STEP * seconds), "{signs:?}");
            assert!(silent.is_none() || progress.silent() == Some(progress.stood()), "{signs:?}");
        }
        assert_eq!(progress.sign(), Some(Sign::Heartbeat));
        let mut silent = Progress::new();
        silent.note(signs(0, 0), STEP, Duration::ZERO);
        silent.note(signs(0, 0), STEP, Duration::ZERO);
        assert_eq!((silent.silent(), silent.starts()), (None, Some(2 * STEP)));
        // One that was quicker than the first look.
        let mut quick = Progress::new();
        quick.note(signs(1, 0), STEP, Duration::ZERO);
        assert_eq!((quick.silent(), quick.sign()), (Some(Duration::ZERO), Some(Sign::Heartbeat)));
    }

    #[test]
    fn any_program_beats_by_writing_or_touching_and_the_counter_is_pythons() {
        let folder = tempfile::tempdir().unwrap();
        let heartbeats = Heartbeats {
            folder: folder.path().join("beats"),
            beside: folder.path().join("beside"),
            _held: None,
        };
        fs::create_dir(&heartbeats.folder).unwrap();
        let path = heartbeats.file(0).unwrap();
        let source = Source { heartbeat: Some(path.clone()), ..Source::default() };
        let mut seen = vec![source.look()];
        assert_eq!(seen[0].beat.count(), None);
        fs::write(&path, [BEGINS, 7_u64.to_le_bytes()].concat()).unwrap();
        seen.push(source.look());
        assert_eq!((seen[1].beat.count(), seen[1].beat.ends()), (Some(7), None));
        fs::write(&path, [ENDS, 7_u64.to_le_bytes(), 4711_u64.to_le_bytes()].concat()).unwrap();
        seen.push(source.look());
        assert_eq!((seen[2].beat.count(), seen[2].beat.ends()), (Some(7), Pid::from_raw(4711)));
        fs::write(&path, "step 9").unwrap();
        seen.push(source.look());
        assert_eq!(seen[3].beat.count(), None);
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        seen.push(source.look());
        heartbeats.file(0).unwrap();
        seen.push(source.look());
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "each of them is a sign: {seen:?}");
        let folder = heartbeats.folder.clone();
        drop(heartbeats);
        assert!(!folder.exists());
    }
}
