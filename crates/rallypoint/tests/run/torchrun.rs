//! What torchrun's users and the programs around it rely on: events, the launcher's own error file.

use std::process::Command;

use crate::launcher::{self, Launcher, runs, wait_for_any, wait_until};
use rallypoint_testkit::{Etcd, Version, run_python};
use serde_json::Value;

fn events(lines: &[&str]) -> Vec<(String, String, Value)> {
    let parse = |line: &&str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&event["source"]), text(&event["metadata"]["state"]), event)
    };
    lines.iter().map(parse).collect()
}

#[test]
fn events_are_torchruns_and_go_to_the_console_where_that_is_asked_for() {
    // Rank 2 fails a moment after rank 1 has ended, whose number stays taken for a while.
    let script = "[ $RANK = 0 ] && exec sleep 600
        [ $RANK = 1 ] && { echo $$ >$0.new; mv $0.new $0; exit 0; }
        until [ -e $0 ]; do sleep 0.05; done
        while [ -e /proc/$(cat $0) ] && ! grep -q 'State:.Z' /proc/$(cat $0)/status; do sleep 0.05; done
        sleep 0.3; exit 7";
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("pid");
    let args = ["--nproc-per-node=3", "--role", "trainer", "--event-log-handler", "console"];
    let worker = ["--", "sh", "-c", script, other.to_str().unwrap()];
    let ended = Launcher::run(&[&args[..], &worker].concat()).expect(1);
    let lines = ended.with("torchelastic.worker.status.");
    let mut seen: Vec<(String, String)> = Vec::new();
    for (source, state, event) in events(&lines) {
        assert!(event["name"].as_str().unwrap().ends_with(&state), "{event}");
        let about = &event["metadata"];
        assert_eq!((&about["role"], &about["rdzv_backend"]), (&"trainer".into(), &"rallypoint".into()));
        let rank = about["global_rank"].as_u64().map_or(source, |rank| rank.to_string());
        let more: Value = serde_json::from_str(about["metadata"].as_str().unwrap()).unwrap();
        // The agent's own too, as torchrun's.
        assert_eq!((&about["group_rank"], &about["agent_restarts"]), (&0.into(), &0.into()), "{event}");
        assert_eq!((&more["entry_point"], &more["group_world_size"]), (&"sh".into(), &1.into()), "{event}");
        if state == "FAILED" {
            assert_eq!(more["exit_code"][0], 7);
        }
        seen.push((rank, state));
    }
    let pair = |rank: &str, state: &str| (rank.to_owned(), state.to_owned());
    let started = ["0", "1", "2"].map(|rank| pair(rank, "START"));
    assert_eq!(seen[..3], started);
    let ends = [("0", "TERMINATED"), ("1", "SUCCEEDED"), ("2", "FAILED"), ("AGENT", "SUCCEEDED")];
    assert_eq!(seen[3..], ends.map(|(rank, state)| pair(rank, state)));
    // PyTorch's own reader takes them.
    let read = "import sys; from torch.distributed.elastic.events import Event\n\
                print(*[Event.deserialize(line).source.value for line in sys.argv[1:]])";
    let read = run_python(read, &lines);
    assert_eq!(read.split_whitespace().filter(|source| *source == "WORKER").count(), 6, "{read}");

    for quiet in [&["--event-log-handler=null"][..], &[]] {
        let ended = Launcher::run(&[quiet, &["--", "true"]].concat()).expect(0);
        assert!(ended.with("torchelastic").is_empty(), "{}", ended.text());
    }
    let ended = Launcher::run(&["--event-log-handler", "scuba", "true"]).expect(2);
    assert!(ended.text().contains("console or null"), "{}", ended.text());
}

