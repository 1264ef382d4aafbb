//! What the machine asks for, as requests to etcd's v2 API, on the keys that PyTorch uses.

use std::time::Duration;

use rallypoint_core::barrier::{
    GRACE, KEEP_ALIVE_TTL, KeepAlive, Place, RUN_TTL, Record, Reply, Request, Status, View,
};
use rallypoint_etcd::v2::{Action, Client, Code, Delete, Get, Node, Put, Response, Watched};
use rallypoint_etcd::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::error::{RendezvousError, Result};

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

    pub(super) fn root(&self) -> &str {
        &self.root
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

    pub(super) fn keep_alive(&self, place: Place) -> String {
        format!("{}/rank_{}", self.version(place.version), place.rank)
    }

    /// Does what the machine asks for. Only what no repetition can mend is an error.
    pub(super) async fn carry_out(&self, request: &Request) -> Result<Reply> {
        match request {
            Request::ReadState => self.read().await.map(Reply::State).or_else(|error| self.excuse(error)),
            Request::WatchState { from, time } => self.watch_state(*from, *time).await,
            Request::WatchVersion { version, from, time } => self.watch_version(*version, *from, *time).await,
            Request::CreateState { record, ttl } => {
                self.write(&self.state(), Put::value(&record.to_text()).prev_exist(false).ttl(*ttl)).await
            }
            Request::SwapState { record, over, ttl } => {
                let text = record.to_text();
                let put = Put::value(&text).prev_index(*over);
                self.write(&self.state(), ttl.map_or(put, |ttl| put.ttl(ttl))).await
            }
            Request::DeleteState { over } => {
                self.remove(&self.state(), Delete::key().prev_index(*over)).await
            }
            Request::MakeRun => match self.make_run(0).await {
                Ok(()) => Ok(Reply::Done { index: 0 }),
                Err(error) => self.excuse(error),
            },
            Request::ReadCounter => self.read_counter().await,
            Request::SwapCounter { version, over } => {
                self.write(&self.counter(), Put::value(&version.to_string()).prev_index(*over)).await
            }
            Request::MakeVersion { version } => {
                self.write(&self.version(*version), Put::dir().prev_exist(false)).await
            }
            Request::ListVersion { version } => match self.list(*version).await {
                Ok(members) => Ok(Reply::Members(
                    members
                        .into_iter()
                        .map(|(rank, mark)| KeepAlive { rank, ours: mark.is_some() })
                        .collect(),
                )),
                Err(error) => self.excuse(error),
            },
            Request::Hold(place) => self.hold(*place).await,
            Request::Release(place) => self.remove(&self.keep_alive(*place), Delete::key()).await,
            Request::RunOut(place) => self.write(&self.keep_alive(*place), Put::refresh(GRACE)).await,
        }
    }

    /// The record as it is now.
    pub(super) async fn read(&self) -> Result<View> {
        let found = self.client.find(&self.state(), Get::new()).await.map_err(|error| self.failed(error))?;
        let record = found.node.map(|node| self.parse(&node)).transpose()?;
        Ok(View { record, next: found.etcd_index + 1 })
    }

    /// The folders of the run and its version counter, which begins at `version`.
    pub(super) async fn make_run(&self, version: u64) -> Result<()> {
        let there =
            self.client.find(&self.counter(), Get::new()).await.map_err(|error| self.failed(error))?;
        if there.node.is_some() {
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

    /// Puts the time of the run's folder off. Says whether the server does that.
    pub(super) async fn renew_run(&self) -> Result<bool, Error> {
        match self.client.put(&self.root, Put::refresh(RUN_TTL)).await {
            Ok(_) => Ok(true),
            Err(error) if is(&error, Code::NotAFile) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes this node's keep-alive.
    pub(super) async fn hold(&self, place: Place) -> Result<Reply> {
        self.write(&self.keep_alive(place), Put::value(&self.mark).ttl(KEEP_ALIVE_TTL)).await
    }

    /// Puts the time of this node's keep-alive off. False if it is gone.
    pub(super) async fn renew(&self, place: Place) -> Result<bool, Error> {
        match self.client.put(&self.keep_alive(place), Put::refresh(KEEP_ALIVE_TTL)).await {
            Ok(_) => Ok(true),
            Err(error) if is(&error, Code::KeyNotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The keep-alives of a version, by rank; with their marks, if they are of our nodes.
    pub(super) async fn list(&self, version: u64) -> Result<Vec<(usize, Option<Mark>)>> {
        let found = self.client.find(&self.version(version), Get::new()).await;
        let nodes =
            found.map_err(|error| self.failed(error))?.node.map(|node| node.nodes).unwrap_or_default();
        let mut members: Vec<_> = nodes
            .iter()
            .filter_map(|node| {
                let rank = node.name().strip_prefix("rank_")?.parse().ok()?;
                Some((rank, serde_json::from_str(node.value.as_deref()?).ok()))
            })
            .collect();
        members.sort_by_key(|(rank, _)| *rank);
        Ok(members)
    }

    /// Adds one to the number waiting in a final version that has none, so that its members come back.
    pub(super) async fn call_back(&self, version: u64) -> Result<()> {
        loop {
            let view = self.read().await?;
            let Some((record, over)) = view.record else { return Ok(()) };
            if !record.is(Status::Final, version) || record.waiting.unwrap_or(0) > 0 {
                return Ok(());
            }
            let request = Request::SwapState { record: record.with_waiting(), over, ttl: None };
            if let Reply::Done { .. } = self.carry_out(&request).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20).mul_f64(fastrand::f64())).await;
        }
    }

    /// Closes the run, whatever state it is in.
    pub(super) async fn close(&self) -> Result<()> {
        loop {
            let request = match self.read().await?.record {
                None => {
                    self.make_run(0).await?;
                    let text = Record::closed().to_text();
                    match self.client.create(&self.state(), &text).await {
                        Ok(_) => return Ok(()),
                        Err(error) if is(&error, Code::NodeExists) || error.may_have_applied() => continue,
                        Err(error) => return Err(self.failed(error)),
                    }
                }
                Some((record, _)) if record.status == Status::Closed => return Ok(()),
                Some((record, over)) => Request::SwapState { record: record.into_closed(), over, ttl: None },
            };
            if let Reply::Done { .. } = self.carry_out(&request).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20).mul_f64(fastrand::f64())).await;
        }
    }

    /// The record after an event of it, or of a folder above it that is gone.
    pub(super) fn after(&self, event: &Response) -> Result<View> {
        let gone = event.action.removes();
        let record = if gone { None } else { Some(self.parse(&event.node)?) };
        Ok(View { record, next: event.node.modified_index + 1 })
    }

    /// A record that was put back after its whole folder had gone: see the keeper.
    pub(super) async fn put_back(&self, record: &Record) -> Result<()> {
        self.make_run(record.version.unwrap_or(0)).await?;
        match self.client.create(&self.state(), &record.to_text()).await {
            Err(error) if !is(&error, Code::NodeExists) => Err(self.failed(error)),
            _ => Ok(()),
        }
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
        let node = match self.client.find(&self.counter(), Get::new()).await {
            Ok(found) => found.node,
            Err(error) => return self.excuse(self.failed(error)),
        };
        let Some(node) = node else { return Ok(Reply::NoCounter) };
        let text = node.value.unwrap_or_default();
        let version = text.trim().parse().map_err(|error| RendezvousError::State {
            run_id: self.run_id.clone(),
            problem: format!("{} holds {text:?}, not a number", self.counter()),
            source: Some(Box::new(error)),
        })?;
        Ok(Reply::Counter { version, index: node.modified_index })
    }

    async fn watch_state(&self, from: u64, time: Duration) -> Result<Reply> {
        let mut watcher = self.client.watch(&self.state(), from);
        match tokio::time::timeout(time, watcher.next()).await {
            Err(_) => Ok(Reply::Quiet),
            Ok(Ok(Watched::Event(event))) => self.after(&event).map(Reply::State),
            Ok(Ok(Watched::Cleared)) => {
                self.read().await.map(Reply::State).or_else(|error| self.excuse(error))
            }
            Ok(Err(error)) => self.excuse(self.failed(error)),
        }
    }

    async fn watch_version(&self, version: u64, from: u64, time: Duration) -> Result<Reply> {
        let (state, ranks) = (self.state(), format!("{}/rank_", self.version(version)));
        let mut watcher = self.client.watch(&self.rdzv(), from).recursive();
        let watching = async {
            loop {
                let event = match watcher.next().await {
                    Ok(Watched::Event(event)) => event,
                    Ok(Watched::Cleared) => return Ok(Reply::Gone),
                    Err(error) => return self.excuse(self.failed(error)),
                };
                let key = &event.node.key;
                if same(key, &state) {
                    return self.after(&event).map(Reply::State);
                }
                let folder = event.action.removes() && under(&ranks, key);
                if folder || event.action.removes() && under(key, &ranks) {
                    return Ok(Reply::Gone);
                }
            }
        };
        tokio::time::timeout(time, watching).await.unwrap_or(Ok(Reply::Quiet))
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
            _ => self.excuse(self.failed(error)),
        }
    }

    /// What may go better later is not an error.
    fn excuse(&self, error: RendezvousError) -> Result<Reply> {
        if let RendezvousError::Connection { source, .. } = &error
            && let Some(cause) = source.downcast_ref::<Error>()
            && (cause.is_transient() || cause.may_have_applied())
        {
            debug!(run = self.run_id, %error, "trying again");
            return Ok(Reply::Lost);
        }
        Err(error)
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

fn under(key: &str, begins_with: &str) -> bool {
    key.trim_start_matches('/').starts_with(begins_with.trim_start_matches('/'))
}

/// Whether an event says that its key's time was over.
pub(super) fn expired(event: &Response) -> bool {
    event.action == Action::Expire
}
