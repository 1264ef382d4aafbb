//! A node that is cut off from etcd: it asks the others whether its round stands, and no two work with one rank for long.

use std::time::Duration;

use crate::launcher::{Launcher, RALLYPOINT, wait_for_any, wait_until};
use rallypoint_testkit::{Etcd, Host, Network, Version};

/// Says how often it was started, and ten times a second that it works, in a file of its node's: when, and its rank.
const WORKER: &str = r#"
echo start >>"$FOLDER/$NODE.starts"
echo $$ >"$FOLDER/$NODE.pid"
echo "start $(wc -l <"$FOLDER/$NODE.starts"): $WORLD_SIZE are here"
trap 'exit 0' TERM
while [ ! -e "$FOLDER/end" ] && [ ! -e "$FOLDER/$NODE.end" ]; do
    echo "$(date +%s%N) $RANK" >>"$FOLDER/$NODE"
    [ ! -s "$FOLDER/$NODE.fail" ] || { code=$(cat "$FOLDER/$NODE.fail"); echo "no data" >&2; exit "$code"; }
    sleep 0.1
done
"#;

/// The same for workers that see each other's ends at once, as gloo's do: all are connected to rank 0.
const CONNECTED: &str = r#"
echo start >>"$FOLDER/$NODE.starts"
echo "start $(wc -l <"$FOLDER/$NODE.starts"): $WORLD_SIZE are here"
exec python3 -c '
import os, select, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
end = os.environ["FOLDER"] + "/end"
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", at[1]))
    peers = [server.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(at)]
            break
        except OSError:
            time.sleep(0.05)
print("connected", flush=True)
while not os.path.exists(end):
    with open(os.environ["FOLDER"] + "/" + os.environ["NODE"], "a") as file:
        print(time.time_ns(), rank, file=file)
    if select.select(peers, [], [], 0.1)[0] and not os.path.exists(end):
        sys.exit("connection reset by peer")
'
"#;

/// `--shutdown-timeout` here.
const GRACE: Duration = Duration::from_secs(5);
/// `--fence-timeout` where it is not given: the lease and five seconds.
const FENCE: Duration = Duration::from_secs(7);

/// Some machines, each with a node, and one more with an etcd.
struct Site {
    folder: tempfile::TempDir,
    nodes: Vec<Launcher>,
    server: Etcd,
    network: Network,
    /// The machine of the etcd.
    etcd: Host,
}

impl Site {
    /// All of them work together.
    fn of_members(nodes: usize, args: &[&str]) -> Self {
        let mut site = Site::new(nodes, args, WORKER);
        site.meet(1, nodes, 0..nodes);
        site
    }

    fn new(nodes: usize, args: &[&str], worker: &str) -> Self {
        // The last call is longer than anything here takes, so that nobody is left out who is only slow.
        let conf = ["--rdzv-conf", "last_call_timeout=60,lease_timeout=2"];
        Site::with(nodes, &[&conf[..], args].concat(), worker)
    }

    fn with(nodes: usize, args: &[&str], worker: &str) -> Self {
        let mut site = Site::without_nodes(nodes);
        site.nodes = (0..nodes).map(|n| site.start(n, args, worker)).collect();
        site
    }

    /// With so many machines for them.
    fn without_nodes(nodes: usize) -> Self {
        let network = Network::start(nodes + 1).unwrap();
        let etcd = network.host(nodes);
        let server = Etcd::builder(Version::V35).v2().unsafe_no_fsync().on(&etcd).start();
        let folder = tempfile::tempdir().unwrap();
        Site { folder, nodes: Vec::new(), server, network, etcd }
    }

