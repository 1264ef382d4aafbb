//! Bodies, as far as they are within bounds.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
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

/// There is no room for a request, or for the answer to it.
pub(super) fn full(_: Full) -> Error {
    Error::new(Code::Internal, "etcdserver: too many requests", 0)
}

/// Reads the body of a request; what came of it is counted in `share`.
pub(super) async fn read(limits: &Limits, body: Body, share: &mut Share) -> Result<Bytes, Error> {
    let failed = |cause: String| Error::parse(Code::InvalidForm, cause);
    let mut body = Limited::new(body, limits.body);
    let read = async {
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let too_large = error.is::<LengthLimitError>();
                failed(if too_large { "http: POST too large".to_owned() } else { error.to_string() })
            })?;
            if let Some(piece) = frame.data_ref() {
                share.grow(piece.len()).map_err(full)?;
                all.extend_from_slice(piece);
            }
        }
        Ok(all.freeze())
    };
    let late = || Err(failed(format!("the body did not arrive within {:?}", limits.body_time)));
    timeout(limits.body_time, read).await.unwrap_or_else(|_| late())
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
