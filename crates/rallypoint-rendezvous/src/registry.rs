//! The backends by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::error::Result;
use crate::handler::RendezvousHandler;
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

    /// Adds a backend; a name is taken once.
    pub fn register(&mut self, name: &str, creator: Creator) -> Result<(), ParameterError> {
        if self.creators.contains_key(name) {
            return Err(ParameterError(format!("the rendezvous backend {name:?} is registered already")));
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
        let Some(creator) = self.creators.get(&parameters.backend) else {
            let names: Vec<_> = self.names().collect();
            let text = format!(
                "there is no rendezvous backend {:?}; there are: {}",
                parameters.backend,
                names.join(", ")
            );
            return Err(ParameterError(text).into());
        };
        creator(parameters).await
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
