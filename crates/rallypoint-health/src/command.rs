//! A check that is a command of one's own.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

/// So much of what it writes is kept, from its end.
const KEPT: usize = 8 << 10;
/// And so many lines.
const LINES: usize = 20;
/// For the last of it, when the command has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A command that did not end well.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) why: String,
    pub(crate) code: Option<i32>,
    /// The last lines that it wrote.
    pub(crate) output: Vec<String>,
}

impl Failed {
    fn new(why: String) -> Self {
        Failed { why, code: None, output: Vec::new() }
    }
}

/// Runs a command in a shell. When it has ended, when its time is up, and when nobody waits any more, all that it started is
/// killed, but for what has left its process group.
pub(crate) async fn run(
    text: &str,
    limit: Duration,
    environment: &[(&'static str, Option<String>)],
) -> Result<(), Failed> {
    let mut shell = Command::new("sh");
    shell.args(["-c", text]).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in environment {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut child = shell.spawn().map_err(|error| Failed::new(format!("it cannot be run: {error}")))?;
    let group = Group::of(&child);
    let tail = Arc::<Mutex<VecDeque<u8>>>::default();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (wrote, silent) = oneshot::channel::<()>();
    let wrote = Arc::new(wrote);
    let out = out.map(|pipe| read(pipe, &tail, &wrote));
    let err = err.map(|pipe| read(pipe, &tail, &wrote));
    drop(wrote);
    let (done, ended) = oneshot::channel();
    let watched = group.clone();
    let watching = thread::Builder::new().name("health-check".to_owned()).spawn(move || {
        let _ = done.send(watched.wait(child));
    });
    let started = [out, err].into_iter().flatten().collect::<Result<Vec<_>, _>>().and(watching);
    if let Err(error) = started {
        return Err(Failed::new(format!("no thread can be started for it: {error}")));
    }
    let status = tokio::time::timeout(limit, ended).await;
    // What it left behind may hold its pipes, and need not be waited for.
    group.kill();
    let _ = tokio::time::timeout(LAST_WORDS, silent).await;
    let (why, code) = match status {
        Ok(Ok(Ok(status))) if status.success() => return Ok(()),
        Ok(Ok(Ok(status))) => (ending(status), status.code()),
        Ok(Ok(Err(error))) => (format!("its end cannot be waited for: {error}"), None),
        Ok(Err(_)) => ("its end cannot be waited for".to_owned(), None),
        Err(_) => (format!("it was not done after {} s", limit.as_secs_f64()), None),
    };
    Err(Failed { why, code, output: lines(&tail) })
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it did not end well".to_owned(),
    }
}

/// Reads what comes through a pipe; `_open` is let go of when that is over.
fn read(
    mut pipe: impl Read + Send + 'static,
    tail: &Arc<Mutex<VecDeque<u8>>>,
    open: &Arc<oneshot::Sender<()>>,
) -> std::io::Result<thread::JoinHandle<()>> {
    let (tail, open) = (Arc::clone(tail), Arc::clone(open));
    thread::Builder::new().name("health-check".to_owned()).spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(size @ 1..) = pipe.read(&mut piece) {
            let mut tail = lock(&tail);
            tail.extend(&piece[..size]);
            let more = tail.len().saturating_sub(KEPT);
            tail.drain(..more);
        }
        drop(open);
    })
}

fn lines(tail: &Mutex<VecDeque<u8>>) -> Vec<String> {
    let text = lock(tail).iter().copied().collect::<Vec<u8>>();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let printed =
        |line: &&str| line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(printed).collect()
}

/// The process group of a command. Dropped, it is killed.
#[derive(Debug, Clone)]
struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    fn of(child: &Child) -> Self {
        Group(Arc::new(Mutex::new(Some(Pid::from_child(child)))))
    }

    /// Kills all that is in it, while its number is still its own.
    fn kill(&self) {
        if let Some(pid) = *lock(&self.0) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits for the end of the first process, and ends what is left.
    fn wait(self, mut child: Child) -> std::io::Result<ExitStatus> {
        let pid = Pid::from_child(&child);
        // It is not waited for in earnest yet, so that its number stays its own.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let mut number = lock(&self.0);
        let _ = kill_process_group(pid, Signal::KILL);
        *number = None;
        child.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The thread that waits for its end holds the other one.
        if Arc::strong_count(&self.0) > 1 {
            self.kill();
        }
    }
}

/// Nothing that holds one of these locks can leave what it guards half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::Instant;

    use rustix::process::test_kill_process;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn what_it_wrote_last_and_how_it_ended_is_told() {
        run("exit 0", LONG, &[]).await.unwrap();
        let failed = run("echo one; echo two >&2; exit 3", LONG, &[]).await.unwrap_err();
        assert_eq!((failed.why.as_str(), failed.code), ("it ended with exit code 3", Some(3)));
        assert_eq!(failed.output.len(), 2);
        let failed = run("seq 10000; kill -9 $$", LONG, &[]).await.unwrap_err();
        assert_eq!(failed.why, "it was ended by signal 9");
        assert_eq!((failed.output.len(), failed.output.last().unwrap().as_str()), (LINES, "10000"));
        let environment = [("GIVEN", Some("x".to_owned())), ("HOME", None)];
        let failed = run("test -z \"$HOME\" -a \"$GIVEN\" = x && exit 9", LONG, &environment).await;
        assert_eq!(failed.unwrap_err().code, Some(9));
    }

    #[tokio::test]
    async fn nothing_of_it_is_left_when_its_time_is_up_it_has_ended_or_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let child = || {
            let text = std::fs::read_to_string(&file).unwrap();
            Pid::from_raw(text.trim().parse().unwrap()).unwrap()
        };
        let gone = async |pid| {
            let began = Instant::now();
            // It is a zombie until whoever took it in has waited for it.
            while test_kill_process(pid).is_ok() && !is_zombie(pid) {
                assert!(began.elapsed() < LONG, "a process is left");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let starts = format!("sleep 600 & echo $! > {}", file.display());
        run(&starts, LONG, &[]).await.unwrap();
        gone(child()).await;
        let hangs = format!("{starts}; wait");
        let failed = run(&hangs, Duration::from_secs(2), &[]).await.unwrap_err();
        assert_eq!(failed.why, "it was not done after 2 s");
        gone(child()).await;
        std::fs::remove_file(&file).unwrap();
        tokio::select! {
            _ = run(&hangs, LONG, &[]) => panic!("it hangs"),
            () = async {
                while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            } => {}
        }
        gone(child()).await;
    }

    fn is_zombie(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z'))
    }
}
