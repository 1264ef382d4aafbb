//! A lease whose holder is cut off from etcd, in a network namespace of its own: packets are lost, nothing is closed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rallypoint_testkit::{Etcd, Network, Version};

const LIMIT: Duration = Duration::from_secs(60);

/// A child that is killed with this.
struct Process(Child);

impl Process {
    fn start(mut command: Command) -> Self {
        Process(command.spawn().unwrap())
    }

    fn lines(&mut self) -> Receiver<String> {
        let (sender, lines) = channel();
        let output = BufReader::new(self.0.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lease_of_5_s_outlives_cuts_of_3_s() {
    // Many at a time, each at another point between two refreshes.
    let holders = 8;
    let cuts: u32 = std::env::var("RALLYPOINT_CUTS").map_or(2, |cuts| cuts.parse().unwrap());
    // The second node keeps the hub's own link up.
    let network = Network::start(2).expect("this needs user namespaces and iproute2");
    let etcd = Etcd::builder(Version::V35).on(&network.hub()).start();
    let endpoint = etcd.endpoint();
    let example = std::env::current_exe().unwrap();
    let example = example.parent().unwrap().parent().unwrap().join("examples/keep_lease");
    let leases: Vec<(Process, Receiver<String>)> = (0..holders)
        .map(|_| {
            let mut command = network.host(0).command(&example);
            command.args([&endpoint, "5"]).stdout(Stdio::piped());
            let mut process = Process::start(command);
            let lines = process.lines();
            (process, lines)
        })
        .collect();
    // Waits for the answer to a refresh.
    let refreshed = |lease: &Receiver<String>| loop {
        match lease.recv_timeout(LIMIT).expect("it says how it is").as_str() {
            "alive" => break,
            said => assert_eq!(said, "unsure", "a short cut costs no lease"),
        }
    };
    leases.iter().for_each(|(_, lease)| refreshed(lease));
    for cut in 0..cuts {
        if cut % 4 == 3 {
            network.host(0).cut();
        } else {
            network.host(0).lose();
        }
        std::thread::sleep(Duration::from_secs(3));
        for (_, lease) in &leases {
            assert!(lease.try_iter().all(|said| said != "lost"), "a short cut costs no lease");
        }
        network.host(0).mend();
        let mended = Instant::now();
        leases.iter().for_each(|(_, lease)| refreshed(lease));
        eprintln!("all leases were refreshed {:?} after the network was back", mended.elapsed());
    }
}
