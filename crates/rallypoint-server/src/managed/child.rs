//! A real etcd as a child process.

use std::fs::{DirBuilder, File};
use std::io::{Read, Seek};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rallypoint_core::{Backoff, EtcdSettings};
use rallypoint_etcd::v3;
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::time::Instant;
use tracing::{debug, info};

use super::EtcdServerError;
use super::port::ReservedPort;

/// Runs etcd and sees to its end.
///
/// Its input is a pipe whose other end only this process holds: when the process is gone, for whatever reason,
/// the pipe ends, etcd is killed, and the folder is removed. So nothing has to be done by whoever dies.
const KEEPER: &str = r#"
folder=$1; shift
exec 3<&0
"$@" <&- & etcd=$!
( read -r _ <&3; kill -KILL $etcd 2>/dev/null ) & watch=$!
wait $etcd; status=$?
kill -KILL $watch 2>/dev/null
[ -z "$folder" ] || PATH=$PATH:/usr/bin:/bin rm -rf "$folder"
exit $status
"#;

#[derive(Debug)]
pub(super) struct Child {
    keeper: Process,
    /// Ends the keeper when it is closed. Not left to the process, which closes it as soon as it is waited for.
    lifeline: Option<ChildStdin>,
    port: ReservedPort,
    _peer_port: ReservedPort,
}

impl Child {
    pub(super) async fn start(
        binary: &Path,
        data_dir: Option<&Path>,
        time: Duration,
    ) -> Result<Child, EtcdServerError> {
        let folder = Folder::make(data_dir)?;
        let cannot_run = |source| EtcdServerError::Run { binary: binary.to_owned(), source };
        let (port, peer_port) =
            (ReservedPort::new().map_err(cannot_run)?, ReservedPort::new().map_err(cannot_run)?);
        let client_url = format!("http://127.0.0.1:{}", port.number());
        let peer_url = format!("http://127.0.0.1:{}", peer_port.number());

        // Held open: it can still be read when the keeper has removed the folder.
        let log_file = folder.path.join("etcd.log");
        let mut log = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&log_file)
            .map_err(|source| EtcdServerError::DataDir { path: log_file, source })?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(KEEPER).arg("sh").arg(if folder.temporary {
            folder.path.as_os_str()
        } else {
            "".as_ref()
        });
        command.arg(binary).arg("--data-dir").arg(folder.path.join("data"));
        for (flag, url) in [
            ("--listen-client-urls", &client_url),
            ("--advertise-client-urls", &client_url),
            ("--listen-peer-urls", &peer_url),
            ("--initial-advertise-peer-urls", &peer_url),
        ] {
            command.arg(flag).arg(url);
        }
        command.arg("--initial-cluster").arg(format!("default={peer_url}"));
        if takes_v2(binary).await {
            command.arg("--enable-v2");
        }
        let (output, errors) = (log.try_clone().map_err(cannot_run)?, log.try_clone().map_err(cannot_run)?);
        command.stdin(Stdio::piped()).stdout(output).stderr(errors);
        // A Ctrl-C is for this program, which then ends the server in its own way.
        command.process_group(0);
        let mut keeper = command.spawn().map_err(cannot_run)?;
        let lifeline = keeper.stdin.take();
        info!(binary = %binary.display(), %client_url, "starting etcd");

        let mut child = Child { keeper, lifeline, port, _peer_port: peer_port };
        match child.ready(binary, &mut log, time).await {
            Ok(()) => {
                // From here on the keeper removes it.
                folder.keep();
                Ok(child)
            }
            Err(error) => {
                child.stop().await;
                Err(error)
            }
        }
    }

    async fn ready(&mut self, binary: &Path, log: &mut File, time: Duration) -> Result<(), EtcdServerError> {
        let deadline = Instant::now() + time;
        let mut settings = EtcdSettings::new(&format!("127.0.0.1:{}", self.port.number()))
            .expect("a loopback address and a port are an endpoint");
        settings.connect_timeout = Duration::from_secs(1);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
        let binary = binary.to_owned();
        loop {
            tokio::select! {
                connected = v3::Client::connect(settings.clone()) => match connected {
                    Ok(_) => return Ok(()),
                    Err(error) => debug!(%error, "etcd is not ready"),
                },
                status = self.keeper.wait() => return Err(match status {
                    Ok(status) => EtcdServerError::Ended { binary, status, log: tail(log) },
                    Err(source) => EtcdServerError::Run { binary, source },
                }),
            }
            if Instant::now() >= deadline {
                return Err(EtcdServerError::Timeout { binary, after: time, log: tail(log) });
            }
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) async fn stop(mut self) {
        drop(self.lifeline.take());
        if let Err(error) = self.keeper.wait().await {
            debug!(%error, "etcd's end was not seen");
        }
    }
}

/// Whether this etcd knows the flag: 3.6 has no v2 any more.
async fn takes_v2(binary: &Path) -> bool {
    let help = Command::new(binary).arg("--help").stdin(Stdio::null()).output().await;
    help.is_ok_and(|help| {
        [help.stdout, help.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("--enable-v2"))
    })
}

/// Where the data is: the caller's folder, the same for each try, or a temporary one of this try.
struct Folder {
    path: PathBuf,
    temporary: bool,
    kept: bool,
}

impl Folder {
    fn make(data_dir: Option<&Path>) -> Result<Self, EtcdServerError> {
        let (path, temporary) = match data_dir {
            Some(data_dir) => (data_dir.to_owned(), false),
            None => {
                let name = format!("rallypoint-etcd-{}-{:016x}", std::process::id(), fastrand::u64(..));
                (std::env::temp_dir().join(name), true)
            }
        };
        // What is in it is this user's alone. A temporary one that is there already is somebody else's.
        let made = DirBuilder::new().recursive(!temporary).mode(0o700).create(&path);
        made.map_err(|source| EtcdServerError::DataDir { path: path.clone(), source })?;
        Ok(Folder { path, temporary, kept: false })
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary && !self.kept {
            // The keeper may have been quicker.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// The last lines of a log.
fn tail(log: &mut File) -> String {
    const LINES: usize = 12;
    let mut text = Vec::new();
    // Without its log, the error still says what happened.
    let _ = log.rewind().and_then(|()| log.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