#[test]
fn the_first_failure_is_in_the_launchers_own_error_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launcher.json");
    let run = |args: &[&str], code| {
        let launcher = Launcher::start_with(args, |command| {
            command.env("TORCHELASTIC_ERROR_FILE", &file);
        });
        launcher.ended().expect(code);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["message"].clone()
    };
    // What the worker wrote, as the launcher above would read it.
    let script = "[ $RANK = 1 ] || exec sleep 600; \
                  echo '{\"message\": {\"message\": \"E: no data\", \"extraInfo\": {\"py_callstack\": \"here\"}}}' \
                  > $TORCHELASTIC_ERROR_FILE; kill -SEGV $$";
    let message = run(&["--nproc-per-node=2", "--", "sh", "-c", script], 1);
    assert_eq!((&message["message"], &message["errorCode"]), (&"E: no data".into(), &(-11).into()));
    assert_eq!(message["extraInfo"]["py_callstack"], "here");
    // What is known of one that wrote nothing.
    let message = run(&["--", "sh", "-c", "exit 9"], 1);
    assert!(message["message"].as_str().unwrap().contains("exit code 9"), "{message}");
    assert_eq!(message["errorCode"], 9);
    // The launcher's own failure.
    let message = run(&["--", "/no/such/program"], 127);
    assert!(message["message"].as_str().unwrap().contains("/no/such/program"), "{message}");
    // A launcher under a launcher: the one above tells the cause.
    let inner = [launcher::RALLYPOINT, "run", "--", "sh", "-c", "exit 9"];
    let ended = Launcher::run(&[&["--"], &inner[..]].concat()).expect(1);
    let told = ended.lines.iter().find(|line| line.starts_with("  error       ")).unwrap();
    assert!(told.contains("rank 0 on ") && told.contains("exit code 9"), "{}", ended.text());
    assert!(!ended.text().contains("\n  traceback"), "{}", ended.text());
}

#[test]
fn a_signal_is_in_the_error_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launcher.json");
    let mut launcher = Launcher::start_with(&["--", "sh", "-c", "echo up; exec sleep 600"], |command| {
        command.env("TORCHELASTIC_ERROR_FILE", &file);
    });
    launcher.wait_for("up");
    launcher.signal("TERM");
    launcher.ended().expect(143);
    assert!(std::fs::read_to_string(&file).unwrap().contains("SIGTERM"));
}

#[test]
fn the_monitor_interval_is_how_often_a_stopped_command_is_looked_for() {
    let start = |interval: &str| {
        let mut launcher = Launcher::start(&[
            "--monitor-interval",
            interval,
            "--",
            "sh",
            "-c",
            "echo up $$; exec sleep 600",
        ]);
        let worker: u32 = launcher.wait_for("up ").rsplit_once(' ').unwrap().1.parse().unwrap();
        launcher.signal("STOP");
        (launcher, worker)
    };
    // One that would look only in an hour has not looked when the other has.
    let (slow, slow_worker) = start("3600");
    let (quick, quick_worker) = start("0.01");
    wait_until("the worker is stopped", || launcher::is_stopped(quick_worker).then_some(()));
    assert!(runs(slow_worker) && !launcher::is_stopped(slow_worker));
    for launcher in [quick, slow] {
        launcher.signal("CONT");
        launcher.signal("KILL");
    }
}

#[test]
fn a_python_class_for_logs_is_refused() {
    let ended = Launcher::run(&["--logs-specs", "mine", "true"]).expect(2);
    assert!(
        ended.text().contains("--logs-specs mine") && ended.text().contains("--log-dir"),
        "{}",
        ended.text()
    );
}

