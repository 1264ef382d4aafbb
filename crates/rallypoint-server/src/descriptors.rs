//! What etcd's messages look like: the descriptors of its protocol, with the paths of its JSON gateway in them.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

/// `scripts/descriptors` makes them.
const BYTES: &[u8] = include_bytes!("etcd.binpb");

/// All services and messages.
pub(crate) fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(BYTES).expect("they were made by protoc"));
    &POOL
}
