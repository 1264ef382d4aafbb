//! What was asked for on the command line.

use std::path::PathBuf;

use crate::planted::Plant;
use crate::step;

const HELP: &str = "\
Usage: scripts/chaos [options]

Does random harm to three real etcds and some nodes, each in a network namespace of its own, and checks what the nodes
say. It ends with 0 if all promises were kept, and with 1 if not: then it prints what was done, what each node said,
and the command that does the same again. All of that is in a log, too, which is kept.

  --minutes N      for about so long (10)
  --seed N         decides what is done; a random one otherwise
  --nodes N        that many nodes, 3 to 20 (5 to 8, as the seed says)
  --episode N      only that episode of the seed, on a fresh group
  --keep-going     after a violation: goes on with a fresh group
  --plant BUG      makes something wrong, which must be found: death, leave, exclusion, loss, rank, harm
  --node PATH      the program that is a node (`node`, beside this one)
  --logs FOLDER    where the logs go (target/chaos)
  --list           prints the faults that there are, and ends
  --help           prints this

It needs what `cargo test` needs, and network namespaces: user namespaces, or root; unshare and iproute2. Without a
checkout RALLYPOINT_ETCD_35 names the etcd, and RALLYPOINT_ETCDCTL its etcdctl, with etcdutl beside it. Several can run
side by side.
";

pub(crate) struct Options {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) nodes: Option<usize>,
    pub(crate) episode: Option<u64>,
    pub(crate) keep_going: bool,
    pub(crate) plant: Option<Plant>,
    pub(crate) node: PathBuf,
    pub(crate) logs: PathBuf,
}

/// None if all that was asked for has been printed.
pub(crate) fn options() -> Result<Option<Options>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut options = Options {
        minutes: 10.0,
        seed: fastrand::u64(..1_000_000),
        nodes: None,
        episode: None,
        keep_going: false,
        plant: None,
        node: program.with_file_name("node"),
        // From `target/debug/examples`.
        logs: program.ancestors().nth(3).unwrap_or(&program).join("chaos"),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut text = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| {
            text.parse::<f64>().map_err(|_| format!("{argument} needs a number, not {text:?}"))
        };
        match argument.as_str() {
            "--minutes" => options.minutes = number(text()?)?,
            "--seed" => options.seed = number(text()?)? as u64,
            "--nodes" => options.nodes = Some((number(text()?)? as usize).clamp(3, 20)),
            "--episode" => options.episode = Some(number(text()?)? as u64),
            "--keep-going" => options.keep_going = true,
            "--plant" => {
                let name = text()?;
                options.plant =
                    Some(Plant::named(&name).ok_or(format!("there is no bug {name}; see --help"))?);
            }
            "--node" => options.node = text()?.into(),
            "--logs" => options.logs = text()?.into(),
            "--list" => {
                println!("{}", step::LIST);
                return Ok(None);
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("there is no option {other}; see --help")),
        }
    }
    if !options.node.is_file() {
        return Err(format!(
            "{} is missing: the example `node`, or name it with --node",
            options.node.display()
        ));
    }
    Ok(Some(options))
}
