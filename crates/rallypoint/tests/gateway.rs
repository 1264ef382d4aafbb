//! `rallypoint gateway` as its users run it: beside an etcd without v2, for PyTorch's torchrun as it is.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use launcher::{Launcher, RALLYPOINT, signal, wait_until};
use rallypoint::EtcdSettings;
use rallypoint::etcd::v2::{Client, Get};
use rallypoint_testkit::{Certs, Etcd, Version, closed_port, torch_python};

/// A gateway, killed when dropped.
struct Gateway {
    child: Child,
    endpoint: String,
    log: BufReader<ChildStderr>,
    /// What it said before it served.
    before: String,
}

impl Gateway {
    fn start(args: &[&str]) -> Self {
        let mut command = launcher::heeding(RALLYPOINT);
        command.arg("gateway").args(args).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut before, mut line) = (String::new(), String::new());
        let endpoint = loop {
            before.push_str(&line);
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
            if let Some((_, rest)) = line.split_once("address=") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        assert!(line.contains("all data is in the etcd at"), "it says what it is: {line}");
        Gateway { child, endpoint, log, before }
    }

    fn client(&self) -> Client {
        Client::connect_lazily(EtcdSettings::new(&self.endpoint).unwrap()).unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_serves_in_its_own_keys_and_stops_in_good_order() {
    let etcd = Etcd::start(Version::V35);
    let on = ["--listen", "localhost:0", "--endpoint", &etcd.endpoint()];
    let one = Gateway::start(&on);
    let two = Gateway::start(&[&on[..], &["--key-prefix", "/other/", "--log-format", "json"][..2]].concat());
    one.client().set("/a", "1").await.unwrap();
    two.client().set("/a", "2").await.unwrap();
    let read = one.client().get("/a", Get::new()).await.unwrap();
    assert_eq!(read.node.value.as_deref(), Some("1"));
    let keys = etcd.etcdctl(&["get", "", "--prefix", "--keys-only"]);
    let keys: Vec<&str> = keys.split_whitespace().collect();
    assert_eq!(keys, ["/other/action", "/other/keys//a", "/rallypoint-v2/action", "/rallypoint-v2/keys//a"]);
    for (mut gateway, by) in [(one, "INT"), (two, "TERM")] {
        signal(gateway.child.id(), by);
        let mut rest = String::new();
        gateway.log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("stopping"), "{rest}");
        assert_eq!(gateway.child.wait().unwrap().code(), Some(0), "{rest}");
    }
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let etcd = Etcd::start(Version::V35);
    let (endpoint, other) = (etcd.endpoint(), Etcd::start(Version::V35));
    let both = format!("{endpoint},{}", other.endpoint());
    for (args, code, said) in [
        (&[][..], 2, "no endpoint: say where the etcd is with --endpoint HOST:PORT"),
        (&["--endpoint", &endpoint, "--listen", &endpoint], 1, "the address is in use"),
        (&["--endpoint", &endpoint, "--server-cert", "a.pem"], 2, "--server-key"),
        (&["--endpoint", &endpoint, "--listen", "127.0.0.1:0", "--cacert", "/none.pem"], 2, "/none.pem"),
        (&["--endpoint", &endpoint, "--listen", "127.0.0.1:0", "--user", "u"], 2, "no password"),
        (
            &["--endpoint", &endpoint, "--listen", "127.0.0.1:0", "--user", "u:p"],
            2,
            "write --user u, and set",
        ),
        (&["--endpoint", "a:b:c", "--listen", "127.0.0.1:0"], 2, "a:b:c"),
        (&["--endpoint", "http://u:p@a:1", "--listen", "127.0.0.1:0"], 2, "\"http://…@a:1\""),
        (&["--endpoint", &endpoint, "--key-prefix", "/"], 2, "--key-prefix is empty"),
        (&["--endpoint", &endpoint, "--advertise", "gw1:2379"], 2, "write http://gw1:2379"),
        (&["--endpoint", &both, "--listen", "127.0.0.1:0"], 4, "are of two etcd clusters"),
    ] {
        let mut command = Command::new(RALLYPOINT);
        // Torchrun's endpoint is the gateway's own.
        command.env("PET_RDZV_ENDPOINT", &endpoint).env_remove("RALLYPOINT_PASSWORD");
        let output = command.arg("gateway").args(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("error: ") && text.lines().count() == 1 && text.contains(said), "{text}");
        assert_eq!(output.status.code(), Some(code), "{text}");
    }
}

#[test]
fn what_listens_there_and_is_no_plain_etcd_is_told_apart() {
    let certs = Certs::generate();
    let (tls, plain) = (Etcd::builder(Version::V35).tls(&certs).start(), Etcd::start(Version::V35));
    let (tls, plain, ca) = (tls.endpoint(), plain.endpoint(), certs.ca().display().to_string());
    let front = Gateway::start(&["--listen", "127.0.0.1:0", "--endpoint", &plain]);
    for (args, said) in [
        (&["--endpoint", tls.trim_start_matches("https://")][..], "or one that wants TLS (--cacert)"),
        (&["--endpoint", &plain, "--cacert", &ca], "if it has no TLS, leave out --cacert"),
        (&["--endpoint", &front.endpoint], "answers with HTTP and no gRPC"),
    ] {
        let gateway = Gateway::start(&[&["--listen", "127.0.0.1:0"], args].concat());
        assert!(gateway.before.contains(said), "{}", gateway.before);
    }
}

/// A client that reads as fast as it can is not cut off when its gateway has much to catch up with.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_gets_all_that_its_gateway_has_missed() {
    const EVENTS: usize = 600;
    let etcd = Etcd::start(Version::V35);
    let on = ["--listen", "127.0.0.1:0", "--endpoint", &etcd.endpoint()];
    let (stopped, other) = (Gateway::start(&on), Gateway::start(&on));
    other.client().set("/w/a", "first").await.unwrap();
    let mut stream = TcpStream::connect(&stopped.endpoint).unwrap();
    write!(stream, "GET /v2/keys/w/a?wait=true&stream=true HTTP/1.1\r\nHost: gateway\r\n\r\n").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.filter(|line| line.contains("\"action\":\"set\"")).try_for_each(|line| tell.send(line))
    });
    // Until it is known to wait there.
    for turn in 0.. {
        assert!(turn < 300, "it never waits there");
        let value = format!("turn {turn}");
        other.client().set("/w/a", &value).await.unwrap();
        let mut lines = std::iter::from_fn(|| told.recv_timeout(Duration::from_millis(200)).ok());
        if lines.any(|line| line.contains(&value)) {
            break;
        }
    }
    signal(stopped.child.id(), "STOP");
    for event in 0..EVENTS {
        other.client().set("/w/a", &event.to_string()).await.unwrap();
    }
    signal(stopped.child.id(), "CONT");
    for event in 0..EVENTS {
        let line =
            told.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("event {event} is missing"));
        assert!(line.contains(&format!("\"value\":\"{event}\"")), "{event}: {line}");
    }
}

