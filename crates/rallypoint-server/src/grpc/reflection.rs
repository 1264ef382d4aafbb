//! gRPC's reflection, by which tools like `grpcurl` learn what is served: v1 and v1alpha, whose messages are the same.

use futures::{Stream, StreamExt as _};
use prost::Message;
use prost_reflect::FileDescriptor;
use tonic::{Code, Status, Streaming};

use super::call::OwnedCall;
use super::rope::Rope;
use super::streaming::Outgoing;
use crate::descriptors;
use crate::mvcc::Error;

pub(super) const V1: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub(super) const V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// Answers question by question.
pub(super) fn serve(
    call: OwnedCall,
    inbound: Streaming<Question>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    inbound.map(move |question| {
        let answer = answer(question?);
        // A file is some ten kilobytes, and who asks may never read.
        let share = call.account.take(answer.encoded_len()).map_err(Error::from)?;
        Ok(Outgoing { message: Rope::of(&answer), share: Some(share.into()) })
    })
}

/// `ServerReflectionRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Question {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 5, 6, 7")]
    asked: Option<Asked>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Asked {
    #[prost(string, tag = "3")]
    FileByName(String),
    #[prost(string, tag = "4")]
    FileOfSymbol(String),
    #[prost(message, tag = "5")]
    FileOfExtension(Extension),
    #[prost(string, tag = "6")]
    ExtensionsOf(String),
    #[prost(string, tag = "7")]
    Services(String),
}

