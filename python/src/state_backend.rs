//! The record of state that torch's dynamic rendezvous changes.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint::EtcdSettings;
use rallypoint::etcd::{v2, v3};
use rallypoint_rendezvous::backend::{Changed, EtcdV2Backend, EtcdV3Backend, RendezvousBackend, Token};
use rallypoint_rendezvous::{RendezvousError, RendezvousParameters, Result, connect_within};

use crate::connection::{self, Api};
use crate::error;
use crate::key::Time;
use crate::operations::AnyStore;
use crate::runtime::{OfProcess, wait};
use crate::store::Store;

type AnyBackend = Arc<dyn RendezvousBackend>;

/// One record of state with a fencing token.
///
/// `api` is "v2", whose record is that of PyTorch's `etcd-v2` backend, or "v3".
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct StateBackend(OfProcess<AnyBackend>);

async fn connect(
    api: Api,
    settings: EtcdSettings,
    run_id: &str,
    key_prefix: Option<&str>,
    ttl: Option<Time>,
) -> Result<AnyBackend> {
    let endpoint = settings.endpoints.to_string();
    let failed =
        |source: rallypoint::etcd::Error| RendezvousError::Connection { endpoint, source: source.into() };
    let ttl = ttl.map(|time| time.0);
    Ok(match api {
        Api::V2 => {
            let client = v2::Client::connect(settings).await.map_err(failed)?;
            Arc::new(EtcdV2Backend::new(client, run_id, key_prefix, ttl)?)
        }
        Api::V3 => {
            let client = v3::Client::connect(settings).await.map_err(failed)?;
            Arc::new(EtcdV3Backend::new(client, run_id, key_prefix, ttl)?)
        }
    })
}

async fn create(api: Api, parameters: RendezvousParameters) -> Result<(AnyBackend, AnyStore)> {
    Ok(match api {
        Api::V2 => {
            let (backend, store) = EtcdV2Backend::create(&parameters).await?;
            (Arc::new(backend), Arc::new(store))
        }
        Api::V3 => {
            let (backend, store) = EtcdV3Backend::create(&parameters).await?;
            (Arc::new(backend), Arc::new(store))
        }
    })
}

impl StateBackend {
    fn run<T, F>(&self, py: Python<'_>, request: impl FnOnce(AnyBackend) -> F) -> PyResult<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let Some(backend) = self.0.get() else { return Err(error::forked_rendezvous(py)) };
        wait(py, request(Arc::clone(backend)))?.map_err(|problem| error::rendezvous(py, &problem))
    }
}

#[pymethods]
impl StateBackend {
    #[new]
    #[pyo3(signature = (endpoint, run_id, key_prefix=None, ttl=None, api=Api::V2, **options))]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        run_id: &str,
        key_prefix: Option<&str>,
        ttl: Option<Time>,
        api: Api,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let settings = connection::settings(endpoint, options)?;
        let backend = wait(py, connect(api, settings, run_id, key_prefix, ttl))?;
        Ok(StateBackend(OfProcess::new(backend.map_err(|problem| error::rendezvous(py, &problem))?)))
    }

    /// The backend and the store that PyTorch's `etcd-v2` makes of these options. For `patience` it waits for an etcd
    /// that is not there yet.
    #[staticmethod]
    #[pyo3(signature = (api, endpoint, run_id, config, patience=None))]
    fn create(
        py: Python<'_>,
        api: Api,
        endpoint: &str,
        run_id: &str,
        config: BTreeMap<String, String>,
        patience: Option<Time>,
    ) -> PyResult<(Self, Py<Store>)> {
        let mut parameters = RendezvousParameters::new("etcd-v2", endpoint, run_id, 1, 1)
            .map_err(|problem| error::settings(&problem))?;
        parameters.config = config;
        let patience = patience.map_or(Duration::ZERO, |time| time.0);
        let made = wait(py, connect_within(endpoint, patience, || create(api, parameters.clone())))?;
        let (backend, store) = made.map_err(|problem| error::rendezvous(py, &problem))?;
        Ok((StateBackend(OfProcess::new(backend)), Store::of_round(py, store)?))
    }

    /// The state and its token, or `None`.
    fn get_state(&self, py: Python<'_>) -> PyResult<Option<(Vec<u8>, String)>> {
        let found = self.run(py, async |backend: AnyBackend| backend.get_state().await)?;
        Ok(found.map(|(state, token)| (state, token.to_string())))
    }

    /// Sets the state if `token` is the current one, or, without a token, if there is no state. Returns the state
    /// after the call, its token, and whether it was set.
    #[pyo3(signature = (state, token=None))]
    fn set_state(
        &self,
        py: Python<'_>,
        state: &[u8],
        token: Option<&str>,
    ) -> PyResult<Option<(Vec<u8>, String, bool)>> {
        let token = token.map(Token::from);
        let changed =
            self.run(py, async |backend: AnyBackend| backend.set_state(state, token.as_ref()).await)?;
        Ok(changed.map(|Changed { state, token, was_set }| (state, token.to_string(), was_set)))
    }
}
