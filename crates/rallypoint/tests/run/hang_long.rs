//! Hangs, and slow workers that do not hang, for as long as it takes.

use crate::launcher::Launcher;
use rallypoint_testkit::{Etcd, Version, torch_python};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hang.py");

/// One whose workers can import the package, and torch.
fn launcher(args: &[&str]) -> Launcher {
    Launcher::start_with(args, |command| {
        command.env("PYTHONPATH", PACKAGE).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHON_EXEC", torch_python());
    })
}

/// Beats after pauses of any length up to 0.9 of the timeout. All ranks make the same pauses, so at first they are silent together,
/// as those are that train together, and later less and less so.
const SLOW: &str = r#"
import random, sys, time
import rallypoint
seconds, longest = float(sys.argv[1]), float(sys.argv[2])
pauses = random.Random(20)
began = said = last = time.monotonic()
beats = most = 0
while last - began < seconds:
    rallypoint.heartbeat()
    beats += 1
    now = time.monotonic()
    most, last = max(most, now - last), now
    if now - said > 30:
        print(f"lives after {now - began:.0f} s", flush=True)
        said = now
    time.sleep(pauses.uniform(0, longest))
print(f"done: {beats} beats, at most {most:.2f} s apart", flush=True)
"#;

/// `RALLYPOINT_HANG_SECONDS` is for how long; an hour is what `docs/hangs.md` tells of.
#[test]
#[ignore = "it takes long: scripts/test long"]
fn slow_workers_that_live_are_never_taken_to_hang() {
    let seconds = std::env::var("RALLYPOINT_HANG_SECONDS").unwrap_or_else(|_| "60".to_owned());
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let slow = folder.path().join("slow.py");
    std::fs::write(&slow, SLOW).unwrap();
    let endpoint = etcd.endpoint();
    let start = || {
        let run =
            ["--nnodes", "2", "--nproc-per-node", "4", "--rdzv-id", "slow", "--rdzv-endpoint", &endpoint];
        let hangs = ["--hang-timeout", "5", "--hang-start-timeout", "60", "--max-restarts", "0"];
        launcher(&[&run[..], &hangs[..], &[slow.to_str().unwrap(), &seconds, "4.5"]].concat())
    };
    let mut nodes = [start(), start()];
    for node in &mut nodes {
        // Each line has its own time to come; all of them together have not.
        node.wait_for("done: ");
    }
    for node in nodes {
        let ended = node.ended().expect(0);
        let done = ended.with("done: ");
        assert!(done.len() == 4 && ended.with("hung").is_empty(), "{}", ended.text());
        println!("{}", done.join("\n"));
    }
}

/// Real collectives of PyTorch, which the others wait in.
#[test]
#[ignore = "it takes long: scripts/test long"]
fn the_example_hangs_in_each_way_and_the_one_that_does_is_named() {
    for (way, shown) in [
        ("lock", "waits_for_a_lock"),
        ("socket", "waits_for_a_socket"),
        ("stop", "is_stopped"),
        ("spin", "spins"),
        ("collective", "is_in_another_collective"),
    ] {
        // On a machine with other things to do a PyTorch needs many seconds to end, too.
        let hangs = ["--standalone", "--nproc-per-node", "3", "--hang-timeout", "15", "--max-restarts", "1"];
        let program = ["--shutdown-timeout", "3", EXAMPLE, "--rank", "2", "--way", way];
        let ended = launcher(&[&hangs[..], &program[..]].concat()).ended().expect(0);
        let named = ended.with(" hung: no progress for ");
        assert!(
            !named.is_empty() && named.iter().all(|line| line.contains("rank 2 on ")),
            "{way}: {}",
            ended.text()
        );
        let stack = ended.with("rank 2");
        assert!(stack.iter().any(|line| line.contains(shown)), "{way}: {}", ended.text());
        assert_eq!(ended.with("step 40 of 40 with 3 workers").len(), 1, "{way}: {}", ended.text());
    }
}
