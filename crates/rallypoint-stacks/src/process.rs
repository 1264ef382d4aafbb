//! What was seen of one process.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::frame::Frame;
use crate::modules::Libraries;
use crate::{kernel, native, python};

/// Threads beyond these are counted, and not looked at.
const MOST_THREADS: usize = 64;
/// Where compiled code has called Python: what it was called from is told by Python's own frames.
const INTERPRETER: [&str; 2] = ["_PyEval_EvalFrame", "PyEval_EvalCode"];

/// What was seen of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its threads, the first one first.
    pub threads: Vec<Thread>,
    /// How many more there are.
    pub more_threads: usize,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// What was seen of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// Its number.
    pub id: u32,
    /// Its name: Python's, or else the system's.
    pub name: String,
    /// The letter that `/proc` and `ps` have for its state: `S` it sleeps, `R` it runs, `T` it is stopped, `D` it waits in the
    /// kernel.
    pub state: String,
    /// The function of the kernel that it sleeps in.
    pub wait_channel: Option<String>,
    /// It waits in `vfork` until its child has become another program or has ended.
    pub waits_for_child: bool,
    /// Whether it holds Python's global lock.
    pub holds_gil: bool,
    /// Its calls, the innermost first: compiled code down to the interpreter, and then Python's.
    pub frames: Vec<Frame>,
}

impl Process {
    pub(crate) fn unseen(pid: u32, why: String) -> Self {
        Process { pid, unseen: vec![why], ..Process::default() }
    }

    /// Whether it was seen what one of its threads does.
    pub(crate) fn is_seen(&self) -> bool {
        self.threads.iter().any(|thread| !thread.frames.is_empty())
    }

    /// The first thread, which is the one that matters in most programs.
    #[must_use]
    pub fn main(&self) -> Option<&Thread> {
        self.threads.first()
    }
}

/// Looks at a process, and tells what it sees as it sees it: Python's frames first, since those of compiled code take longer.
/// One that only waits for another, as a shell does, is passed over for that; but not one that waits in `vfork`: the other may
/// sleep, and still nobody can go on.
pub(crate) fn look(pid: u32, libraries: &Libraries, deadline: Instant, tell: &dyn Fn(Process)) {
    let mut tasks = kernel::tasks(pid);
    let vforks = tasks.first().is_some_and(kernel::Task::waits_for_child);
    let python = match python::threads(pid) {
        Ok(threads) => Ok(threads),
        Err(problem) => match kernel::only_child(pid).filter(|_| !vforks) {
            Some(child) if Instant::now() < deadline => return look(child, libraries, deadline, tell),
            _ => Err(problem),
        },
    };
    if tasks.is_empty() {
        return tell(Process::unseen(pid, "it is gone".to_owned()));
    }
    let more_threads = tasks.len().saturating_sub(MOST_THREADS);
    tasks.truncate(MOST_THREADS);
    let mut unseen = Vec::new();
    let of_python: HashMap<u32, python::PythonThread> = match python {
        Ok(threads) => threads.into_iter().map(|thread| (thread.id, thread)).collect(),
        Err(problem) => {
            unseen.push(problem);
            HashMap::new()
        }
    };
    let threads = |compiled: &HashMap<u32, Vec<Frame>>| {
        let thread = |task: &kernel::Task| {
            let python = of_python.get(&task.id);
            let name = python.and_then(|python| python.name.as_ref()).unwrap_or(&task.name).clone();
            let holds_gil = python.is_some_and(|python| python.holds_gil);
            let compiled = compiled.get(&task.id).cloned().unwrap_or_default();
            let frames = merged(compiled, python.map(|python| python.frames.clone()).unwrap_or_default());
            let (id, state, wait_channel) = (task.id, task.state.to_string(), task.wait_channel.clone());
            let waits_for_child = task.waits_for_child();
            Thread { id, name, state, wait_channel, waits_for_child, holds_gil, frames }
        };
        tasks.iter().map(thread).collect()
    };
    let process = |unseen: &[String], compiled: &HashMap<u32, Vec<Frame>>| Process {
        pid,
        threads: threads(compiled),
        more_threads,
        unseen: unseen.to_vec(),
    };
    let late = unseen.iter().cloned().chain(["frames of compiled code: there was no time".to_owned()]);
    tell(process(&late.collect::<Vec<_>>(), &HashMap::new()));
    let ids: Vec<u32> = tasks.iter().map(|task| task.id).collect();
    let compiled = native::threads(pid, &ids, libraries, deadline).unwrap_or_else(|problem| {
        unseen.push(problem);
        HashMap::new()
    });
    tell(process(&unseen, &compiled));
}

