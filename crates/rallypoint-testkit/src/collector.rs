//! A collector of OpenTelemetry that is sent traces, and passes them on.

use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::net::reserved_port;
use crate::port::ReservedPort;
use crate::process;
use crate::tools::find;

/// It starts within a second.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A real OpenTelemetry collector, Rotel, that takes OTLP by HTTP and passes it on. Dropped, it is killed.
#[derive(Debug)]
pub struct OtelCollector {
    _folder: TempDir,
    child: Child,
    port: ReservedPort,
    _grpc: ReservedPort,
}

impl OtelCollector {
    /// Starts it; none where this machine has none. `scripts/test` says so. What comes is passed on to this URL.
    #[must_use]
    pub fn start(to: &str) -> Option<Self> {
        let program = find("RALLYPOINT_COLLECTOR", "venv-collector/rotel")?;
        let folder = TempDir::new().expect("a temporary folder can be made");
        let (port, grpc) = (reserved_port(), reserved_port());
        let mut command = process::command(&program);
        command
            .args(["start", "--exporter", "otlp", "--otlp-exporter-protocol", "http"])
            .args(["--otlp-exporter-endpoint", to])
            .args(["--otlp-http-endpoint", &format!("127.0.0.1:{}", port.number())])
            .args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{}", grpc.number())])
            .arg("--pid-file")
            .arg(folder.path().join("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = process::spawn(command);
        let collector = OtelCollector { _folder: folder, child, port, _grpc: grpc };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", collector.port.number())).is_err() {
            assert!(began.elapsed() < TIMEOUT, "the collector does not listen within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Some(collector)
    }

    /// Where it takes spans.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }
}

impl Drop for OtelCollector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
