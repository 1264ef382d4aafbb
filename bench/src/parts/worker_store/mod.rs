//! The workers' store beside PyTorch's own libuv server, with the same clients.

pub(crate) mod client;
pub(crate) mod process;
mod proxies;

use process::{Clients, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::measure::{Samples, in_turn};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Promise, Row, Table};

const LIBUV: &str = "torch TCPStore, libuv";
/// What is asked for, and what its row is called.
const REQUESTS: [(&str, &str); 4] =
    [("set", "set"), ("get", "get"), ("add", "add"), ("fan-out", "one key to all that wait for it")];

/// That it grows no faster than the number of ranks: what it takes for each of the fewest and of the most.
fn grows_no_faster(name: &str, each: &[(f64, Samples)]) -> Option<Comparison> {
    let [(few, first), .., (many, last)] = each else { return None };
    let name = format!("time for each of {many} {name}");
    let sides = (last.clone(), format!("the same for {few}"), first.clone());
    Some(Comparison::new(name, "us", (sides.0, &sides.1, sides.2), Some(Promise::AtMost(1.0))))
}

/// A server and its clients, ours first and then PyTorch's.
type Sides = [(Server, Clients); 2];

fn start() -> Sides {
    [Server::ours(), Server::pytorchs()].map(|server| {
        let clients = server.clients();
        (server, clients)
    })
}

pub(crate) fn run(plan: &Plan) -> Part {
    // Each connection is a descriptor, for all of these processes.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("it is allowed as much");
    let mut part = Part::default();
    let rounds = plan.rounds(5, 1);
    let seconds = plan.pick(1.0, 0.25);
    part.setting.push(format!(
        "each server and the clients of each in processes of their own, values of 64 bytes, rounds in turn: {rounds}, of \
         {seconds} s each"
    ));
    if plan.wants("rates") {
        let mut rates = table("worker-store-rates", "Requests a second", "what");
        let sizes = plan.pick(&[1, 64, 1024, 10_000][..], &[1, 64, 1024]);
        for &connections in sizes {
            measure_rates(plan, connections, (rounds, seconds), &mut part, &mut rates);
        }
        part.tables.push(rates);
    }
    if plan.wants("meet") {
        meet(plan, plan.rounds(5, 1), &mut part);
    }
    if plan.wants("proxies") {
        proxies::measure(plan, (rounds, seconds), &mut part);
    }
    part
}

fn table(id: &str, title: &str, rows_are: &str) -> Table {
    let columns = ["rallypoint", LIBUV].map(str::to_owned).into();
    Table {
        id: id.to_owned(),
        title: title.to_owned(),
        rows_are: rows_are.to_owned(),
        columns,
        rows: Vec::new(),
    }
}

/// A server that has more cores than its clients use can be that much faster. With one connection there is one request under
/// way, and what takes the time is the kernel's way there and back: no server can be much faster than another.
fn promised_rate(connections: usize) -> Option<Promise> {
    (connections > 1).then_some(Promise::AtLeast(1.5))
}

fn row(name: String, x: Option<f64>, unit: &str, samples: &[Samples]) -> Row {
    Row { name, x, unit: unit.to_owned(), cells: samples.iter().cloned().map(Outcome::Measured).collect() }
}

fn counted(connections: usize) -> String {
    match connections {
        1 => "1 connection".to_owned(),
        10_000 => "10,000 connections".to_owned(),
        1024 => "1,024 connections".to_owned(),
        some => format!("{some} connections"),
    }
}

/// Requests a second, what one costs the server, and what a connection takes.
fn measure_rates(
    plan: &Plan,
    connections: usize,
    (rounds, seconds): (u32, f64),
    part: &mut Part,
    table: &mut Table,
) {
    plan.say(&format!("memory of {}", counted(connections)));
    let mut sides = start();
    let each = |side: &mut (Server, Clients)| {
        // What the first connection brings along is no matter of each.
        side.1.ask("connect", 1);
        let before = side.0.memory();
        side.1.ask("connect", connections);
        (side.0.memory() - before) * 1024.0 / connections as f64
    };
    let [ours, theirs] = sides.each_mut().map(each).map(Samples::one);
    if connections >= 1000 {
        let name = format!("memory of each of {}", counted(connections));
        part.comparisons.push(Comparison::new(name, "KB", (ours, LIBUV, theirs), Some(Promise::AtMost(0.5))));
    }
    for (what, name) in REQUESTS {
        plan.say(&format!("{name}, {}", counted(connections)));
        let [mut rates, mut costs] = [(); 2].map(|()| [(); 2].map(|()| Samples::default()));
        for round in 0..rounds {
            for at in in_turn(sides.len(), round) {
                let (server, clients) = &mut sides[at];
                let (began, before) = (std::time::Instant::now(), server.cpu());
                let rate = clients.ask(what, seconds);
                rates[at].push(rate);
                let requests = rate * began.elapsed().as_secs_f64();
                costs[at].push((server.cpu() - before) * 1e6 / requests);
            }
        }
        let name = format!("{name}, {}", counted(connections));
        table.rows.push(row(name.clone(), None, "/s", &rates));
        let [ours, theirs] = rates;
        let promise = promised_rate(connections);
        part.comparisons.push(Comparison::new(&name, "/s", (ours, LIBUV, theirs), promise));
        if what != "fan-out" {
            let [ours, theirs] = costs;
            let name = format!("the server's processor time of {name}");
            part.comparisons.push(Comparison::new(name, "us", (ours, LIBUV, theirs), None));
        }
    }
}

/// Until so many have connected and met.
fn meet(plan: &Plan, rounds: u32, part: &mut Part) {
    let sizes = plan.pick(&[64, 256, 1024, 4096, 10_000][..], &[64, 256, 1024]);
    let mut times = table("worker-store-init", "Until all ranks have connected and met", "ranks");
    let mut each_time = Vec::new();
    let mut sides = start();
    for &ranks in sizes {
        let mut samples = [(); 2].map(|()| Samples::default());
        for round in 0..rounds {
            plan.say(&format!("{ranks} ranks meet, round {} of {rounds}", round + 1));
            for at in in_turn(sides.len(), round) {
                samples[at].push(sides[at].1.ask("init", ranks));
            }
        }
        times.rows.push(row(ranks.to_string(), Some(f64::from(ranks)), "s", &samples));
        let each = Samples::one(samples[0].median() * 1e6 / f64::from(ranks));
        each_time.push((f64::from(ranks), each));
        let [ours, theirs] = samples;
        part.comparisons.push(Comparison::new(
            format!("{ranks} ranks meet"),
            "s",
            (ours, LIBUV, theirs),
            None,
        ));
    }
    part.comparisons.extend(grows_no_faster("ranks", &each_time));
    part.tables.push(times);
}
