//! Rallypoint measured beside the raw etcd client and PyTorch, in one run on one machine.
//!
//! `bench/run` sets everything up and starts this. Both sides of a comparison take turns, round by round, so
//! that whatever else the machine does hits them alike; what is quoted is the ratio of their medians.

mod barrier;
mod launcher;
mod lean;
mod measure;
mod node;
mod processes;
mod rendezvous;
mod report;
mod server;
mod store;
mod torch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use report::Report;

#[derive(Parser)]
#[command(name = "bench/run", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The Store: set, get, add and wait, against the raw client and PyTorch's EtcdStore.
    Store(Options),
    /// The embedded server: put, get, txn, watch fan-out, memory and start, against a real etcd without fsync.
    Server(Options),
    /// The barrier on the v2 wire: forming a group and meeting again, against PyTorch's `etcd` rendezvous.
    Barrier(Options),
    /// The native rendezvous: forming a group, meeting again, deaths, against the floor of etcd and PyTorch's `etcd`.
    Rendezvous(Options),
    /// One node of ours, as the other benchmarks start it.
    #[command(hide = true)]
    Node {
        /// Where it is told what to do.
        port: u16,
    },
    /// The launcher: from the command to the first lines of four workers, and memory, against torchrun.
    Launcher(Options),
}

#[derive(clap::Args)]
struct Options {
    /// Rounds of each measurement; the median is quoted.
    #[arg(long, env = "RALLYPOINT_BENCH_ROUNDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fail, by name, if a promised ratio is not kept.
    #[arg(long, env = "RALLYPOINT_BENCH_CHECK")]
    check: bool,
    /// Write all figures to this file, as JSON.
    #[arg(long, env = "RALLYPOINT_BENCH_JSON", value_name = "FILE")]
    json: Option<PathBuf>,
    /// Of the server's rates, only those with this in their name; and nothing else.
    #[arg(long, env = "RALLYPOINT_BENCH_ONLY", value_name = "TEXT")]
    only: Option<String>,
    /// Leave PyTorch out.
    #[arg(long, env = "RALLYPOINT_BENCH_NO_TORCH")]
    no_torch: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let options = match &cli.what {
        What::Store(options)
        | What::Server(options)
        | What::Barrier(options)
        | What::Launcher(options)
        | What::Rendezvous(options) => options,
        What::Node { port } => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(node::run(*port));
            return ExitCode::SUCCESS;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    let report = runtime.block_on(async {
        match &cli.what {
            What::Store(_) => store::run(options).await,
            What::Server(_) => server::run(options).await,
            What::Rendezvous(_) => rendezvous::run(options).await,
            What::Barrier(_) | What::Node { .. } => tokio::task::block_in_place(|| barrier::run(options)),
            What::Launcher(_) => tokio::task::block_in_place(|| launcher::run(options)),
        }
    });
    print!("{report}");
    if let Some(path) = &options.json
        && let Err(error) = std::fs::write(path, report.to_json())
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::from(2);
    }
    let broken = report.broken_promises();
    if options.check && !broken.is_empty() {
        eprintln!("not kept: {}", broken.join("; "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
