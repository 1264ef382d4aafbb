//! How to reach an etcd, as Python says it.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint::{Credentials, EtcdSettings, TlsSettings};

use crate::error;
use crate::key::Time;

/// The names that [`settings`] knows.
const OPTIONS: &str = "cacert, cert, key, user, password, etcd_prefix, connect_timeout, request_timeout, \
                       retry_timeout";

/// The settings for `endpoint` with the options, which are keyword arguments of whoever connects.
pub(crate) fn settings(endpoint: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<EtcdSettings> {
    let mut settings = EtcdSettings::new(endpoint).map_err(|problem| error::settings(&problem))?;
    let (mut user, mut password) = (None, None);
    let mut tls = None::<TlsSettings>;
    for (name, value) in options.into_iter().flatten() {
        // An option that is None was not given.
        if value.is_none() {
            continue;
        }
        let path = || -> PyResult<Option<PathBuf>> { Ok(Some(value.extract()?)) };
        match name.extract::<String>()?.as_str() {
            "cacert" => tls.get_or_insert_default().ca = path()?,
            "cert" => tls.get_or_insert_default().cert = path()?,
            "key" => tls.get_or_insert_default().key = path()?,
            "user" => user = Some(value.extract::<String>()?),
            "password" => password = Some(value.extract::<String>()?),
            "etcd_prefix" => settings.prefix = value.extract()?,
            "connect_timeout" => settings.connect_timeout = value.extract::<Time>()?.0,
            "request_timeout" => settings.request_timeout = value.extract::<Time>()?.0,
            "retry_timeout" => settings.retry_timeout = value.extract::<Time>()?.0,
            other => {
                return Err(PyTypeError::new_err(format!(
                    "there is no connection option {other:?}; there are: {OPTIONS}"
                )));
            }
        }
    }
    settings.tls = tls;
    settings.credentials = match (user, password) {
        (Some(user), Some(password)) => Some(Credentials::new(user, password)),
        (None, None) => None,
        (Some(_), None) => return Err(PyValueError::new_err("there is a user without a password")),
        (None, Some(_)) => return Err(PyValueError::new_err("there is a password without a user")),
    };
    settings.check().map_err(|problem| error::settings(&problem))?;
    Ok(settings)
}

/// Which of etcd's protocols is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    V2,
    V3,
}

impl FromPyObject<'_, '_> for Api {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match given.extract::<String>()?.as_str() {
            "v2" => Ok(Api::V2),
            "v3" => Ok(Api::V3),
            other => Err(PyValueError::new_err(format!("the api is \"v2\" or \"v3\", not {other:?}"))),
        }
    }
}

impl Api {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Api::V2 => "v2",
            Api::V3 => "v3",
        }
    }
}
