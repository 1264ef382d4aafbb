//! What the machine asks for, as requests to etcd's v2 API, on the keys that PyTorch uses.

use std::time::Duration;

use rallypoint_core::barrier::{
    Ending, GRACE, KEEP_ALIVE_TTL, KeepAlive, RUN_TTL, Record, Reply, Request, VersionRank, View,
};
use rallypoint_etcd::v2::{Action, Client, Code, Delete, Get, Lookup, Node, Put, Response, Watched};
use rallypoint_etcd::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::error::{RendezvousError, Result};

/// A value that is to be removed is compared in the URL, which may not be of any length; beyond this the index alone is.
/// Groups of some hundred nodes are below it.
const LONGEST_IN_A_URL: usize = 16 * 1024;

/// What a node of ours writes into its keep-alive; PyTorch's is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) node: String,
    #[serde(default)]
    pub(super) address: String,
}

/// The keys of one run.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    pub(super) client: Client,
    pub(super) run_id: String,
    root: String,
    /// As it stands in this node's keep-alives.
    mark: String,
}

impl Wire {
    pub(super) fn new(client: Client, run_id: &str, root: &str, mark: &Mark) -> Self {
        let mark = serde_json::to_string(mark).unwrap_or_default();
        Wire { client, run_id: run_id.to_owned(), root: root.to_owned(), mark }
    }

    /// The same, with another time for a request and its retries.
    pub(super) fn retrying_for(&self, time: Duration) -> Self {
        Wire { client: self.client.retrying_for(time), ..self.clone() }
    }

    pub(super) fn rdzv(&self) -> String {
        format!("{}/rdzv", self.root)
    }

    pub(super) fn state(&self) -> String {
        format!("{}/rdzv/active_version", self.root)
    }

    fn counter(&self) -> String {
        format!("{}/rdzv/version_counter", self.root)
    }

    pub(super) fn version(&self, version: u64) -> String {
        format!("{}/rdzv/v_{version}", self.root)
    }

    pub(super) fn keep_alive(&self, place: VersionRank) -> String {
        format!("{}/rank_{}", self.version(place.version), place.rank)
    }

    /// The rank whose keep-alive in this version has this key, if it is one.
    pub(super) fn rank(&self, version: u64, key: &str) -> Option<usize> {
        let folder = format!("{}/rank_", self.version(version));
        key.trim_start_matches('/').strip_prefix(folder.trim_start_matches('/'))?.parse().ok()
    }

    /// Does what the machine asks for.
    pub(super) async fn carry_out(&self, request: &Request) -> Result<Reply> {
        match request {
            Request::ReadRecord => self.read().await.map(Reply::Record),
            Request::CreateRecord { record, ttl } => {
                let text = record.to_text();
                let put = Put::value(&text).prev_exist(false);
                self.write(&self.state(), ttl.map_or(put, |ttl| put.ttl(ttl))).await
            }
            Request::SwapRecord { record, over, ttl } => {
                let (text, (old, index)) = (record.to_text(), over);
                let old = old.to_text();
                let put = Put::value(&text).prev_index(*index).prev_value(&old);
                self.write(&self.state(), ttl.map_or(put, |ttl| put.ttl(ttl))).await
            }
            Request::DeleteRecord { over: (old, index) } => {
                let old = old.to_text();
                let delete = Delete::key().prev_index(*index);
                let delete = if old.len() <= LONGEST_IN_A_URL { delete.prev_value(&old) } else { delete };
                self.remove(&self.state(), delete).await
            }
            Request::MakeRun { counter } => self.make_run(*counter).await.map(|()| Reply::Done { index: 0 }),
            Request::FindRun => Ok(Reply::Run(self.find(&self.root).await?.node.is_some())),
            Request::RenewRun => self.renew_run().await,
            Request::Greet => self.find(&self.counter()).await.map(|_| Reply::Done { index: 0 }),
            Request::ReadCounter => self.read_counter().await,
            Request::SwapCounter { version, over } => {
                self.write(&self.counter(), Put::value(&version.to_string()).prev_index(*over)).await
            }
            Request::MakeVersion { version } => {
                self.write(&self.version(*version), Put::dir().prev_exist(false)).await
            }
            Request::ListMembers { version } => {
                let (members, next) = self.list(*version).await?;
                let keep_alive = |(rank, mark): (usize, Option<Mark>)| KeepAlive {
                    rank,
                    node: mark.map(|mark| mark.node),
                };
                Ok(Reply::Members { members: members.into_iter().map(keep_alive).collect(), next })
            }
            Request::ReadEnding { place, from } => self.read_ending(*place, *from).await,
            Request::WriteKeepAlive(place) => self.write_keep_alive(*place).await,
            Request::RenewKeepAlive(place) => self.renew_keep_alive(*place).await,
            Request::ExpireKeepAlive(place) => {
                let put = Put::refresh(GRACE).prev_value(&self.mark);
                self.write(&self.keep_alive(*place), put).await
            }
            Request::DeleteKeepAlive(place) => {
                self.remove(&self.keep_alive(*place), Delete::key().prev_value(&self.mark)).await
            }
        }
    }

