//! Who gets in: users, tokens and certificates, and the server that a node starts for them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use etcd_client::{Client, ConnectOptions};
use rallypoint_testkit::{Certs, refused_endpoint as free_endpoint};

use crate::launcher::{Ended, Launcher, RALLYPOINT, heeding};

const TOKEN: &str = "correct horse battery staple";
const WRONG: &str = "a token of somebody else";
const CONF: &str = "last_call_timeout=1,lease_timeout=2";

/// A node of a run of two.
fn node(endpoint: &str, more: &[&str], variables: &[(&str, &str)]) -> Launcher {
    let args = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf", CONF];
    Launcher::start_with(&[&args[..], more].concat(), |command| {
        command.envs(variables.iter().copied());
    })
}

/// A command of an operator, or one that serves.
fn command(args: &[&str], variables: &[(&str, &str)]) -> Launcher {
    let mut command = heeding(RALLYPOINT);
    command.args(args).envs(variables.iter().copied());
    Launcher::spawn(command)
}

fn operate(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    command(args, variables).ended()
}

/// `rallypoint serve` at a free port, and where it is.
fn serve(more: &[&str], variables: &[(&str, &str)]) -> (Launcher, String) {
    let mut server = command(&[&["serve", "--listen", "127.0.0.1:0"], more].concat(), variables);
    let line = server.wait_for("address=");
    let endpoint = line.split_once("address=").unwrap().1.split_whitespace().next().unwrap().to_owned();
    (server, endpoint)
}

