//! Who may use v2 while users are asked for: as the keys of v2 are in no role, whoever has the root role.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::auth::ROOT;
use crate::shared::Shared;
use crate::v2::Login;

/// Passwords that were right and are remembered: clients of v2 show theirs with every request.
const KNOWN: usize = 100;

#[derive(Debug)]
pub(crate) struct V2Users {
    shared: Arc<Shared>,
    known: Mutex<Known>,
}

/// Right for as long as no user and no role changes.
#[derive(Debug, Default)]
struct Known {
    revision: u64,
    logins: HashSet<Login>,
}

impl V2Users {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(V2Users { shared, known: Mutex::default() })
    }

    /// Whether a client may, once that is known; none if everybody may.
    pub(crate) fn check(self: &Arc<Self>, login: Option<Login>) -> Option<BoxFuture<'static, bool>> {
        if !self.shared.read(|state| state.auth.is_enabled()) {
            return None;
        }
        let users = Arc::clone(self);
        let is_root = async move {
            match login {
                Some(login) => users.is_root(login).await.unwrap_or(false),
                None => false,
            }
        };
        Some(is_root.boxed())
    }

    async fn is_root(&self, login: Login) -> Option<bool> {
        let proof = self.shared.read(|state| {
            let is_root = state.auth.user(&login.user).is_ok_and(|user| user.has(ROOT));
            is_root.then(|| state.auth.proof(&login.user).ok())?
        })?;
        if self.known(proof.revision).logins.contains(&login) {
            return Some(true);
        }
        let password = login.password.clone();
        let is_right = self.shared.passwords.matches(None, password, proof.hash).await.ok()?;
        if is_right {
            let mut known = self.known(proof.revision);
            if known.logins.len() >= KNOWN {
                known.logins.clear();
            }
            known.logins.insert(login);
        }
        Some(is_right)
    }

    /// Those of a revision of the users. Others are forgotten.
    fn known(&self, revision: u64) -> std::sync::MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.revision != revision {
            *known = Known { revision, ..Known::default() };
        }
        known
    }
}