    /// The record as it is now.
    pub(super) async fn read(&self) -> Result<View> {
        let found = self.find(&self.state()).await?;
        let created = found.node.as_ref().map_or(0, |node| node.created_index);
        let record = found.node.map(|node| self.parse(&node)).transpose()?;
        Ok(View { record, created, next: found.etcd_index + 1 })
    }

    /// The folders of the run and its version counter, which begins at `version`.
    pub(super) async fn make_run(&self, version: u64) -> Result<()> {
        if self.find(&self.counter()).await?.node.is_some() {
            return Ok(());
        }
        let counted = version.to_string();
        for (key, put) in [
            (self.root.clone(), Put::dir().ttl(RUN_TTL)),
            (self.rdzv(), Put::dir()),
            (self.counter(), Put::value(&counted)),
        ] {
            match self.client.put(&key, put.prev_exist(false)).await {
                Err(error) if !is(&error, Code::NodeExists) => return Err(self.failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts the time of the run's folder off, where the server does that.
    async fn renew_run(&self) -> Result<Reply> {
        match self.client.put(&self.root, Put::refresh(RUN_TTL)).await {
            Ok(_) => Ok(Reply::Done { index: 0 }),
            Err(error) if is(&error, Code::NotAFile) => {
                debug!(
                    run = self.run_id,
                    "this etcd cannot put off the end of a folder; it is put back then"
                );
                Ok(Reply::Refused)
            }
            Err(error) => self.refusal(error),
        }
    }

    /// How the keep-alive of a place went, from an index on.
    async fn read_ending(&self, place: VersionRank, from: u64) -> Result<Reply> {
        let mut watcher = self.client.watch(&self.keep_alive(place), from);
        loop {
            match watcher.past().await.map_err(|error| self.failed(error))? {
                Some(Watched::Event(event)) if event.action.removes() => {
                    return Ok(Reply::Ending(ending(&event)));
                }
                Some(Watched::Event(_)) => {}
                Some(Watched::Cleared) | None => return Ok(Reply::Ending(Ending::Unknown)),
            }
        }
    }

    async fn write_keep_alive(&self, place: VersionRank) -> Result<Reply> {
        let put = Put::value(&self.mark).ttl(KEEP_ALIVE_TTL).prev_exist(false);
        match self.write(&self.keep_alive(place), put).await? {
            // It may be this node's own.
            Reply::Refused => self.renew_keep_alive(place).await,
            reply => Ok(reply),
        }
    }

    /// By its value, which no other node's has.
    async fn renew_keep_alive(&self, place: VersionRank) -> Result<Reply> {
        let put = Put::refresh(KEEP_ALIVE_TTL).prev_value(&self.mark);
        self.write(&self.keep_alive(place), put).await
    }

    async fn find(&self, key: &str) -> Result<Lookup> {
        self.client.find(key, Get::new()).await.map_err(|error| self.failed(error))
    }

    /// The keep-alives of a version, by rank; with their marks, if they are of our nodes. And the index from which
    /// on their next change counts.
    pub(super) async fn list(&self, version: u64) -> Result<(Vec<(usize, Option<Mark>)>, u64)> {
        let found = self.find(&self.version(version)).await?;
        let nodes = found.node.map(|node| node.nodes).unwrap_or_default();
        let mut members: Vec<_> = nodes
            .iter()
            .filter_map(|node| {
                let rank = node.name().strip_prefix("rank_")?.parse().ok()?;
                Some((rank, serde_json::from_str(node.value.as_deref()?).ok()))
            })
            .collect();
        members.sort_by_key(|(rank, _)| *rank);
        Ok((members, found.etcd_index + 1))
    }

    /// The record after an event of it, or of a folder above it that is gone.
    pub(super) fn after(&self, event: &Response) -> Result<View> {
        let gone = event.action.removes();
        let record = if gone { None } else { Some(self.parse(&event.node)?) };
        let created = if gone { 0 } else { event.node.created_index };
        Ok(View { record, created, next: event.node.modified_index + 1 })
    }

    fn parse(&self, node: &Node) -> Result<(Record, u64)> {
        let text = node.value.as_deref().unwrap_or_default();
        let record = Record::parse(text).map_err(|error| RendezvousError::State {
            run_id: self.run_id.clone(),
            problem: format!("{} holds {text:?}", self.state()),
            source: Some(error.into()),
        })?;
        Ok((record, node.modified_index))
    }

    async fn read_counter(&self) -> Result<Reply> {
        let Some(node) = self.find(&self.counter()).await?.node else { return Ok(Reply::Counter(None)) };
        let text = node.value.unwrap_or_default();
        let version = text.trim().parse().map_err(|error| RendezvousError::State {
            run_id: self.run_id.clone(),
            problem: format!("{} holds {text:?}, not a number", self.counter()),
            source: Some(Box::new(error)),
        })?;
        Ok(Reply::Counter(Some((version, node.modified_index))))
    }

    async fn write(&self, key: &str, put: Put<'_>) -> Result<Reply> {
        match self.client.put(key, put).await {
            Ok(done) => Ok(Reply::Done { index: done.node.modified_index }),
            Err(error) => self.refusal(error),
        }
    }

    async fn remove(&self, key: &str, delete: Delete<'_>) -> Result<Reply> {
        match self.client.delete(key, delete).await {
            Ok(done) => Ok(Reply::Done { index: done.node.modified_index }),
            Err(error) => self.refusal(error),
        }
    }

    fn refusal(&self, error: Error) -> Result<Reply> {
        match error.kind() {
            // A refusal of a later try says nothing of an earlier one whose answer was lost.
            ErrorKind::V2(Code::NodeExists | Code::TestFailed | Code::KeyNotFound)
                if !error.may_have_applied() =>
            {
                Ok(Reply::Refused)
            }
            _ => Err(self.failed(error)),
        }
    }

    /// Whether it may go better later.
    pub(super) fn may_pass(&self, error: &RendezvousError) -> bool {
        let RendezvousError::Connection { source, .. } = error else { return false };
        let cause = source.downcast_ref::<Error>();
        cause.is_some_and(|cause| cause.is_transient() || cause.may_have_applied())
    }

    pub(super) fn failed(&self, error: Error) -> RendezvousError {
        RendezvousError::connection(&self.client.settings().endpoints, error)
    }
}

pub(super) fn is(error: &Error, code: Code) -> bool {
    error.kind() == ErrorKind::V2(code)
}

/// Whether two keys are one, however many slashes they begin with.
pub(super) fn same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/') == other.trim_start_matches('/')
}

/// How a key went, by the event that removed it.
pub(super) fn ending(event: &Response) -> Ending {
    if event.action == Action::Expire { Ending::Expired } else { Ending::Deleted }
}
