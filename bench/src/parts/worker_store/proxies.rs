//! Workers that come through a proxy of their node, beside workers that come to the server, ours or PyTorch's.

use std::time::Instant;

use super::process::{Clients, Server};
use super::{LIBUV, REQUESTS, counted, grows_no_faster, promised_rate, row};
use crate::measure::{Samples, in_turn};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise, Table};

/// As many GPUs as most nodes have.
const WORKERS_PER_NODE: usize = 8;
const DIRECT: &str = "each worker connects";

/// A server, what stands before it, and the clients.
struct Side {
    server: Server,
    _proxies: Option<Server>,
    clients: Clients,
}

impl Side {
    fn direct(server: Server) -> Self {
        let clients = server.clients();
        Side { server, _proxies: None, clients }
    }

    fn behind_proxies(workers: usize) -> Self {
        let server = Server::behind_proxies();
        let proxies = server.proxies(workers.div_ceil(WORKERS_PER_NODE));
        let clients = proxies.clients();
        Side { server, _proxies: Some(proxies), clients }
    }
}

/// What each costs the server, and how fast it answers.
pub(super) fn measure(plan: &Plan, (rounds, seconds): (u32, f64), part: &mut Part) {
    let columns =
        [format!("{WORKERS_PER_NODE} workers a node, by proxies"), DIRECT.to_owned(), LIBUV.to_owned()]
            .into();
    let mut each_time = Vec::new();
    let mut table = Table {
        id: "worker-store-proxies".to_owned(),
        title: "Workers by a proxy of their node".to_owned(),
        rows_are: "what".to_owned(),
        columns,
        rows: Vec::new(),
    };
    for &workers in plan.pick(&[64, 1024, 10_000][..], &[64, 1024]) {
        let name = |what: &str| format!("{what}, {}", counted(workers).replace("connection", "worker"));
        plan.say(&name("proxies"));
        // What is there before any worker comes is not theirs; a proxy comes for them.
        let before = [Server::behind_proxies(), Server::ours(), Server::pytorchs()]
            .map(|server| (server.descriptors(), server.memory()));
        let mut sides =
            [Side::behind_proxies(workers), Side::direct(Server::ours()), Side::direct(Server::pytorchs())];
        let mut at_server = [(); 3].map(|()| Samples::default());
        let mut memory = [(); 3].map(|()| Samples::default());
        for at in 0..sides.len() {
            let Side { server, clients, .. } = &mut sides[at];
            clients.ask("connect", workers);
            at_server[at].push(server.descriptors() - before[at].0);
            memory[at].push((server.memory() - before[at].1) * 1024.0 / workers as f64);
        }
        let what = name("connections to the server");
        table.rows.push(row(what.clone(), None, "", &at_server));
        let [ours, theirs, _] = at_server;
        // An eighth, and what rounding adds.
        let promise = Some(Promise::AtMost(0.13));
        part.comparisons.push(Comparison::new(what, "", (ours, DIRECT, theirs), promise));
        if workers >= 1000 {
            let what = name("the server's memory for each, by proxies");
            table.rows.push(row(what.clone(), None, "KB", &memory));
            let ([ours, _, theirs], promise) = (memory, Some(Promise::AtMost(0.5)));
            part.comparisons.push(Comparison::new(what, "KB", (ours, LIBUV, theirs), promise));
        }
        for (what, words) in REQUESTS {
            plan.say(&name(&format!("{words} by proxies")));
            let [mut rates, mut costs] = [(); 2].map(|()| [(); 3].map(|()| Samples::default()));
            for round in 0..rounds {
                for at in in_turn(sides.len(), round) {
                    let Side { server, clients, .. } = &mut sides[at];
                    let (began, before) = (Instant::now(), server.cpu());
                    let rate = clients.ask(what, seconds);
                    rates[at].push(rate);
                    let requests = rate * began.elapsed().as_secs_f64();
                    costs[at].push((server.cpu() - before) * 1e6 / requests);
                }
            }
            table.rows.push(row(name(words), None, "/s", &rates));
            if what != "fan-out" {
                let words = name(&format!("the server's processor time of {words}"));
                table.rows.push(row(words, None, "us", &costs));
            }
            let [ours, _, theirs] = rates;
            let (words, promise) = (name(&format!("{words} by proxies")), promised_rate(workers));
            part.comparisons.push(Comparison::new(words, "/s", (ours, LIBUV, theirs), promise));
        }
        let mut times = [(); 3].map(|()| Samples::default());
        for round in 0..rounds {
            for at in in_turn(sides.len(), round) {
                times[at].push(sides[at].clients.ask("init", workers));
            }
        }
        table.rows.push(row(name("until all have connected and met"), None, "s", &times));
        let each = Samples::one(times[0].median() * 1e6 / workers as f64);
        each_time.push((workers as f64, each));
        let [ours, _, theirs] = times;
        let what = name("met by proxies");
        part.comparisons.push(Comparison::new(what, "s", (ours, LIBUV, theirs), None));
    }
    part.comparisons.extend(grows_no_faster("workers by proxies", &each_time));
    part.tables.push(table);
}
