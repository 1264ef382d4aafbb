//! Python's frames, by py-spy. The process is not stopped for it: what hangs does not change while it is read, and one that
//! runs is read again.

use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy};

use crate::frame::Frame;

/// What a process that runs changes while it is read is tried again so often.
const TRIES: usize = 5;

/// A thread of a Python.
#[derive(Debug)]
pub(crate) struct PythonThread {
    pub(crate) id: u32,
    pub(crate) name: Option<String>,
    pub(crate) holds_gil: bool,
    pub(crate) frames: Vec<Frame>,
}

/// The threads of a process that have Python's frames. It may block for as long as the process is in the kernel.
pub(crate) fn threads(pid: u32) -> Result<Vec<PythonThread>, String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let number = py_spy::Pid::try_from(pid).map_err(|_| "its number is none".to_owned())?;
    let mut spy = PythonSpy::new(number, &config).map_err(|error| unseen(pid, &error))?;
    let mut tried = 0;
    let traces = loop {
        tried += 1;
        match spy.get_stack_traces() {
            Ok(traces) => break traces,
            Err(error) if tried == TRIES => return Err(unseen(pid, &error)),
            Err(_) => {}
        }
    };
    let threads = traces.into_iter().map(|trace| PythonThread {
        // Before Python 3.11 it does not say which thread of the system it is: the first one has to do.
        id: trace.os_thread_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(pid),
        name: trace.thread_name,
        holds_gil: trace.owns_gil,
        frames: trace.frames.into_iter().map(Frame::from).collect(),
    });
    Ok(threads.collect())
}

impl From<py_spy::Frame> for Frame {
    fn from(frame: py_spy::Frame) -> Self {
        let file = frame.short_filename.unwrap_or(frame.filename);
        Frame { function: frame.name, file, line: u32::try_from(frame.line).ok().filter(|line| *line > 0) }
    }
}

/// What py-spy says of it, in a few words.
fn unseen(pid: u32, error: &dyn std::fmt::Display) -> String {
    // To read the map of its memory is what nobody else may.
    match std::fs::File::open(format!("/proc/{pid}/mem")) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "its stacks: this process may not trace it (in a container, CAP_SYS_PTRACE or a seccomp profile that allows ptrace)"
                .to_owned()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "it is gone".to_owned(),
        _ => format!("Python's frames: {error}"),
    }
}
