//! The servers under test, and a client that can send anything.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod bytes;

use std::time::Duration;

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbEvent,
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse,
    PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbTxnRequest, PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse,
};
use futures::channel::mpsc;
use rallypoint_server::{Config, Server};
use rallypoint_testkit::{Etcd, Version};
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// Far more than anything takes; a loaded machine must not fail a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server under test.
#[derive(Debug)]
pub(crate) enum Target {
    Real(Etcd),
    Ours(Server),
}

impl Target {
    pub(crate) fn real(version: Version) -> Self {
        let etcd = Etcd::builder(version);
        Target::Real(if version >= Version::V35 { etcd.unsafe_no_fsync() } else { etcd }.start())
    }

    pub(crate) fn ours() -> Self {
        Self::ours_with(|_| {})
    }

    pub(crate) fn ours_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::on("127.0.0.1:0".parse().expect("an address"));
        change(&mut config);
        Target::Ours(Server::bind(config).expect("a free port can be listened on"))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Target::Real(etcd) => etcd.url(),
            Target::Ours(server) => server.url().to_owned(),
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Target::Real(etcd) => format!("etcd {}", etcd.version()),
            Target::Ours(_) => "ours".to_owned(),
        }
    }

    pub(crate) async fn client(&self) -> Raw {
        Raw::connect(self.url()).await
    }
}

/// A client that sends any message to any method.
#[derive(Debug, Clone)]
pub(crate) struct Raw {
    channel: Channel,
    token: Option<String>,
}

impl Raw {
    pub(crate) async fn connect(url: String) -> Self {
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        Raw { channel, token: None }
    }

    /// Shows this token with each request, or none.
    pub(crate) fn with_token(self, token: Option<&str>) -> Self {
        Raw { token: token.map(str::to_owned), ..self }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.parse().unwrap());
        }
        request
    }

    pub(crate) async fn unary<In, Out>(&self, path: &'static str, message: In) -> Result<Out, Status>
    where
        In: prost::Message + Send + Sync + 'static,
        Out: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<In, Out>::default();
        let call = grpc.unary(self.request(message), PathAndQuery::from_static(path), codec);
        let answer = tokio::time::timeout(PATIENCE, call).await;
        Ok(answer.unwrap_or_else(|_| panic!("{path} does not answer"))?.into_inner())
    }

    /// Opens a stream with its first message: etcd sends nothing before it has one.
    pub(crate) async fn stream<In, Out>(
        &self,
        path: &'static str,
        first: In,
    ) -> Result<(mpsc::UnboundedSender<In>, Streaming<Out>), Status>
    where
        In: prost::Message + Send + Sync + 'static,
        Out: prost::Message + Default + Send + Sync + 'static,
    {
        let (sender, requests) = mpsc::unbounded();
        sender.unbounded_send(first).unwrap();
        Ok((sender, within(self.stream_of(path, requests)).await?))
    }

    /// Opens a stream of requests.
    pub(crate) async fn stream_of<In, Out>(
        &self,
        path: &'static str,
        requests: mpsc::UnboundedReceiver<In>,
    ) -> Result<Streaming<Out>, Status>
    where
        In: prost::Message + Send + Sync + 'static,
        Out: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<In, Out>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.streaming(self.request(requests), path, codec).await?.into_inner())
    }

    pub(crate) async fn range(&self, request: PbRangeRequest) -> Result<PbRangeResponse, Status> {
        self.unary("/etcdserverpb.KV/Range", request).await
    }

    pub(crate) async fn put(&self, request: PbPutRequest) -> Result<PbPutResponse, Status> {
        self.unary("/etcdserverpb.KV/Put", request).await
    }

    pub(crate) async fn delete(&self, request: PbDeleteRequest) -> Result<PbDeleteResponse, Status> {
        self.unary("/etcdserverpb.KV/DeleteRange", request).await
    }

    pub(crate) async fn txn(&self, request: PbTxnRequest) -> Result<PbTxnResponse, Status> {
        self.unary("/etcdserverpb.KV/Txn", request).await
    }

    pub(crate) async fn compact(&self, revision: i64) -> Result<PbCompactionResponse, Status> {
        self.unary("/etcdserverpb.KV/Compact", PbCompactionRequest { revision, physical: false }).await
    }

    pub(crate) async fn grant(&self, id: i64, ttl: i64) -> Result<PbLeaseGrantResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", PbLeaseGrantRequest { id, ttl }).await
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<PbLeaseRevokeResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseRevoke", PbLeaseRevokeRequest { id }).await
    }

    pub(crate) async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<PbLeaseTimeToLiveResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", PbLeaseTimeToLiveRequest { id, keys }).await
    }

    pub(crate) async fn leases(&self) -> Result<PbLeaseLeasesResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseLeases", PbLeaseLeasesRequest {}).await
    }

    pub(crate) async fn keep_alive(&self, id: i64) -> PbLeaseKeepAliveResponse {
        let first = PbLeaseKeepAliveRequest { id };
        let (_sender, mut answers) = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", first).await.unwrap();
        within(answers.message()).await.unwrap().unwrap()
    }

    pub(crate) async fn try_keep_alive(&self, id: i64) -> Result<PbLeaseKeepAliveResponse, Status> {
        let first = PbLeaseKeepAliveRequest { id };
        let (_sender, mut answers) = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", first).await?;
        Ok(within(answers.message()).await?.unwrap())
    }

    pub(crate) async fn put_kv(&self, key: &str, value: &str) -> i64 {
        let put = PbPutRequest { key: key.into(), value: value.into(), ..Default::default() };
        self.put(put).await.unwrap().header.unwrap().revision
    }

    pub(crate) async fn delete_key(&self, key: &str) -> i64 {
        self.delete(PbDeleteRequest { key: key.into(), ..Default::default() })
            .await
            .unwrap()
            .header
            .unwrap()
            .revision
    }

    /// Opens a stream of watches with its first.
    pub(crate) async fn watcher(&self, first: Watch) -> Watcher {
        let (requests, answers) = self.stream("/etcdserverpb.Watch/Watch", first.into()).await.unwrap();
        Watcher { requests, answers }
    }

    /// A stream with one watch, which was made.
    pub(crate) async fn watching(&self, watch: Watch) -> Watcher {
        let mut watcher = self.watcher(watch).await;
        let created = watcher.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        watcher
    }
}

