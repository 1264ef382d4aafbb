//! The commands, as their users run them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use rallypoint::{EtcdSettings, EtcdStore, Store};
use rallypoint_testkit::{Certs, Etcd, Version};

const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");
const SERVER: &str = env!("CARGO_BIN_EXE_rallypoint-server");

/// A command that serves, killed when dropped.
struct Serving {
    child: Child,
    endpoint: String,
    log: Option<BufReader<std::process::ChildStderr>>,
}

impl Serving {
    /// Starts it and reads from its log where it listens.
    fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program).args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let endpoint = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
            if let Some((_, rest)) = line.split_once("address=") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        let is_kept = args.contains(&"--data-dir");
        assert!(
            line.contains(if is_kept { "is kept in" } else { "in memory" }),
            "it says what it is: {line}"
        );
        Serving { child, endpoint, log: Some(log) }
    }

    fn signal(&self, signal: &str) -> bool {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
    }

    fn terminate(mut self) -> Option<i32> {
        assert!(self.signal("-TERM"));
        // A full pipe would keep it from ending.
        if let Some(mut log) = self.log.take() {
            std::io::copy(&mut log, &mut std::io::sink()).unwrap();
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

#[tokio::test]
async fn both_commands_serve_and_stop_in_good_order() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("made").join("here");
    let data = data.to_str().unwrap();
    for (program, args) in [
        (RALLYPOINT, &["serve", "--listen", "localhost:0"][..]),
        (SERVER, &["--listen-client-urls", "http://127.0.0.1:0", "--data-dir", data, "--enable-v2"]),
    ] {
        let serving = Serving::start(program, args);
        let settings = EtcdSettings::new(&serving.endpoint).unwrap();
        let store = EtcdStore::connect(settings, "/x").await.unwrap();
        assert_eq!(store.add(b"c", 2).await.unwrap(), 2);
        assert!(serving.signal("-HUP"));
        assert_eq!(store.add(b"c", 2).await.unwrap(), 4, "it goes on");
        let began = Instant::now();
        assert_eq!(serving.terminate(), Some(0));
        // It waits for no client that keeps its connection.
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_server_whose_log_nobody_reads_any_more_serves_and_ends_as_ever() {
    let ours = (RALLYPOINT, &["serve", "--listen", "127.0.0.1:0", "--log-level", "debug"][..]);
    let etcds = (SERVER, &["--listen-client-urls", "http://127.0.0.1:0", "--log-level", "debug"][..]);
    for (program, args) in [ours, etcds] {
        let mut serving = Serving::start(program, args);
        serving.log = None;
        // What it is asked for it would log, and so the signals.
        let asked = run(RALLYPOINT, &["status", "--endpoint", &serving.endpoint]);
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        assert!(serving.signal("-HUP"));
        assert_eq!(serving.terminate(), Some(0), "{program}");
    }
}

/// The other end of the pipe is there and takes nothing.
#[tokio::test]
async fn a_server_whose_log_is_full_serves_and_counts_the_lines_that_it_drops() {
    let ours = ["serve", "--listen", "127.0.0.1:0", "--log-level", "trace"];
    full_log(Serving::start(RALLYPOINT, &ours)).await;
    // One of several that takes nothing does not keep the others from it.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let outputs = format!("stderr,{}", file.display());
    let etcds = ["--listen-client-urls", "http://127.0.0.1:0", "--debug", "--log-outputs", &outputs];
    full_log(Serving::start(SERVER, &etcds)).await;
    let log = std::fs::read_to_string(file).unwrap();
    assert!(log.lines().count() > 1_000 && log.contains("stopping"), "{} lines", log.lines().count());
}

/// Asks a server for more than a pipe has room for in its log, and reads that only after.
async fn full_log(mut serving: Serving) {
    let store = EtcdStore::connect(EtcdSettings::new(&serving.endpoint).unwrap(), "/x").await.unwrap();
    for expected in 1..=300 {
        let added = tokio::time::timeout(Duration::from_secs(20), store.add(b"c", 1)).await;
        assert_eq!(added.expect("it does not wait for its log").unwrap(), expected);
    }
    drop(store);
    let mut log = serving.log.take().unwrap();
    // Room again, and something to say.
    let read = log.fill_buf().unwrap().len();
    log.consume(read);
    assert!(serving.signal("-TERM"));
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut log, &mut rest).unwrap();
    assert!(rest.contains("lines of the log are missing here: nobody read them"), "{rest}");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_served_is_one_line_and_an_exit_code() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let url = format!("http://{address}");
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, foreign, etcds, empty) = (at("file"), at("foreign"), at("etcds"), at("empty"));
    for made in [&foreign, &etcds, &empty] {
        std::fs::create_dir(made).unwrap();
    }
    std::fs::create_dir(Path::new(&etcds).join("member")).unwrap();
    for made in [&file, &format!("{foreign}/other"), &format!("{empty}/rallypoint.redb")] {
        std::fs::write(made, "").unwrap();
    }
    let below = format!("{file}/below");
    let keep = |folder| ["serve", "--listen", "127.0.0.1:0", "--data-dir", folder];
    for (program, args, code, word) in [
        (RALLYPOINT, &keep(&file)[..], 1, "file is not a folder: name a folder"),
        (RALLYPOINT, &keep(&below), 1, "below: Not a directory"),
        (RALLYPOINT, &keep(&foreign), 1, "foreign has files of something else (other): name an empty folder"),
        (RALLYPOINT, &keep(&etcds), 1, "has the data of an etcd (member): name an empty folder"),
        (RALLYPOINT, &keep(&empty), 1, "has data that cannot be read (it is damaged: "),
        (SERVER, &["--listen-client-urls", "http://127.0.0.1:0", "--data-dir", "/proc/no"], 1, "/proc/no"),
        (RALLYPOINT, &["serve", "--listen", &address][..], 1, address.as_str()),
        (SERVER, &["--listen-client-urls", &url], 1, &address),
        (
            RALLYPOINT,
            &["serve", "--listen", "127.0.0.1"],
            2,
            "'--listen <ADDRESS:PORT>': the port is missing; it has the form 127.0.0.1:2379",
        ),
        (RALLYPOINT, &["serve", "--listen", "localhost:http"], 2, "; it has the form 127.0.0.1:2379"),
        (RALLYPOINT, &["serve", "--lisen", "127.0.0.1:1"], 2, "--listen"),
        (RALLYPOINT, &["serve", "--cert", "a.pem"], 2, "--key"),
        (
            RALLYPOINT,
            &["serve", "--listen", "127.0.0.1:0", "--cert", "no.pem", "--key", "no.key"],
            1,
            "no.pem",
        ),
        (RALLYPOINT, &["serve", "--log-level", "lo=ud=er"], 2, "log level"),
        (RALLYPOINT, &["server"], 2, "serve"),
        (SERVER, &["--no-such-flag"], 2, "--no-such-flag"),
    ] {
        let output = run(program, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(word), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

/// What listens there says this to whoever comes.
fn stranger(banner: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut here = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(banner);
            here.push(stream);
        }
    });
    endpoint
}

#[test]
fn a_mistake_is_told_with_the_next_step() {
    let ssh = stranger(b"SSH-2.0-OpenSSH_9.2\r\n");
    let web = stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let etcd = Etcd::start(Version::V35);
    let v2 = ["run", "--rdzv-backend", "etcd", "--nnodes", "2", "--rdzv-id", "j", "--rdzv-endpoint"];
    let endpoint = etcd.endpoint();
    let v2 = [&v2[..], &[&endpoint, "true"]].concat();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["train.py"], 2, "write rallypoint run train.py"),
        (&["--nproc-per-node", "2", "train.py"], 2, "write rallypoint run --nproc-per-node"),
        (&["run", "--bogus", "train.py"], 2, "those of the program itself go after its name"),
        (&["run", "--nnode", "2", "train.py"], 2, "--nnodes"),
        (&["run", "--master-port", "99999", "train.py"], 2, "the number of a port, at most 65535"),
        (&["status", "--endpoint", &ssh], 4, "does not speak plain etcd: if it uses TLS give --cacert FILE"),
        // A file that is there, and is no certificate.
        (
            &["status", "--endpoint", &endpoint, "--cacert", "Cargo.toml"],
            2,
            "Cargo.toml: no certificate in it",
        ),
        (&["status", "--endpoint", &web], 4, "does not speak plain etcd"),
        (&["close"], 2, "name the run and a reason: rallypoint close RUN --reason TEXT --endpoint HOST:PORT"),
        (&["status", "job", "--filter", "sate=spare"], 2, "did you mean state=spare?"),
        (
            &["run", "--standalone", "--rdzv-conf", "last_call_timeout=ten", "true"],
            2,
            "takes seconds, as in 10",
        ),
        (&["serve", "--listen", &web], 1, "or choose another --listen"),
        (
            &["serve", "--log-level", "error", "--listen", "127.0.0.1:0", "--dashboard", &web],
            1,
            "or choose another --dashboard",
        ),
        (&["dashboard", "--endpoint", &endpoint, "--listen", &web], 1, "or choose another --listen"),
        (&v2, 4, "leave the option out on all nodes, which then meet on the v3 API"),
    ];
    for (args, code, word) in cases {
        let output = run(RALLYPOINT, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {text}");
        assert!(text.lines().count() == 1 && text.contains(word), "{args:?}: {text}");
        assert!(!text.contains("frame") && !text.contains("check --rdzv-endpoint"), "{text}");
    }
}

