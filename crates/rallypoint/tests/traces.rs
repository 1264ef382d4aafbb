//! Rounds as traces: launchers that really meet, a collector of this test's own that reads OTLP as any other does, and a
//! real one before it.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use launcher::{Launcher, wait_until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rallypoint_testkit::{Etcd, OtelCollector, Silent, Version, refused_endpoint};

/// What came to a collector.
#[derive(Debug, Default)]
struct Received {
    spans: Vec<Span>,
    /// Of the process that sent them.
    resource: BTreeMap<String, String>,
    /// The heads of the requests.
    heads: Vec<String>,
}

struct Collector {
    url: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Received>>::default();
        let to = Arc::clone(&received);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let to = Arc::clone(&to);
                thread::spawn(move || serve(&socket, &to));
            }
        });
        Collector { url, received }
    }

    fn spans(&self) -> Vec<Span> {
        self.received.lock().unwrap().spans.clone()
    }
}

/// Takes spans until the client hangs up.
fn serve(socket: &TcpStream, to: &Mutex<Received>) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.expect("it says how long it is")];
        reader.read_exact(&mut body).unwrap();
        if head.to_lowercase().contains("content-encoding: gzip") {
            let packed = std::mem::take(&mut body);
            flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut body).unwrap();
        }
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        let mut received = to.lock().unwrap();
        received.heads.push(head);
        for of in request.resource_spans {
            received.resource.extend(texts(&of.resource.unwrap().attributes));
            received.spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        drop(received);
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        if { socket }.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone()?.value? {
        any_value::Value::StringValue(text) => Some((attribute.key.clone(), text)),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

fn of<'a>(spans: &[&'a Span], name: &str) -> Vec<&'a Span> {
    spans.iter().copied().filter(|span| span.name == name).collect()
}

fn seconds(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e9
}

const LATE: Duration = Duration::from_secs(6);

#[test]
fn a_round_is_one_trace_over_all_its_nodes_and_shows_who_was_late() {
    let (etcd, collector) = (Etcd::start(Version::V35), Collector::start());
    let folder = tempfile::tempdir().unwrap();
    // One worker fails in the first round.
    let script = format!(
        "if [ $RANK = 1 ] && mkdir {}/failed 2>/dev/null; then exit 9; fi; sleep 0.3",
        folder.path().display()
    );
    let node = |name: &str| {
        let run =
            ["--nnodes", "3", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint(), "--max-restarts", "1"];
        let conf = format!("node_id={name}");
        let traced = ["--rdzv-conf", &conf, "--otlp-endpoint", &collector.url, "--", "sh", "-c", &script];
        Launcher::start_with(&[&run[..], &traced[..]].concat(), |command| {
            command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token");
        })
    };
    let early = ["a", "b"].map(node);
    thread::sleep(LATE);
    let late = node("late");
    for node in early.into_iter().chain([late]) {
        let ended = node.ended().expect(0);
        assert!(ended.with("traces cannot be sent").is_empty(), "{}", ended.text());
    }
    // They had all been sent when the launchers ended.
    let spans = collector.spans();
    let mut traces: BTreeMap<&[u8], Vec<&Span>> = BTreeMap::new();
    spans.iter().for_each(|span| traces.entry(&span.trace_id).or_default().push(span));
    assert_eq!(traces.len(), 2, "a trace for each round: {spans:#?}");
    let number = |span: &Span| texts(&span.attributes)["rallypoint.round"].clone();
    for trace in traces.values() {
        let roots = of(trace, "rendezvous");
        assert_eq!(roots.len(), 1, "{trace:#?}");
        let (root, round) = (roots[0], number(roots[0]));
        assert!(root.parent_span_id.is_empty(), "{root:?}");
        assert_eq!((root.trace_id.len(), root.span_id.len()), (16, 8));
        let about = texts(&root.attributes);
        assert_eq!(
            (about["rallypoint.run_id"].as_str(), about["rallypoint.world_size"].as_str()),
            ("job", "3")
        );
        for name in ["join", "start workers", "round"] {
            let three = of(trace, name);
            assert_eq!(three.len(), 3, "{name}: {trace:#?}");
            assert!(three.iter().all(|span| span.parent_span_id == root.span_id), "{name}: {trace:#?}");
            let ranks: BTreeSet<_> =
                three.iter().map(|span| texts(&span.attributes)["rallypoint.rank"].clone()).collect();
            assert_eq!(ranks, ["0", "1", "2"].map(str::to_owned).into());
        }
        let joins = of(trace, "join");
        let begins: BTreeMap<_, _> = joins
            .iter()
            .map(|join| (texts(&join.attributes)["rallypoint.node"].clone(), join.start_time_unix_nano))
            .collect();
        let behind = ["a", "b"].map(|early| seconds(begins[early], begins["late"]));
        if round == "1" {
            assert!(behind.iter().all(|behind| *behind > LATE.as_secs_f64() * 0.7), "{behind:?}");
        } else {
            assert!(behind.iter().all(|behind| behind.abs() < LATE.as_secs_f64() * 0.7), "{behind:?}");
        }
        // The phases of each are its join's, one after the other, and fill it.
        for join in joins {
            let mut phases: Vec<_> =
                trace.iter().filter(|span| span.parent_span_id == join.span_id).collect();
            phases.sort_by_key(|span| span.start_time_unix_nano);
            assert_eq!(phases[0].name, "registering", "{phases:#?}");
            assert_eq!(phases[0].start_time_unix_nano, join.start_time_unix_nano);
            assert_eq!(phases.last().unwrap().end_time_unix_nano, join.end_time_unix_nano);
            assert!(phases.windows(2).all(|two| two[0].end_time_unix_nano == two[1].start_time_unix_nano));
            let early = texts(&join.attributes)["rallypoint.node"] != "late";
            let waited: f64 = phases
                .iter()
                .filter(|phase| phase.name == "waiting")
                .map(|phase| seconds(phase.start_time_unix_nano, phase.end_time_unix_nano))
                .sum();
            assert_eq!(waited > LATE.as_secs_f64() * 0.5, early && round == "1", "{phases:#?}");
        }
    }
    let received = collector.received.lock().unwrap();
    assert_eq!(received.resource["service.name"], "rallypoint");
    assert!(received.heads.iter().all(|head| head.starts_with("POST /v1/traces ")), "{:?}", received.heads);
    assert!(
        received.heads[0].to_lowercase().contains("authorization: bearer token"),
        "{}",
        received.heads[0]
    );
}

