//! The Election service: a line whose first leads.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::SortOrder;
use etcd_client::proto::{
    PbCampaignResponse, PbDeleteRequest, PbLeaderKey, PbLeaderResponse, PbProclaimResponse, PbPutRequest,
    PbResignResponse, PbTxnOpRequest, PbTxnRequest,
};
use futures::future::Either;
use futures::{FutureExt as _, Stream, stream};
use tonic::{Status, Streaming};

use super::call::{Call, OwnedCall};
use super::kv;
use super::line::{InnerWatch, Line, QueueEntry, Waited, created_at, op, transact, without_code};
use super::rope::{Field, Form, Rope};
use super::streaming::Outgoing;
use super::unary::{Answering, Whole, at_once, decode};
use crate::mvcc::{Record, Span};
use crate::watch::Filter;

/// `v3electionpb.CampaignRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CampaignRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
    #[prost(bytes = "vec", tag = "3")]
    value: Vec<u8>,
}

/// `v3electionpb.LeaderRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaderRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
}

/// `v3electionpb.ProclaimRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ProclaimRequest {
    #[prost(message, optional, tag = "1")]
    leader: Option<PbLeaderKey>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `v3electionpb.ResignRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResignRequest {
    #[prost(message, optional, tag = "1")]
    leader: Option<PbLeaderKey>,
}

/// The field of a leader's key and value.
const LEADER_KV: Field = 2;

/// Answers when the caller leads.
pub(super) async fn campaign(
    call: OwnedCall,
    request: CampaignRequest,
) -> Result<PbCampaignResponse, Status> {
    let line = Line::new(&request.name);
    let entry = line.join(&call, request.lease, &request.value).await?;
    if entry.found.as_ref().is_some_and(|found| found.value[..] != request.value[..]) {
        put(&call, &entry.key, entry.taken_at, entry.lease, request.value).await?;
    }
    line.wait(&call, &entry).await.map_err(|waited| match waited {
        Waited::Expired => not_leader(),
        Waited::Failed(status) => status,
    })?;
    let QueueEntry { key, taken_at, lease, revision, .. } = entry;
    let leader = PbLeaderKey { name: request.name, key: key.into(), rev: taken_at, lease };
    Ok(PbCampaignResponse { header: Some(call.shared.header_at(revision)), leader: Some(leader) })
}

/// A leader says something else.
pub(super) async fn proclaim(
    call: OwnedCall,
    request: ProclaimRequest,
) -> Result<PbProclaimResponse, Status> {
    let leader = request.leader.ok_or_else(no_leader_given)?;
    let revision = put(&call, &leader.key, leader.rev, leader.lease, request.value).await?;
    Ok(PbProclaimResponse { header: Some(call.shared.header_at(revision)) })
}

/// A leader leads no longer. One that did not has its wish already.
pub(super) async fn resign(call: OwnedCall, request: ResignRequest) -> Result<PbResignResponse, Status> {
    let leader = request.leader.ok_or_else(no_leader_given)?;
    let delete = PbDeleteRequest { key: leader.key.clone(), ..Default::default() };
    let request = PbTxnRequest {
        compare: vec![created_at(&leader.key, leader.rev)],
        success: vec![op(PbTxnOpRequest::RequestDeleteRange(delete))],
        failure: Vec::new(),
    };
    let revision = transact(&call, request).await?.revision;
    Ok(PbResignResponse { header: Some(call.shared.header_at(revision)) })
}

/// Who leads now.
pub(super) fn leader(call: Call<'_>, message: Bytes) -> Answering {
    let request = match decode::<LeaderRequest>(message) {
        Ok(request) => request,
        Err(status) => return at_once(Err(status)),
    };
    let call = call.owned();
    let answer = async move {
        let (found, _share) =
            kv::read(&call, first(&Line::new(&request.name))).await.map_err(without_code)?;
        // The words of etcd's library, which has no code for them.
        let leader =
            found.records.into_iter().next().ok_or_else(|| Status::unknown("election: no leader"))?;
        Ok(Whole::new(leads(&call, found.revision, leader), &call.account)?)
    };
    Either::Right(answer.boxed())
}

/// Tells who leads, and each who does after it, for as long as the client listens.
pub(super) fn observe(
    call: OwnedCall,
    inbound: Streaming<LeaderRequest>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    let observing = Observing { call, inbound, line: None, watched: None, told: Vec::new() };
    stream::unfold(Some(observing), |observing| async {
        let mut observing = observing?;
        match observing.next().await {
            Ok(message) => Some((Ok(message), Some(observing))),
            Err(status) => Some((Err(status), None)),
        }
    })
}

struct Observing {
    call: OwnedCall,
    inbound: Streaming<LeaderRequest>,
    /// Known once the client has named it.
    line: Option<Line>,
    /// The leader that is being watched.
    watched: Option<InnerWatch>,
    /// What is still to be told of it, last first.
    told: Vec<Arc<Record>>,
}

impl Observing {
    async fn next(&mut self) -> Result<Outgoing, Status> {
        let line = match &self.line {
            Some(line) => line.clone(),
            None => {
                let missing = || Status::internal("Missing request message.");
                let request = self.inbound.message().await?.ok_or_else(missing)?;
                self.line.insert(Line::new(&request.name)).clone()
            }
        };
        loop {
            if let Some(record) = self.told.pop() {
                if !record.is_deletion() {
                    return self.message(record.mod_revision, record);
                }
                (self.watched, self.told) = (None, Vec::new());
            }
            match &mut self.watched {
                Some(watch) => match watch.next().await? {
                    Some(mut told) => {
                        told.reverse();
                        self.told = told;
                    }
                    None => self.watched = None,
                },
                None => {
                    let (revision, leader) = self.leader(&line).await?;
                    let mut watch = InnerWatch::open(&self.call);
                    watch.add(Span::One(leader.key.clone()), revision + 1, Filter::default())?;
                    self.watched = Some(watch);
                    return self.message(revision, leader);
                }
            }
        }
    }

    /// Waits until somebody leads.
    async fn leader(&self, line: &Line) -> Result<(i64, Arc<Record>), Status> {
        loop {
            let (found, _share) = kv::read(&self.call, first(line)).await.map_err(without_code)?;
            if let Some(leader) = found.records.into_iter().next() {
                return Ok((found.revision, leader));
            }
            let mut watch = InnerWatch::open(&self.call);
            let puts = Filter { no_put: false, no_delete: true };
            watch.add(line.span(), found.revision + 1, puts)?;
            watch.next().await?;
        }
    }

    fn message(&self, revision: i64, leader: Arc<Record>) -> Result<Outgoing, Status> {
        let message = leads(&self.call, revision, leader);
        let share = self.call.account.take(message.length()).map_err(crate::mvcc::Error::from)?;
        Ok(Outgoing { message, share: Some(Arc::new(share)) })
    }
}

fn first(line: &Line) -> etcd_client::proto::PbRangeRequest {
    line.by_age(SortOrder::Ascend, 0)
}

fn leads(call: &OwnedCall, revision: i64, leader: Arc<Record>) -> Rope {
    let mut rope = Rope::of(&PbLeaderResponse { header: Some(call.shared.header_at(revision)), kv: None });
    rope.push_record(LEADER_KV, leader, Form::Whole);
    rope
}

/// Writes what a leader says, if it still leads; the revision.
async fn put(call: &OwnedCall, key: &[u8], taken_at: i64, lease: i64, value: Vec<u8>) -> Result<i64, Status> {
    let put = PbPutRequest { key: key.to_vec(), value, lease, ..Default::default() };
    let request = PbTxnRequest {
        compare: vec![created_at(key, taken_at)],
        success: vec![op(PbTxnOpRequest::RequestPut(put))],
        failure: Vec::new(),
    };
    let done = transact(call, request).await?;
    if done.succeeded { Ok(done.revision) } else { Err(not_leader()) }
}

/// The words of etcd's library, which has no code for them.
fn not_leader() -> Status {
    Status::unknown("election: not leader")
}

fn no_leader_given() -> Status {
    Status::unknown("\"leader\" field must be provided")
}
