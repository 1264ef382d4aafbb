//! etcd's JSON gateway: `/v3/...`. Each request is turned into one of gRPC and answered by what answers those, so that
//! permissions, bounds and counts are the same; [`route`] knows the messages.
//!
//! A stream of answers is a line for each. What a client sends on a stream is read to its end first.

mod route;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::json;
use tonic::{Code, Status};

use super::{Limits, body, reply};
use crate::admission::{Account, Share, counted};
use crate::grpc::{self, Grpc, ReplyBody};
use crate::mvcc::Error;
use crate::traffic::Traffic;
use route::Route;

/// What a message costs while it is turned into JSON, for each of its bytes.
const COST: usize = 4;
/// Messages from here on are turned into JSON where nobody waits.
const LARGE: usize = 64 << 10;
/// gRPC's prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The gateway to the v3 half of the server.
#[derive(Debug)]
pub(crate) struct Json {
    grpc: Grpc,
    traffic: Arc<Traffic>,
}

impl Json {
    pub(crate) fn new(grpc: Grpc, traffic: Arc<Traffic>) -> Self {
        Json { grpc, traffic }
    }

    pub(super) async fn serve(&self, limits: &Limits, path: &str, request: Request) -> Response {
        let Some(route) = route::find(path) else { return refusal(&Status::not_found("Not Found")) };
        if request.method() != Method::POST {
            return refusal(&Status::unimplemented("Method Not Allowed"));
        }
        self.answer(limits, route, request).await.unwrap_or_else(|status| refusal(&status))
    }

    async fn answer(
        &self,
        limits: &Limits,
        route: &'static Route,
        request: Request,
    ) -> Result<Response, Status> {
        let (head, incoming) = request.into_parts();
        let account = head.extensions.get::<Account>().expect("every connection has one").clone();
        let mut share = account.take(body::REQUEST_BYTES).map_err(Error::from)?;
        let text = body::read(limits, incoming, &mut share).await.map_err(|error| match error.code {
            crate::v2::Code::Internal => Error::TooManyRequests.into(),
            _ => Status::invalid_argument(String::from_utf8_lossy(&error.cause)),
        })?;
        let mut call =
            Request::post(&route.method).body(Full::new(route.messages(&text)?)).map_err(internal)?;
        drop(text);
        for name in ["token", "authorization"] {
            if let Some(shown) = head.headers.get(name) {
                call.headers_mut().insert(name, shown.clone());
            }
        }
        let handling = self.traffic.handled.start(&route.method);
        // The certificate of a connection is nobody's here, as in etcd.
        let mut reply = self.grpc.call(call, &account, None, handling.as_ref()).await;
        if let Some(handling) = handling {
            grpc::handled(handling, &mut reply);
        }
        if let Some(status) =
            Status::from_header_map(reply.headers()).filter(|status| status.code() != Code::Ok)
        {
            return Err(status);
        }
        let mut answers = Answers { body: reply.into_body(), route, account, read: BytesMut::new() };
        let answer = if route.is_stream {
            share.shrink_to(body::REQUEST_BYTES);
            Body::from_stream(lines(answers, share))
        } else {
            let (text, share) = answers.next().await.ok_or_else(|| internal("no answer"))??;
            body::answer(text, share)
        };
        Ok(reply::json(StatusCode::OK, answer))
    }
}

/// The messages of an answer, as JSON.
struct Answers {
    body: ReplyBody,
    route: &'static Route,
    account: Account,
    /// What came of the next message.
    read: BytesMut,
}

impl Answers {
    /// The next message, and what was taken for it; none at a good end.
    async fn next(&mut self) -> Option<Result<(Bytes, Share), Status>> {
        loop {
            if let Some(message) = take_message(&mut self.read) {
                return Some(to_json(self.route, &self.account, message).await);
            }
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some(Err(internal(error))),
            };
            match frame.into_data() {
                Ok(piece) => self.read.extend_from_slice(&piece),
                Err(frame) => {
                    let status = frame.trailers_ref().and_then(Status::from_header_map)?;
                    return (status.code() != Code::Ok).then_some(Err(status));
                }
            }
        }
    }
}

/// A message as JSON, which is counted before it is written.
async fn to_json(route: &'static Route, account: &Account, message: Bytes) -> Result<(Bytes, Share), Status> {
    let mut share = account.take(COST * message.len()).map_err(Error::from)?;
    let text = if message.len() < LARGE {
        route.json(message)?
    } else {
        tokio::task::spawn_blocking(|| route.json(message)).await.map_err(internal)??
    };
    share.resize(text.len()).map_err(Error::from)?;
    Ok((text.into(), share))
}

/// Takes a message off the front, if it is there whole.
fn take_message(read: &mut BytesMut) -> Option<Bytes> {
    let [_, length @ ..] = *read.first_chunk::<PREFIX>()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    if read.len() < PREFIX + length {
        return None;
    }
    read.advance(PREFIX);
    Some(read.split_to(length).freeze())
}

/// A line for each message, in pieces, and one for a bad end.
fn lines(answers: Answers, share: Share) -> impl futures::Stream<Item = Result<Bytes, Infallible>> {
    let sending = Sending { answers: Some(answers), line: Bytes::new(), share: Arc::new(share) };
    stream::unfold(sending, |mut sending| async {
        loop {
            if let Some(piece) = body::next_piece(&mut sending.line) {
                let piece = counted(piece, Arc::clone(&sending.share));
                return Some((Ok(piece), sending));
            }
            match sending.answers.as_mut()?.next().await? {
                Ok((text, mut share)) => {
                    sending.line = [b"{\"result\":", &text[..], b"}\n"].concat().into();
                    // Somewhat more than what was taken.
                    let _ = share.resize(sending.line.len());
                    sending.share = Arc::new(share);
                }
                Err(status) => {
                    sending.answers = None;
                    sending.line = format!("{}\n", json!({ "error": problem(&status) })).into();
                }
            }
        }
    })
}

/// The line that is being sent.
struct Sending {
    /// None after a bad end.
    answers: Option<Answers>,
    line: Bytes,
    share: Arc<Share>,
}

#[expect(clippy::needless_pass_by_value, reason = "errors are handed over")]
fn internal(error: impl ToString) -> Status {
    Status::internal(error.to_string())
}

fn problem(status: &Status) -> serde_json::Value {
    json!({ "code": status.code() as i32, "message": status.message() })
}

/// An answer that says no, as etcd's gateway does.
fn refusal(status: &Status) -> Response {
    reply::json(http_status(status.code()), problem(status).to_string())
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Cancelled => StatusCode::from_u16(499).expect("it has three digits"),
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}
