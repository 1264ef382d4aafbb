//! How results get from the runtime to an event loop.
//!
//! The runtime's threads never take the GIL: they put the result in a queue and make a socket readable, and the
//! event loop picks it up. So no thread of ours can be caught in Python code while the interpreter ends.

use std::any::TypeId;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::runtime::runtime;

/// Makes the Python object of a result, on the event loop's thread.
type Result = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Ticket, value, exception.
type Taken = (u64, Option<Py<PyAny>>, Option<PyErr>);

/// The results that one event loop has not seen yet.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Completions {
    queue: Arc<Queue>,
    /// Readable while results are there.
    readable: UnixStream,
    tickets: AtomicU64,
}

struct Queue {
    results: Mutex<Vec<(u64, Result)>>,
    bell: UnixStream,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    fn push(&self, ticket: u64, result: Result) {
        let mut results = self.results.lock().expect("no code panics while it holds this lock");
        results.push((ticket, result));
        if results.len() == 1 {
            // A full socket is readable already, and one that is closed has nobody left to tell.
            let _ = (&self.bell).write(&[1]);
        }
    }
}

/// A result as Python has it. Nothing is `None`; by itself it would be an empty tuple.
pub(crate) fn into_python<T>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py> + 'static,
{
    if TypeId::of::<T>() == TypeId::of::<()>() { Ok(py.None()) } else { value.into_py_any(py) }
}

/// Starts an operation whose result the running event loop gets: returns its `asyncio.Future`.
pub(crate) fn start<T, E, F>(
    py: Python<'_>,
    operation: F,
    into_error: fn(Python<'_>, &E) -> PyErr,
) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
    E: Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    let bridge = py.import("rallypoint._bridge")?.getattr("of_running_loop")?.call0()?;
    let completions = bridge.getattr("completions")?.cast_into::<Completions>()?;
    let ticket = completions.get().tickets.fetch_add(1, Ordering::Relaxed);
    let queue = Arc::clone(&completions.get().queue);
    let task = runtime().spawn(async move {
        let result = operation.await;
        let convert = move |py: Python<'_>| match result {
            Ok(value) => into_python(py, value),
            Err(problem) => Err(into_error(py, &problem)),
        };
        queue.push(ticket, Box::new(convert));
    });
    Ok(bridge.call_method1("future", (ticket, Task(task.abort_handle())))?.unbind())
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let (readable, bell) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let queue = Arc::new(Queue { results: Mutex::default(), bell });
        Ok(Completions { queue, readable, tickets: AtomicU64::new(0) })
    }

    /// What the event loop watches.
    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    /// The results that have come in.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Taken>> {
        match (&self.readable).read(&mut [0; 64]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let results = {
            let mut results = self.queue.results.lock().expect("no code panics while it holds this lock");
            std::mem::take(&mut *results)
        };
        let convert = |(ticket, result): (u64, Result)| match result(py) {
            Ok(value) => (ticket, Some(value), None),
            Err(error) => (ticket, None, Some(error)),
        };
        Ok(results.into_iter().map(convert).collect())
    }
}

/// An operation under way.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Task(AbortHandle);

#[pymethods]
impl Task {
    /// Ends it where it is.
    fn cancel(&self) {
        self.0.abort();
    }
}