    fn start(&self, n: usize, args: &[&str], worker: &str) -> Launcher {
        let mut command = self.network.host(n).command(RALLYPOINT);
        let endpoint = self.server.endpoint();
        command.args(["run", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--shutdown-timeout", "5"]);
        command.args(args).args(["--", "bash", "-c", worker]);
        command.env("FOLDER", self.folder.path()).env("NODE", format!("node{n}"));
        command.env("RALLYPOINT_PASSWORD", "secret");
        Launcher::spawn(command)
    }

    /// Waits until these have started their workers for the nth time, with so many in the round.
    fn meet(&mut self, start: usize, nodes: usize, who: impl IntoIterator<Item = usize>) {
        for n in who {
            self.nodes[n].wait_for(&format!("start {start}: {nodes} are here"));
        }
    }

    fn others(&self, one: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.nodes.len()).filter(move |n| *n != one)
    }

    /// Lets so much time pass, while all of them work.
    fn work_on(&self, time: Duration) {
        let said = |n: usize| self.words(n).len();
        let before: Vec<usize> = (0..self.nodes.len()).map(said).collect();
        std::thread::sleep(time);
        for (n, before) in before.into_iter().enumerate() {
            wait_until("all go on working", || (said(n) > before).then_some(()));
        }
    }

    /// The node that has rank 0.
    fn master(&self) -> usize {
        let first =
            |n: &usize| wait_until("a worker works", || self.words(*n).last().map(|word| word.1)) == 0;
        (0..self.nodes.len()).find(first).unwrap()
    }

    /// When the worker of a node said that it works, and its rank.
    fn words(&self, n: usize) -> Vec<(u64, usize)> {
        let text = std::fs::read_to_string(self.folder.path().join(format!("node{n}"))).unwrap_or_default();
        let word = |line: &str| {
            let (at, rank) = line.split_once(' ')?;
            Some((at.parse().ok()?, rank.parse().ok()?))
        };
        text.lines().filter_map(word).collect()
    }

    /// From when to when a node had rank 0. A worker that says nothing for a second is another one.
    fn reigns(&self, n: usize) -> Vec<(u64, u64)> {
        let mut reigns: Vec<(u64, u64)> = Vec::new();
        for (at, _) in self.words(n).into_iter().filter(|(_, rank)| *rank == 0) {
            match reigns.last_mut() {
                Some((_, until)) if at - *until < 1_000_000_000 => *until = at,
                _ => reigns.push((at, at)),
            }
        }
        reigns
    }

    /// For how long two nodes had rank 0.
    #[track_caller]
    fn two_masters(&self, bound: Duration) {
        let all: Vec<_> = (0..self.nodes.len()).map(|n| self.reigns(n)).collect();
        let pairs =
            all.iter().enumerate().flat_map(|(n, one)| all[..n].iter().map(move |other| (one, other)));
        let overlap = |a: &(u64, u64), b: &(u64, u64)| a.1.min(b.1).saturating_sub(a.0.max(b.0));
        let overlaps =
            pairs.flat_map(|(one, other)| one.iter().flat_map(|a| other.iter().map(|b| overlap(a, b))));
        let longest = Duration::from_nanos(overlaps.max().unwrap_or_default());
        eprintln!("two had rank 0 for {longest:?}");
        assert!(longest < bound, "two had rank 0 for {longest:?}, more than {bound:?}");
    }

    /// All end well, each having started its workers so often.
    fn end(mut self, starts: usize) {
        std::fs::write(self.folder.path().join("end"), "").unwrap();
        for (n, node) in self.nodes.drain(..).enumerate() {
            let ended = node.ended().expect(0);
            assert_eq!(ended.with("starting workers").len(), starts, "node {n}: {}", ended.text());
            assert!(ended.with("starting again").is_empty(), "nobody pays: {}", ended.text());
        }
    }
}

#[test]
fn a_node_cut_off_from_etcd_learns_from_the_others_that_they_have_met_again() {
    // The others' word is all that stops it.
    let mut site = Site::of_members(3, &["--nnodes", "2:3", "--fence-timeout", "600"]);
    let master = site.master();
    let host = site.network.host(master);
    host.cut_from(&site.etcd);
    site.nodes[master].wait_for("asking other nodes");
    site.nodes[master].wait_for("is in this round no more");
    site.meet(2, 2, site.others(master));
    host.mend_to(&site.etcd);
    site.meet(2, 3, [master]);
    site.meet(3, 3, site.others(master));
    site.two_masters(Duration::from_secs(2) + GRACE);
}

#[test]
fn a_node_whose_user_may_do_nothing_any_more_learns_so_too() {
    let mut site = Site::without_nodes(3);
    // Each node is a user of its own.
    let (user, keys) = (|n: usize| format!("node{n}"), "rallypoint/job/");
    site.server.ask_for_passwords(&user(0), "secret", keys);
    (1..3).for_each(|n| site.server.add_user(&user(n), "secret", keys));
    let args =
        ["--nnodes", "2:3", "--fence-timeout", "600", "--rdzv-conf", "last_call_timeout=60,lease_timeout=2"];
    site.nodes =
        (0..3).map(|n| site.start(n, &[&args[..], &["--user", &user(n)]].concat(), WORKER)).collect();
    site.meet(1, 3, 0..3);
    let master = site.master();
    site.server.revoke_role(&user(master));
    // What it watched it may watch no more. etcd grants it a lease and renews that, and takes no key for it.
    site.server.kill();
    site.server.restart();
    site.nodes[master].wait_for("refuses this node");
    site.nodes[master].wait_for("is in this round no more");
    site.meet(2, 2, site.others(master));
    site.server.grant_role(&user(master));
    site.meet(2, 3, [master]);
    site.meet(3, 3, site.others(master));
    site.two_masters(Duration::from_secs(2) + GRACE);
}

#[test]
fn the_barrier_with_pytorchs_nodes_has_a_fence_too() {
    let args = ["--nnodes", "2:3", "--fence-timeout", "600", "--rdzv-backend", "etcd"];
    let conf = ["--rdzv-conf", "last_call_timeout=5"];
    let mut site = Site::with(3, &[&args[..], &conf[..]].concat(), WORKER);
    site.meet(1, 3, 0..3);
    let master = site.master();
    let host = site.network.host(master);
    host.cut_from(&site.etcd);
    site.nodes[master].wait_for("is in this round no more");
    site.meet(2, 2, site.others(master));
    host.mend_to(&site.etcd);
    site.meet(2, 3, [master]);
    site.two_masters(Duration::from_secs(2) + GRACE);
}

#[test]
fn a_node_cut_off_from_everything_stops_its_workers_in_time() {
    let mut site = Site::of_members(3, &["--nnodes", "2:3"]);
    let master = site.master();
    let host = site.network.host(master);
    host.lose();
    site.nodes[master].wait_for("neither etcd nor the other nodes");
    site.meet(2, 2, site.others(master));
    host.mend();
    site.meet(2, 3, [master]);
    site.meet(3, 3, site.others(master));
    site.two_masters(FENCE + Duration::from_secs(2) + GRACE);
}

#[test]
fn nodes_that_are_cut_off_together_do_not_vouch_for_each_other() {
    let mut site = Site::of_members(4, &["--nnodes", "2:4"]);
    let master = site.master();
    let hosts: Vec<Host> = (0..4).map(|n| site.network.host(n)).collect();
    let here = [master, (master + 1) % 4];
    let there = [(master + 2) % 4, (master + 3) % 4];
    for n in here {
        there
            .iter()
            .map(|other| &hosts[*other])
            .chain([&site.etcd])
            .for_each(|other| hosts[n].cut_from(other));
    }
    site.meet(2, 2, there);
    for n in here {
        // Whichever of the two notices first, and what the other hears from it.
        site.nodes[n].wait_for("stopping the workers");
    }
    for n in here {
        there
            .iter()
            .map(|other| &hosts[*other])
            .chain([&site.etcd])
            .for_each(|other| hosts[n].mend_to(other));
    }
    for n in here {
        wait_until("it is back", || site.nodes[n].heard(": 4 are here").then_some(()));
    }
    site.two_masters(FENCE + Duration::from_secs(2) + GRACE);
}

#[test]
fn while_etcd_is_away_for_all_all_work_on() {
    let mut site = Site::of_members(3, &["--nnodes", "2:3", "--fence-timeout", "3"]);
    site.server.kill();
    for node in &mut site.nodes {
        node.wait_for("asking other nodes");
    }
    // Far longer than the fence and the lease.
    site.work_on(Duration::from_secs(15));
    site.server.restart();
    for node in &mut site.nodes {
        node.wait_for("etcd renews this node's lease again");
    }
    site.work_on(Duration::from_secs(5));
    site.end(1);
}

#[test]
fn while_etcd_is_away_for_all_every_node_names_the_worker_that_failed_first() {
    // With no restart left the run ends; with one, nobody can meet again, and that is told with its reason.
    std::thread::scope(|scope| {
        scope.spawn(|| names_the_first("0", 1, "failed first"));
        scope.spawn(|| names_the_first("1", 4, "error: run \"job\": rank "));
    });
}

/// One worker fails, and others after it.
fn names_the_first(restarts: &str, code: i32, word: &str) {
    let conf = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=2,join_timeout=12"];
    let mut site =
        Site::with(3, &[&["--nnodes", "3", "--max-restarts", restarts][..], &conf].concat(), WORKER);
    site.meet(1, 3, 0..3);
    site.server.kill();
    for node in &mut site.nodes {
        node.wait_for("asking other nodes");
    }
    let fail = |n: usize, code| std::fs::write(site.folder.path().join(format!("node{n}.fail")), code);
    fail(1, "9").unwrap();
    site.nodes[1].wait_for("no data");
    // Its launcher has seen its end before the other fails, if that one has not been stopped by then.
    let pid = std::fs::read_to_string(site.folder.path().join("node1.pid")).unwrap();
    let process = std::path::Path::new("/proc").join(pid.trim());
    wait_until("the first is gone", || (!process.exists()).then_some(()));
    fail(0, "8").unwrap();
    let cause = |node: Launcher| {
        let ended = node.ended().expect(code);
        let from = ended.lines.iter().position(|line| line.contains(word)).expect("a cause");
        let text = ended.lines[from..].iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        assert!(text.contains("exit code 9"), "{text}");
        text.split(", and the nodes cannot").next().map(str::to_owned)
    };
    let causes: Vec<_> = site.nodes.drain(..).map(cause).collect();
    assert!(causes.iter().all(|cause| cause == &causes[0]), "all name the same: {causes:?}");
}

#[test]
fn who_has_finished_while_etcd_is_away_is_not_taken_for_lost() {
    let mut site =
        Site::of_members(2, &["--nnodes", "2", "--fence-timeout", "4", "--exit-barrier-timeout", "2"]);
    site.server.kill();
    for node in &mut site.nodes {
        node.wait_for("asking other nodes");
    }
    std::fs::write(site.folder.path().join("node1.end"), "").unwrap();
    site.nodes.pop().unwrap().ended().expect(0);
    site.work_on(Duration::from_secs(10));
    site.end(1);
}

/// Its lease ends before etcd can be told that it has finished, whether etcd was away for all or for itself alone.
#[test]
fn who_has_finished_and_gone_meanwhile_is_not_missed_by_those_whom_etcd_answers() {
    for alone in [false, true] {
        let args = ["--nnodes", "1:3", "--fence-timeout", "60", "--exit-barrier-timeout", "3"];
        let mut site = Site::of_members(3, &args);
        let host = site.network.host(2);
        if alone {
            host.cut_from(&site.etcd);
        } else {
            site.server.pause();
        }
        site.nodes[2].wait_for("asking other nodes");
        std::fs::write(site.folder.path().join("node2.end"), "").unwrap();
        site.nodes.pop().unwrap().ended().expect(0);
        if !alone {
            site.server.resume();
        }
        for node in &mut site.nodes {
            node.wait_for("its workers had finished, and the others go on");
            node.forget();
        }
        // Another one dies after it: that is told as ever.
        site.nodes.pop().unwrap().pull_the_plug();
        site.nodes[0].wait_for("died; meeting again");
        site.nodes[0].wait_for("1 are here");
        site.end(1);
    }
}

/// Nor by those who have finished too, and wait for it.
#[test]
fn all_who_have_finished_end_well_without_the_one_that_could_not_say_so() {
    let args = ["--nnodes", "1:3", "--fence-timeout", "60", "--exit-barrier-timeout", "4"];
    let mut site = Site::of_members(3, &args);
    let host = site.network.host(2);
    host.cut_from(&site.etcd);
    site.nodes[2].wait_for("asking other nodes");
    std::fs::write(site.folder.path().join("end"), "").unwrap();
    for node in site.nodes {
        let ended = node.ended().expect(0);
        assert!(ended.with("start 2").is_empty(), "{}", ended.text());
    }
}

#[test]
fn a_group_whose_etcd_is_away_for_longer_than_it_may_makes_room_for_the_spares() {
    let mut site = Site::new(4, &["--nnodes", "2", "--max-etcd-outage", "4"], WORKER);
    // Two of them meet, whichever they are.
    wait_for_any(&mut site.nodes, "standing by as a spare");
    wait_until("two work", || (0..4).filter(|n| !site.words(*n).is_empty()).nth(1));
    let (members, spares): (Vec<usize>, Vec<usize>) = (0..4).partition(|n| !site.words(*n).is_empty());
    let cut = |site: &Site, off: bool| {
        for n in &members {
            for other in spares.iter().map(|n| site.network.host(*n)).chain([site.etcd.clone()]) {
                let host = site.network.host(*n);
                if off { host.cut_from(&other) } else { host.mend_to(&other) }
            }
        }
    };
    cut(&site, true);
    site.meet(1, 2, spares.iter().copied());
    for n in &members {
        site.nodes[*n].wait_for("stopping the workers");
    }
    cut(&site, false);
    for n in &members {
        site.nodes[*n].wait_for("standing by as a spare");
    }
    site.two_masters(Duration::from_secs(4 + 2) + GRACE);
}

#[test]
fn what_fails_on_a_node_that_is_cut_off_because_the_others_met_again_costs_nothing() {
    let mut site =
        Site::new(3, &["--nnodes", "2:3", "--max-restarts", "0", "--worker-store", "rank0"], CONNECTED);
    for node in &mut site.nodes {
        node.wait_for("connected");
    }
    let master = site.master();
    let host = site.network.host(master);
    host.cut_from(&site.etcd);
    site.meet(2, 2, site.others(master));
    site.nodes[master].wait_for("is in this round no more");
    host.mend_to(&site.etcd);
    site.meet(2, 3, [master]);
    site.meet(3, 3, site.others(master));
    site.two_masters(Duration::from_secs(2) + GRACE);
    std::fs::write(site.folder.path().join("end"), "").unwrap();
    for node in site.nodes {
        node.ended().expect(0);
    }
}

/// Cuts at random. `RALLYPOINT_FENCE_CUTS` says how many, `RALLYPOINT_FENCE_SEED` which.
#[test]
fn whatever_is_cut_no_two_have_one_rank_for_long_and_all_meet_again() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let cuts = number("RALLYPOINT_FENCE_CUTS").unwrap_or(3);
    let seed = number("RALLYPOINT_FENCE_SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("RALLYPOINT_FENCE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let site = Site::of_members(4, &["--nnodes", "2:4", "--fence-timeout", "3"]);
    let hosts: Vec<Host> = (0..4).map(|n| site.network.host(n)).collect();
    for _ in 0..cuts {
        // Each pair of machines, the etcd's among them, with the same chance.
        let share = [0.2, 0.5, 0.8][random.usize(..3)];
        let all: Vec<&Host> = hosts.iter().chain([&site.etcd]).collect();
        let mut pairs: Vec<(usize, usize)> = (0..5).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
        pairs.retain(|_| random.f64() < share);
        let time = Duration::from_millis(random.u64(1000..25_000));
        eprintln!("cut for {time:?}: {pairs:?}");
        pairs.iter().for_each(|(a, b)| all[*a].cut_from(all[*b]));
        std::thread::sleep(time);
        pairs.iter().for_each(|(a, b)| all[*a].mend_to(all[*b]));
        std::thread::sleep(Duration::from_millis(random.u64(..8_000)));
    }
    // When all is well they are all in one round, at work.
    wait_until("all four meet again", || {
        let states = site.server.etcdctl(&["get", "--print-value-only", "rallypoint/job/group/round"]);
        let whole = states.contains(r#""world_size":4"#) && states.contains(r#""lost_count":0"#);
        whole.then_some(())
    });
    site.work_on(Duration::from_secs(3));
    site.two_masters(Duration::from_secs(3 + 2) + GRACE);
    std::fs::write(site.folder.path().join("end"), "").unwrap();
    for node in site.nodes {
        node.ended().expect(0);
    }
}

/// Not for as long as it would stop its workers for that. It comes back with a failure of its own, which was the first.
#[test]
fn a_node_that_was_given_up_while_it_was_cut_off_names_its_own_death_as_the_others_do() {
    let mut site = Site::of_members(3, &["--nnodes", "3", "--max-restarts", "1"]);
    site.network.host(0).cut();
    std::thread::sleep(Duration::from_millis(500));
    let file = |n: usize| site.folder.path().join(format!("node{n}.fail"));
    (0..3).for_each(|n| std::fs::write(file(n), "7").unwrap());
    std::thread::sleep(Duration::from_millis(4_500));
    (0..3).for_each(|n| std::fs::remove_file(file(n)).unwrap());
    site.network.host(0).mend();
    site.meet(2, 3, 0..3);
    std::fs::write(site.folder.path().join("end"), "").unwrap();
    for node in site.nodes {
        let ended = node.ended().expect(0);
        assert!(!ended.with("died; meeting again").is_empty(), "{}", ended.text());
        assert!(ended.with("starting again").is_empty(), "{}", ended.text());
    }
}
