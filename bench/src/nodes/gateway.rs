//! A gateway with an etcd behind it that has no v2.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rallypoint_testkit::{Etcd, Version};

/// The command `rallypoint gateway`, killed when dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    endpoint: String,
    pub(crate) etcd: Etcd,
}

impl Gateway {
    pub(crate) fn start() -> Self {
        let etcd = Etcd::start(Version::V35);
        let here = std::env::current_exe().expect("this program has a path");
        // It ends with this process, however that one ends.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(here.with_file_name("rallypoint"))
            .args(["gateway", "--listen", "127.0.0.1:0", "--endpoint", &etcd.endpoint()])
            .stderr(Stdio::piped())
            .spawn()
            .expect("rallypoint is built beside this program");
        let mut log = BufReader::new(child.stderr.take().expect("its log is a pipe")).lines();
        let endpoint = log
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("address=")?.1.split_whitespace().next()?.to_owned()))
            .expect("it says where it listens");
        // A full pipe would hold it up.
        std::thread::spawn(move || log.for_each(drop));
        Gateway { child, endpoint, etcd }
    }

    /// `host:port`.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
