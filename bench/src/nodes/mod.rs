//! Groups whose nodes are processes of their own, ours and others'.
//!
//! Each connects to this program and does what it is told there, one line at a time:
//!
//! | line | what it does | answer |
//! | --- | --- | --- |
//! | `open INDEX BACKEND ENDPOINT RUN MIN MAX` | nothing yet; a backend that has a host has it at index 0 | `ready` |
//! | `meet` | connects if it has not, and meets the others | `RANK WORLD` |
//! | `watch` | waits until it knows that it must meet again | `changed` |
//! | `leave` | leaves in good order; its process ends | `left` |
//! | `die` | kills itself, by SIGKILL | |
//! | `requests` | nothing | how many it counted |
//!
//! What fails answers `failed` and why.

mod gateway;
pub(crate) mod ours;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rallypoint_testkit::{Etcd, Program, Version, closed_port, http_get};

use self::gateway::Gateway;
use crate::python;
use crate::results::Outcome;

/// Far more than any single step takes that is not measured.
const PATIENCE: Duration = Duration::from_secs(120);

/// A Python process that has imported torch, from which the nodes of others are forked.
pub(crate) struct Nursery {
    python: Program,
}

impl Nursery {
    pub(crate) fn start(python: &Path, modules: &[&str]) -> Self {
        let mut python = python::start(python, "nodes", modules);
        assert_eq!(python.read_line(), "ready");
        Nursery { python }
    }
}

/// What the nodes of a group meet through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// etcd 3.5 and its v3 API.
    V3,
    /// etcd 3.4 with the v2 API, as PyTorch's clients need it.
    V2,
    /// The same API of a gateway, with etcd 3.5 behind it.
    Gateway,
    /// A store in one of the nodes.
    Store,
}

/// A server to meet through, fresh for each group: what the one before left to be cleaned up is not its affair.
#[derive(Debug)]
pub(crate) enum MeetingServer {
    Etcd(Etcd),
    Gateway(Gateway),
    Port(u16),
}

impl MeetingServer {
    pub(crate) fn fresh(wire: Wire) -> Self {
        match wire {
            Wire::V3 => MeetingServer::Etcd(Etcd::start(Version::V35)),
            Wire::V2 => MeetingServer::Etcd(Etcd::builder(Version::V34).v2().start()),
            Wire::Gateway => MeetingServer::Gateway(Gateway::start()),
            Wire::Store => MeetingServer::Port(closed_port()),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        match self {
            MeetingServer::Etcd(etcd) => etcd.endpoint(),
            MeetingServer::Gateway(gateway) => gateway.endpoint(),
            MeetingServer::Port(port) => format!("127.0.0.1:{port}"),
        }
    }

    /// Requests that etcd has counted, of both APIs, without the refreshes of v3 leases, which come with time.
    fn requests(&self) -> Option<f64> {
        let (MeetingServer::Etcd(etcd) | MeetingServer::Gateway(Gateway { etcd, .. })) = self else {
            return None;
        };
        let metrics = http_get(etcd.port(), "/metrics", Duration::from_secs(5)).expect("etcd answers");
        Some(requests(&metrics))
    }
}

fn requests(metrics: &str) -> f64 {
    let counts = metrics.lines().filter(|line| {
        line.starts_with("etcd_http_received_total{")
            || (line.starts_with("grpc_server_msg_received_total{")
                && line.contains("etcdserverpb.")
                && !line.contains("LeaseKeepAlive"))
    });
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Why a group did not do what was asked of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    NotWithin(Duration),
    Failed(String),
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotWithin(limit) => Outcome::NotWithin(limit.as_secs_f64()),
            Failure::Failed(why) => Outcome::Failed(why),
        }
    }
}

/// How many nodes of whom, and how many a round needs and takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl Size {
    /// A round of all of them.
    pub(crate) fn all(ours: usize, theirs: usize) -> Self {
        Size { ours, theirs, min: ours + theirs, max: ours + theirs }
    }

    /// One may be missing.
    pub(crate) fn but_one(ours: usize, theirs: usize) -> Self {
        Size { min: ours + theirs - 1, ..Self::all(ours, theirs) }
    }
}

/// The nodes of a group, each as the connection that it is told what to do on. Dropped, all of them are gone.
pub(crate) struct Group<'a> {
    nodes: Vec<BufReader<TcpStream>>,
    place: &'a MeetingServer,
    requests_before: Option<f64>,
    nursery: Option<&'a mut Nursery>,
    _ours: Vec<Program>,
}

