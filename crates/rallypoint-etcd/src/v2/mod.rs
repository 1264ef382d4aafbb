//! The client of etcd's v2 API, over HTTP.

mod code;

pub use code::Code;