#[test]
fn a_collector_that_is_away_or_hangs_neither_slows_nor_fails_a_run() {
    let silent = Silent::start();
    let run = |collector: Option<&str>| {
        let began = Instant::now();
        let traced: Vec<&str> = collector.iter().flat_map(|url| ["--otlp-endpoint", *url]).collect();
        let mut node =
            Launcher::start(&[&["--standalone"], &traced[..], &["--", "sh", "-c", "echo works"]].concat());
        node.wait_for("works");
        let works = began.elapsed();
        (works, node.ended().expect(0), began.elapsed())
    };
    let (plain_works, _, plain) = run(None);
    // One that is away is told of once, and costs nothing.
    let (works, ended, whole) = run(Some(&format!("http://{}", refused_endpoint())));
    assert_eq!(ended.with("traces cannot be sent to http://127.0.0.1:").len(), 1, "{}", ended.text());
    // What a machine that has other things to do may take longer.
    let slack = Duration::from_secs(6);
    assert!(works < plain_works + slack && whole < plain + slack, "{works:?} {whole:?}");
    // One that hangs is waited for at the end, for two seconds, and named.
    let (works, ended, whole) = run(Some(&format!("http://{}", silent.endpoint())));
    let named = format!("traces cannot be sent to http://{}", silent.endpoint());
    assert_eq!(ended.with(&named).len(), 1, "{}", ended.text());
    assert!(
        works < plain_works + slack && whole < plain + Duration::from_secs(2) + slack,
        "{works:?} {whole:?}"
    );
    for args in [["--otlp-endpoint", "collector:4318"], ["--rdzv-conf", "otlp_endpoint=collector:4318"]] {
        let ended = Launcher::run(&[&["--standalone"], &args[..], &["--", "true"]].concat()).expect(2);
        assert_eq!(ended.with("is no URL of a collector").len(), 1, "{}", ended.text());
    }
}

/// What a real collector understands, and passes on, is what was sent.
#[test]
fn a_real_collector_takes_the_traces_and_passes_them_on() {
    let behind = Collector::start();
    let Some(real) = OtelCollector::start(&behind.url) else { return };
    let url = real.url();
    let run = ["--standalone", "--rdzv-id", "job", "--otlp-endpoint", &url, "--", "true"];
    let ended = Launcher::run(&run).expect(0);
    assert!(ended.with("traces cannot be sent").is_empty(), "{}", ended.text());
    let spans = wait_until("they are passed on", || {
        let spans = behind.spans();
        spans.iter().any(|span| span.name == "round").then_some(spans)
    });
    let all: Vec<&Span> = spans.iter().collect();
    let roots = of(&all, "rendezvous");
    assert_eq!(roots.len(), 1, "{spans:#?}");
    for name in ["join", "start workers", "round"] {
        let one = of(&all, name);
        assert!(one.len() == 1 && one[0].parent_span_id == roots[0].span_id, "{name}: {spans:#?}");
        assert_eq!(one[0].trace_id, roots[0].trace_id);
    }
    assert_eq!(texts(&roots[0].attributes)["rallypoint.run_id"], "job");
    assert_eq!(behind.received.lock().unwrap().resource["service.name"], "rallypoint");
}

#[test]
fn the_standard_variable_alone_sends_nothing() {
    let collector = Collector::start();
    let ended = Launcher::start_with(&["--standalone", "--", "true"], |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    });
    ended.ended().expect(0);
    assert!(collector.spans().is_empty());
    let named = Launcher::start_with(&["--standalone", "--", "true"], |command| {
        command.env("RALLYPOINT_OTLP_ENDPOINT", &collector.url).env("OTEL_SERVICE_NAME", "trainer");
    });
    named.ended().expect(0);
    wait_until("its spans have come", || (!collector.spans().is_empty()).then_some(()));
    assert_eq!(collector.received.lock().unwrap().resource["service.name"], "trainer");
}
