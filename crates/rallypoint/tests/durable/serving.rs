//! The server under test, and just enough of a client of v2.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::Client;
use serde_json::Value;

pub(crate) const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");

/// Killed when dropped.
pub(crate) struct Serving {
    child: Child,
    pub(crate) endpoint: String,
}

impl Serving {
    pub(crate) fn start(folder: &Path) -> Self {
        Serving::start_as(Command::new(RALLYPOINT), folder)
    }

    /// The same, as another command runs it.
    pub(crate) fn start_as(command: Command, folder: &Path) -> Self {
        Serving::read_address(Serving::spawn_as(command, folder))
    }

    /// It may not have come up yet.
    pub(crate) fn spawn(folder: &Path) -> Child {
        Serving::spawn_as(Command::new(RALLYPOINT), folder)
    }

    fn spawn_as(mut command: Command, folder: &Path) -> Child {
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder);
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Reads from its log where it listens.
    fn read_address(mut child: Child) -> Self {
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut all = String::new();
        let endpoint = loop {
            let begin = all.len();
            assert!(log.read_line(&mut all).unwrap() > 0, "it ended before it listened: {all}");
            if let Some((_, rest)) = all[begin..].split_once("address=") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        // Nobody else reads it, and a full pipe would stop the server.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Serving { child, endpoint }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }

    /// SIGKILL: nothing of it runs any more on return.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status, the index and the body of an answer of v2. None if there is none: the server is gone.
pub(crate) fn v2(endpoint: &str, method: &str, path: &str, form: &str) -> Option<(u16, u64, Value)> {
    let ask = || {
        let mut stream = TcpStream::connect(endpoint)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(
            stream,
            "{method} /v2/keys{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
            form.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let answer = ask().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let index = head.to_lowercase().split_once("x-etcd-index: ")?.1.lines().next()?.parse().ok()?;
    // Listings come in chunks.
    let json = &body[body.find('{')?..=body.rfind('}')?];
    Some((status, index, serde_json::from_str(json).ok()?))
}
