//! A disk that is full: nothing more is taken in, all else goes on, and it heals.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, DeleteOptions, GetOptions, PutOptions, WatchOptions};

use crate::serving::{Serving, v2};

/// A small disk of its own, gone when this is dropped.
struct Disk {
    /// What keeps it.
    holder: Child,
    folder: tempfile::TempDir,
}

impl Disk {
    fn new(megabytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("mount -t tmpfs -o size={megabytes}m none \"$0\" && echo mounted && read end");
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "mounted\n");
        Disk { holder, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A program that sees it.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--preserve-credentials", "--mount", "--target"]);
        command.args([&self.holder.id().to_string(), "--", program]);
        command
    }

    fn serve(&self) -> Serving {
        Serving::start_as(self.command(crate::serving::RALLYPOINT), &self.path().join("data"))
    }

    fn shell(&self, script: &str) {
        assert!(self.command("sh").args(["-c", script]).arg(self.path()).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn is_full(error: &etcd_client::Error) -> bool {
    error.to_string().contains("etcdserver: mvcc: database space exceeded")
}

/// Puts of new keys until the disk is full; how many were taken.
async fn fill(client: &mut Client) -> usize {
    for number in 0.. {
        if let Err(error) = client.put(format!("fill/{number:04}"), vec![b'x'; 64 << 10], None).await {
            assert!(is_full(&error), "{error}");
            return number;
        }
    }
    unreachable!("a disk is full some day")
}

async fn until_put(client: &mut Client, key: &str) {
    let began = Instant::now();
    while let Err(error) = client.put(key, "again", None).await {
        assert!(is_full(&error), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "it does not heal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn count(client: &mut Client, prefix: &str) -> i64 {
    let options = GetOptions::new().with_prefix().with_count_only();
    client.get(prefix, Some(options)).await.unwrap().count()
}

fn health(serving: &Serving) -> String {
    let port = serving.endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    rallypoint_testkit::http_get(port, "/health", Duration::from_secs(10)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_what_is_new_and_heals() {
    let disk = Disk::new(32);
    let serving = disk.serve();
    let mut client = serving.client().await;
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let leased = Some(PutOptions::new().with_lease(lease));
    client.put("leased", "1", leased).await.unwrap();
    assert_eq!(v2(&serving.endpoint, "PUT", "/dir/file", "value=1").unwrap().0, 201);

    // Somebody else takes the disk, and gives it back. What is deleted meanwhile goes into the reserve.
    disk.shell("dd if=/dev/zero of=\"$0/other\" bs=64k 2> /dev/null || true");
    // It starts all the same, with what is in the log alone.
    serving.kill();
    let serving = disk.serve();
    let mut client = serving.client().await;
    assert_eq!(count(&mut client, "leased").await, 1);
    fill(&mut client).await;
    client.delete("leased", None).await.unwrap();
    assert_eq!(v2(&serving.endpoint, "DELETE", "/dir/file", "").unwrap().0, 200);
    disk.shell("rm \"$0/other\"");
    until_put(&mut client, "healed").await;

    // It takes all of it itself.
    let taken = fill(&mut client).await;
    assert!(taken > 20, "{taken}");
    assert_eq!(count(&mut client, "fill/").await, i64::try_from(taken).unwrap());
    assert!(health(&serving).contains("ALARM NOSPACE"));
    let (status, _, body) = v2(&serving.endpoint, "PUT", "/dir/other", "value=1").unwrap();
    assert_eq!((status, body["cause"].as_str()), (500, Some("etcdserver: mvcc: database space exceeded")));
    assert_eq!(v2(&serving.endpoint, "GET", "/dir", "").unwrap().0, 200);
    assert!(is_full(&client.lease_grant(600, None).await.unwrap_err()));
    let (mut keeper, mut alive) = client.lease_keep_alive(lease).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert_eq!(alive.message().await.unwrap().unwrap().ttl(), 600);
    let mut events = client.watch("healed", Some(WatchOptions::new().with_prefix())).await.unwrap();
    client.delete("healed", None).await.unwrap();
    while events.message().await.unwrap().unwrap().events().is_empty() {}

    // What was taken survives, and what is deleted makes room.
    serving.kill();
    let serving = disk.serve();
    let mut client = serving.client().await;
    assert_eq!(count(&mut client, "fill/").await, i64::try_from(taken).unwrap());
    assert_eq!(client.lease_time_to_live(lease, None).await.unwrap().granted_ttl(), 600);
    let all = Some(DeleteOptions::new().with_prefix());
    assert_eq!(client.delete("fill/", all).await.unwrap().deleted(), i64::try_from(taken).unwrap());
    until_put(&mut client, "healed/again").await;
    assert!(health(&serving).contains("\"true\""));
    serving.kill();
    let serving = disk.serve();
    let mut client = serving.client().await;
    assert_eq!((count(&mut client, "healed").await, count(&mut client, "leased").await), (1, 0));
    assert_eq!(v2(&serving.endpoint, "GET", "/dir/file", "").unwrap().0, 404);
}
