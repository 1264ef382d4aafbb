//! What the machine watches, as watches of etcd's v2 API.

use futures::FutureExt;
use futures::future::BoxFuture;
use rallypoint_core::barrier::{Ending, Update, VersionRank, Watched};
use rallypoint_etcd::v2::{self, Response, Watcher};

use super::wire::{Wire, ending, same};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Watching {
    wire: Wire,
    keys: Watched,
    watcher: Watcher,
}

impl Watching {
    pub(super) fn new(wire: &Wire, keys: Watched, from: u64) -> Self {
        let watch = |key: &str| wire.client.watch(key, from);
        let watcher = match &keys {
            Watched::Record => watch(&wire.state()),
            Watched::Version(_) => watch(&wire.rdzv()).recursive(),
            Watched::Members { version, ranks } => match ranks.as_slice() {
                [rank] => watch(&wire.keep_alive(VersionRank { version: *version, rank: *rank })),
                _ => watch(&wire.version(*version)).recursive(),
            },
        };
        Watching { wire: wire.clone(), keys, watcher }
    }

    /// What happens next, and the watch itself, to go on with.
    pub(super) fn next(mut self) -> BoxFuture<'static, (Self, Result<Update>)> {
        async move {
            let update = self.update().await;
            (self, update)
        }
        .boxed()
    }

    async fn update(&mut self) -> Result<Update> {
        loop {
            match self.watcher.next().await.map_err(|error| self.wire.failed(error))? {
                v2::Watched::Cleared => return Ok(Update::Cleared),
                v2::Watched::Event(event) => {
                    if let Some(update) = self.translate(&event)? {
                        return Ok(update);
                    }
                }
            }
        }
    }

    fn translate(&self, event: &Response) -> Result<Option<Update>> {
        let (key, removes) = (&event.node.key, event.action.removes());
        let (record, version) = match &self.keys {
            Watched::Record => (true, None),
            Watched::Version(version) => (true, Some(*version)),
            Watched::Members { version, .. } => (false, Some(*version)),
        };
        if record && same(key, &self.wire.state()) {
            return self.wire.after(event).map(|view| Some(Update::Record(view)));
        }
        if !removes {
            return Ok(None);
        }
        if let Some(version) = version
            && let Some(rank) = self.wire.rank(version, key)
        {
            let watched = match &self.keys {
                Watched::Members { ranks, .. } => ranks.contains(&rank),
                _ => true,
            };
            let ending: Ending = ending(event);
            return Ok(watched.then_some(Update::Gone { rank, ending }));
        }
        // A folder above what is watched.
        let below = version.map_or_else(|| self.wire.state(), |version| self.wire.version(version));
        let above = format!("{}/", below.trim_start_matches('/'));
        let folder = format!("{}/", key.trim_start_matches('/'));
        Ok(above.starts_with(&folder).then_some(Update::FolderGone))
    }
}
