//! Commands written for torchrun's `static` and `c10d` backends, as they stand.

use crate::launcher::{self, Ended, Launcher, wait_until};
use rallypoint_testkit::{Etcd, Version, closed_port, torch_python};

const SCRIPT: &str = "echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK of $ROLE_NAME in $TORCHELASTIC_RUN_ID at $MASTER_ADDR";

/// A port that the system gives to nobody else.
fn free_port() -> String {
    closed_port().to_string()
}

fn said(ended: &Ended) -> Vec<&str> {
    let mut said: Vec<&str> =
        ended.with("]: rank ").iter().map(|line| line.split_once(": ").unwrap().1).collect();
    said.sort_unstable();
    said
}

/// As Kubeflow and Slurm scripts set them.
fn pet(args: &[&str], port: &str, rank: &str) -> Launcher {
    Launcher::start_with(args, |command| {
        command.env("PET_NNODES", "3").env("PET_NPROC_PER_NODE", "2").env("PET_NODE_RANK", rank);
        command.env("PET_MASTER_ADDR", "localhost").env("PET_MASTER_PORT", port);
    })
}

#[test]
fn a_static_command_works_as_it_stands_and_ranks_follow_node_ranks() {
    let port = free_port();
    // The node that serves comes last, and twice in a row on the same port, as in a loop over jobs.
    for job in ["first", "second"] {
        let nodes: Vec<_> = ["2", "1", "0"]
            .map(|rank| {
                let role = format!("{job}{rank}");
                pet(&["--role", &role, "--", "sh", "-c", SCRIPT], &port, rank)
            })
            .into_iter()
            .collect();
        for (node, launcher) in [2, 1, 0].into_iter().zip(nodes) {
            let ended = launcher.ended().expect(0);
            let expected = [2 * node, 2 * node + 1]
                .map(|rank| format!("rank {rank} of 6 on node {node} of {job}{node} in none at localhost"));
            assert_eq!(said(&ended), expected, "{}", ended.text());
            assert_eq!(ended.with("means Rallypoint's own backend here").len(), 1, "{}", ended.text());
            let serves = ended.text().contains("starts the embedded server");
            assert_eq!(serves, node == 0, "only node 0 serves: {}", ended.text());
        }
    }
}

#[test]
fn flags_say_the_same_and_static_is_a_backend() {
    let port = free_port();
    let script = format!("{SCRIPT}, agent store $TORCHELASTIC_USE_AGENT_STORE");
    let node = |rank: &str| {
        let args = ["--rdzv-backend=static", "--nnodes=2", "--node_rank", rank, "--master_addr=127.0.0.1"];
        // What the first says of the workers' store holds for both.
        let store = ["--worker-store", if rank == "0" { "rank0" } else { "agent" }];
        Launcher::start(&[&args[..], &store, &["--master_port", &port, "--", "sh", "-c", &script]].concat())
    };
    for (rank, ended) in [node("1"), node("0")].map(Launcher::ended).into_iter().enumerate() {
        let (ended, rank) = (ended.expect(0), 1 - rank);
        assert_eq!(
            said(&ended),
            [format!("rank {rank} of 2 on node {rank} of default in none at 127.0.0.1, agent store False")]
        );
        let line = ended.with("--rdzv-backend static means Rallypoint's own backend here");
        assert!(line.len() == 1 && line[0].contains(&format!("127.0.0.1:{port}")), "{}", ended.text());
    }
}

/// One etcd for all: nobody starts a server.
#[test]
fn where_an_etcd_is_at_the_master_everybody_meets_there() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let (address, port) = endpoint.rsplit_once(':').unwrap();
    let node = |rank: &str| {
        let args = ["--nnodes=2", "--node-rank", rank, "--master-addr", address, "--master-port", port];
        Launcher::start(&[&args[..], &["--rdzv-id", "etcds", "--", "sh", "-c", SCRIPT]].concat())
    };
    for (rank, ended) in [node("0"), node("1")].map(Launcher::ended).into_iter().enumerate() {
        let ended = ended.expect(0);
        assert_eq!(
            said(&ended),
            [format!("rank {rank} of 2 on node {rank} of default in etcds at 127.0.0.1")]
        );
        assert!(!ended.text().contains("embedded"), "{}", ended.text());
    }
}

