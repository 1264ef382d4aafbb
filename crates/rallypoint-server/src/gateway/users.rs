//! The users that clients of the gateway are, each with a client of etcd of its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rallypoint_core::{Credentials, EtcdSettings};
use rallypoint_etcd::v3::Client;
use rallypoint_etcd::{Error as EtcdError, ErrorKind};
use rallypoint_metrics::Etcd as Metrics;

use super::layout;
use crate::v2::Login;

/// Users that are known at a time. The one that was away for the longest makes room.
const KNOWN: usize = 100;

#[derive(Debug)]
pub(super) struct Users {
    settings: EtcdSettings,
    /// Clients are turned away that are no user of etcd's.
    pub(super) required: bool,
    /// What all of them ask for.
    metrics: Metrics,
    known: Mutex<HashMap<Login, (Client, Instant)>>,
}

impl Users {
    /// `settings` are those of the gateway itself.
    pub(super) fn new(settings: EtcdSettings, required: bool, metrics: Metrics) -> Self {
        Users { settings, required, metrics, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Login, (Client, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of a user. A password is shown to etcd before it is held for good.
    pub(super) async fn client(&self, login: Login) -> Result<Client, EtcdError> {
        if let Some((client, used)) = self.known().get_mut(&login) {
            *used = Instant::now();
            return Ok(client.clone());
        }
        let mut settings = self.settings.clone();
        settings.credentials = Some(Credentials::new(&login.user, &login.password));
        let client = Client::connect_lazily_counting(settings, self.metrics.clone())?;
        match client.get(layout::ACTION, None).await {
            // Who may not read everything may still read something.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        // Where etcd does not ask for users, any password would do.
        if self.required && !client.has_token() {
            return Err(
                EtcdError::new(ErrorKind::Auth, "connect").because("this etcd does not ask for users")
            );
        }
        let mut known = self.known();
        if known.len() >= KNOWN {
            let longest = known.iter().min_by_key(|(_, (_, used))| *used).map(|(login, _)| login.clone());
            longest.map(|login| known.remove(&login));
        }
        known.insert(login, (client.clone(), Instant::now()));
        Ok(client)
    }
}
