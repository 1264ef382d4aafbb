//! etcd's JSON gateway: `/v3/...`. Each request is turned into one of gRPC and answered by what answers those, so that
//! permissions, bounds and counts are the same; [`route`] knows the messages.
//!
//! A stream of answers is a line for each. What a client sends on a stream is read to its end first. What is large is
//! read from JSON by one request at a time, where nobody waits, and written as JSON piece by piece, as the client reads.

mod route;
mod text;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{Limits, body, reply};
use crate::admission::{Account, Share, counted};
use crate::aside::half_of_the_threads;
use crate::grpc::{self, Grpc, ReplyBody};
use crate::mvcc::Error;
use crate::traffic::Traffic;
use route::Route;
use text::Text;

/// Requests from here on are read where nobody waits.
const LARGE: usize = 64 << 10;
/// What such a request takes while it is read, for each of its bytes.
const READING: usize = 8;
/// JSON is longer than what it tells, most of all for numbers that are small.
const LONGER: usize = 8;
/// What a connection holds of an answer whose client does not read: there it stops to ask for more.
const UNREAD: usize = 512 << 10;
/// What is written without a turn.
const SMALL: usize = 4 << 10;
/// Bytes of a message that are written as JSON at a time.
const PIECE: usize = 32 << 10;
/// gRPC's prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The gateway to the v3 half of the server.
#[derive(Debug)]
pub(crate) struct Json {
    grpc: Grpc,
    traffic: Arc<Traffic>,
    /// The turn of large requests to be read.
    reading: Arc<Semaphore>,
    /// The turns of large answers to be written, for a piece each.
    writing: Arc<Semaphore>,
}

impl Json {
    pub(crate) fn new(grpc: Grpc, traffic: Arc<Traffic>) -> Self {
        let (reading, writing) = (Semaphore::new(1), Semaphore::new(half_of_the_threads()));
        Json { grpc, traffic, reading: Arc::new(reading), writing: Arc::new(writing) }
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
        // A connection may bring many at once. Others come in between.
        tokio::task::yield_now().await;
        let (head, incoming) = request.into_parts();
        let account = head.extensions.get::<Account>().expect("every connection has one").clone();
        let mut share = account.take(body::REQUEST_BYTES).map_err(Error::from)?;
        // No message is longer than that, as JSON.
        let limits = &Limits { body: limits.body.min(2 * self.grpc.message_bytes()), ..limits.clone() };
        let text =
            body::read_pieces(limits, incoming, &mut share).await.map_err(|error| match error.code {
                crate::v2::Code::Internal => Error::TooManyRequests.into(),
                _ => Status::invalid_argument(String::from_utf8_lossy(&error.cause)),
            })?;
        let (messages, mut share) = self.read(limits, route, text, share).await?;
        let mut call = Request::post(&route.method).body(Full::new(messages)).map_err(internal)?;
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
        share.shrink_to(body::REQUEST_BYTES);
        let mut answers = Answers {
            body: reply.into_body(),
            came: Bytes::new(),
            prefix: Vec::new(),
            writing: None,
            route,
            account,
            turns: Arc::clone(&self.writing),
            share: None,
        };
        let answer = if route.is_stream {
            Body::from_stream(pieces(answers, share))
        } else {
            let first = answers.next().await.ok_or_else(|| internal("no answer"))??;
            if answers.writing.is_none() {
                Body::from(first)
            } else {
                let first = stream::once(async { Ok(first) });
                Body::from_stream(first.chain(pieces(answers, share)))
            }
        };
        Ok(reply::json(StatusCode::OK, answer))
    }

    /// Reads the messages of a request. Of those that are large only one is read at a time: until they are, they may
    /// take many times their bytes.
    async fn read(
        &self,
        limits: &Limits,
        route: &'static Route,
        text: Vec<Vec<u8>>,
        mut share: Share,
    ) -> Result<(Bytes, Share), Status> {
        let length = text.iter().map(Vec::len).sum::<usize>();
        if length < LARGE {
            return Ok((route.messages(&body::together(text))?, share));
        }
        let turn = timeout(limits.body_time, Arc::clone(&self.reading).acquire_owned()).await;
        let turn = turn.map_err(|_| Status::from(Error::TooManyRequests))?.map_err(internal)?;
        share.grow(READING * length).map_err(Error::from)?;
        // It goes on when the client has gone, and holds its turn and its share until it is done.
        let read = move || {
            let text = body::together(text);
            let messages = route.messages(&text);
            share.shrink_to(body::REQUEST_BYTES + length);
            drop((text, turn));
            messages.map(|messages| (messages, share))
        };
        tokio::task::spawn_blocking(read).await.map_err(internal)?
    }
}