#[test]
fn two_nodes_of_one_rank_are_told() {
    let port = free_port();
    let node = |rank: &str| {
        let args = ["--nnodes=3", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        Launcher::start(&[&args[..], &["--", "sleep", "600"]].concat())
    };
    let mut zero = node("0");
    zero.wait_for("starts the embedded server");
    let mut first = node("1");
    first.wait_for("waiting for");
    let mut second = node("1");
    second.wait_for("waiting for");
    let ended = first.ended().expect(3);
    let last = ended.lines.last().unwrap();
    assert!(last.contains("another process") && last.contains("with --node-rank 1 and"), "{last}");
    assert!(!ended.text().contains("node-rank-1"), "{}", ended.text());
    for node in [second, zero] {
        node.signal("INT");
        node.ended().expect(130);
    }
}

/// The server is in the process that was replaced: the run goes on with it.
#[test]
fn a_second_node_0_takes_the_place_of_the_first_and_the_first_serves_on() {
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let end = folder.path().join("end");
    let script = format!("echo at work as $RANK; while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let node = |rank: &str| {
        let args = ["--nnodes=2", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        let args = [&args[..], &["--rdzv-conf", "last_call_timeout=1,lease_timeout=2"]].concat();
        Launcher::start(&[&args[..], &["--max-restarts=3", "--", "sh", "-c", &script]].concat())
    };
    let (mut first, mut one) = (node("0"), node("1"));
    first.wait_for("at work as 0");
    one.wait_for("at work as 1");
    one.forget();
    let mut second = node("0");
    second.wait_for("at work as 0");
    one.wait_for("at work as 1");
    first.wait_for("serves them until they are done");
    // Longer than nodes of a run that is over are waited for.
    std::thread::sleep(std::time::Duration::from_secs(12));
    std::fs::write(&end, "").unwrap();
    second.ended().expect(0);
    one.ended().expect(0);
    let ended = first.ended().expect(3);
    assert!(ended.lines.last().unwrap().contains("another process"), "{}", ended.text());
}

#[test]
fn nodes_whose_node_0_was_killed_and_started_again_are_no_spares() {
    let port = free_port();
    let node = |rank: &str| {
        let args = ["--nnodes=2", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        let conf = ["--rdzv-conf", "lease_timeout=2", "--", "sh", "-c", "echo at work; exec sleep 600"];
        Launcher::start(&[&args[..], &conf].concat())
    };
    let mut zero = node("0");
    let mut one = node("1");
    for node in [&mut zero, &mut one] {
        node.wait_for("at work");
        node.forget();
    }
    zero.pull_the_plug();
    let mut nodes = [node("0"), one];
    for node in &mut nodes {
        node.wait_for("at work");
    }
    for node in nodes {
        node.signal("TERM");
        let ended = node.ended();
        assert!(!ended.text().contains("standing by"), "{}", ended.text());
    }
}

#[test]
fn c10d_means_the_native_backend_on_its_endpoint() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let node = || {
        let args = ["--nnodes=1:2", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job"];
        let conf = ["--rdzv-conf", "join_timeout=60,close_timeout=30,last_call_timeout=30"];
        Launcher::start_with(&[&args[..], &conf, &["--", "sh", "-c", SCRIPT]].concat(), |command| {
            command.env("PET_RDZV_BACKEND", "c10d");
        })
    };
    let mut ranks = Vec::new();
    for ended in [node(), node()].map(Launcher::ended) {
        let ended = ended.expect(0);
        ranks.push(said(&ended)[0].to_owned());
        let line = ended.with("--rdzv-backend c10d means Rallypoint's own backend here");
        assert!(line.len() == 1 && line[0].contains(&endpoint), "{}", ended.text());
        assert_eq!(ended.with("--rdzv-conf close_timeout has no effect").len(), 1, "{}", ended.text());
    }
    ranks.sort_unstable();
    assert!(ranks[0].starts_with("rank 0 of 2") && ranks[1].starts_with("rank 1 of 2"), "{ranks:?}");
    // How torchrun's documents say "on this machine, beside others".
    let local = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"];
    let ended = Launcher::run(&[&local[..], &["--", "sh", "-c", SCRIPT]].concat()).expect(0);
    assert_eq!(said(&ended).len(), 2, "{}", ended.text());
}

/// What a site sets for its etcd is not for the server that one node has for itself.
#[test]
fn one_node_speaks_no_tls_to_its_own_server() {
    for args in [&["--standalone"][..], &["--nnodes", "1"], &[]] {
        let launcher = Launcher::start_with(&[args, &["--", "sh", "-c", SCRIPT]].concat(), |command| {
            command
                .env("RALLYPOINT_CACERT", "/etc/ssl/certs/ca-certificates.crt")
                .env("RALLYPOINT_USER", "trainer");
        });
        assert_eq!(launcher.ended().expect(0).with("]: rank 0 of 1").len(), 1);
    }
}

#[test]
fn on_one_node_the_port_is_the_workers() {
    let port = free_port();
    let script = "echo rank $RANK at $MASTER_ADDR:$MASTER_PORT";
    let ended =
        Launcher::run(&["--master-port", &port, "--nproc-per-node=2", "--", "sh", "-c", script]).expect(0);
    let at = format!("at 127.0.0.1:{port}");
    assert_eq!(said(&ended), [format!("rank 0 {at}"), format!("rank 1 {at}")], "{}", ended.text());
}

/// An address that somebody translates, or a name that is not known yet where it points to.
#[test]
fn node_0_serves_even_where_the_address_is_not_its_own() {
    let port = free_port();
    let node = |rank: &str, address: &str| {
        let args = ["--nnodes=2", "--node-rank", rank, "--master-addr", address, "--master-port", &port];
        Launcher::start(&[&args[..], &["--", "sh", "-c", SCRIPT]].concat())
    };
    // An address of the documents, nobody's.
    let nodes = [node("0", "192.0.2.1"), node("1", "127.0.0.1")];
    for (rank, ended) in nodes.map(Launcher::ended).into_iter().enumerate() {
        let ended = ended.expect(0);
        assert_eq!(
            said(&ended),
            [format!("rank {rank} of 2 on node {rank} of default in none at 192.0.2.1")]
        );
    }
}

/// A script that knows nothing of us, on two nodes.
#[test]
#[ignore = "it takes long: scripts/test long"]
fn pytorch_meets_under_a_static_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    let text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n\
                x = torch.tensor(dist.get_rank() + 1.0)\ndist.all_reduce(x)\n\
                print(f'rank {dist.get_rank()} has {x.item()}')\ndist.destroy_process_group()\n";
    std::fs::write(&script, text).unwrap();
    let port = free_port();
    let nodes = ["1", "0"].map(|rank| {
        Launcher::start_with(&["--nproc_per_node=2", script.to_str().unwrap()], |command| {
            command.env("PET_NNODES", "2").env("PET_NODE_RANK", rank).env("PYTHON_EXEC", torch_python());
            command.env("PET_MASTER_ADDR", "localhost").env("PET_MASTER_PORT", &port);
        })
    });
    let [one, zero] = nodes.map(|node| node.ended().expect(0));
    assert_eq!(said(&zero), ["rank 0 has 10.0", "rank 1 has 10.0"]);
    assert_eq!(said(&one), ["rank 2 has 10.0", "rank 3 has 10.0"]);
}

/// In a loop over jobs a node may be at its next one while the server of the last one still runs.
#[test]
fn a_job_is_not_taken_for_the_one_before_it() {
    let port = free_port();
    let node = |rank: &str| {
        let args = ["--nnodes=2", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        Launcher::start(&[&args[..], &["--", "sh", "-c", SCRIPT]].concat())
    };
    let mut serve = std::process::Command::new(launcher::RALLYPOINT);
    serve.args(["serve", "--listen", &format!("127.0.0.1:{port}")]).stderr(std::process::Stdio::null());
    let mut server = serve.spawn().unwrap();
    wait_until("it listens", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).ok());
    for ended in [node("0"), node("1")].map(Launcher::ended) {
        ended.expect(0);
    }
    let mut next = [node("0"), node("1")];
    next.iter_mut().for_each(|node| {
        node.wait_for("the run there is over; waiting for the server of the next one");
    });
    server.kill().unwrap();
    server.wait().unwrap();
    for (rank, ended) in next.map(Launcher::ended).into_iter().enumerate() {
        let ended = ended.expect(0);
        assert_eq!(
            said(&ended),
            [format!("rank {rank} of 2 on node {rank} of default in none at 127.0.0.1")]
        );
    }
}
