//! Who we are to etcd: the token that it gives for a password.
//!
//! A token is good at every server of the cluster. So one is shown on all connections, and the password, which is dear for
//! etcd to check, only where there is none yet or the last one was refused: tokens have an end, servers that are started
//! again have forgotten them, and those that are signed go with every change of a user or a role.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use etcd_client::{Channel, ConnectOptions};
use rallypoint_core::Credentials;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tonic::codegen::http::{HeaderValue, Request};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel as TonicChannel;
use tower::util::{BoxCloneSyncService, MapErr, MapRequest};
use tracing::warn;

use super::classify::{Said, classify, wants_new_token};
use super::link::Link;
use crate::error::ASKS_NOBODY;
use crate::{Error, ErrorKind, Result};

/// The metadata of a request that holds the token.
pub(super) const TOKEN: &str = "token";

/// What came of showing the password. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Pass(Arc<Option<MetadataValue<Ascii>>>);

impl Pass {
    /// None where etcd does not ask who we are.
    pub(super) fn token(&self) -> Option<&MetadataValue<Ascii>> {
        self.0.as_ref().as_ref()
    }
}

pub(super) struct Login {
    credentials: Option<Credentials>,
    /// The time that etcd has to look at a password.
    time: Duration,
    pass: RwLock<Option<Pass>>,
    /// For each endpoint, held by whoever shows the password there.
    showing: Vec<Arc<Mutex<()>>>,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>, time: Duration, endpoints: usize) -> Arc<Self> {
        let pass = credentials.is_none().then(|| Pass(Arc::new(None)));
        let showing = (0..endpoints).map(|_| Arc::default()).collect();
        Arc::new(Login { credentials, time, pass: RwLock::new(pass), showing })
    }

    /// What to show, if that is known. Without a password it always is.
    pub(super) fn pass(&self) -> Option<Pass> {
        self.pass.read().expect("no code panics while it holds this lock").clone()
    }

    /// What to show. The password is shown on this connection if it must be, once for all who wait
    /// for it there.
    pub(super) async fn pass_on(self: &Arc<Self>, link: &Link) -> Result<Pass> {
        if let Some(pass) = self.pass() {
            return Ok(pass);
        }
        let showing = Arc::clone(&self.showing[link.index]).lock_owned().await;
        match self.pass() {
            Some(pass) => Ok(pass),
            None => self.show(link, Some(showing)).await,
        }
    }

    /// As [`Login::pass_on`], without waiting for others who show the password: they may do so on a connection that hangs.
    pub(super) async fn pass_on_fresh(self: &Arc<Self>, link: &Link) -> Result<Pass> {
        match self.pass() {
            Some(pass) => Ok(pass),
            None => self.show(link, None).await,
        }
    }

    /// Goes on when the caller gives up: etcd has most of the work behind it by then, and the next one needs it.
    async fn show(self: &Arc<Self>, link: &Link, showing: Option<OwnedMutexGuard<()>>) -> Result<Pass> {
        let (login, link) = (Arc::clone(self), link.clone());
        let shown = tokio::spawn(async move {
            let shown = login.authenticate(&link).await;
            if let Ok(pass) = &shown {
                *login.pass.write().expect("no code panics while it holds this lock") = Some(pass.clone());
            }
            drop(showing);
            shown
        });
        shown.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unreachable, "connect").because("the runtime ends"))
        })
    }

    async fn authenticate(&self, link: &Link) -> Result<Pass> {
        let Some(Credentials { user, password, .. }) = self.credentials.clone() else {
            return Ok(Pass(Arc::new(None)));
        };
        let failed = |kind| Error::new(kind, "connect").endpoint(&link.url);
        let asked = async {
            let options = ConnectOptions::new().with_require_leader(true);
            let client =
                etcd_client::Client::from_channel(Channel::Tonic(link.channel.clone()), Some(options));
            client.await?.auth_client().authenticate(user, password).await
        };
        let Ok(answer) = tokio::time::timeout(self.time, asked).await else {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(failed(ErrorKind::Unreachable).because(late));
        };
        match answer {
            Ok(answer) => {
                let token =
                    answer.token().parse().map_err(|error| failed(ErrorKind::Protocol).because(error))?;
                Ok(Pass(Arc::new(Some(token))))
            }
            Err(etcd_client::Error::GRpcStatus(status))
                if status.message().contains("authentication is not enabled") =>
            {
                if self.credentials.as_ref().is_some_and(|credentials| credentials.required) {
                    return Err(failed(ErrorKind::Auth).because(ASKS_NOBODY));
                }
                warn!(endpoint = link.url, "a user is set, but this etcd does not ask for one");
                Ok(Pass(Arc::new(None)))
            }
            Err(error) => Err(failed(match classify(&error) {
                // Only the password was sent: no request of the caller's can have been carried out.
                ErrorKind::Timeout | ErrorKind::Interrupted => ErrorKind::Unreachable,
                kind => kind,
            })
            .because(Said(error))),
        }
    }

    /// Hears that a request failed which was shown with this. Whether that was the reason: then it is forgotten, and the
    /// request was not carried out.
    pub(super) fn refused(&self, shown: &Pass, error: &etcd_client::Error) -> bool {
        if self.credentials.is_none() || !wants_new_token(error) {
            return false;
        }
        let mut pass = self.pass.write().expect("no code panics while it holds this lock");
        // Somebody else may have a newer one already.
        if pass.as_ref().is_some_and(|pass| Arc::ptr_eq(&pass.0, &shown.0)) {
            *pass = None;
        }
        true
    }

    /// A channel whose requests show the token.
    pub(super) fn channel(self: &Arc<Self>, channel: TonicChannel) -> Channel {
        if self.credentials.is_none() {
            return Channel::Tonic(channel);
        }
        let login = Arc::clone(self);
        let show = move |mut request: Request<tonic::body::Body>| {
            if let Some(token) = login.pass().as_ref().and_then(Pass::token) {
                // What metadata can hold, a header can.
                if let Ok(token) = HeaderValue::from_bytes(token.as_bytes()) {
                    request.headers_mut().insert(TOKEN, token);
                }
            }
            request
        };
        let shown = MapRequest::new(channel, show);
        Channel::Custom(BoxCloneSyncService::new(MapErr::new(shown, tower::BoxError::from)))
    }
}
