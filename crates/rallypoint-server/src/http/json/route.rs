//! Which path means which method, and what its messages look like: etcd's own descriptors say it.

use std::collections::HashMap;
use std::sync::LazyLock;

use bytes::{BufMut as _, Bytes};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor,
};
use serde::de::IgnoredAny;
use serde_json::Deserializer;
use tonic::Status;

use crate::descriptors;

/// A method that is reached by a path.
#[derive(Debug)]
pub(super) struct Route {
    /// As gRPC calls it.
    pub(super) method: String,
    /// Whether it answers with a stream.
    pub(super) is_stream: bool,
    takes_stream: bool,
    input: MessageDescriptor,
    /// What its answers are.
    pub(super) output: MessageDescriptor,
}

/// The method at a path.
pub(super) fn find(path: &str) -> Option<&'static Route> {
    static ROUTES: LazyLock<HashMap<String, Route>> = LazyLock::new(routes);
    ROUTES.get(path)
}

fn routes() -> HashMap<String, Route> {
    let pool = descriptors::pool();
    let methods = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let of =
        |method: MethodDescriptor| paths(pool, &method).into_iter().map(move |path| (path, route(&method)));
    methods.flat_map(of).collect()
}

fn route(method: &MethodDescriptor) -> Route {
    Route {
        method: format!("/{}/{}", method.parent_service().full_name(), method.name()),
        is_stream: method.is_server_streaming(),
        takes_stream: method.is_client_streaming(),
        input: method.input(),
        output: method.output(),
    }
}

/// The paths of a method: its own, and others for the sake of earlier versions.
pub(super) fn paths(pool: &DescriptorPool, method: &MethodDescriptor) -> Vec<String> {
    let Some(http) = pool.get_extension_by_name("google.api.http") else { return Vec::new() };
    let options = method.options();
    let rule = options.get_extension(&http);
    let Some(rule) = rule.as_message() else { return Vec::new() };
    let others = rule.get_field_by_name("additional_bindings");
    let others = others.iter().flat_map(|others| others.as_list().unwrap_or_default());
    let all = std::iter::once(rule).chain(others.filter_map(prost_reflect::Value::as_message));
    let post = |rule: &DynamicMessage| rule.get_field_by_name("post")?.as_str().map(str::to_owned);
    all.filter_map(post).filter(|path| !path.is_empty()).collect()
}

impl Route {
    /// The messages in a body, as gRPC sends them. A method that takes one has one, whatever follows it.
    pub(super) fn messages(&self, text: &[u8]) -> Result<Bytes, Status> {
        let mut messages = Vec::new();
        if self.takes_stream {
            // Where each ends is found first: to ask a parser whether there are more takes longer with each.
            let mut ends = Deserializer::from_slice(text).into_iter::<IgnoredAny>();
            let mut from = 0;
            while let Some(message) = ends.next() {
                message.map_err(invalid)?;
                push(&mut messages, &self.message(&text[from..ends.byte_offset()])?);
                from = ends.byte_offset();
            }
        } else if text.trim_ascii().is_empty() {
            push(&mut messages, &DynamicMessage::new(self.input.clone()));
        } else {
            push(&mut messages, &self.message(text)?);
        }
        Ok(messages.into())
    }

    /// The message that a text begins with.
    fn message(&self, text: &[u8]) -> Result<DynamicMessage, Status> {
        let options = DeserializeOptions::new().deny_unknown_fields(false);
        let mut json = Deserializer::from_slice(text);
        DynamicMessage::deserialize_with_options(self.input.clone(), &mut json, &options).map_err(invalid)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "errors are handed over")]
fn invalid(error: serde_json::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Adds a message with gRPC's prefix. One that is too long for that is refused by its length.
fn push(messages: &mut Vec<u8>, message: &DynamicMessage) {
    messages.put_u8(0);
    messages.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    messages.extend_from_slice(&message.encode_to_vec());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_etcds_gateway() {
        for (path, method) in [
            ("/v3/kv/range", "/etcdserverpb.KV/Range"),
            ("/v3/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
            ("/v3/kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
            ("/v3/watch", "/etcdserverpb.Watch/Watch"),
            ("/v3/lock/lock", "/v3lockpb.Lock/Lock"),
        ] {
            assert_eq!(find(path).map(|route| &route.method[..]), Some(method), "{path}");
        }
        assert!(find("/v3/kv").is_none() && find("/v3/watch").unwrap().is_stream);
    }

    #[test]
    fn of_very_many_messages_each_takes_no_longer_than_the_one_before() {
        const MESSAGES: usize = 100_000;
        let began = std::time::Instant::now();
        let messages =
            find("/v3/watch").unwrap().messages("{\"create_request\":{}} ".repeat(MESSAGES).as_bytes());
        assert_eq!(messages.unwrap().len(), 7 * MESSAGES);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    #[test]
    fn one_message_is_taken_or_all_of_a_stream() {
        let one = find("/v3/kv/range").unwrap();
        assert_eq!(one.messages(b" ").unwrap(), &b"\0\0\0\0\0"[..]);
        assert_eq!(one.messages(b"{\"key\":\"YQ==\"} {\"key\":1}").unwrap(), &b"\0\0\0\0\x03\x0a\x01a"[..]);
        let many = find("/v3/lease/keepalive").unwrap();
        assert_eq!(many.messages(b"").unwrap(), "");
        assert_eq!(
            many.messages(b"{\"ID\":\"1\"}\n{\"ID\":2}").unwrap(),
            &b"\0\0\0\0\x02\x08\x01\0\0\0\0\x02\x08\x02"[..]
        );
        for wrong in [&b"x"[..], b"{\"ID\":\"x\"}", b"{\"ID\":1}{", b"[]"] {
            assert_eq!(many.messages(wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
