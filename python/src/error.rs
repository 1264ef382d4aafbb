//! Which exception an error becomes. The classes are in `rallypoint/errors.py`.

use std::error::Error;

use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use rallypoint::cli::{chain, torchrun_words, torchrun_words_at_first};
use rallypoint::etcd::{Error as EtcdError, ErrorKind};
use rallypoint_rendezvous::RendezvousError;
use rallypoint_store::StoreError;

/// The exception of the class `name`, with the text of `error` and its causes.
fn exception(py: Python<'_>, name: &str, error: &(dyn Error + 'static)) -> PyErr {
    saying(py, name, &chain(error))
}

/// The exception of the class `name` with this text.
fn saying(py: Python<'_>, name: &str, text: &str) -> PyErr {
    let made = py
        .import("rallypoint.errors")
        .and_then(|errors| errors.getattr(name))
        .and_then(|class| class.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// An error of a store.
pub(crate) fn store(py: Python<'_>, error: &StoreError) -> PyErr {
    let name = match error {
        StoreError::Timeout { .. } => "StoreTimeoutError",
        StoreError::QueueEmpty { .. } => "QueueEmptyError",
        StoreError::NotANumber { .. } | StoreError::LengthMismatch { .. } | StoreError::TooLarge { .. } => {
            "StoreValueError"
        }
        StoreError::OutcomeUnknown { .. } => "OutcomeUnknownError",
        StoreError::Etcd(source) => return etcd(py, source),
        _ => "StoreError",
    };
    exception(py, name, error)
}

/// A store or a client that was closed.
pub(crate) fn closed(py: Python<'_>, what: &str) -> PyErr {
    saying(py, "StoreError", &format!("the {what} is closed"))
}

/// An error of etcd, beneath a store or a client.
pub(crate) fn etcd(py: Python<'_>, error: &EtcdError) -> PyErr {
    match error.kind() {
        ErrorKind::Settings => PyValueError::new_err(chain(error)),
        ErrorKind::TooLarge => exception(py, "StoreValueError", error),
        ErrorKind::Protocol | ErrorKind::Rejected | ErrorKind::V2(_) => exception(py, "StoreError", error),
        _ => exception(py, "StoreConnectionError", error),
    }
}

/// An error of a rendezvous.
pub(crate) fn rendezvous(py: Python<'_>, error: &RendezvousError) -> PyErr {
    rendezvous_saying(py, error, &chain(error))
}

/// An error of a rendezvous under torchrun, with what to do.
pub(crate) fn torch_rendezvous(py: Python<'_>, error: &RendezvousError) -> PyErr {
    rendezvous_saying(py, error, &torchrun_words(error))
}

/// The same of its first connection, with TLS or without.
pub(crate) fn torch_connection(py: Python<'_>, error: &RendezvousError, tls: bool) -> PyErr {
    let text = if tls { torchrun_words(error) } else { torchrun_words_at_first(error) };
    rendezvous_saying(py, error, &text)
}

fn rendezvous_saying(py: Python<'_>, error: &RendezvousError, text: &str) -> PyErr {
    let name = match error {
        RendezvousError::Closed { .. } => "RendezvousClosedError",
        RendezvousError::NotMet { .. } | RendezvousError::Timeout { .. } => "RendezvousTimeoutError",
        RendezvousError::Connection { source, .. } => {
            let made = saying(py, "RendezvousConnectionError", text);
            made.set_cause(py, Some(PyConnectionError::new_err(chain(&**source))));
            return made;
        }
        RendezvousError::State { .. }
        | RendezvousError::Mismatch { .. }
        | RendezvousError::Replaced { .. } => "RendezvousStateError",
        RendezvousError::GracefulExit { .. } => "RendezvousGracefulExitError",
        RendezvousError::Parameter(problem) => return settings(problem),
        _ => "RendezvousError",
    };
    saying(py, name, text)
}

/// An error of a rendezvous that did not come about, and who was gone.
pub(crate) fn not_met(py: Python<'_>, error: &RendezvousError, lost: Option<&str>) -> PyErr {
    match lost {
        Some(lost) => saying(py, "RendezvousTimeoutError", &format!("{}: {lost}", chain(error))),
        None => torch_rendezvous(py, error),
    }
}

/// A round that this node cannot do its part in.
pub(crate) fn no_round(py: Python<'_>, text: &str) -> PyErr {
    saying(py, "RendezvousError", text)
}

/// One node's side of a run, or of its state, that was made in another process.
pub(crate) fn forked_rendezvous(py: Python<'_>) -> PyErr {
    let text = "this side of the rendezvous belongs to another process, which forked this one off: make one in this \
                process";
    saying(py, "RendezvousError", text)
}

/// An error of a server that was to be started.
pub(crate) fn server(py: Python<'_>, error: &(dyn Error + 'static)) -> PyErr {
    exception(py, "ServerError", error)
}

/// Settings that cannot work.
pub(crate) fn settings(error: &(dyn Error + 'static)) -> PyErr {
    PyValueError::new_err(chain(error))
}
