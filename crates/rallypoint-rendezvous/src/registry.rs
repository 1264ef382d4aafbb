//! The backends by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::barrier::{self, EtcdBarrier};
use crate::connecting::connect_within;
use crate::error::Result;
use crate::handler::RendezvousHandler;
use crate::native::{self, NativeHandler};
use crate::observe::{self, Observed};
use crate::parameters::{ParameterError, RendezvousParameters};

/// Makes a handler from its parameters.
pub type Creator =
    Arc<dyn Fn(RendezvousParameters) -> BoxFuture<'static, Result<Arc<dyn RendezvousHandler>>> + Send + Sync>;

/// The backends by name. Other crates add theirs with [`register`](Registry::register).
#[derive(Clone, Default)]
pub struct Registry {
    creators: BTreeMap<String, Creator>,
}

impl Registry {
    /// One without any backends.
    #[must_use]
    pub fn empty() -> Self {
        Registry::default()
    }

    /// One with the backends of this crate.
    #[must_use]
    pub fn with_defaults() -> Self {
        let native: Creator = Arc::new(|parameters| {
            Box::pin(async move { Ok(Arc::new(NativeHandler::create(parameters).await?) as Arc<_>) })
        });
        let barrier: Creator = Arc::new(|parameters| {
            Box::pin(async move { Ok(Arc::new(EtcdBarrier::connect(&parameters).await?) as Arc<_>) })
        });
        let built_in = [(barrier::NAME, barrier), (native::BACKEND, native)];
        Registry { creators: built_in.map(|(name, creator)| (name.to_owned(), creator)).into() }
    }

    /// Adds a backend. A name is taken once; the same creator may come again.
    pub fn register(&mut self, name: &str, creator: Creator) -> Result<(), ParameterError> {
        if name.is_empty() {
            return Err(ParameterError("The rendezvous backend name must be a non-empty string.".to_owned()));
        }
        if self.creators.get(name).is_some_and(|current| !Arc::ptr_eq(current, &creator)) {
            return Err(ParameterError(format!(
                "The rendezvous backend '{name}' cannot be registered as it is already registered with another \
                 creator."
            )));
        }
        self.creators.insert(name.to_owned(), creator);
        Ok(())
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.creators.keys().map(String::as_str)
    }

    /// Makes the handler that the parameters name.
    pub async fn create(&self, parameters: RendezvousParameters) -> Result<Arc<dyn RendezvousHandler>> {
        self.create_within(&parameters, Duration::ZERO).await
    }

    async fn make(&self, parameters: RendezvousParameters) -> Result<Arc<dyn RendezvousHandler>> {
        let name = parameters.backend.clone();
        let Some(creator) = self.creators.get(&name) else {
            let names: Vec<_> = self.names().collect();
            return Err(ParameterError(format!(
                "The rendezvous backend '{name}' is not registered. Did you forget to call `register`? \
                 There are: {}",
                names.join(", ")
            ))
            .into());
        };
        let handler = creator(parameters).await?;
        if handler.backend() != name {
            return Err(ParameterError(format!(
                "The rendezvous backend '{}' does not match the requested backend '{name}'.",
                handler.backend()
            ))
            .into());
        }
        Ok(handler)
    }
}

impl Registry {
    /// The same, and waits for an etcd that is not there yet, for so long.
    pub async fn create_within(
        &self,
        parameters: &RendezvousParameters,
        patience: Duration,
    ) -> Result<Arc<dyn RendezvousHandler>> {
        let mut parameters = parameters.clone();
        let collector = observe::collector(&parameters)?.filter(|_| parameters.tracer.is_none());
        let tracer = collector.and_then(|collector| observe::send_traces(&collector));
        let own = tracer.is_some();
        parameters.tracer = parameters.tracer.or(tracer);
        // Before there is an etcd, so that it can be seen that there is none.
        let listener = match observe::listen_address(&parameters)?
            .filter(|_| self.creators.contains_key(&parameters.backend))
        {
            Some(place) => {
                let metrics = parameters.metrics.get_or_insert_default();
                observe::serve_metrics(&place, metrics).await
            }
            None => None,
        };
        let made = || self.make(parameters.clone());
        let handler = connect_within(&parameters.endpoint, patience, made).await?;
        if parameters.metrics.is_none() && parameters.tracer.is_none() {
            return Ok(handler);
        }
        let metrics = parameters.metrics.unwrap_or_default();
        Ok(Arc::new(Observed::new(handler, metrics, listener, parameters.tracer, own)))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