/// A wait that ends.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("an answer in time")
}

/// What to watch; the fields of the protocol's message, whose type the crate does not name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    pub(crate) key: Vec<u8>,
    pub(crate) range_end: Vec<u8>,
    pub(crate) start_revision: i64,
    pub(crate) progress_notify: bool,
    pub(crate) filters: Vec<i32>,
    pub(crate) prev_kv: bool,
    pub(crate) watch_id: i64,
    pub(crate) fragment: bool,
}

impl Watch {
    pub(crate) fn key(key: &str) -> Self {
        Watch { key: key.into(), ..Watch::default() }
    }

    pub(crate) fn span(key: &str, end: &str) -> Self {
        Watch { range_end: end.into(), ..Watch::key(key) }
    }
}

impl From<Watch> for PbWatchRequest {
    fn from(watch: Watch) -> Self {
        let mut union = PbWatchRequestUnion::CreateRequest(Default::default());
        if let PbWatchRequestUnion::CreateRequest(create) = &mut union {
            create.key = watch.key;
            create.range_end = watch.range_end;
            create.start_revision = watch.start_revision;
            create.progress_notify = watch.progress_notify;
            create.filters = watch.filters;
            create.prev_kv = watch.prev_kv;
            create.watch_id = watch.watch_id;
            create.fragment = watch.fragment;
        }
        PbWatchRequest { request_union: Some(union) }
    }
}

/// One stream of watches.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) requests: mpsc::UnboundedSender<PbWatchRequest>,
    pub(crate) answers: Streaming<PbWatchResponse>,
}

impl Watcher {
    pub(crate) fn send(&self, watch: Watch) {
        self.requests.unbounded_send(watch.into()).unwrap();
    }

    pub(crate) fn cancel(&self, id: i64) {
        let mut union = PbWatchRequestUnion::CancelRequest(Default::default());
        if let PbWatchRequestUnion::CancelRequest(cancel) = &mut union {
            cancel.watch_id = id;
        }
        self.requests.unbounded_send(PbWatchRequest { request_union: Some(union) }).unwrap();
    }

    pub(crate) fn ask_progress(&self) {
        let union = PbWatchRequestUnion::ProgressRequest(Default::default());
        self.requests.unbounded_send(PbWatchRequest { request_union: Some(union) }).unwrap();
    }

    pub(crate) async fn next(&mut self) -> PbWatchResponse {
        within(self.answers.message()).await.unwrap().expect("the stream goes on")
    }

    /// Makes a watch; its id.
    pub(crate) async fn watch(&mut self, watch: Watch) -> i64 {
        self.send(watch);
        let created = self.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        created.watch_id
    }

    /// Events until one of a revision came.
    pub(crate) async fn events_until(&mut self, revision: i64) -> Vec<PbEvent> {
        let mut events: Vec<PbEvent> = Vec::new();
        while events.last().is_none_or(|event| event.kv.as_ref().unwrap().mod_revision < revision) {
            let answer = self.next().await;
            assert!(!answer.canceled, "{answer:?}");
            events.extend(answer.events);
        }
        events
    }
}