/// As in etcd, to name the authority of clients is enough.
#[tokio::test]
async fn etcds_tls_flags_turn_clients_without_a_certificate_away() {
    let certs = Certs::generate();
    let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let (cert, key) = (file("cert-file", certs.server_cert()), file("key-file", certs.server_key()));
    let authority = file("trusted-ca-file", certs.ca());
    let serving =
        Serving::start(SERVER, &["--listen-client-urls=https://127.0.0.1:0", &cert, &key, &authority]);
    let url = format!("https://{}", serving.endpoint);
    let pem = |path| std::fs::read(path).unwrap();
    let stranger = TlsOptions::new().ca_certificate(Certificate::from_pem(pem(certs.ca())));
    let known = Identity::from_pem(pem(certs.client_cert()), pem(certs.client_key()));
    let put = async |tls: TlsOptions| {
        let options = ConnectOptions::new().with_tls(tls).with_timeout(Duration::from_secs(20));
        Client::connect([&url], Some(options)).await?.put("a", "1", None).await
    };
    put(stranger.clone()).await.unwrap_err();
    put(stranger.identity(known)).await.unwrap();
}

#[test]
fn the_log_goes_where_etcds_flag_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let outputs = format!("stderr,{}", file.display());
    let args = ["--listen-client-urls", "http://127.0.0.1:0", "--log-outputs", &outputs, "--wal-dir", "x"];
    let serving = Serving::start(SERVER, &args);
    assert_eq!(serving.terminate(), Some(0));
    let log = std::fs::read_to_string(file).unwrap();
    assert!(log.contains("--wal-dir has no meaning") && log.contains("in memory"), "{log}");
    assert!(log.contains("stopping") && !log.contains('\u{1b}'), "{log}");
    let output = run(SERVER, &["--log-outputs", "/no/such/folder/log"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("cannot log to /no/such/folder/log"), "{text}");
}

