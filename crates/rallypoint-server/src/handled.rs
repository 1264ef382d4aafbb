//! Calls of gRPC by their methods and what became of them, under the names that etcd's dashboards ask for.

use std::sync::Arc;

use rallypoint_metrics::prometheus_client::metrics::counter::Counter;
use rallypoint_metrics::prometheus_client::metrics::family::Family;
use tonic::Code;

use crate::prometheus::Page;

const UNARY: &str = "unary";
const SERVER_STREAM: &str = "server_stream";
const BIDI_STREAM: &str = "bidi_stream";

/// The methods of each service. The streams among them have a type of their own.
const SERVICES: [(&str, &[&str]); 9] = [
    ("etcdserverpb.KV", &["Range", "Put", "Txn", "DeleteRange", "Compact"]),
    ("etcdserverpb.Watch", &["Watch"]),
    (
        "etcdserverpb.Lease",
        &["LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive", "LeaseLeases"],
    ),
    (
        "etcdserverpb.Maintenance",
        &["Status", "Alarm", "Defragment", "Hash", "HashKV", "Snapshot", "MoveLeader", "Downgrade"],
    ),
    ("etcdserverpb.Cluster", &["MemberList", "MemberAdd", "MemberRemove", "MemberUpdate", "MemberPromote"]),
    (
        "etcdserverpb.Auth",
        &[
            "Authenticate",
            "AuthEnable",
            "AuthDisable",
            "AuthStatus",
            "UserAdd",
            "UserGet",
            "UserList",
            "UserDelete",
            "UserChangePassword",
            "UserGrantRole",
            "UserRevokeRole",
            "RoleAdd",
            "RoleGet",
            "RoleList",
            "RoleDelete",
            "RoleGrantPermission",
            "RoleRevokePermission",
        ],
    ),
    ("v3lockpb.Lock", &["Lock", "Unlock"]),
    ("v3electionpb.Election", &["Campaign", "Proclaim", "Leader", "Observe", "Resign"]),
    ("grpc.health.v1.Health", &["Check", "List", "Watch"]),
];
const MOST_METHODS: usize = 17;
/// In the order of their numbers, in the words of etcd's gRPC library.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The counts of all methods.
#[derive(Debug, Default)]
pub(crate) struct Handled {
    of: [[OfMethod; MOST_METHODS]; SERVICES.len()],
    /// Of all messages of clients, and of all answers.
    received_bytes: Counter,
    sent_bytes: Counter,
}

#[derive(Debug, Default)]
struct OfMethod {
    started: Counter,
    handled: [Counter; CODES.len()],
    received: Counter,
    sent: Counter,
}

/// Counts the messages of a call.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    all: Arc<Handled>,
    service: usize,
    method: usize,
}

impl Meter {
    fn of(&self) -> &OfMethod {
        &self.all.of[self.service][self.method]
    }

    /// A message of so many bytes has come.
    pub(crate) fn received(&self, bytes: usize) {
        self.of().received.inc();
        self.all.received_bytes.inc_by(bytes as u64);
    }

    /// One of so many is on its way.
    pub(crate) fn sent(&self, bytes: usize) {
        self.of().sent.inc();
        self.all.sent_bytes.inc_by(bytes as u64);
    }
}

/// A call that has started. Dropped before it has ended, its client has given it up.
#[derive(Debug)]
pub(crate) struct Handling {
    pub(crate) meter: Meter,
    /// How it ends if it is dropped now.
    code: Code,
}

