//! Tables of connections.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use crate::ConnectionId;

/// A table of connections. Their names are the server's, so nobody can choose them to be slow to find. What an entry holds is to be
/// small or in a box: the table has room for up to twice as many as there are.
pub(crate) type IdMap<T> = HashMap<ConnectionId, T, FxBuildHasher>;
