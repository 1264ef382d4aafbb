//! The embedded server under etcd's own flags, for programs that start an etcd.

mod flags;
mod log;

use std::io::Write as _;
use std::process::ExitCode;

use rallypoint::cli::{failed, failed_to_serve, serve};
use rallypoint::server::Server;

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    if let Err(problem) = log::start(&flags.log_level, &flags.log_outputs) {
        let _ = writeln!(std::io::stderr(), "error: {problem}");
        return ExitCode::from(2);
    }
    for flag in &flags.without_meaning {
        tracing::info!("--{flag} has no meaning for this server and is ignored");
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error).into(),
    };
    match runtime.block_on(serve(async { Server::bind(flags.config) })) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed_to_serve(&*error, "--listen-client-urls").into(),
    }
}