/// The CPUs that a worker may run on, as the kernel tells them.
#[test]
fn workers_are_bound_to_cpus() {
    let script = "echo rank $RANK on $(sed -n 's/^Cpus_allowed_list:\\s*//p' /proc/self/status)";
    let bound = |args: &[&str]| {
        let args = [args, &["--", "sh", "-c", script]].concat();
        let ended = Launcher::start_with(&args, |command| {
            // What the tests run on may have GPUs; their workers have none.
            command.env("CUDA_VISIBLE_DEVICES", "");
        })
        .ended()
        .expect(0);
        let mut said: Vec<String> =
            ended.with("]: rank ").iter().map(|line| line.rsplit_once(' ').unwrap().1.to_owned()).collect();
        said.sort_unstable();
        said
    };
    let all = bound(&[]);
    let cores = std::thread::available_parallelism().unwrap().get();
    // On a machine with more than one NUMA node each has its part; with one, all.
    let nodes = bound(&["--numa-binding", "node", "--nproc-per-node=1"]);
    assert!(nodes.len() == 1 && !nodes[0].is_empty());
    let shared = bound(&["--nproc-per-node=2"]);
    assert_eq!(shared, [all[0].clone(), all[0].clone()], "nobody is bound who did not ask");
    if cores < 2 {
        return;
    }
    let own = bound(&["--numa-binding=exclusive", "--nproc-per-node=2"]);
    assert_ne!(own[0], own[1], "each has CPUs of its own");
    let none = Launcher::run(&["--numa-binding=exclusive", "--nproc-per-node=5000", "--", "true"]).expect(2);
    assert!(none.text().contains("cores for"), "{}", none.text());
    let wrong = Launcher::run(&["--numa-binding=near", "--", "true"]).expect(2);
    assert!(wrong.text().contains("core-complex"), "{}", wrong.text());
}

#[test]
fn devices_that_are_not_there_are_named() {
    for (kind, said) in [("xpu", "no GPU of Intel's"), ("npu", "auto, gpu, xpu, cpu")] {
        let ended = Launcher::run(&["--nproc-per-node", kind, "true"]).expect(2);
        assert!(ended.text().contains(said), "{}", ended.text());
    }
}

/// PyTorch's own client: the first attempt hangs and is ended, the second is done in time.
#[test]
fn a_worker_that_is_not_done_in_time_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    let text = "import os, time\nfrom torch.distributed.elastic import timer\n\
                timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n\
                first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n\
                with timer.expires(after=0.2 if first else 600, scope='a step'):\n    time.sleep(600 if first else 0)\n\
                with timer.expires(after=2):\n    pass\ntime.sleep(3)\nprint('done')\n";
    std::fs::write(&script, text).unwrap();
    let start = |restarts: &str| {
        Launcher::start_with(&["--max-restarts", restarts, script.to_str().unwrap()], |command| {
            command
                .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
                .env("PYTHON_EXEC", rallypoint_testkit::torch_python());
        })
    };
    let ended = start("0").ended().expect(1);
    assert_eq!(ended.with("a timer of its own was up").len(), 1, "{}", ended.text());
    assert!(!ended.text().contains("somebody else"), "{}", ended.text());
    let ended = start("1").ended().expect(0);
    assert_eq!(ended.with("the time of \"a step\" is up: the process is ended").len(), 1, "{}", ended.text());
    assert!(
        ended.with("signal 9 (SIGKILL)").len() == 1 && ended.with("]: done").len() == 1,
        "{}",
        ended.text()
    );
}

#[test]
fn timers_are_at_the_file_that_the_user_names_and_end_only_workers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("timers");
    let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let ask = |pid: &str, signal: u32| {
        format!(
            "echo '{{\"version\": 1, \"pid\": '{pid}', \"scope_id\": \"x\", \"expiration_time\": 1.5, \"signal\": {signal}}}' \
             > $TORCHELASTIC_TIMER_FILE"
        )
    };
    // Somebody else's process, nonsense, a child of the worker, and last the worker itself.
    let script = format!(
        "echo at $TORCHELASTIC_TIMER_FILE; {}; echo nonsense > $TORCHELASTIC_TIMER_FILE; sleep 600 & child=$!; {}; \
         wait $child; echo the child ended with $?; {}; exec sleep 600",
        ask(&other.id().to_string(), 9),
        ask("$child", 15),
        ask("$$", 10)
    );
    let launcher = Launcher::start_with(&["--", "sh", "-c", &script], |command| {
        command.env("TORCHELASTIC_ENABLE_FILE_TIMER", "1").env("TORCHELASTIC_TIMER_FILE", &file);
    });
    let ended = launcher.ended().expect(1);
    assert_eq!(ended.with(&format!("]: at {}", file.display())).len(), 1, "{}", ended.text());
    assert_eq!(ended.with("the child ended with 143").len(), 1, "{}", ended.text());
    assert!(ended.text().contains("ended with  signal 10 (SIGUSR1)"), "{}", ended.text());
    assert_eq!(ended.with("is not understood").len(), 1, "{}", ended.text());
    assert!(!file.exists() && other.try_wait().unwrap().is_none(), "the other process lives");
    other.kill().unwrap();
    other.wait().unwrap();
    // A file of the user's own is not touched.
    std::fs::write(&file, "mine").unwrap();
    let refused = Launcher::start_with(&["true"], |command| {
        command.env("TORCHELASTIC_ENABLE_FILE_TIMER", "1").env("TORCHELASTIC_TIMER_FILE", &file);
    });
    let refused = refused.ended().expect(6);
    assert!(refused.text().contains("timers: File exists"), "{}", refused.text());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let plain = Launcher::run(&["--", "sh", "-c", "echo [$TORCHELASTIC_TIMER_FILE]"]).expect(0);
    assert_eq!(plain.with("[]").len(), 1, "nobody asked: {}", plain.text());
}

