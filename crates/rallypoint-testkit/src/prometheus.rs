//! A Prometheus that asks for metrics, and is asked.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::http;
use crate::net::reserved_port;
use crate::port::ReservedPort;
use crate::process;
use crate::tools::{in_tools, own_tool};

/// It starts within a second or two.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A real Prometheus that asks some ports of this machine for metrics, five times a second. Dropped, it is killed.
#[derive(Debug)]
pub struct Prometheus {
    _folder: TempDir,
    child: Child,
    port: ReservedPort,
}

impl Prometheus {
    /// Starts it; none where this machine has none. `scripts/test` says so. Each target is the name of a job and a port.
    #[must_use]
    pub fn start(targets: &[(&str, u16)]) -> Option<Self> {
        let programs = programs()?;
        let folder = TempDir::new().expect("a temporary folder can be made");
        let mut config =
            "global: { scrape_interval: 200ms, scrape_timeout: 200ms }\nscrape_configs:\n".to_owned();
        for (job, port) in targets {
            let _ = writeln!(
                config,
                "- job_name: {job}\n  static_configs: [{{ targets: ['127.0.0.1:{port}'] }}]"
            );
        }
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).expect("a file can be written");
        let port = reserved_port();
        let log = fs::File::create(folder.path().join("log")).expect("a log can be made");
        let mut command = process::command(&programs.join("prometheus"));
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let prometheus = Prometheus { child: process::spawn(command), _folder: folder, port };
        let began = Instant::now();
        while prometheus.ask("/-/ready").is_none_or(|answer| !answer.contains(" 200 ")) {
            assert!(began.elapsed() < TIMEOUT, "Prometheus is not ready within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Some(prometheus)
    }

    /// What it answers to a query, in the JSON of its API.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn query(&self, expression: &str) -> String {
        let escaped = expression.bytes().fold(String::new(), |mut escaped, byte| {
            let _ = write!(escaped, "%{byte:02X}");
            escaped
        });
        let answer = self.ask(&format!("/api/v1/query?query={escaped}"));
        let answer = answer.unwrap_or_else(|| panic!("Prometheus does not answer {expression}"));
        answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
    }

    fn ask(&self, path: &str) -> Option<String> {
        http::get(self.port.number(), path, TIMEOUT).ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `promtool` in a folder; none where this machine has none.
#[must_use]
pub fn promtool(folder: &Path, args: &[&str], input: &str) -> Option<Output> {
    use std::io::Write as _;
    let mut command = Command::new(programs()?.join("promtool"));
    command.args(args).current_dir(folder);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    Some(child.wait_with_output().expect("promtool ends"))
}

fn programs() -> Option<PathBuf> {
    let own = own_tool("RALLYPOINT_PROMETHEUS");
    let programs = own.clone().unwrap_or_else(|| in_tools("prometheus"));
    if programs.join("prometheus").exists() && programs.join("promtool").exists() {
        return Some(programs);
    }
    assert!(own.is_none(), "RALLYPOINT_PROMETHEUS names {}, which lacks programs", programs.display());
    eprintln!("Prometheus is not tried: {} is not there; run `scripts/setup prometheus`", programs.display());
    None
}
