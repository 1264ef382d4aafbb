//! Calls whose messages are bytes: whatever two servers answer can be compared, without a type for each.

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

use super::{Raw, within};
use bytes::{Buf as _, BufMut as _};
use etcd_client::proto::PbResponseHeader;

/// What came back: the revision of the header if there is one, and the bytes of the fields after it.
pub(crate) type Answer = Result<(Option<i64>, Vec<u8>), (tonic::Code, String)>;

/// Sends a message with a token, or without.
pub(crate) async fn ask(client: &Raw, path: &str, token: Option<&str>, message: Vec<u8>) -> Answer {
    let answer = within(client.bytes(path, token, message)).await;
    answer.map(|answer| split(&answer)).map_err(|status| (status.code(), status.message().to_owned()))
}

impl Raw {
    async fn bytes(&self, path: &str, token: Option<&str>, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = tonic::Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("token", token.parse().unwrap());
        }
        let path: PathAndQuery = path.parse().unwrap();
        Ok(grpc.unary(request, path, Bytes).await?.into_inner())
    }
}

/// The header, which is field 1 of every answer, is no part of what is compared. The order of other fields means nothing.
fn split(mut answer: &[u8]) -> (Option<i64>, Vec<u8>) {
    let (mut revision, mut fields) = (None, Vec::new());
    while !answer.is_empty() {
        let whole = answer;
        let (tag, wire) = prost::encoding::decode_key(&mut answer).unwrap();
        let start = answer;
        prost::encoding::skip_field(wire, tag, &mut answer, prost::encoding::DecodeContext::default())
            .unwrap();
        if tag == 1 {
            let header = PbResponseHeader::decode_length_delimited(start).unwrap();
            revision = Some(header.revision);
        } else {
            fields.push((tag, whole[..whole.len() - answer.len()].to_vec()));
        }
    }
    fields.sort_by_key(|(tag, _)| *tag);
    (revision, fields.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Bytes;
    type Decoder = Bytes;

    fn encoder(&mut self) -> Bytes {
        Bytes
    }

    fn decoder(&mut self) -> Bytes {
        Bytes
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; from.remaining()];
        from.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
