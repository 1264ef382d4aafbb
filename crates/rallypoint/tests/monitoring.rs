//! Metrics as Prometheus gets them: a real one asks launchers whose workers and nodes are really killed; promtool reads what
//! each program says; the documents, the alerts and the dashboard name only what there is.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use launcher::{Launcher, RALLYPOINT, signal, wait_until};
use rallypoint_testkit::{Etcd, Prometheus, Version, http_get, promtool};

/// The port that a launcher says its metrics are at.
fn port(launcher: &mut Launcher) -> u16 {
    let line = launcher.wait_for("metrics are served at http://127.0.0.1:");
    line.rsplit_once("127.0.0.1:").unwrap().1.strip_suffix("/metrics").unwrap().parse().unwrap()
}

fn text(port: u16) -> String {
    let answer = http_get(port, "/metrics", Duration::from_secs(10)).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// What a query gives, by job.
fn values(prometheus: &Prometheus, query: &str) -> BTreeMap<String, f64> {
    let answer: serde_json::Value = serde_json::from_str(&prometheus.query(query)).unwrap();
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let results = answer["data"]["result"].as_array().unwrap();
    let value = |result: &serde_json::Value| result["value"][1].as_str().unwrap().parse().unwrap();
    results
        .iter()
        .map(|result| (result["metric"]["job"].as_str().unwrap_or("").to_owned(), value(result)))
        .collect()
}

/// Waits until a query gives this.
#[track_caller]
fn expect(prometheus: &Prometheus, query: &str, wanted: &[(&str, f64)]) {
    let wanted: BTreeMap<String, f64> =
        wanted.iter().map(|(job, value)| ((*job).to_owned(), *value)).collect();
    let mut last = BTreeMap::new();
    let deadline = std::time::Instant::now() + launcher::TIMEOUT;
    while last != wanted {
        assert!(std::time::Instant::now() < deadline, "{query} is {last:?} and not {wanted:?}");
        last = values(prometheus, query);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_prometheus_sees_workers_fail_and_nodes_die() {
    let etcd = Etcd::start(Version::V35);
    let folder = tempfile::tempdir().unwrap();
    let over = folder.path().join("over");
    let pids = folder.path().display();
    let script = format!(
        "echo $$ >{pids}/$ROLE_NAME-$LOCAL_RANK; echo hello; while [ ! -e {} ]; do sleep 0.05; done",
        over.display()
    );
    let endpoint = etcd.endpoint();
    let node = |role: &str| {
        let run =
            ["--nnodes", "2:3", "--nproc-per-node", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
        let conf = ["--rdzv-conf", "last_call_timeout=10,lease_timeout=3", "--metrics-listen", "127.0.0.1:0"];
        let args = [&run[..], &conf[..], &["--max-restarts", "2", "--role", role, "--", "sh", "-c", &script]];
        Launcher::start(&args.concat())
    };
    let mut nodes = ["a", "b", "c"].map(node);
    let [a, b, c] = nodes.each_mut().map(port);
    let Some(prometheus) = Prometheus::start(&[("a", a), ("b", b), ("c", c)]) else { return };
    let all = |value: f64| [("a", value), ("b", value), ("c", value)];
    expect(&prometheus, "rallypoint_members", &all(3.0));
    expect(&prometheus, "rallypoint_round", &all(1.0));
    expect(&prometheus, "rallypoint_phase{phase=\"working\"}", &all(1.0));
    expect(&prometheus, "sum by (job) (rallypoint_phase)", &all(1.0));
    expect(&prometheus, "rallypoint_workers{state=\"running\"}", &all(2.0));
    expect(&prometheus, "rallypoint_restarts_left", &all(2.0));
    expect(
        &prometheus,
        "count by (job) (rallypoint_run_info{run_id=\"job\",backend=\"rallypoint\"})",
        &all(1.0),
    );
    expect(&prometheus, "sum(rallypoint_node_rank)", &[("", 3.0)]);
    expect(&prometheus, "rallypoint_worker_output_bytes_total{stream=\"stdout\"}", &all(12.0));

    // A worker of the first node.
    let file = folder.path().join("a-0");
    signal(std::fs::read_to_string(&file).unwrap().trim().parse().unwrap(), "KILL");
    expect(&prometheus, "rallypoint_round", &all(2.0));
    expect(&prometheus, "rallypoint_rounds_total{outcome=\"joined\"}", &all(2.0));
    let of_a = |value: f64, others: f64| [("a", value), ("b", others), ("c", others)];
    expect(&prometheus, "rallypoint_restarts_total{cause=\"worker_failed\"}", &of_a(1.0, 0.0));
    expect(&prometheus, "rallypoint_restarts_total{cause=\"other_node_failed\"}", &of_a(0.0, 1.0));
    expect(&prometheus, "rallypoint_worker_ends_total{state=\"failed\"}", &of_a(1.0, 0.0));
    expect(&prometheus, "rallypoint_worker_ends_total{state=\"terminated\"}", &of_a(1.0, 2.0));
    expect(&prometheus, "rallypoint_restarts_left", &of_a(1.0, 2.0));
    expect(&prometheus, "rallypoint_worker_starts_total", &all(4.0));
    expect(&prometheus, "rallypoint_worker_output_bytes_total{stream=\"stdout\"}", &all(24.0));
    expect(&prometheus, "rallypoint_lost_members_total{why=\"died\"}", &all(0.0));

    // A whole node.
    nodes[2].pull_the_plug();
    let left = |value: f64| [("a", value), ("b", value)];
    expect(&prometheus, "rallypoint_members == 2", &left(2.0));
    expect(&prometheus, "rallypoint_lost_members_total{why=\"died\",job!=\"c\"}", &left(1.0));
    expect(&prometheus, "rallypoint_restarts_total{cause=\"node_died\",job!=\"c\"}", &left(1.0));
    expect(&prometheus, "up", &[("a", 1.0), ("b", 1.0), ("c", 0.0)]);
    expect(&prometheus, "rallypoint_worker_output_bytes_total{stream=\"stdout\",job!=\"c\"}", &left(36.0));
    expect(&prometheus, "rallypoint_phase_duration_seconds_count{phase=\"working\",job!=\"c\"}", &left(2.0));

    // Who has rank 0 serves the workers' store. Nobody here uses it; the nodes' own is used for each round.
    assert!(values(&prometheus, "sum(rallypoint_store_operations_total{kind=\"set\"})")[""] >= 3.0);
    // Leases are refreshed, and etcd answers.
    let refreshed = "rallypoint_etcd_lease_refresh_duration_seconds_count{job!=\"c\"} > bool 0";
    expect(&prometheus, refreshed, &left(1.0));
    let asked = "rallypoint_etcd_requests_total{kind=\"txn\",outcome=\"ok\",job!=\"c\"} > bool 0";
    expect(&prometheus, asked, &left(1.0));
    let answered = "time() - rallypoint_etcd_last_answer_timestamp_seconds{job!=\"c\"} < bool 10";
    expect(&prometheus, answered, &left(1.0));
    std::fs::write(over, "").unwrap();
    let [a, b, _] = nodes;
    a.ended().expect(0);
    b.ended().expect(0);
}

#[test]
fn an_etcd_that_hangs_shows_in_what_a_launcher_says() {
    let mut etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let run = [
        "--nnodes",
        "1:2",
        "--rdzv-id",
        "job",
        "--rdzv-endpoint",
        &endpoint,
        "--metrics-listen",
        "127.0.0.1:0",
    ];
    let conf = ["--rdzv-conf", "last_call_timeout=0,lease_timeout=2", "--", "sleep", "600"];
    let mut node = Launcher::start(&[&run[..], &conf[..]].concat());
    let port = port(&mut node);
    let number = |name: &str| -> f64 {
        let text = text(port);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    wait_until("its lease is refreshed", || {
        (number("rallypoint_etcd_lease_refresh_duration_seconds_count") > 0.0).then_some(())
    });
    assert_eq!(number("rallypoint_etcd_lease_refresh_failures_total"), 0.0);
    etcd.pause();
    wait_until("refreshes fail", || {
        (number("rallypoint_etcd_lease_refresh_failures_total") > 1.0).then_some(())
    });
    let last = number("rallypoint_etcd_last_answer_timestamp_seconds");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(number("rallypoint_etcd_last_answer_timestamp_seconds"), last, "etcd has said nothing");
    etcd.resume();
    wait_until("etcd answers", || {
        (number("rallypoint_etcd_last_answer_timestamp_seconds") > last).then_some(())
    });
}

#[test]
fn a_port_in_use_ends_nobodys_training() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let place = format!("127.0.0.1:{port}");
    let ended = Launcher::run(&["--standalone", "--metrics-listen", &place, "--", "true"]).expect(0);
    let said = format!("metrics cannot be served at {place}: the port is in use");
    assert_eq!(ended.with(&said).len(), 1, "{}", ended.text());
    // The option of the backend is heeded too, and a port of several that is free.
    let several = format!("metrics_listen=127.0.0.1:{port}-{}", port.saturating_add(50));
    let ended = Launcher::run(&["--standalone", "--rdzv-conf", &several, "--", "true"]).expect(0);
    assert_eq!(ended.with("metrics are served at http://127.0.0.1:").len(), 1, "{}", ended.text());
    for args in [["--metrics-listen", "nowhere"], ["--rdzv-conf", "metrics_listen=nowhere"]] {
        let ended = Launcher::run(&[&["--standalone"], &args[..], &["--", "true"]].concat()).expect(2);
        assert_eq!(
            ended.with("\"nowhere\" is no address to listen on: write HOST:PORT").len(),
            1,
            "{}",
            ended.text()
        );
    }
}

/// A server of ours, killed when dropped.
struct Served(Child, u16);

impl Served {
    fn start(args: &[&str]) -> Self {
        let mut command = launcher::heeding(RALLYPOINT);
        let mut child =
            command.args(args).args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let address = line.split_once("address=")?.1.split_whitespace().next()?.to_owned();
            address.rsplit_once(':')?.1.parse().ok()
        });
        // What it says later is for nobody.
        std::thread::spawn(move || lines.for_each(drop));
        Served(child, port.expect("it says where it listens"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each program, and its port.
struct World {
    launcher: Launcher,
    server: Served,
    gateway: Served,
    port: u16,
    _etcd: Etcd,
}

impl World {
    fn start() -> Self {
        let etcd = Etcd::start(Version::V35);
        let mut launcher =
            Launcher::start(&["--standalone", "--metrics-listen", "127.0.0.1:0", "--", "sleep", "600"]);
        let port = port(&mut launcher);
        launcher.wait_for("starting workers");
        let server = Served::start(&["serve"]);
        let gateway = Served::start(&["gateway", "--endpoint", &etcd.endpoint()]);
        World { launcher, server, gateway, port, _etcd: etcd }
    }

    fn ports(&self) -> [(&'static str, u16); 3] {
        [("launcher", self.port), ("server", self.server.1), ("gateway", self.gateway.1)]
    }
}

/// A metric, as a program tells it or a document does.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Metric {
    name: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// The metrics of a page. Every label is in one of its samples, since all values are there from the start.
fn metrics(page: &str) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' ')) {
            metrics.push(Metric { name: name.to_owned(), kind: kind.to_owned(), labels: BTreeSet::new() });
        } else if let Some((_, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let labels =
                labels.rsplit_once('}').unwrap().0.split("\",").filter_map(|label| label.split_once('='));
            let labels = labels.map(|(name, _)| name.to_owned()).filter(|name| name != "le");
            metrics.last_mut().unwrap().labels.extend(labels);
        }
    }
    metrics
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn monitoring(file: &str) -> String {
    std::fs::read_to_string(root().join("examples/monitoring").join(file)).unwrap()
}

#[test]
fn the_document_lists_what_each_program_tells_and_promtool_reads_it() {
    let world = World::start();
    let document = std::fs::read_to_string(root().join("docs/monitoring.md")).unwrap();
    for (program, port) in world.ports() {
        let page = text(port);
        let (_, part) = document.split_once(&format!("<!-- metrics of: {program} -->")).expect(program);
        let rows = part
            .lines()
            .skip(1)
            .skip_while(|line| !line.starts_with("| `"))
            .take_while(|line| line.starts_with('|'));
        let told: BTreeSet<Metric> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                let labels = cells[3].split(", ").filter(|label| !label.is_empty());
                Metric {
                    name: cells[1].trim_matches('`').to_owned(),
                    kind: cells[2].to_owned(),
                    labels: labels.map(|label| label.trim_matches('`').to_owned()).collect(),
                }
            })
            .collect();
        let found: BTreeSet<Metric> = metrics(&page).into_iter().collect();
        assert!(told.len() > 15, "{program}: {told:?}");
        let (missing, gone) =
            (found.difference(&told).collect::<Vec<_>>(), told.difference(&found).collect::<Vec<_>>());
        assert!(
            missing.is_empty() && gone.is_empty(),
            "{program}: not in docs/monitoring.md: {missing:#?}; only there: {gone:#?}"
        );

        let Some(checked) = promtool(&root(), &["check", "metrics"], &page) else { continue };
        let said =
            String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        // etcd's names are not what promtool would choose.
        let ours: Vec<&str> =
            said.lines().filter(|line| !line.starts_with("etcd_") && !line.is_empty()).collect();
        assert!(ours.is_empty(), "{program}: {ours:?}");
        assert!(checked.status.success() || checked.status.code() == Some(3), "{program}: {said}");
        let broken = promtool(
            &root(),
            &["check", "metrics"],
            &page.replacen("# TYPE", "# TYPO", 1).replacen(' ', "", 3),
        );
        assert!(!broken.unwrap().status.success(), "it would say so");
    }
    drop(world.launcher);
}

#[test]
fn every_alert_is_tried_as_it_fires_and_as_it_does_not() {
    let folder = root().join("examples/monitoring");
    let alerts = monitoring("alerts.yml");
    let alerts: BTreeSet<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let tests = monitoring("alerts_test.yml");
    let mut tried: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
    let mut name = "";
    for line in tests.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("- alertname: ") {
            name = found;
        } else if let Some(rest) = line.strip_prefix("exp_alerts:") {
            tried.entry(name).or_default().insert(rest.trim() != "[]");
        }
    }
    assert!(alerts.len() > 10, "{alerts:?}");
    assert_eq!(tried.keys().copied().collect::<BTreeSet<_>>(), alerts);
    let untried: Vec<_> = tried.iter().filter(|(_, fires)| fires.len() < 2).collect();
    assert!(untried.is_empty(), "{untried:?}");
    for args in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let Some(checked) = promtool(&folder, &args, "") else { return };
        let said =
            String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{args:?}: {said}");
    }
    // A threshold that is wrong is found.
    let copy = tempfile::tempdir().unwrap();
    std::fs::write(copy.path().join("alerts.yml"), monitoring("alerts.yml").replace("> 0.8", "> 0.95"))
        .unwrap();
    std::fs::write(copy.path().join("alerts_test.yml"), tests).unwrap();
    let checked = promtool(copy.path(), &["test", "rules", "alerts_test.yml"], "").unwrap();
    assert!(!checked.status.success());
}

/// The expressions of the alerts and the dashboard.
fn expressions() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(&monitoring("grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let drawn = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let alerts = monitoring("alerts.yml");
    let mut expressions: Vec<String> = drawn.collect();
    assert!(expressions.len() > 30, "{expressions:?}");
    let mut lines = alerts.lines().peekable();
    while let Some(line) = lines.next() {
        match line.trim().strip_prefix("expr:").map(str::trim) {
            Some("|") => {
                let mut whole = String::new();
                while let Some(line) = lines.next_if(|line| line.starts_with("          ")) {
                    whole += line.trim();
                    whole.push(' ');
                }
                expressions.push(whole);
            }
            Some(expression) => expressions.push(expression.to_owned()),
            None => {}
        }
    }
    let replaced = [("$__rate_interval", "1m"), ("$run_id", ".*")];
    expressions
        .into_iter()
        .map(|expression| replaced.iter().fold(expression, |text, (from, to)| text.replace(from, to)))
        .collect()
}

#[test]
fn alerts_and_dashboard_ask_for_what_there_is() {
    let world = World::start();
    let Some(prometheus) = Prometheus::start(&world.ports()) else { return };
    expect(&prometheus, "up", &[("gateway", 1.0), ("launcher", 1.0), ("server", 1.0)]);
    let pages: Vec<Metric> = world.ports().iter().flat_map(|(_, port)| metrics(&text(*port))).collect();
    for expression in expressions() {
        let answer: serde_json::Value = serde_json::from_str(&prometheus.query(&expression)).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let word = |one: char| !(one.is_ascii_alphanumeric() || one == '_');
        let ours = |name: &&str| ["rallypoint_", "etcd_", "process_"].iter().any(|of| name.starts_with(of));
        let names: Vec<&str> = expression.split(word).filter(ours).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            let known = pages.iter().any(|metric| match metric.kind.as_str() {
                "histogram" => name
                    .strip_prefix(metric.name.as_str())
                    .is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest)),
                _ => metric.name == name,
            });
            assert!(known, "nobody tells {name}, which is in {expression}");
        }
    }
    drop(world.launcher);
}