#[derive(Clone, PartialEq, Message)]
struct Extension {
    #[prost(string, tag = "1")]
    of: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

/// `ServerReflectionResponse`.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(message, optional, tag = "2")]
    question: Option<Question>,
    #[prost(oneof = "Told", tags = "4, 5, 6, 7")]
    told: Option<Told>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Told {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "5")]
    Extensions(Extensions),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Refusal(Refusal),
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    /// Each is a `FileDescriptorProto`.
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Extensions {
    #[prost(string, tag = "1")]
    of: String,
    #[prost(int32, repeated, tag = "2")]
    numbers: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

fn answer(question: Question) -> Answer {
    let told = match &question.asked {
        Some(Asked::FileByName(name)) => file(descriptors::pool().get_file_by_name(name), name),
        Some(Asked::FileOfSymbol(name)) => file(file_of(name), name),
        Some(Asked::FileOfExtension(Extension { of, number })) => file(extended(of, *number), of),
        Some(Asked::ExtensionsOf(name)) => extensions(name),
        // What it can say more of: of the health check and of itself it has no files.
        Some(Asked::Services(_)) => {
            let name = |service: prost_reflect::ServiceDescriptor| service.full_name().to_owned();
            let services = descriptors::pool().services().map(|service| Service { name: name(service) });
            Told::Services(Services { services: services.collect() })
        }
        None => refusal(Code::InvalidArgument, "nothing is asked".to_owned()),
    };
    Answer { host: question.host.clone(), question: Some(question), told: Some(told) }
}

fn file(file: Option<FileDescriptor>, name: &str) -> Told {
    match file {
        Some(file) => Told::Files(Files { files: vec![file.encode_to_vec()] }),
        None => not_found(name),
    }
}

/// The file that a service, a method, a message, a field, an enumeration or an extension is in.
fn file_of(name: &str) -> Option<FileDescriptor> {
    let pool = descriptors::pool();
    let whole = |name: &str| {
        (pool.get_service_by_name(name).map(|found| found.parent_file()))
            .or_else(|| pool.get_message_by_name(name).map(|found| found.parent_file()))
            .or_else(|| pool.get_enum_by_name(name).map(|found| found.parent_file()))
            .or_else(|| pool.get_extension_by_name(name).map(|found| found.parent_file()))
    };
    whole(name).or_else(|| {
        let (of, part) = name.rsplit_once('.')?;
        let service = pool.get_service_by_name(of);
        let is_method = service.is_some_and(|service| service.methods().any(|one| one.name() == part));
        let message = pool.get_message_by_name(of);
        let is_field = message.is_some_and(|message| message.get_field_by_name(part).is_some());
        if is_method || is_field { whole(of) } else { None }
    })
}

fn extended(of: &str, number: i32) -> Option<FileDescriptor> {
    let number = u32::try_from(number).ok()?;
    Some(descriptors::pool().get_message_by_name(of)?.get_extension(number)?.parent_file())
}

fn extensions(name: &str) -> Told {
    let Some(message) = descriptors::pool().get_message_by_name(name) else { return not_found(name) };
    // No number of a field is as large as that.
    let numbers = message.extensions().filter_map(|one| i32::try_from(one.number()).ok()).collect();
    Told::Extensions(Extensions { of: name.to_owned(), numbers })
}

fn not_found(name: &str) -> Told {
    refusal(Code::NotFound, format!("{name} is not known"))
}

fn refusal(code: Code, message: String) -> Told {
    Told::Refusal(Refusal { code: code.into(), message })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn ask(asked: Asked) -> Told {
        answer(Question { host: String::new(), asked: Some(asked) }).told.unwrap()
    }

    /// As `grpcurl` does it: the services, the file of one, and the files that this one names.
    #[test]
    fn all_that_is_served_can_be_described() {
        let Told::Services(served) = ask(Asked::Services(String::new())) else { panic!("services") };
        let names: Vec<&str> = served.services.iter().map(|service| &service.name[..]).collect();
        for service in ["etcdserverpb.KV", "etcdserverpb.Watch", "v3lockpb.Lock", "v3electionpb.Election"] {
            assert!(names.contains(&service), "{names:?}");
        }
        let mut pool = prost_reflect::DescriptorPool::new();
        let mut wanted = names.iter().map(|name| Asked::FileOfSymbol((*name).to_owned())).collect::<Vec<_>>();
        let mut files: Vec<(String, Vec<String>, Vec<u8>)> = Vec::new();
        while let Some(asked) = wanted.pop() {
            let Told::Files(found) = ask(asked) else { panic!("a file") };
            let file = prost_types_file(&found.files[0]);
            if files.iter().any(|(name, ..)| *name == file.0) {
                continue;
            }
            wanted.extend(file.1.iter().cloned().map(Asked::FileByName));
            files.push((file.0, file.1, found.files[0].clone()));
        }
        // Those first that others name.
        while !files.is_empty() {
            let before = files.len();
            files.retain(|(_, names, bytes)| {
                let is_next = names.iter().all(|name| pool.get_file_by_name(name).is_some());
                if is_next {
                    pool.decode_file_descriptor_proto(&bytes[..]).unwrap();
                }
                !is_next
            });
            assert!(files.len() < before, "each file that is named is there");
        }
        for name in names {
            assert!(pool.get_service_by_name(name).is_some(), "{name}");
        }
    }

    /// The name of a file, and of those that it imports.
    fn prost_types_file(bytes: &[u8]) -> (String, Vec<String>) {
        #[derive(Clone, PartialEq, Message)]
        struct File {
            #[prost(string, tag = "1")]
            name: String,
            #[prost(string, repeated, tag = "3")]
            imports: Vec<String>,
        }
        let file = File::decode(bytes).unwrap();
        (file.name, file.imports)
    }

    #[test]
    fn a_symbol_is_found_whatever_it_is_and_what_is_not_there_is_told() {
        for name in ["etcdserverpb.KV.Range", "etcdserverpb.RangeRequest", "etcdserverpb.RangeRequest.key"] {
            let Told::Files(found) = ask(Asked::FileOfSymbol(name.to_owned())) else { panic!("{name}") };
            assert_eq!(prost_types_file(&found.files[0]).0, "etcd/api/etcdserverpb/rpc.proto", "{name}");
        }
        let Told::Extensions(found) = ask(Asked::ExtensionsOf("google.protobuf.MethodOptions".to_owned()))
        else {
            panic!("extensions")
        };
        let number = *found.numbers.iter().find(|number| **number == 72_295_728).unwrap();
        let of = Extension { of: found.of, number };
        assert!(matches!(ask(Asked::FileOfExtension(of)), Told::Files(_)));
        for asked in [
            Asked::FileByName("no.proto".to_owned()),
            Asked::FileOfSymbol("etcdserverpb.KV.Nothing".to_owned()),
            Asked::FileOfSymbol(".".to_owned()),
            Asked::ExtensionsOf("Nothing".to_owned()),
            Asked::FileOfExtension(Extension { of: "etcdserverpb.KV".to_owned(), number: -1 }),
        ] {
            let Told::Refusal(refusal) = ask(asked.clone()) else { panic!("{asked:?}") };
            assert_eq!(refusal.code, i32::from(Code::NotFound));
        }
        let nothing = answer(Question { host: "a".to_owned(), asked: None });
        assert!(nothing.host == "a" && matches!(nothing.told, Some(Told::Refusal(_))));
    }
}