/// Waits in its first round; where the file is there already it is the second.
const WORKER: &str = r#"
import os, pathlib, sys, time
folder, rank, world = pathlib.Path(sys.argv[1]), os.environ["RANK"], os.environ["WORLD_SIZE"]
if (folder / "go").exists():
    print(f"again, rank {rank} of {world}", flush=True)
    sys.exit()
(folder / f"there{rank}").touch()
while not (folder / "go").exists():
    time.sleep(0.05)
if rank == "0":
    sys.exit("once")
time.sleep(1000)
"#;

/// Nodes of both kinds on two gateways, one of which is killed while they are at work. The group meets again.
fn meet_and_meet_again(backend: &str, kinds: &[bool]) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("worker.py");
    std::fs::write(&script, WORKER).unwrap();
    // As it is: without the v2 API.
    let etcd = Etcd::start(Version::V35);
    let ports = [closed_port(), closed_port()];
    let both = ports.map(|port| format!("http://127.0.0.1:{port}")).join(",");
    let mut gateways = ports.map(|port| {
        let listen = format!("127.0.0.1:{port}");
        Gateway::start(&["--listen", &listen, "--endpoint", &etcd.endpoint(), "--advertise", &both])
    });
    let launchers: Vec<Launcher> = kinds
        .iter()
        .enumerate()
        .map(|(at, is_ours)| {
            let first = &gateways[at % 2].endpoint;
            let (mut command, endpoint) = if *is_ours {
                let mut command = Command::new(RALLYPOINT);
                command.arg("run");
                (command, format!("{first},{}", gateways[(at + 1) % 2].endpoint))
            } else {
                let mut command = Command::new(torch_python());
                command.args(["-m", "torch.distributed.run"]);
                (command, first.clone())
            };
            command.args([&format!("--nnodes={}", kinds.len()), &format!("--rdzv-backend={backend}")]);
            command.args([&format!("--rdzv-endpoint={endpoint}"), "--rdzv-id=job", "--nproc-per-node=1"]);
            command.args(["--max-restarts=2", "--local-addr=127.0.0.1", "--monitor-interval=0.5"]);
            command.args([script.as_path(), folder.path()]).env("PYTHON_EXEC", torch_python());
            Launcher::spawn(command)
        })
        .collect();
    let there = |rank: usize| Path::new(folder.path()).join(format!("there{rank}")).exists();
    wait_until("all workers", || (0..kinds.len()).all(there).then_some(()));
    gateways[0].child.kill().unwrap();
    gateways[0].child.wait().unwrap();
    // Through some of their keep-alives.
    std::thread::sleep(Duration::from_secs(2));
    std::fs::write(folder.path().join("go"), "").unwrap();
    let ended: Vec<_> = launchers.into_iter().map(|launcher| launcher.ended().expect(0)).collect();
    let mut said: Vec<&str> = ended.iter().flat_map(|ended| ended.with("again, rank ")).collect();
    said = said.into_iter().map(|line| line.split_once("again, ").unwrap().1).collect();
    said.sort_unstable();
    let wanted: Vec<String> =
        (0..kinds.len()).map(|rank| format!("rank {rank} of {}", kinds.len())).collect();
    assert_eq!(said, wanted);
}

#[test]
fn torchrun_and_ours_meet_through_two_gateways_and_again_when_one_is_killed() {
    meet_and_meet_again("etcd", &[false, true]);
}

/// Takes long: `RALLYPOINT_GATEWAYS=full` asks for it.
#[test]
fn three_nodes_of_torchrun_do_on_both_backends() {
    if std::env::var("RALLYPOINT_GATEWAYS").is_ok_and(|how| how == "full") {
        meet_and_meet_again("etcd", &[false, false, false]);
        meet_and_meet_again("etcd", &[false, false, true, true]);
        meet_and_meet_again("etcd-v2", &[false, false, false]);
    }
}
