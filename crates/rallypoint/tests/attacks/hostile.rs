//! Connections that do what no client should.

use bytes::{BufMut as _, Bytes, BytesMut};
use etcd_client::proto::{PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An HTTP/2 connection; dropped, it is closed.
pub(crate) struct Hostile {
    endpoint: String,
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
    /// What it has sent, and will not read.
    open: Vec<(ResponseFuture, SendStream<Bytes>)>,
}

impl Hostile {
    /// Whoever sends to it may send so many bytes on each stream.
    pub(crate) async fn connect(endpoint: &str, window: u32) -> Self {
        let socket = TcpStream::connect(endpoint).await.unwrap();
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(1 << 30)
            .initial_max_send_streams(1 << 20)
            .handshake(socket)
            .await
            .unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        Hostile { endpoint: endpoint.to_owned(), requests, driver, open: Vec::new() }
    }

    /// Sends the beginning of a request, and no more than that if it is not `whole`. False where it is not let.
    pub(crate) async fn send(&mut self, path: &str, message: &[u8], whole: bool) -> bool {
        let ready = tokio::time::timeout(std::time::Duration::from_secs(1), self.requests.clone().ready());
        let Ok(Ok(mut requests)) = ready.await else { return false };
        let request = Request::post(format!("http://{}{path}", self.endpoint))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let Ok((answer, mut stream)) = requests.send_request(request, false) else { return false };
        if !message.is_empty() && stream.send_data(framed(message), whole).is_err() {
            return false;
        }
        self.open.push((answer, stream));
        // So that the driver gets at the socket now and then.
        if self.open.len().is_multiple_of(64) {
            tokio::task::yield_now().await;
        }
        true
    }

    /// Waits until the first of its requests is answered, in whatever way.
    pub(crate) async fn answered(&mut self) {
        if let Some((answer, stream)) = self.open.pop() {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(20), answer).await;
            drop(stream);
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Frames of HTTP/2 as no library would send them.
pub(crate) struct Frames(TcpStream);

impl Frames {
    pub(crate) async fn connect(endpoint: &str) -> Self {
        let mut socket = TcpStream::connect(endpoint).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut frames = Frames(socket);
        assert!(frames.send(SETTINGS, 0, 0, &[]).await);
        frames
    }

    /// False once the server has had enough of it.
    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        let sent = async {
            self.0.write_all(&frame).await?;
            // What the server says would fill its side.
            let mut said = [0; 4096];
            while !matches!(self.0.try_read(&mut said), Err(_) | Ok(0)) {}
            Ok::<_, std::io::Error>(())
        };
        matches!(tokio::time::timeout(std::time::Duration::from_secs(1), sent).await, Ok(Ok(())))
    }
}

pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
const SETTINGS: u8 = 4;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_HEADERS: u8 = 4;

/// The fields of a request in HPACK: POST, http, a path, and a name.
pub(crate) fn fields() -> Vec<u8> {
    [&b"\x83\x86\x04"[..], &[u8::try_from(RANGE.len()).unwrap()], RANGE.as_bytes(), b"\x01\x01x"].concat()
}

const RANGE: &str = "/etcdserverpb.KV/Range";

/// A message with gRPC's prefix.
fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}

/// A read of all keys with a prefix.
pub(crate) fn read_all(prefix: &str, count_only: bool) -> PbRangeRequest {
    let mut range_end = prefix.as_bytes().to_vec();
    *range_end.last_mut().unwrap() += 1;
    PbRangeRequest { key: prefix.into(), range_end, count_only, ..Default::default() }
}

/// A transaction with `width` transactions in it, each with `width` times this read.
pub(crate) fn nested(read: &PbRangeRequest, width: usize) -> Vec<u8> {
    let op = |op| PbTxnRequestOp { request: Some(op) };
    let reads = vec![op(PbTxnOpRequest::RequestRange(read.clone())); width];
    let inner = PbTxnRequest { success: reads, ..Default::default() };
    let success = vec![op(PbTxnOpRequest::RequestTxn(inner)); width];
    PbTxnRequest { success, ..Default::default() }.encode_to_vec()
}
