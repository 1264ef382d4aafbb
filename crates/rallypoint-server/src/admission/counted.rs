//! Bytes that are counted until they have left.

use std::sync::Arc;

use bytes::Bytes;

use super::Share;

/// Bytes that hold a share for as long as anybody has a piece of them.
///
/// A body is done when its last piece was handed over; hyper and h2 may keep that for as long as the client does not
/// read.
pub(crate) fn counted(bytes: Bytes, share: Arc<Share>) -> Bytes {
    Bytes::from_owner(Counted { bytes, _share: share })
}

struct Counted {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Budget;

    #[test]
    fn a_share_is_held_until_the_last_piece_is_gone() {
        let budget = Budget::new(100, 1);
        let share = Arc::new(budget.open().unwrap().take(10).unwrap());
        let mut bytes = counted(Bytes::from_static(b"0123456789"), share);
        let piece = bytes.split_to(3);
        drop(bytes);
        assert_eq!((budget.held(), &piece[..]), (10, &b"012"[..]));
        drop(piece);
        assert_eq!(budget.held(), 0);
    }
}
