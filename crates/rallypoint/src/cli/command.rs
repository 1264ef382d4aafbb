//! The command `rallypoint`.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use rallypoint_rendezvous::Registry;

use super::bench::{self, Bench};
use super::connection::token;
use super::dashboard::{self, Beside, Dashboard};
use super::exit::{Problem, one_line, say};
use super::gateway::{self, Gateway};
use super::operator::{self, Close, Events, Exclude, Excluded, Include, Stacks, Status};
use super::run::{self, Run};
use super::variables::{self, Variable};
use super::{LogFormat, advertised_url, failed, failed_to_serve, listen_address, serve, start_log};
use crate::server::{Config, Server, Tls};

/// Brings the nodes of a distributed training job together, on etcd.
#[derive(Parser)]
#[command(name = "rallypoint", version, long_version = built(), subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What was built: the version, and what may matter when something goes wrong.
fn built() -> String {
    let backends = Registry::with_defaults();
    let backends: Vec<&str> = backends.names().collect();
    format!(
        "{}\nbuilt      {} for {}\ncompiler   {}\ncommit     {}\nbackends   {}\nserves     etcd's v3 and v2 protocols",
        env!("CARGO_PKG_VERSION"),
        env!("RALLYPOINT_PROFILE"),
        env!("RALLYPOINT_TARGET"),
        env!("RALLYPOINT_COMPILER"),
        env!("RALLYPOINT_COMMIT"),
        backends.join(", ")
    )
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
enum Command {
    Run(Run),
    Serve(Serve),
    #[command(mut_arg("endpoint", gateway::own_endpoint))]
    Gateway(Gateway),
    #[command(mut_arg("secret_file", dashboard::own_token))]
    Dashboard(Dashboard),
    Status(Status),
    Events(Events),
    Stacks(Stacks),
    Close(Close),
    Exclude(Exclude),
    Include(Include),
    Excluded(Excluded),
    Bench(Bench),
    Completions(Completions),
    Man(Man),
}

/// Serve etcd's v3 and v2 protocols on one port, in memory or in a folder.
///
/// For one machine, tests and small jobs: what is stored ends with this process, unless a folder is named for it. Where
/// you need more, run a real etcd; every part of Rallypoint works with it.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 cannot serve, 2 wrong usage.")]
struct Serve {
    /// Where to listen: an address or a name of this machine, and the port; 0.0.0.0 for all addresses. Anything but a
    /// loopback address lets other machines in.
    #[arg(
        long,
        env = "RALLYPOINT_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:2379",
        value_parser = listen_address
    )]
    listen: SocketAddr,
    /// Keep all data in this folder, which is made if it is not there: what was acknowledged is on disk, and a later
    /// start on the folder goes on from it. Without one all data ends with this process.
    #[arg(long, env = "RALLYPOINT_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// URL that clients are told to use, if it is not the address above; may be given several times.
    #[arg(long, env = "RALLYPOINT_ADVERTISE", value_name = "URL", value_delimiter = ',', value_parser = advertised_url)]
    advertise: Vec<String>,
    /// PEM file of the server's certificate: serve TLS.
    #[arg(long, env = "RALLYPOINT_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file of the certificate's key.
    #[arg(long, env = "RALLYPOINT_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// PEM file of the authority whose clients may connect; others are turned away.
    #[arg(long, env = "RALLYPOINT_CLIENT_CA", value_name = "FILE", requires = "cert")]
    client_ca: Option<PathBuf>,
    /// File with a token of 16 to 72 characters, in place of RALLYPOINT_TOKEN: who does not show it is not let in. Clients of etcd
    /// show it as the password of the user root, Rallypoint's commands and nodes with the same flag. In a folder it
    /// becomes root's password.
    #[arg(long, env = "RALLYPOINT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    dashboard: Beside,
    /// error, warn, info, debug or trace.
    #[arg(long, env = "RALLYPOINT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// How diagnostics are written to stderr.
    #[arg(long, env = "RALLYPOINT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Print the completions of a shell.
#[derive(clap::Args)]
struct Completions {
    /// The shell: `rallypoint completions bash > /etc/bash_completion.d/rallypoint`, for example.
    shell: Shell,
}

/// Print the manual page, of the whole command or of one of its parts.
#[derive(clap::Args)]
struct Man {
    /// `run`, `serve` and so on: `rallypoint man run | man -l -`, for example.
    part: Option<String>,
}

/// Runs the command with its arguments, the first of which is its own name; returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    run_with(arguments, None)
}

