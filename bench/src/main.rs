//! Rallypoint measured beside the raw etcd client, PyTorch and others, in one run on one machine.
//!
//! `bench/run` sets everything up and starts this. The contenders take turns, round by round, so that whatever
//! else the machine does hits them alike; what is quoted is the ratio of their medians.
//!
//! - `parts`: what is measured, one module for each part; `nodes`: groups of processes, for several of them
//! - `results`: what was measured, as `results.json` keeps it
//! - `report`: the pages and plots that are made from it; the words are in `bench/notes`

mod machine;
mod measure;
mod nodes;
mod parts;
mod plan;
mod python;
mod report;
mod results;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use machine::Machine;
use parts::Which;
use plan::{Options, Plan};
use results::{Part, Results};

/// Measures Rallypoint beside its rivals, and writes a report.
///
/// Without the name of a part: all of them, in full, which takes about an hour and belongs on a machine with
/// nothing else to do. The report is docs/benchmarks.md, with its plots and all figures in docs/benchmarks.
#[derive(Parser)]
#[command(name = "bench/run", version, args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Exit codes: 0 measured, 1 a promise was not kept (with --check), 2 wrong usage, or no place to write.\n\
    What is measured, and how: docs/benchmarks.md."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Other>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Other {
    /// Write the report anew from figures that are there already.
    Render {
        /// Of several, the part that comes last counts.
        #[arg(value_name = "results.json", required = true)]
        files: Vec<PathBuf>,
        /// Write there instead of beside the first file.
        #[arg(long, env = "RALLYPOINT_BENCH_OUT", value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// One node of ours, as the benchmarks start it.
    #[command(hide = true)]
    Node {
        /// Where it is told what to do.
        port: u16,
    },
    /// A workers' store of ours, as the benchmarks start it.
    #[command(hide = true)]
    WorkerStoreServer,
    /// A workers' store of ours to which only proxies come.
    #[command(hide = true)]
    WorkerStoreBehindProxies,
    /// So many proxies of it.
    #[command(hide = true)]
    WorkerStoreProxies {
        /// The server's.
        port: u16,
        /// What lets them in.
        secret: String,
        /// How many.
        count: usize,
    },
    /// Clients of a workers' store.
    #[command(hide = true)]
    WorkerStoreClients {
        /// The server's, or those of its proxies.
        #[arg(value_delimiter = ',')]
        ports: Vec<u16>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Other::Node { port }) => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(nodes::ours::run(port));
            return ExitCode::SUCCESS;
        }
        Some(Other::WorkerStoreServer) => {
            parts::worker_store::process::serve();
            return ExitCode::SUCCESS;
        }
        Some(Other::WorkerStoreBehindProxies) => {
            parts::worker_store::process::serve_proxies();
            return ExitCode::SUCCESS;
        }
        Some(Other::WorkerStoreProxies { port, secret, count }) => {
            parts::worker_store::process::proxies(port, &secret, count);
            return ExitCode::SUCCESS;
        }
        Some(Other::WorkerStoreClients { ports }) => {
            parts::worker_store::client::run(&ports);
            return ExitCode::SUCCESS;
        }
        Some(Other::Render { files, out }) => render(&files, out).map(|()| Vec::new()),
        None => match cli.options.wanted() {
            Ok(wanted) if cli.options.needs => {
                println!("{}", cli.options.components(&wanted).join(" "));
                return ExitCode::SUCCESS;
            }
            Ok(wanted) => measure(&cli.options, &wanted),
            Err(why) => Err(io::Error::other(why)),
        },
    };
    match done {
        Ok(broken) if cli.options.check && !broken.is_empty() => {
            eprintln!("not kept: {}", broken.join("; "));
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench/run: {error}");
            ExitCode::from(2)
        }
    }
}

/// The promises that were not kept.
fn measure(options: &Options, wanted: &[Which]) -> io::Result<Vec<String>> {
    let out = options.out();
    let file = results_file(&out);
    std::fs::create_dir_all(file.parent().expect("it is in a folder"))?;
    let mut results = if file.is_file() { Results::read(&file)? } else { Results::default() };
    let pythons = options.pythons();
    if !pythons.is_empty() {
        machine::names_are_found_at_once()?;
    }
    let machine = Machine::here(&pythons.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let mut broken = Vec::new();
    for (at, which) in wanted.iter().enumerate() {
        let plan = Plan::new(options, *which, (at + 1, wanted.len()));
        plan.say("begins");
        let (command, begun, load) = (options.command(), machine::now(), machine::load());
        let part = run(*which, &plan);
        let part = Part { name: which.name().to_owned(), command, begun, load, seconds: plan.took(), ..part };
        println!("{}", report::text::part(&part));
        broken.extend(part.broken_promises().map(|promise| format!("{}: {promise}", part.name)));
        // After each part: whoever stops it now keeps what there is.
        results.merge(Results { machine: machine.clone(), parts: vec![part] });
        results.write(&file)?;
        report::write(&results, &out)?;
    }
    eprintln!("the report: {}", out.join(report::PAGE).display());
    Ok(broken)
}

fn run(which: Which, plan: &Plan) -> Part {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        match which {
            Which::Formation => tokio::task::block_in_place(|| parts::formation::run(plan)),
            Which::Scale => parts::scale::run(plan).await,
            Which::Again => parts::again::run(plan).await,
            Which::Store => parts::store::run(plan).await,
            Which::Server => parts::server::run(plan).await,
            Which::Gateway => parts::gateway::run(plan).await,
            Which::Launcher => tokio::task::block_in_place(|| parts::launcher::run(plan)),
            Which::Agents => tokio::task::block_in_place(|| parts::agents::run(plan)),
            Which::WorkerStore => tokio::task::block_in_place(|| parts::worker_store::run(plan)),
            Which::Restarts => tokio::task::block_in_place(|| parts::restarts::run(plan)),
            Which::Health => tokio::task::block_in_place(|| parts::health::run(plan)),
        }
    })
}

fn results_file(out: &Path) -> PathBuf {
    out.join(report::FOLDER).join("results.json")
}

fn render(files: &[PathBuf], out: Option<PathBuf>) -> io::Result<()> {
    let mut results = Results::default();
    for file in files {
        let explain = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        results.merge(Results::read(file).map_err(explain)?);
    }
    let beside = || Some(files.first()?.canonicalize().ok()?.parent()?.parent()?.to_owned());
    let out = out.or_else(beside).ok_or_else(|| io::Error::other("no folder to write to; see --out"))?;
    std::fs::create_dir_all(out.join(report::FOLDER))?;
    results.write(&results_file(&out))?;
    report::write(&results, &out)
}