fn file_with(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, format!("{text}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The status of an answer over HTTP.
fn asked(endpoint: &str, request: &str, headers: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(endpoint).unwrap();
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_user_means_a_server_that_is_there_and_none_is_started() {
    let endpoint = free_endpoint();
    let more = ["--user", "root", "--connect-timeout", "1", "true"];
    let ended = node(&endpoint, &more, &[("RALLYPOINT_PASSWORD", "secret")]).ended().expect(4);
    assert!(ended.with("embedded server").is_empty(), "{}", ended.text());
    // The same in torchrun's words.
    let args = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--connect-timeout", "1"];
    let conf = ["--rdzv-conf", "user=root,password=secret", "true"];
    let ended = Launcher::run(&[&args[..], &conf].concat()).expect(4);
    assert!(ended.with("embedded server").is_empty(), "{}", ended.text());
}

#[test]
fn a_token_in_torchruns_words_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let conf = format!("last_call_timeout=0,token_file={}", file_with(folder.path(), "token", TOKEN));
    let endpoint = free_endpoint();
    let args = ["--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
    let mut node = Launcher::start(&[&args[..], &["--", "sh", "-c", "echo ready; sleep 600"]].concat());
    node.wait_for("ready");
    operate(&["status", "--endpoint", &endpoint], &[]).expect(4);
    operate(&["status", "--endpoint", &endpoint], &[("RALLYPOINT_TOKEN", TOKEN)]).expect(0);
    let standalone = ["--standalone", "--rdzv-conf", &conf, "true"];
    Launcher::run(&standalone).expect(0);
}

#[test]
fn workers_find_no_secret_in_their_environment() {
    let secrets = [
        ("RALLYPOINT_PASSWORD", "secret of the user"),
        ("RALLYPOINT_TOKEN", "secret of the nodes"),
        ("PET_RDZV_CONF", "about=secret of all nodes"),
    ];
    let args = ["--standalone", "--nproc-per-node", "2", "--", "env"];
    let ended = Launcher::start_with(&args, |command| {
        command.envs(secrets);
    });
    let ended = ended.ended().expect(0);
    assert_eq!(ended.with("LOCAL_RANK=").len(), 2, "{}", ended.text());
    assert!(ended.with("secret of").is_empty(), "{}", ended.text());
}

/// What a client of etcd without the token, or with another one, is told: on v3, in JSON and on v2.
async fn strangers_are_turned_away(endpoint: &str) {
    let mut nobody = Client::connect([endpoint], None).await.unwrap();
    let refused = nobody.get("", Some(etcd_client::GetOptions::new().with_all_keys())).await.unwrap_err();
    assert!(refused.to_string().contains("user name is empty"), "{refused}");
    let refused = nobody.put("key", "value", None).await.unwrap_err();
    assert!(refused.to_string().contains("user name is empty"), "{refused}");
    assert!(nobody.lease_grant(10, None).await.is_err());
    let options = ConnectOptions::new().with_user("root", WRONG);
    let Err(refused) = Client::connect([endpoint], Some(options)).await else { panic!("it is let in") };
    assert!(refused.to_string().contains("authentication failed"), "{refused}");

    assert_eq!(asked(endpoint, "POST /v3/kv/range", "", r#"{"key": "AA==", "range_end": "AA=="}"#), 400);
    let wrong = "authorization: nonsense\r\n";
    assert_eq!(asked(endpoint, "POST /v3/kv/range", wrong, r#"{"key": "AA==", "range_end": "AA=="}"#), 401);
    assert_eq!(asked(endpoint, "GET /v2/keys/", "", ""), 401);
    assert_eq!(asked(endpoint, "PUT /v2/keys/a?value=1", "authorization: Basic cm9vdDpyb290\r\n", ""), 401);

    let options = ConnectOptions::new().with_user("root", TOKEN);
    let mut known = Client::connect([endpoint], Some(options)).await.unwrap();
    known.put("key", "value", None).await.unwrap();
    let right = "authorization: Basic cm9vdDpjb3JyZWN0IGhvcnNlIGJhdHRlcnkgc3RhcGxl\r\n";
    assert_eq!(asked(endpoint, "GET /v2/keys/", right, ""), 200);
    assert_eq!(asked(endpoint, "GET /health", "", ""), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_a_token_meet_on_a_server_that_turns_all_others_away() {
    let folder = tempfile::tempdir().unwrap();
    let (file, stop) = (file_with(folder.path(), "token", TOKEN), folder.path().join("stop"));
    let endpoint = free_endpoint();
    let script = format!("echo $WORLD_SIZE are here; while [ ! -e {} ]; do sleep 0.1; done", stop.display());
    let program = ["--", "sh", "-c", &script];
    let mut first = node(&endpoint, &[&["--token-file", &file], &program[..]].concat(), &[]);
    first.wait_for("starts the embedded server");
    let mut second = node(&endpoint, &program, &[("RALLYPOINT_TOKEN", TOKEN)]);
    first.wait_for("2 are here");
    second.wait_for("2 are here");

    strangers_are_turned_away(&endpoint).await;
    let ended = node(&endpoint, &["true"], &[]).ended().expect(4);
    let last = ended.lines.last().unwrap();
    assert!(last.contains("this server asks for a token or a password: give --token-file FILE"), "{last}");
    assert!(!last.contains("user name is empty"), "{last}");
    let ended = node(&endpoint, &["true"], &[("RALLYPOINT_TOKEN", WRONG)]).ended().expect(4);
    assert!(ended.lines.last().unwrap().contains("authentication failed"), "{}", ended.text());
    assert!(!ended.text().contains(WRONG), "{}", ended.text());

    let operators: [&[&str]; 4] = [&["status"], &["events", "job"], &["stacks", "job"], &["excluded", "job"]];
    for operator in operators {
        let args = [operator, &["--endpoint", &endpoint]].concat();
        let ended = operate(&args, &[]).expect(4);
        assert!(ended.text().contains("--token-file"), "{}", ended.text());
        let ended = operate(&[&args[..], &["--token-file", &file]].concat(), &[]);
        assert_eq!(ended.code, Some(0), "{operator:?}: {}", ended.text());
    }
    std::fs::write(&stop, "").unwrap();
    for node in [first, second] {
        let ended = node.ended().expect(0);
        assert!(!ended.text().contains(TOKEN), "{}", ended.text());
    }
}

#[test]
fn a_node_with_a_token_keeps_away_from_a_server_that_is_open() {
    let (_server, endpoint) = serve(&[], &[]);
    let ended = node(&endpoint, &["true"], &[("RALLYPOINT_TOKEN", TOKEN)]).ended().expect(4);
    let last = ended.lines.last().unwrap();
    assert!(last.contains("is open to all") && last.contains("start it with the token"), "{last}");
    let ended = operate(&["status", "--endpoint", &endpoint], &[("RALLYPOINT_TOKEN", TOKEN)]).expect(4);
    assert!(ended.text().contains("is open to all"), "{}", ended.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_serves_asks_for_its_token_also_when_it_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = file_with(folder.path(), "token", TOKEN);
    let data = folder.path().join("data");
    let data = ["--data-dir", data.to_str().unwrap()];
    let (server, endpoint) = serve(&[&data[..], &["--token-file", &file]].concat(), &[]);
    strangers_are_turned_away(&endpoint).await;
    drop(server);
    // What was asked for once is not left open by an oversight.
    let (server, endpoint) = serve(&data, &[]);
    strangers_are_turned_away(&endpoint).await;
    drop(server);
    // Another token takes the place of the first.
    let (_server, endpoint) = serve(&data, &[("RALLYPOINT_TOKEN", WRONG)]);
    let shown = |token| Some(ConnectOptions::new().with_user("root", token));
    assert!(Client::connect([&endpoint], shown(TOKEN)).await.is_err());
    let mut known = Client::connect([&endpoint], shown(WRONG)).await.unwrap();
    assert_eq!(known.get("key", None).await.unwrap().kvs().len(), 1);
}

#[test]
fn what_is_no_token_is_refused_without_being_shown() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = free_endpoint();
    for (text, why) in [("hunter2", "which can be guessed"), ("", "is empty")] {
        let file = file_with(folder.path(), "token", text);
        for args in [
            &["serve", "--listen", "127.0.0.1:0", "--token-file", &file][..],
            &["status", "--endpoint", &endpoint, "--token-file", &file],
            &[
                "run",
                "--nnodes",
                "2",
                "--rdzv-id",
                "job",
                "--rdzv-endpoint",
                &endpoint,
                "--token-file",
                &file,
                "true",
            ],
        ] {
            let ended = operate(args, &[]).expect(2);
            assert!(ended.text().contains(why) && !ended.text().contains("hunter2"), "{}", ended.text());
        }
    }
    let user = [("RALLYPOINT_TOKEN", TOKEN), ("RALLYPOINT_PASSWORD", "secret")];
    let ended = operate(&["status", "--endpoint", &endpoint, "--user", "root"], &user).expect(2);
    assert!(ended.text().contains("a token and a user"), "{}", ended.text());
    let ended = node(&endpoint, &["--rdzv-backend", "etcd", "true"], &user[..1]).ended();
    assert!(ended.expect(2).text().contains("Rallypoint's own backend"));
}

#[test]
fn a_server_that_others_reach_and_that_asks_for_nobody_says_so_in_one_line() {
    const OPEN: &str = "can read and change all that is in it";
    let folder = tempfile::tempdir().unwrap();
    let file = file_with(folder.path(), "token", TOKEN);
    let certs = Certs::generate();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (path(certs.server_cert()), path(certs.server_key()), path(certs.ca()));
    let tls = ["--cert", &cert, "--key", &key, "--client-ca", &ca];
    for (listen, more, warns) in [
        ("0.0.0.0:0", &[][..], true),
        ("0.0.0.0:0", &tls[..4], true),
        ("127.0.0.1:0", &[], false),
        ("0.0.0.0:0", &["--token-file", &file], false),
        ("0.0.0.0:0", &tls, false),
    ] {
        let mut server = command(&[&["serve", "--listen", listen], more].concat(), &[]);
        server.wait_for("address=");
        server.signal("TERM");
        let said = server.ended().expect(0);
        assert_eq!(said.with(OPEN).len(), usize::from(warns), "{listen} {more:?}: {}", said.text());
        assert!(!warns || said.text().contains("RALLYPOINT_TOKEN"), "{}", said.text());
    }
    // Of a node whose name is nobody's yet.
    let port = free_endpoint().rsplit_once(':').unwrap().1.to_owned();
    let args =
        ["--nnodes", "2", "--node-rank", "0", "--master-addr", "nobody.invalid", "--master-port", &port];
    let args = [&args[..], &["--rdzv-conf", CONF, "true"]].concat();
    for (variables, warns) in [(&[][..], true), (&[("RALLYPOINT_TOKEN", TOKEN)], false)] {
        let mut node = Launcher::start_with(&args, |command| {
            command.envs(variables.iter().copied());
        });
        node.wait_for("on all its addresses");
        node.wait_for("1 of 2");
        node.signal("TERM");
        let said = node.ended();
        assert_eq!(said.with(OPEN).len(), usize::from(warns), "{}", said.text());
    }
}

#[test]
fn nodes_with_certificates_meet_on_a_server_that_asks_for_one() {
    let certs = Certs::generate();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, cert, key) = (path(certs.ca()), path(certs.server_cert()), path(certs.server_key()));
    let endpoint = free_endpoint();
    let tls = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let script = "echo $WORLD_SIZE are here; sleep 600";
    let program = [&tls[..], &["--", "sh", "-c", script]].concat();
    let mut first = node(&endpoint, &program, &[]);
    first.wait_for("starts the embedded server");
    let mut second = node(&endpoint, &program, &[]);
    first.wait_for("2 are here");
    second.wait_for("2 are here");
    // With trust in the server alone, or without TLS.
    for args in [&tls[..2], &[]] {
        let ended = operate(&[&["status", "--endpoint", &endpoint], args].concat(), &[]).expect(4);
        assert_eq!(ended.lines.len(), 1, "{}", ended.text());
    }
    let close = ["close", "job", "--reason", "enough", "--endpoint", &endpoint];
    operate(&[&close[..], &tls[..]].concat(), &[]).expect(0);
    first.ended().expect(5);
    second.ended().expect(5);
    // Who has only trust serves nothing.
    let more = [&tls[..2], &["--connect-timeout", "1", "true"]].concat();
    let ended = node(&free_endpoint(), &more, &[]).ended().expect(4);
    assert!(ended.with("embedded server").is_empty(), "{}", ended.text());
}