/// The same, where `python` is the interpreter that runs scripts and modules, unless the user names another.
pub fn run_with(arguments: impl IntoIterator<Item = OsString>, python: Option<OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let part = arguments.get(1).cloned();
    let (command, variables) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(problem) => {
            if let Some(text) = without_run(&arguments, &problem) {
                say(format!("error: {text}\n"));
            } else if let Some(text) = part.as_deref().and_then(|part| in_full(part, &problem)) {
                say(format!("error: {text}\n"));
            } else if lacks(&problem, "PROGRAM") {
                say("error: no program: name it after the flags, as in rallypoint run --standalone --nproc-per-node 2 train.py; rallypoint run --help has more\n".to_owned());
            } else if part.as_deref() == Some(OsStr::new("close")) && lacks(&problem, "RUN") {
                say("error: name the run and a reason: rallypoint close RUN --reason TEXT --endpoint HOST:PORT\n".to_owned());
            } else if problem.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // All that there is to choose from.
                let _ = problem.print();
            } else if problem.use_stderr() {
                let text = one_line(&problem.render().to_string());
                let next = part.as_deref().and_then(|part| next_step(part, &text, &problem)).unwrap_or("");
                say(format!("{}{next}\n", with_variables(&text, &problem, &arguments)));
            } else {
                // Help and the version; nothing is left to do where they cannot be written.
                let _ = problem.print();
            }
            return u8::try_from(problem.exit_code()).unwrap_or(2);
        }
    };
    match command {
        Command::Run(options) => {
            let cli = Cli::command();
            let set = std::env::vars_os().map(|(name, _)| name);
            let unread = cli.find_subcommand("run").map(|run| variables::unread(run, set));
            run::run(&Run { python, variables, unread: unread.unwrap_or_default(), ..options })
        }
        Command::Serve(options) => run_server(options),
        Command::Gateway(options) => gateway::gateway(options).unwrap_or_else(|problem| problem.report()),
        Command::Dashboard(options) => {
            dashboard::dashboard(options).unwrap_or_else(|problem| problem.report())
        }
        Command::Status(options) => wait_for(operator::status(&options)),
        Command::Events(options) => wait_for(operator::events(&options)),
        Command::Stacks(options) => wait_for(operator::stacks(&options)),
        Command::Close(options) => wait_for(operator::close(&options)),
        Command::Exclude(options) => wait_for(operator::exclude(&options)),
        Command::Include(options) => wait_for(operator::include(&options)),
        Command::Excluded(options) => wait_for(operator::excluded(&options)),
        Command::Bench(options) => bench::run(&options),
        Command::Man(Man { part }) => man(part.as_deref()),
        Command::Completions(Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "rallypoint", &mut text);
            // Who closes the pipe has seen enough.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), &text);
            0
        }
    }
}

/// What is to be done, and which of its options come from the environment.
fn parse(arguments: &[OsString]) -> Result<(Command, Vec<Variable>), clap::Error> {
    let mut cli = Cli::command();
    let matches = cli.try_get_matches_from_mut(arguments)?;
    let command = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut cli))?.command;
    let part = matches.subcommand().and_then(|(name, part)| Some((cli.find_subcommand(name)?, part)));
    Ok((command, part.map(|(command, part)| variables::taken(command, part)).unwrap_or_default()))
}

/// Whether these arguments are a command that there is.
#[cfg(test)]
pub(super) fn check(arguments: &[OsString]) -> Result<(), clap::Error> {
    parse(arguments).map(drop)
}

/// What is wrong with a value, said of the variable where it came from one.
fn with_variables(text: &str, problem: &clap::Error, arguments: &[OsString]) -> String {
    // What the standard library has for whoever writes code.
    let text = &text.replace("invalid digit found in string", "write a whole number, 0 or more");
    let of_values = [ErrorKind::InvalidValue, ErrorKind::ValueValidation, ErrorKind::ArgumentConflict];
    let cli = Cli::command();
    let part = arguments.get(1).and_then(|part| cli.find_subcommand(part));
    match part.filter(|_| of_values.contains(&problem.kind())) {
        Some(part) => variables::named(text, &variables::set(part, arguments)),
        None => text.to_owned(),
    }
}

/// What to write where the word `run` was left out.
fn without_run(arguments: &[OsString], problem: &clap::Error) -> Option<String> {
    let given = arguments.get(1)?.to_str()?;
    let is_program = problem.kind() == ErrorKind::InvalidSubcommand
        && (given.ends_with(".py") || std::path::Path::new(given).is_file());
    let flag = given.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or_default());
    let cli = Cli::command();
    let has = |run: &clap::Command, flag| {
        run.get_arguments().any(|arg| {
            arg.get_long() == Some(flag) || arg.get_all_aliases().is_some_and(|all| all.contains(&flag))
        })
    };
    let is_flag = problem.kind() == ErrorKind::UnknownArgument
        && flag.is_some_and(|flag| cli.find_subcommand("run").is_some_and(|run| has(run, flag)));
    let what = if is_flag { "a flag of rallypoint run" } else { "no command of rallypoint" };
    (is_program || is_flag).then(|| format!("{given} is {what}: write rallypoint run {given} ..."))
}