#[test]
fn every_flag_of_etcd_is_known() {
    let mut checked = 0;
    for version in Version::WITH_V2 {
        let help = Command::new(version.binary()).arg("--help").output().unwrap();
        let help = String::from_utf8([help.stdout, help.stderr].concat()).unwrap();
        for line in help.lines().filter_map(|line| line.strip_prefix("  --")) {
            let mut words = line.split_whitespace();
            let flag = words.next().unwrap();
            // A switch shows its default as a word; the others take a value. Of one that shows none we cannot tell.
            // Help ends the command before it serves.
            let flag = format!("--{flag}");
            let alone = vec![flag.clone()];
            let with_value = vec![flag.clone(), "1".to_owned()];
            let kinds = match words.next() {
                Some("'true'" | "'false'") => vec![alone],
                Some(_) => vec![with_value],
                None => vec![alone, with_value],
            };
            let outputs =
                kinds.iter().map(|args| Command::new(SERVER).args(args).arg("--help").output().unwrap());
            let refused: Vec<_> = outputs.filter(|output| !output.status.success()).collect();
            assert!(refused.len() < kinds.len(), "{flag} of etcd {version}: {refused:?}");
            checked += 1;
        }
    }
    assert!(checked > 100, "the help was understood: {checked}");
}

#[test]
fn help_version_and_completions_are_there() {
    for (args, word) in [
        (&["--help"][..], "serve"),
        (&["serve", "--help"], "RALLYPOINT_LISTEN"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["completions", "bash"], "complete -F"),
        (&["--version"], "compiler   rustc"),
        (&["run", "--help"], "Exit codes:"),
        (&["run", "--help"], "PET_NPROC_PER_NODE"),
        (&["run", "--help"], "- lease_timeout: seconds without news"),
        (&["completions", "zsh"], "#compdef rallypoint"),
        (&["completions", "fish"], "nproc-per-node"),
        (&["man"], ".TH rallypoint 1"),
        (&["man", "run"], ".TH rallypoint-run 1"),
        (&["man", "run"], ".br\n\\- join_timeout: "),
    ] {
        let output = run(RALLYPOINT, args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(word), "{args:?}: {text}");
    }
}