/// Compiled code that Python has called, and the calls of Python that led there.
fn merged(mut compiled: Vec<Frame>, python: Vec<Frame>) -> Vec<Frame> {
    if python.is_empty() {
        return compiled;
    }
    let interpreter = |frame: &Frame| INTERPRETER.iter().any(|name| frame.function.starts_with(name));
    let called = compiled.iter().position(interpreter);
    // Where the interpreter was not recognised, whose calls they are cannot be told.
    compiled.truncate(called.unwrap_or(1));
    compiled.into_iter().chain(python).collect()
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} ({}:{line})", one_line(&self.function), one_line(&self.file)),
            None => write!(f, "{} ({})", one_line(&self.function), one_line(&self.file)),
        }
    }
}

/// A name as one line: what a program calls its functions and files is its own to choose.
fn one_line(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

impl Thread {
    /// What it is doing, in a few words.
    #[must_use]
    pub fn doing(&self) -> String {
        let words = match self.waits_for_child {
            true => "waits for its child, as in vfork",
            false => kernel::words(self.state.chars().next().unwrap_or('?')),
        };
        match &self.wait_channel {
            Some(channel) if self.state != "R" => format!("{words} ({}, {channel})", self.state),
            _ => format!("{words} ({})", self.state),
        }
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gil = if self.holds_gil { ", holds the GIL" } else { "" };
        writeln!(f, "thread {} \"{}\" {}{gil}", self.id, self.name, self.doing())?;
        self.frames.iter().try_for_each(|frame| writeln!(f, "    {frame}"))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "process {}", self.pid)?;
        self.unseen.iter().try_for_each(|why| writeln!(f, "not seen: {why}"))?;
        self.threads.iter().try_for_each(|thread| write!(f, "{thread}"))?;
        match self.more_threads {
            0 => Ok(()),
            more => writeln!(f, "and {more} more threads"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, line: Option<u32>) -> Frame {
        Frame { function: function.to_owned(), file: "f".to_owned(), line }
    }

    #[test]
    fn compiled_code_that_python_has_called_comes_before_pythons_calls() {
        let python = vec![frame("step", Some(3)), frame("<module>", Some(9))];
        let compiled = ["read", "sock_recv", "_PyEval_EvalFrameDefault", "Py_RunMain", "main"];
        let compiled: Vec<Frame> = compiled.iter().map(|name| frame(name, None)).collect();
        let names =
            |frames: &[Frame]| frames.iter().map(|it| it.function.clone()).collect::<Vec<_>>().join(" ");
        assert_eq!(names(&merged(compiled.clone(), python.clone())), "read sock_recv step <module>");
        assert_eq!(merged(compiled.clone(), Vec::new()), compiled);
        assert_eq!(names(&merged(compiled[..2].to_vec(), python.clone())), "read step <module>");
        assert_eq!(merged(Vec::new(), python.clone()), python);
    }

    #[test]
    fn what_is_told_is_read_back_though_a_later_version_tells_more() {
        let text = r#"{"pid": 7, "threads": [{"id": 7, "state": "S", "cpu": 3}], "colour": "red"}"#;
        let process: Process = serde_json::from_str(text).expect("it is JSON");
        assert_eq!((process.pid, process.threads[0].state.as_str()), (7, "S"));
    }
}