impl<'a> Group<'a> {
    /// Nodes who know of the run and have done nothing yet. Those of others come from the nursery.
    pub(crate) fn start(
        backend: &str,
        place: &'a MeetingServer,
        mut nursery: Option<&'a mut Nursery>,
        size: Size,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port().to_string();
        let program = program();
        let ours = (0..size.ours).map(|_| Program::start(&program, &["node", &port], &[])).collect();
        match &mut nursery {
            Some(nursery) if size.theirs > 0 => {
                nursery.python.write_line(&format!("start {} {port}", size.theirs));
            }
            _ => assert_eq!(size.theirs, 0, "others' nodes come from a nursery"),
        }
        let nursery = nursery.filter(|_| size.theirs > 0);
        let run = format!("bench{:016x}", fastrand::u64(..));
        let (endpoint, Size { min, max, .. }) = (place.endpoint(), size);
        let nodes = (0..size.ours + size.theirs)
            .map(|index| {
                let (stream, _) = listener.accept().expect("a node connects");
                let mut node = BufReader::new(stream);
                tell(&mut node, &format!("open {index} {backend} {endpoint} {run} {min} {max}"));
                let answer = answer(&mut node, Instant::now() + PATIENCE);
                assert_eq!(answer.as_deref(), Ok("ready"));
                node
            })
            .collect();
        Group { nodes, place, requests_before: place.requests(), nursery, _ours: ours }
    }

    /// Lets all of them meet; the seconds until the last one has.
    pub(crate) fn meet(&mut self, limit: Duration) -> Result<f64, Failure> {
        let began = Instant::now();
        let answers = self.ask_all("meet", limit)?;
        let took = began.elapsed().as_secs_f64();
        let world = answers.len();
        let expected: BTreeSet<String> = (0..world).map(|rank| format!("{rank} {world}")).collect();
        assert_eq!(answers.into_iter().collect::<BTreeSet<_>>(), expected, "every rank once");
        Ok(took)
    }

    /// The seconds until all of them know that they must meet again.
    pub(crate) fn watch(&mut self, limit: Duration) -> Result<f64, Failure> {
        let began = Instant::now();
        self.ask_all("watch", limit)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// The last one leaves in good order.
    pub(crate) fn one_leaves(&mut self) {
        let mut leaver = self.nodes.pop().expect("there are nodes");
        tell(&mut leaver, "leave");
        assert_eq!(answer(&mut leaver, Instant::now() + PATIENCE).as_deref(), Ok("left"));
    }

    /// The last one is killed.
    pub(crate) fn one_dies(&mut self) {
        let mut dying = self.nodes.pop().expect("there are nodes");
        tell(&mut dying, "die");
    }

    /// Requests per node since the start, as etcd counts them; where there is none, as the nodes do.
    pub(crate) fn requests_per_node(&mut self) -> f64 {
        let count = match (self.requests_before, self.place.requests()) {
            (Some(before), Some(after)) => after - before,
            _ => {
                let answers = self.ask_all("requests", PATIENCE).expect("the nodes answer");
                answers.iter().map(|count| count.parse::<f64>().expect("a number")).sum()
            }
        };
        count / self.nodes.len() as f64
    }

    fn ask_all(&mut self, line: &str, limit: Duration) -> Result<Vec<String>, Failure> {
        let deadline = Instant::now() + limit;
        for node in &mut self.nodes {
            tell(node, line);
        }
        let answers = self.nodes.iter_mut().map(|node| answer(node, deadline));
        let answers: Result<_, _> = answers.collect();
        answers.map_err(|why: String| match why.as_str() {
            "" => Failure::NotWithin(limit),
            why => Failure::Failed(why.to_owned()),
        })
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let Some(nursery) = &mut self.nursery {
            nursery.python.write_line("end");
            assert_eq!(nursery.python.read_line(), "ended");
        }
    }
}

fn tell(node: &mut BufReader<TcpStream>, line: &str) {
    node.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the node listens");
}

/// What it answers; why it failed, or nothing if it did not answer in time.
fn answer(node: &mut BufReader<TcpStream>, deadline: Instant) -> Result<String, String> {
    // A timeout of 0 would be none at all.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    node.get_ref().set_read_timeout(Some(left)).expect("the socket is open");
    let mut line = String::new();
    match node.read_line(&mut line) {
        Ok(0) => Err("its process ended".to_owned()),
        Ok(_) => match line.trim().strip_prefix("failed ") {
            Some(why) => Err(why.to_owned()),
            None => Ok(line.trim().to_owned()),
        },
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
        {
            Err(String::new())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_clients_but_for_the_refreshes_of_leases() {
        let metrics = "# HELP something\n\
            etcd_http_received_total{method=\"GET\"} 2\n\
            etcd_http_received_total{method=\"PUT\"} 1\n\
            grpc_server_msg_received_total{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\"} 40\n\
            grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\",grpc_service=\"etcdserverpb.Lease\"} 500\n\
            grpc_server_msg_sent_total{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\"} 40\n";
        assert_eq!(requests(metrics), 43.0);
    }
}