/// A process that starts another as `vfork` does waits in the kernel until that one has begun, and this one never does: it
/// opens a pipe that nobody writes to.
const STUCK: &str = "import os, time\nif os.environ['RANK'] == '0':\n    print('at work', flush=True)\n    time.sleep(600)\n\
    print('about to hang', flush=True)\npipe = f'{os.path.dirname(__file__)}/pipe'\nos.mkfifo(pipe)\n\
    os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)])\n";

fn start_stuck(folder: &std::path::Path, limit: &str, args: &[&str]) -> Launcher {
    let script = folder.join("train.py");
    std::fs::write(&script, STUCK).unwrap();
    let args = [args, &["--max-restarts=3", "--monitor-interval=0.02", script.to_str().unwrap()]].concat();
    Launcher::start_with(&args, |command| {
        command.env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", limit).env("PYTHON_EXEC", "python3");
    })
}

#[test]
fn a_node_with_a_worker_that_is_stuck_in_the_kernel_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let ended = start_stuck(folder.path(), "2", &["--nproc-per-node=2"]).ended().expect(6);
    assert_eq!(ended.with("rank 1 (process ").len(), 1, "{}", ended.text());
    assert!(ended.text().contains("stuck in the kernel"), "{}", ended.text());
    let ended = start_stuck(folder.path(), "soon", &["--nproc-per-node=2"]).ended().expect(2);
    assert!(ended.text().contains("\"soon\""), "{}", ended.text());
}

#[test]
fn all_nodes_are_told_of_a_worker_that_is_stuck_in_the_kernel() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    let args = ["--nnodes=1:2", "--rdzv-id=job", "--rdzv-endpoint", &endpoint];
    let args = [&args[..], &["--rdzv-conf=last_call_timeout=1,lease_timeout=60"]].concat();
    // Which of the two has the worker that is stuck is not known before.
    let mut nodes: Vec<_> = (0..2).map(|_| start_stuck(folder.path(), "2", &args)).collect();
    let (other, said) = wait_for_any(&mut nodes, "; meeting again");
    let why = said.split_once("leaves: rank 1 (process ").map(|(_, why)| why.strip_suffix("; meeting again"));
    assert!(why.flatten().is_some_and(|why| why.contains(") is stuck in the kernel for ")), "{said}");
    let mut other = nodes.remove(other);
    other.wait_for("starting workers round=2");
    let ended = nodes.remove(0).ended().expect(6);
    assert!(ended.with("was killed").is_empty(), "{}", ended.text());
    let events = Command::new(launcher::RALLYPOINT).args(["events", "job", "--endpoint", &endpoint]).output();
    let events = String::from_utf8(events.unwrap().stdout).unwrap();
    assert!(events.contains("stuck in the kernel") && !events.contains("was killed"), "{events}");
    other.signal("TERM");
    other.ended().expect(143);
}