#[test]
fn settings_come_from_the_environment_too() {
    let mut command = Command::new(RALLYPOINT);
    command.arg("serve").env("RALLYPOINT_LISTEN", "nonsense");
    let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(text.contains("nonsense"), "{text}");
    let mut command = Command::new(SERVER);
    command.env("ETCD_LISTEN_CLIENT_URLS", "nonsense");
    let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(text.contains("nonsense"), "{text}");
}

#[test]
fn pytorchs_own_etcd_server_class_starts_ours() {
    const SCRIPT: &str = r#"
import os, sys
os.environ["TORCHELASTIC_ETCD_BINARY_PATH"] = sys.argv[1]
from torch.distributed.elastic.rendezvous.etcd_server import EtcdServer
server = EtcdServer()
server.start(timeout=30, num_retries=1)
client = server.get_client()
client.write("/a/b", "1")
print(client.read("/a/b").value, client.leader["name"])
server.stop()
"#;
    let output = rallypoint_testkit::run_python(SCRIPT, &[SERVER]);
    assert_eq!(output.trim(), "1 default");
}

/// Two agents of unmodified torchrun, with a script that meets over gloo.
#[test]
fn unmodified_torchrun_meets_on_it_with_both_etcd_backends() {
    const WORKER: &str = r#"
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"sum {total.item()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"#;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("worker.py");
    std::fs::write(&script, WORKER).unwrap();
    let serving = Serving::start(RALLYPOINT, &["serve", "--listen", "127.0.0.1:0"]);
    for backend in ["etcd", "etcd-v2"] {
        let agents: Vec<Child> = (0..2)
            .map(|_| {
                Command::new(rallypoint_testkit::torch_python())
                    .args([
                        "-m",
                        "torch.distributed.run",
                        "--nnodes=2",
                        "--nproc-per-node=1",
                        "--max-restarts=0",
                    ])
                    .args([
                        format!("--rdzv-backend={backend}"),
                        format!("--rdzv-endpoint={}", serving.endpoint),
                    ])
                    .args([format!("--rdzv-id={backend}"), "--local-addr=127.0.0.1".to_owned()])
                    .arg(&script)
                    .env("OMP_NUM_THREADS", "1")
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for agent in agents {
            let output = agent.wait_with_output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{backend}: {out}{err}");
            assert!(out.contains("sum 3 of 2"), "{backend}: {out}{err}");
        }
    }
}

/// Also where the first is the other command.
#[test]
fn a_second_server_on_a_folder_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let ours = (RALLYPOINT, ["serve", "--listen", "127.0.0.1:0", "--data-dir", data]);
    let url = "http://127.0.0.1:0";
    let etcds = (SERVER, ["--listen-client-urls", url, "--data-dir", data, "--enable-v2"]);
    for (first, second) in [(ours, etcds), (etcds, ours), (ours, ours)] {
        let serving = Serving::start(first.0, &first.1);
        let refused = run(second.0, &second.1);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(data) && said.contains("another server"), "{said}");
        let asked = run(RALLYPOINT, &["status", "--endpoint", &serving.endpoint]);
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        assert_eq!(serving.terminate(), Some(0));
    }
}
