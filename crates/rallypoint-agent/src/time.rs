//! A moment as people and machines both read it.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-11-15T06:14:12.345Z`.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    rallypoint_core::time::rfc3339(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