impl Handled {
    /// Counts a call that starts. One of a method that is not known is not counted, as in etcd.
    pub(crate) fn start(self: &Arc<Self>, path: &str) -> Option<Handling> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let service = SERVICES.iter().position(|(name, _)| *name == service)?;
        let method = SERVICES[service].1.iter().position(|name| *name == method)?;
        self.of[service][method].started.inc();
        let meter = Meter { all: Arc::clone(self), service, method };
        Some(Handling { meter, code: Code::Cancelled })
    }

    pub(crate) fn tell(&self, page: &mut Page) {
        let started: Family<[(&str, &str); 3], Counter> = Family::default();
        let handled: Family<[(&str, &str); 4], Counter> = Family::default();
        let received: Family<[(&str, &str); 3], Counter> = Family::default();
        let sent: Family<[(&str, &str); 3], Counter> = Family::default();
        for ((service, methods), counts) in SERVICES.iter().zip(&self.of) {
            for (method, counts) in methods.iter().zip(counts) {
                let labels = [
                    ("grpc_method", *method),
                    ("grpc_service", *service),
                    ("grpc_type", kind(service, method)),
                ];
                started.get_or_create(&labels).inc_by(counts.started.get());
                received.get_or_create(&labels).inc_by(counts.received.get());
                sent.get_or_create(&labels).inc_by(counts.sent.get());
                let [method, service, kind] = labels;
                for (code, count) in CODES.into_iter().zip(&counts.handled) {
                    handled.get_or_create(&[("grpc_code", code), method, service, kind]).inc_by(count.get());
                }
            }
        }
        page.registry.register("grpc_server_started", "Total number of RPCs started on the server", started);
        let help = "Total number of RPCs completed on the server, regardless of success or failure";
        page.registry.register("grpc_server_handled", help, handled);
        let help = "Total number of messages of clients";
        page.registry.register("grpc_server_msg_received", help, received);
        page.registry.register("grpc_server_msg_sent", "Total number of messages to clients", sent);
        let (received, sent) = (self.received_bytes.get(), self.sent_bytes.get());
        page.counter("etcd_network_client_grpc_received_bytes", "Bytes of messages of clients", received);
        page.counter("etcd_network_client_grpc_sent_bytes", "Bytes of messages to clients", sent);
    }
}

impl Handling {
    /// Counts its end.
    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.meter.of().handled[self.code as usize].inc();
    }
}

fn kind(service: &str, method: &str) -> &'static str {
    match (service, method) {
        ("etcdserverpb.Watch", _) | (_, "LeaseKeepAlive") => BIDI_STREAM,
        (_, "Snapshot" | "Observe" | "Watch") => SERVER_STREAM,
        _ => UNARY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_when_it_starts_and_when_it_ends_or_is_given_up() {
        let all = Arc::new(Handled::default());
        all.start("/etcdserverpb.KV/Range").unwrap().end(Code::OutOfRange);
        drop(all.start("/etcdserverpb.Watch/Watch").unwrap());
        let open = all.start("/etcdserverpb.Lease/LeaseKeepAlive").unwrap();
        assert!(all.start("/etcdserverpb.KV/Nothing").is_none() && all.start("/").is_none());
        let mut page = Page::default();
        all.tell(&mut page);
        drop(open);
        let text = page.text();
        let mut counted: Vec<_> = text.lines().filter(|line| line.ends_with("} 1")).collect();
        counted.sort_unstable();
        let of = |code: &str, method: &str, service: &str, kind: &str| {
            format!(
                "grpc_server_handled_total{{grpc_code=\"{code}\",grpc_method=\"{method}\",\
                 grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}} 1"
            )
        };
        assert_eq!(
            &counted[..2],
            [of("Canceled", "Watch", "Watch", "bidi_stream"), of("OutOfRange", "Range", "KV", "unary")]
        );
        assert_eq!(counted.len(), 5, "{counted:?}");
        assert!(SERVICES.iter().all(|(_, methods)| methods.len() <= MOST_METHODS));
    }

    #[test]
    fn codes_are_in_the_order_of_their_numbers() {
        for (code, name) in
            [(Code::Ok, "OK"), (Code::OutOfRange, "OutOfRange"), (Code::Unauthenticated, "Unauthenticated")]
        {
            assert_eq!(CODES[code as usize], name);
        }
    }
}