/// The messages of an answer, as JSON.
struct Answers {
    body: ReplyBody,
    /// What came of it and is not written.
    came: Bytes,
    /// What came of the prefix of the next message.
    prefix: Vec<u8>,
    /// The message that is being written.
    writing: Option<Text>,
    route: &'static Route,
    account: Account,
    /// One is taken for each piece that is not small.
    turns: Arc<Semaphore>,
    /// For what was written of it, until its bytes have left. What it is made of is counted by the body.
    share: Option<Arc<Share>>,
}

impl Answers {
    /// The next piece of a message; none at a good end.
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let turns = Arc::clone(&self.turns);
        loop {
            if self.came.is_empty() {
                let frame = match self.body.frame().await? {
                    Ok(frame) => frame,
                    Err(error) => return Some(Err(internal(error))),
                };
                match frame.into_data() {
                    Ok(piece) => self.came = piece,
                    Err(frame) => {
                        let status = frame.trailers_ref().and_then(Status::from_header_map)?;
                        return (status.code() != Code::Ok).then_some(Err(status));
                    }
                }
                continue;
            }
            let turn = if self.came.len() < SMALL {
                None
            } else {
                // Who reads fast lets others in between.
                tokio::task::yield_now().await;
                turns.acquire().await.ok()
            };
            let written = self.write();
            drop(turn);
            match written {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    let text = Bytes::from(text);
                    // With the last piece of a message it leaves too: the next may not come for long.
                    let share = if self.writing.is_none() { self.share.take() } else { self.share.clone() };
                    return Some(Ok(match share {
                        Some(share) => counted(text, share),
                        None => text,
                    }));
                }
                Err(status) => return Some(Err(status)),
            }
        }
    }

    /// Writes some of what came.
    fn write(&mut self) -> Result<String, Status> {
        let mut text = String::new();
        let mut writing = match self.writing.take() {
            Some(writing) => writing,
            None => match self.begin(&mut text)? {
                Some(writing) => writing,
                None => return Ok(text),
            },
        };
        let piece = self.came.split_to(self.came.len().min(writing.to_come()).min(PIECE));
        writing.add(&piece, &mut text)?;
        if !writing.is_over() {
            self.writing = Some(writing);
        } else if self.route.is_stream {
            text.push_str("}\n");
        }
        Ok(text)
    }

    /// Begins the next message, if its prefix is there whole.
    fn begin(&mut self, text: &mut String) -> Result<Option<Text>, Status> {
        let prefix = self.came.split_to(self.came.len().min(PREFIX - self.prefix.len()));
        self.prefix.extend_from_slice(&prefix);
        let Some([_, length @ ..]) = self.prefix.first_chunk::<PREFIX>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(internal)?;
        self.prefix.clear();
        // What was there for the last one goes with its bytes.
        self.share = None;
        let bytes = body::REQUEST_BYTES + length.saturating_mul(LONGER).min(UNREAD);
        self.share = Some(Arc::new(self.account.take(bytes).map_err(Error::from)?));
        if self.route.is_stream {
            text.push_str("{\"result\":");
        }
        Ok(Some(Text::begin(self.route.output.clone(), length, text)))
    }
}

/// The pieces of an answer; on a stream a line for each message, and one for a bad end. The request is counted until then.
fn pieces(answers: Answers, share: Share) -> impl futures::Stream<Item = Result<Bytes, Status>> {
    stream::unfold((Some(answers), share), |(answers, share)| async {
        let mut answers = answers?;
        match answers.next().await? {
            Ok(piece) => Some((Ok(piece), (Some(answers), share))),
            // In the middle of a message there is no way to say it but to end.
            Err(status) if !answers.route.is_stream => Some((Err(status), (None, share))),
            Err(status) => {
                let line = format!("{}\n", json!({ "error": problem(&status) }));
                Some((Ok(line.into()), (None, share)))
            }
        }
    })
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