/// What to do about a flag that `run` has not, where no other is like it.
fn next_step(part: &OsStr, text: &str, problem: &clap::Error) -> Option<&'static str> {
    let unknown = problem.kind() == ErrorKind::UnknownArgument && !text.contains("similar argument");
    (part == "run" && unknown).then_some(
        "; rallypoint run --help lists the flags, and those of the program itself go after its name",
    )
}

/// Whether an argument of that name was not given.
fn lacks(problem: &clap::Error, what: &str) -> bool {
    let missing = problem.get(ContextKind::InvalidArg);
    problem.kind() == ErrorKind::MissingRequiredArgument
        && matches!(missing, Some(ContextValue::Strings(names)) if names.iter().any(|name| name.contains(what)))
}

/// What to write instead of a flag that is the beginning of some. torchrun takes such a one as long as there is only one
/// that it can be, which makes each new flag a danger to the scripts there are.
fn in_full(part: &OsStr, problem: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = problem.get(ContextKind::InvalidArg) else { return None };
    let wanted = given.strip_prefix("--").filter(|name| !name.is_empty())?.replace('_', "-");
    if wanted == "print-completion" {
        return Some("--print-completion is torchrun's: rallypoint completions SHELL prints ours".to_owned());
    }
    let cli = Cli::command();
    let part = cli.find_subcommand(part)?;
    let begins = |flag: &&str| problem.kind() == ErrorKind::UnknownArgument && flag.starts_with(&wanted);
    let flags: Vec<_> = part
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .filter(begins)
        .map(|flag| format!("--{flag}"))
        .collect();
    match &flags[..] {
        [] => None,
        [only] => Some(format!("{given} is no flag, and flags are not shortened: write {only}")),
        many => {
            Some(format!("{given} is no flag, and flags are not shortened: write one of {}", many.join(", ")))
        }
    }
}

/// Runs one request of an operator, on as small a runtime as there is.
fn wait_for(request: impl Future<Output = Result<u8, Problem>>) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    // It is said when an etcd does not answer; nothing else is.
    if let Err(problem) = start_log("warn", LogFormat::Text) {
        return failed(&std::io::Error::other(problem));
    }
    runtime.block_on(request).unwrap_or_else(|problem| problem.report())
}

fn man(part: Option<&str>) -> u8 {
    let command = Cli::command();
    let page = match part {
        None => command,
        Some(part) => {
            let Some(found) = command.get_subcommands().find(|known| known.get_name() == part) else {
                let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
                return failed(&std::io::Error::other(format!(
                    "there is no page for {part:?}; there are: {}",
                    names.join(", ")
                ))) + 1;
            };
            found.clone().name(format!("rallypoint-{part}")).bin_name(format!("rallypoint {part}"))
        }
    };
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(page).render(&mut text);
    // Each item of a list has a line of its own, which roff would fill up with the next.
    let text = String::from_utf8_lossy(&text).replace("\n\\- ", "\n.br\n\\- ");
    match rendered.and_then(|()| std::io::stdout().write_all(text.as_bytes())) {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

fn run_server(options: Serve) -> u8 {
    if let Err(problem) = start_log(&options.log_level, options.log_format) {
        say(format!("error: {problem}\n"));
        return 2;
    }
    let tokens = options.dashboard.token().and_then(|page| Ok((page, token(options.token_file.as_deref())?)));
    let (page_token, token) = match tokens {
        Ok(tokens) => tokens,
        Err(problem) => return problem.report(),
    };
    let mut config = Config::on(options.listen);
    config.data_dir = options.data_dir;
    config.advertise = options.advertise;
    config.token.clone_from(&token);
    config.tls = options.cert.zip(options.key).map(|(cert, key)| {
        let mut tls = Tls::new(cert, key);
        tls.client_ca_file = options.client_ca;
        tls
    });
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    // It ends with the runtime.
    let mut beside = None;
    let flag = Cell::new("--listen");
    let starting = async {
        let server = Server::bind(config)?;
        flag.set("--dashboard");
        beside = options.dashboard.start(server.address(), token.as_ref(), page_token)?;
        Ok(server)
    };
    match runtime.block_on(serve(starting)) {
        Ok(()) => 0,
        Err(error) => failed_to_serve(&*error, flag.get()),
    }
}
