//! A client of etcd that costs next to nothing: HTTP/2, messages that are encoded once, no more.
//!
//! On a machine of few cores the client shares them with the server. The less it takes, the more of what is
//! measured is the server; it is the same for both sides.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use etcd_client::CompareOp;
use etcd_client::proto::{
    PbCompare, PbCompareTarget, PbLeaseGrantRequest, PbLeaseKeepAliveRequest, PbLeaseRevokeRequest,
    PbPutRequest, PbRangeRequest, PbTargetUnion, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use futures::future::join_all;
use h2::client::SendRequest;
use http::{HeaderValue, Request, header};
use prost::Message;
use tokio::net::TcpStream;

/// Bytes that a server may send before it waits for the client.
const WINDOW: u32 = 16 << 20;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Put,
    Get,
    Txn,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Kind::Put => "/etcdserverpb.KV/Put",
            Kind::Get => "/etcdserverpb.KV/Range",
            Kind::Txn => "/etcdserverpb.KV/Txn",
        }
    }

    /// The body of a request, as gRPC frames it.
    fn body(self, key: &str, value: &[u8]) -> Bytes {
        let (key, value) = (key.as_bytes().to_vec(), value.to_vec());
        let put = PbPutRequest { key: key.clone(), value, ..Default::default() };
        let get = PbRangeRequest { key: key.clone(), ..Default::default() };
        match self {
            Kind::Put => framed(&put),
            Kind::Get => framed(&get),
            Kind::Txn => {
                let op = |request| PbTxnRequestOp { request: Some(request) };
                framed(&PbTxnRequest {
                    compare: vec![PbCompare {
                        result: CompareOp::Greater as i32,
                        target: PbCompareTarget::Version as i32,
                        key,
                        target_union: Some(PbTargetUnion::Version(0)),
                        ..Default::default()
                    }],
                    success: vec![
                        op(PbTxnOpRequest::RequestPut(put.clone())),
                        op(PbTxnOpRequest::RequestRange(get)),
                    ],
                    failure: vec![op(PbTxnOpRequest::RequestPut(put))],
                })
            }
        }
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(5 + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).expect("it is small"));
    message.encode(&mut body).expect("there is room");
    body.freeze()
}

/// A connection, on a thread of its own: what goes through it never waits for another thread of this process.
pub(crate) struct Lean {
    runtime: tokio::runtime::Runtime,
    connection: SendRequest<Bytes>,
    authority: String,
}

impl Lean {
    /// A connection to `host:port`.
    pub(crate) fn connect(authority: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = runtime.block_on(async {
            let socket = TcpStream::connect(authority).await.expect("it listens");
            socket.set_nodelay(true).expect("it is connected");
            let (client, connection) = h2::client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .initial_max_send_streams(1 << 16)
                .handshake(socket)
                .await
                .expect("it speaks HTTP/2");
            tokio::spawn(async move { connection.await.expect("the connection lasts") });
            client
        });
        Lean { runtime, connection, authority: authority.to_owned() }
    }

    /// How often a second this is done with so many in flight.
    pub(crate) fn rate(&self, kind: Kind, value: &[u8], in_flight: usize, time: Duration) -> f64 {
        let head = self.head(kind.path());
        self.runtime.block_on(rate(in_flight, time, |task, end| {
            let mut connection = self.connection.clone();
            let (head, body) = (head.clone(), kind.body(&format!("bench/{task}"), value));
            async move {
                let mut done = 0;
                while Instant::now() < end {
                    connection = call(connection, head.clone(), body.clone()).await;
                    done += 1;
                }
                done
            }
        }))
    }

    /// How often a second leases are kept alive, so many of them side by side.
    pub(crate) fn keep_alive_rate(&self, leases: usize, time: Duration) -> f64 {
        let grant = self.head("/etcdserverpb.Lease/LeaseGrant");
        let head = self.head("/etcdserverpb.Lease/LeaseKeepAlive");
        self.runtime.block_on(async {
            for id in 1..=leases as i64 {
                let body = framed(&PbLeaseGrantRequest { ttl: 60, id });
                call(self.connection.clone(), grant.clone(), body).await;
            }
            let rate = rate(leases, time, |task, end| {
                let (connection, head) = (self.connection.clone(), head.clone());
                let body = framed(&PbLeaseKeepAliveRequest { id: task as i64 + 1 });
                async move {
                    let mut connection = connection.ready().await.expect("the connection lasts");
                    let (response, mut send) =
                        connection.send_request(head, false).expect("the connection lasts");
                    send.send_data(body.clone(), false).expect("the stream is open");
                    let mut answers = response.await.expect("it is answered").into_body();
                    let mut done = 0;
                    loop {
                        let piece =
                            answers.data().await.expect("the stream lasts").expect("the stream lasts");
                        // A keep-alive is answered in one piece, with the TTL last.
                        assert_eq!(piece.last(), Some(&60), "the lease lives");
                        answers.flow_control().release_capacity(piece.len()).expect("it was received");
                        done += 1;
                        if Instant::now() >= end {
                            return done;
                        }
                        send.send_data(body.clone(), false).expect("the stream is open");
                    }
                }
            })
            .await;
            let revoke = self.head("/etcdserverpb.Lease/LeaseRevoke");
            for id in 1..=leases as i64 {
                let body = framed(&PbLeaseRevokeRequest { id });
                call(self.connection.clone(), revoke.clone(), body).await;
            }
            rate
        })
    }

    fn head(&self, path: &str) -> Request<()> {
        let uri = format!("http://{}{path}", self.authority);
        let head = Request::post(uri)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers");
        head.body(()).expect("it is a request")
    }
}

/// How often a second tasks that run side by side do something until the end, which they count.
async fn rate<F>(tasks: usize, time: Duration, task: impl Fn(usize, Instant) -> F) -> f64
where
    F: Future<Output = usize> + Send + 'static,
{
    let began = Instant::now();
    let done = join_all((0..tasks).map(|at| tokio::spawn(task(at, began + time)))).await;
    let done: usize = done.into_iter().map(|done| done.expect("no request fails")).sum();
    done as f64 / began.elapsed().as_secs_f64()
}

/// One request and its whole answer.
async fn call(connection: SendRequest<Bytes>, head: Request<()>, body: Bytes) -> SendRequest<Bytes> {
    let mut connection = connection.ready().await.expect("the connection lasts");
    let (response, mut send) = connection.send_request(head, false).expect("the connection lasts");
    send.send_data(body, true).expect("the stream is open");
    let mut answer = response.await.expect("it is answered").into_body();
    let mut bytes = 0;
    while let Some(piece) = answer.data().await {
        let piece = piece.expect("the answer comes whole");
        bytes += piece.len();
        answer.flow_control().release_capacity(piece.len()).expect("it was received");
    }
    let trailers = answer.trailers().await.expect("the answer comes whole").expect("gRPC ends with trailers");
    assert_eq!(trailers.get("grpc-status").map(HeaderValue::as_bytes), Some(&b"0"[..]), "{trailers:?}");
    assert!(bytes > 5, "an answer has a header at least");
    connection
}
