//! `EtcdServer`: a real etcd as a child where there is one, the embedded server where there is none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_etcd::v2;
use rallypoint_server::{BINARY_VARIABLE, EtcdServer, EtcdServerError, EtcdServerOptions};
use rallypoint_testkit::Version;

fn options(binary: impl Into<PathBuf>) -> EtcdServerOptions {
    let mut options = EtcdServerOptions::default();
    options.binary = Some(binary.into());
    options
}

/// A program of its own, made from a shell script.
fn script(folder: &Path, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("etcd");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn listens(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// The folders that servers of this process have made and not removed.
fn folders(process: u32) -> usize {
    let made = format!("rallypoint-etcd-{process}-");
    let all = std::fs::read_dir(std::env::temp_dir()).unwrap();
    all.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&made)).count()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_etcd_serves_both_protocols_and_is_gone_when_stopped() {
    for version in Version::WITH_V2 {
        let server = EtcdServer::start(options(version.binary())).await.unwrap();
        assert!(!server.is_embedded());
        assert_eq!(server.endpoint(), format!("{}:{}", server.host(), server.port()));
        server.client().await.unwrap().put("a", "1", None).await.unwrap();
        let v2 = server.client_v2().await.unwrap();
        v2.set("/a", "2").await.unwrap();
        assert_eq!(v2.get("/a", v2::Get::new()).await.unwrap().node.value.unwrap(), "2");
        let port = server.port();
        server.stop().await;
        assert!(!listens(port), "it is gone on return");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_server_ends_with_its_folder() {
    let server = EtcdServer::start(options(Version::V35.binary())).await.unwrap();
    let port = server.port();
    drop(server);
    eventually("the port is free", || !listens(port)).await;
    eventually("the folder is gone", || folders(std::process::id()) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_of_the_callers_stays_and_a_later_start_goes_on_from_it() {
    for version in [Version::V34, Version::V35] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(version.binary());
        options.data_dir = Some(folder.path().join("made"));
        let server = EtcdServer::start(options.clone()).await.unwrap();
        server.client().await.unwrap().put("a", "1", None).await.unwrap();
        server.stop().await;
        let server = EtcdServer::start(options).await.unwrap();
        let found = server.client().await.unwrap().get("a", None).await.unwrap();
        assert_eq!(found.kvs().len(), 1, "{version:?}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_try_is_on_the_same_data() {
    let folder = tempfile::tempdir().unwrap();
    let tries = folder.path().join("tries");
    let fails = format!("[ \"$1\" = --help ] && exit 0\necho \"$2\" >> {}\nexit 7", tries.display());
    let mut options = options(script(folder.path(), &fails));
    options.data_dir = Some(folder.path().join("data"));
    EtcdServer::start(options).await.unwrap_err();
    let tries = std::fs::read_to_string(&tries).unwrap();
    let tries: Vec<&str> = tries.lines().collect();
    assert_eq!(tries.len(), 3, "{tries:?}");
    assert!(tries.iter().all(|folder| *folder == tries[0]), "{tries:?}");
}

/// What is in it may be nobody else's business.
#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_folder_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let tells = format!(
        "[ \"$1\" = --help ] && exit 0\nstat -c %a \"$(dirname \"$2\")\" > {}\nexit 7",
        said.display()
    );
    let mut options = options(script(folder.path(), &tells));
    options.tries = 1;
    EtcdServer::start(options.clone()).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "700\n");
    options.data_dir = Some(folder.path().join("data"));
    EtcdServer::start(options).await.unwrap_err();
    let made = std::fs::metadata(folder.path().join("data")).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o700);
}

/// Set in a process that finds no etcd, to a folder.
const WITHOUT: &str = "RALLYPOINT_MANAGED_WITHOUT";

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_etcd_the_data_is_kept_in_its_folder_all_the_same() {
    if let Some(data_dir) = std::env::var_os(WITHOUT) {
        let mut options = EtcdServerOptions::default();
        options.data_dir = Some(data_dir.into());
        let server = EtcdServer::start(options).await.unwrap();
        assert!(server.is_embedded());
        let client = server.client().await.unwrap();
        println!("found {}", client.get("a", None).await.unwrap().kvs().len());
        client.put("a", "1", None).await.unwrap();
        return server.stop().await;
    }
    let folder = tempfile::tempdir().unwrap();
    for found in ["found 0", "found 1"] {
        let name = "where_there_is_no_etcd_the_data_is_kept_in_its_folder_all_the_same";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(WITHOUT, folder.path().join("data"));
        let output = command.env_remove(BINARY_VARIABLE).env("PATH", folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(found), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_etcd_the_embedded_server_has_the_same_face() {
    let server = EtcdServer::start_embedded().unwrap();
    assert!(server.is_embedded());
    server.client().await.unwrap().put("a", "1", None).await.unwrap();
    server.client_v2().await.unwrap().set("/a", "2").await.unwrap();
    let port = server.port();
    server.stop().await;
    assert!(!listens(port));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_fails_is_tried_three_times_and_its_last_words_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let fails = format!(
        "[ \"$1\" = --help ] && exit 0\necho x >> {}\necho 'disk on fire' >&2\nexit 7",
        count.display()
    );
    let error = EtcdServer::start(options(script(folder.path(), &fails))).await.unwrap_err();
    assert!(matches!(error, EtcdServerError::Ended { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("disk on fire") && text.contains("status: 7") && text.contains("etcd"), "{text}");
    assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_never_answers_is_given_up_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let hangs = format!(
        "[ \"$1\" = --help ] && exit 0\necho $$ > {}\necho 'still thinking'\nexec sleep 600",
        pid.display()
    );
    let mut slow = options(script(folder.path(), &hangs));
    // Long enough to say so on a busy machine.
    (slow.timeout, slow.tries) = (Duration::from_secs(5), 1);
    let error = EtcdServer::start(slow).await.unwrap_err();
    assert!(matches!(error, EtcdServerError::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("still thinking"), "{error}");
    let pid = std::fs::read_to_string(&pid).unwrap();
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "it does not go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_none_is_named() {
    let mut options = options("/no/such/etcd");
    options.tries = 1;
    let error = EtcdServer::start(options).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/etcd"), "{error}");
}

/// Set in a process that starts what it finds.
const FINDER: &str = "RALLYPOINT_MANAGED_FINDER";

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_is_looked_for_by_its_variable_beside_the_program_and_on_the_path() {
    if std::env::var_os(FINDER).is_some() {
        let server = EtcdServer::start(EtcdServerOptions::default()).await.unwrap();
        let version = server.client_v2().await.unwrap().version().await.unwrap().server;
        println!("found {} {}", server.is_embedded(), version);
        server.stop().await;
        return assert_eq!(folders(std::process::id()), 0);
    }
    // A program of its own, with room for a folder beside it.
    let here = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
    let program = folder.path().join("program");
    std::fs::hard_link(&here, &program).unwrap();
    let find = |named: Option<PathBuf>, path: &Path| {
        let mut command = Command::new(&program);
        let name = "an_etcd_is_looked_for_by_its_variable_beside_the_program_and_on_the_path";
        command.args([name, "--exact", "--nocapture"]).env(FINDER, "1");
        command.env_remove(BINARY_VARIABLE).env("PATH", path);
        command.envs(named.map(|named| (BINARY_VARIABLE, named)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output = String::from_utf8(output.stdout).unwrap();
        let found =
            output.lines().find_map(|line| line.split_once("found ")).unwrap_or_else(|| panic!("{output}"));
        found.1.to_owned()
    };
    let (empty, on_path, beside) =
        (folder.path().join("empty"), folder.path().join("path"), folder.path().join("bin"));
    assert!(find(None, &empty).starts_with("true "), "nothing is found");
    std::fs::create_dir(&on_path).unwrap();
    std::os::unix::fs::symlink(Version::V34.binary(), on_path.join("etcd")).unwrap();
    assert!(find(None, &on_path).starts_with("false 3.4."), "the path's");
    std::fs::create_dir(&beside).unwrap();
    std::os::unix::fs::symlink(Version::V35.binary(), beside.join("etcd")).unwrap();
    assert!(find(None, &on_path).starts_with("false 3.5."), "the one beside the program");
    assert!(find(Some(Version::V34.binary()), &on_path).starts_with("false 3.4."), "the one that is named");
    assert!(
        find(Some("/no/such/etcd".into()), &empty).starts_with("false 3.5."),
        "a wrong name is passed over"
    );
}

/// Set in the process that is started only to be killed.
const VICTIM: &str = "RALLYPOINT_MANAGED_VICTIM";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_the_process_that_started_it_even_if_that_is_killed() {
    if std::env::var_os(VICTIM).is_some() {
        let server = EtcdServer::start(options(Version::V35.binary())).await.unwrap();
        println!("port {}", server.port());
        std::future::pending::<()>().await;
    }
    let name = "a_server_ends_with_the_process_that_started_it_even_if_that_is_killed";
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(victim.stdout.take().unwrap());
    let port: u16 = std::io::BufRead::lines(output)
        .map_while(Result::ok)
        .find_map(|line| line.split_once("port ")?.1.trim().parse().ok())
        .unwrap();
    assert!(listens(port));
    assert_eq!(folders(victim.id()), 1);
    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually("the server ends", || !listens(port)).await;
    eventually("its folder goes with it", || folders(victim.id()) == 0).await;
}
