//! Bodies, as far as they are within bounds.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use super::Limits;
use crate::admission::{Account, Full, Share, counted};
use crate::v2::{Code, Error};

/// Roughly the memory of a request besides its body.
pub(super) const REQUEST_BYTES: usize = 2048;
/// About the size of a piece: what is handed to the connection is out of our hands until the client reads it.
const PIECE: usize = 32 << 10;

/// Bytes of a body that lie together while it comes in.
const TOGETHER: usize = 64 << 10;

/// There is no room for a request, or for the answer to it.
pub(super) fn full(_: Full) -> Error {
    Error::new(Code::Internal, "etcdserver: too many requests", 0)
}

/// Reads the body of a request; what came of it is counted in `share`.
pub(super) async fn read(limits: &Limits, body: Body, share: &mut Share) -> Result<Bytes, Error> {
    read_pieces(limits, body, share).await.map(together)
}

/// The same, in pieces of which only the last is not full. A large one that waits in one buffer that has grown leaves
/// holes behind, in all as large as it.
pub(super) async fn read_pieces(
    limits: &Limits,
    body: Body,
    share: &mut Share,
) -> Result<Vec<Vec<u8>>, Error> {
    let failed = |cause: String| Error::parse(Code::InvalidForm, cause);
    let mut body = Limited::new(body, limits.body);
    let read = async {
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let too_large = error.is::<LengthLimitError>();
                failed(if too_large { "http: POST too large".to_owned() } else { error.to_string() })
            })?;
            if let Some(piece) = frame.data_ref() {
                share.grow(piece.len()).map_err(full)?;
                add(&mut all, piece);
            }
        }
        Ok(all)
    };
    let late = || Err(failed(format!("the body did not arrive within {:?}", limits.body_time)));
    timeout(limits.body_time, read).await.unwrap_or_else(|_| late())
}

fn add(pieces: &mut Vec<Vec<u8>>, mut more: &[u8]) {
    while !more.is_empty() {
        let is_first = pieces.is_empty();
        match pieces.last_mut().filter(|last| last.len() < TOGETHER) {
            Some(last) => {
                let (now, later) = more.split_at(more.len().min(TOGETHER - last.len()));
                last.extend_from_slice(now);
                more = later;
            }
            // Most bodies are small. One that is not will fill it.
            None if is_first => pieces.push(Vec::new()),
            None => pieces.push(Vec::with_capacity(TOGETHER)),
        }
    }
}

/// The whole of what came in pieces.
pub(super) fn together(mut pieces: Vec<Vec<u8>>) -> Bytes {
    if pieces.len() > 1 { pieces.concat().into() } else { pieces.pop().unwrap_or_default().into() }
}

/// The body of an answer, counted until its last byte has left.
pub(super) fn answer(bytes: Bytes, share: Share) -> Body {
    Body::new(Pieces { left: bytes, share: Arc::new(share) })
}

struct Pieces {
    left: Bytes,
    share: Arc<Share>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(
            next_piece(&mut self.left).map(|piece| Ok(Frame::data(counted(piece, Arc::clone(&self.share))))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

/// The next piece of what is left, if there is something.
pub(super) fn next_piece(left: &mut Bytes) -> Option<Bytes> {
    let piece = left.split_to(left.len().min(PIECE));
    Some(piece).filter(|piece| !piece.is_empty())
}

/// A share of an account, for what is about to be built.
pub(super) fn take(account: &Account, bytes: usize) -> Result<Share, Error> {
    account.take(REQUEST_BYTES + bytes).map_err(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_put_together_however_it_is_cut() {
        let sent: Vec<u8> = (0..5 * TOGETHER / 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for size in [1000, TOGETHER, TOGETHER + 1, sent.len()] {
            let mut pieces = Vec::new();
            sent.chunks(size).for_each(|piece| add(&mut pieces, piece));
            assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [TOGETHER, TOGETHER, TOGETHER / 2]);
            assert!(pieces[1..].iter().all(|piece| piece.capacity() == TOGETHER), "{size}");
            assert_eq!(together(pieces), sent);
        }
        assert_eq!(together(Vec::new()), "");
    }
}
