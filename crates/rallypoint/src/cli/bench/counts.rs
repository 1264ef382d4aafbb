//! What an etcd tells of itself.

use std::io;
use std::time::Duration;

use rallypoint_rendezvous::native::NativeSettings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What etcd has counted since it was started, all its members that were named together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Without the refreshes of leases.
    pub(super) requests: f64,
    pub(super) keep_alives: f64,
    /// Seconds of a processor.
    pub(super) processor: f64,
}

impl Counts {
    pub(super) async fn read(settings: &NativeSettings) -> io::Result<Self> {
        let mut counts = Counts::default();
        for endpoint in settings.etcd.endpoints.as_slice() {
            counts.add(&metrics(&endpoint.host, endpoint.port).await?)?;
        }
        Ok(counts)
    }

    fn add(&mut self, metrics: &str) -> io::Result<()> {
        let mut found = false;
        for line in metrics.lines() {
            let count = || line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0);
            if line.starts_with("process_cpu_seconds_total ") {
                self.processor += count();
            } else if line.starts_with("grpc_server_msg_received_total{") && line.contains("etcdserverpb.") {
                found = true;
                if line.contains("LeaseKeepAlive") {
                    self.keep_alives += count();
                } else {
                    self.requests += count();
                }
            }
        }
        if found { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

async fn metrics(host: &str, port: u16) -> io::Result<String> {
    let metrics = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<String, io::Error>(answer)
    };
    tokio::time::timeout(Duration::from_secs(5), metrics)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
