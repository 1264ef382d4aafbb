//! Keys, values and times as Python gives them.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDelta, PyString};

/// Text or bytes.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl FromPyObject<'_, '_> for Bytes {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            Ok(Bytes(bytes.as_bytes().to_vec()))
        } else if let Ok(text) = given.cast::<PyString>() {
            Ok(Bytes(text.to_cow()?.into_owned().into_bytes()))
        } else if let Ok(bytes) = given.cast::<PyByteArray>() {
            Ok(Bytes(bytes.to_vec()))
        } else {
            Err(PyTypeError::new_err(format!("expected str or bytes, not {}", given.get_type().name()?)))
        }
    }
}

/// A list of keys or values.
pub(crate) struct Several(Vec<Bytes>);

impl Several {
    /// In the form that the store takes it.
    pub(crate) fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(|bytes| bytes.0.as_slice()).collect()
    }
}

impl FromPyObject<'_, '_> for Several {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        // One alone is a sequence, too.
        if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            let kind = given.get_type().name()?;
            return Err(PyTypeError::new_err(format!("expected a list of str or bytes, not one {kind}")));
        }
        given.extract().map(Several)
    }
}

/// A time: a `timedelta`, or a number of seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time(pub(crate) Duration);

impl FromPyObject<'_, '_> for Time {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if given.is_instance_of::<PyDelta>() {
            return given.extract().map(Time);
        }
        let Ok(seconds) = given.extract::<f64>() else {
            let kind = given.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a time is a timedelta or a number of seconds, not {kind}"
            )));
        };
        let refused = |_| PyValueError::new_err(format!("{seconds} is not a number of seconds to wait"));
        Duration::try_from_secs_f64(seconds).map(Time).map_err(refused)
    }
}
