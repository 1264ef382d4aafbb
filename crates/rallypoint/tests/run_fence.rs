//! A node that is cut off from etcd: it asks the others whether its round stands, and no two work with one rank for long.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::path::Path;
use std::time::{Duration, Instant};

use launcher::{Launcher, RALLYPOINT, wait_for_any, wait_until};
use rallypoint_testkit::{Host, Network};

/// Says that it works, ten times a second, in a file of its own: its world's size, its rank and who it is.
const WORKER: &str = r#"
echo "$WORLD_SIZE are here"
trap 'exit 0' TERM
while [ ! -e "$FOLDER/end" ]; do
    echo "$(date +%s%N) $RANK $WORLD_SIZE" >>"$FOLDER/$NODE"
    sleep 0.1
done
"#;

/// Some machines, and an etcd on the hub.
struct Site {
    folder: tempfile::TempDir,
    nodes: Vec<Launcher>,
    server: Option<Launcher>,
    network: Network,
    etcd: Host,
}

impl Site {
    /// The last host has the etcd, so that it can be cut off from single nodes.
    fn new(nodes: usize, args: &[&str]) -> Self {
        let network = Network::start(nodes + 1).unwrap();
        let etcd = network.host(nodes);
        let mut site =
            Site { folder: tempfile::tempdir().unwrap(), nodes: Vec::new(), server: None, network, etcd };
        site.start_etcd();
        for n in 0..nodes {
            let node = site.start(n, args);
            site.nodes.push(node);
        }
        for node in &mut site.nodes {
            node.wait_for(&format!("{nodes} are here"));
        }
        site
    }

    fn endpoint(&self) -> String {
        format!("{}:2379", self.etcd.address())
    }

    fn start_etcd(&mut self) {
        let mut command = self.etcd.command(RALLYPOINT);
        command.args(["serve", "--listen", &self.endpoint()]);
        let mut server = Launcher::spawn(command);
        server.wait_for("address=");
        self.server = Some(server);
    }

    fn start(&self, n: usize, args: &[&str]) -> Launcher {
        let mut command = self.network.host(n).command(RALLYPOINT);
        command.args(["run", "--rdzv-id", "job", "--rdzv-endpoint", &format!("etcd://{}", self.endpoint())]);
        command.args(["--rdzv-conf", "last_call_timeout=2,lease_timeout=2", "--shutdown-timeout", "5"]);
        command.args(args).args(["--", "bash", "-c", WORKER]);
        command.env("FOLDER", self.folder.path()).env("NODE", format!("node{n}"));
        Launcher::spawn(command)
    }

    /// The node that has rank 0.
    fn master(&self) -> usize {
        (0..self.nodes.len()).find(|n| self.last_word(*n).1 == 0).unwrap()
    }

    /// When the worker of a node last said that it works, and its rank.
    fn last_word(&self, n: usize) -> (u128, usize) {
        let file = self.folder.path().join(format!("node{n}"));
        wait_until("a worker works", || {
            words(&file).last().map(|(at, rank, _)| (*at, *rank))
        })
    }

    fn words(&self, n: usize) -> Vec<(u128, usize, usize)> {
        words(&self.folder.path().join(format!("node{n}")))
    }

    /// For how long two nodes had rank 0.
    fn two_masters(&self) -> Duration {
        let masters = |n: usize| self.words(n).into_iter().filter(|(_, rank, _)| *rank == 0).map(|(at, ..)| at);
        let spans = |n: usize| -> Vec<(u128, u128)> {
            let mut spans: Vec<(u128, u128)> = Vec::new();
            for at in masters(n) {
                match spans.last_mut() {
                    Some((_, until)) if at - *until < 1_000_000_000 => *until = at,
                    _ => spans.push((at, at)),
                }
            }
            spans
        };
        let mut longest = 0;
        for one in 0..self.nodes.len() {
            for other in 0..one {
                for (from, until) in spans(one) {
                    for (since, end) in spans(other) {
                        longest = longest.max(until.min(end).saturating_sub(from.max(since)));
                    }
                }
            }
        }
        Duration::from_nanos(u64::try_from(longest).unwrap())
    }

    fn end(mut self) {
        std::fs::write(self.folder.path().join("end"), "").unwrap();
        for node in self.nodes.drain(..) {
            node.ended().expect(0);
        }
    }
}

fn words(file: &Path) -> Vec<(u128, usize, usize)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn a_node_cut_off_from_etcd_learns_from_the_others_that_they_have_met_again() {
    let mut site = Site::new(3, &["--nnodes", "2:3", "--fence-timeout", "600"]);
    let master = site.master();
    let host = site.network.host(master);
    host.cut_from(&site.etcd);
    let cut = &mut site.nodes[master];
    cut.wait_for("asking other nodes");
    cut.wait_for("is in this round no more");
    cut.forget();
    let others: Vec<usize> = (0..3).filter(|n| *n != master).collect();
    for n in others {
        site.nodes[n].wait_for("2 are here");
        site.nodes[n].forget();
    }
    // It comes back, and nobody has paid for that.
    host.mend_to(&site.etcd);
    for node in &mut site.nodes {
        node.wait_for("3 are here");
    }
    let both = site.two_masters();
    assert!(both < Duration::from_secs(5), "two had rank 0 for {both:?}");
    site.end();
}
