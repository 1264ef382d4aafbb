//! An etcd that comes back without what it had, under a group at work.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rallypoint_server::{Config, Server};
use rallypoint_testkit::{Host, Network};

use super::processes::{Process, example, rounds, rounds_within};
use super::world::{OPTIONS, PATIENT, SOON, Settings, World, change, ranks};

#[derive(Debug, Clone, Copy)]
enum Loss {
    /// All is gone.
    Empty,
    /// An earlier round stands there.
    Restored,
    /// The same, with higher revisions.
    RestoredAhead,
}

#[derive(Debug, Clone, Copy)]
enum Others {
    Quiet,
    /// Others write so much that its revision is past the old one when the nodes are back.
    Write,
}

/// A group of three in its second round, under which that happens.
fn outlives(servers: usize, loss: Loss, others: Others) {
    let mut world = World::new(servers, 4, Settings { min: 2, max: 3, options: PATIENT });
    world.meet(3);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    world.cluster.nodes()[0].save(&snapshot);
    world.group[0].order("meet");
    let before = world.rounds();
    let number = before[0]["round"].as_u64();
    world.group.iter().for_each(|process| drop(process.said()));

    let hosts = world.hosts();
    if let Others::Write = others {
        hosts.iter().for_each(Host::cut);
    }
    match loss {
        Loss::Empty => world.cluster.restart_empty(),
        Loss::Restored => world.cluster.restore(&snapshot),
        Loss::RestoredAhead => world.cluster.restore_ahead(&snapshot, 1000),
    }
    if let Others::Write = others {
        for n in 0..60 {
            let _ = world.cluster.nodes()[0].etcdctl(&["put", "other", &n.to_string()]);
        }
        hosts.iter().for_each(Host::mend);
    }

    for process in &world.group {
        let told = process.next_within("change", SOON);
        assert_eq!(change(&told), "StateLost", "{loss:?}, {others:?}");
    }
    let after = world.soon();
    assert!(after[0]["round"].as_u64() > number, "{after:?}");
    assert_eq!(ranks(&before), ranks(&after), "{loss:?}, {others:?}");
    world.is_calm_for(Duration::from_millis(1500));

    world.one_dies(1);
    assert_eq!(world.soon()[0]["world_size"], 2);
    world.group.push(world.start(3, ""));
    assert_eq!(world.soon()[0]["world_size"], 3);
}

fn all_outlive(servers: usize, losses: &[(Loss, Others)]) {
    std::thread::scope(|scope| {
        for (loss, others) in losses {
            scope.spawn(|| outlives(servers, *loss, *others));
        }
    });
}

#[test]
fn a_group_outlives_an_etcd_that_lost_its_data_or_was_restored() {
    all_outlive(
        1,
        &[
            (Loss::Empty, Others::Quiet),
            (Loss::Empty, Others::Write),
            (Loss::Restored, Others::Quiet),
            (Loss::Restored, Others::Write),
            (Loss::RestoredAhead, Others::Quiet),
        ],
    );
}

#[test]
fn a_group_outlives_a_cluster_that_lost_its_data_or_was_restored() {
    all_outlive(3, &[(Loss::Empty, Others::Quiet), (Loss::Empty, Others::Write)]);
    all_outlive(3, &[(Loss::Restored, Others::Quiet), (Loss::Restored, Others::Write)]);
}

const SERVER: &str = "RALLYPOINT_TEST_SERVER";

/// The server, in this test program run again.
#[test]
fn a_server_of_its_own() {
    let Ok(listen) = std::env::var(SERVER) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = Server::bind(Config::on(listen.parse().unwrap()));
        let _server = server.unwrap();
        println!("\nserving");
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_group_outlives_an_embedded_server_that_is_killed_and_started_again() {
    let network = Network::start(4).unwrap();
    let endpoint = format!("{}:2379", network.host(0).address());
    let serve = || {
        let mut command = network.host(0).command(std::env::current_exe().unwrap());
        command.args(["--exact", "data_loss::a_server_of_its_own", "--nocapture"]).env(SERVER, &endpoint);
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(server.stdout.take().unwrap());
        assert!(output.lines().map_while(Result::ok).any(|line| line == "serving"));
        server
    };
    let node = |host: usize| {
        Process::start_by(network.host(host).command(example()), &endpoint, "run", 2, 3, OPTIONS)
    };
    let mut server = serve();
    let mut group = vec![node(1), node(2)];
    let before = rounds(&group);
    server.kill().unwrap();
    server.wait().unwrap();
    server = serve();
    for process in &group {
        assert_eq!(change(&process.next_within("change", SOON)), "StateLost");
    }
    let after = rounds_within(&group, SOON);
    assert_eq!((ranks(&before), 2), (ranks(&after), after[0]["world_size"].as_u64().unwrap()));

    group.push(node(3));
    assert_eq!(rounds_within(&group, SOON)[0]["world_size"], 3);
    group.remove(0).kill();
    let told = group[0].next_within("change", SOON);
    assert!(change(&told).starts_with("Died"), "{told}");
    assert_eq!(rounds_within(&group, SOON)[0]["world_size"], 2);
    server.kill().unwrap();
    server.wait().unwrap();
}
