//! One node under `rallypoint run`: what workers see, what their users see, and what is said when it goes wrong.

use std::path::{Path, PathBuf};

use crate::launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::{Silent, refused_endpoint};

/// The only folder in this one.
fn only(folder: &Path) -> PathBuf {
    let mut entries = std::fs::read_dir(folder).unwrap();
    let found = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none(), "more than one in {}", folder.display());
    found
}

#[test]
fn workers_say_who_they_are_and_the_launcher_that_all_went_well() {
    let ended = Launcher::run(&[
        "--standalone",
        "--nproc-per-node",
        "4",
        "--",
        "sh",
        "-c",
        "echo worker $RANK of $WORLD_SIZE on $LOCAL_RANK; echo oops >&2",
    ]);
    let ended = ended.expect(0);
    for rank in 0..4 {
        assert_eq!(
            ended.with(&format!("[{rank}]: worker {rank} of 4 on {rank}")).len(),
            1,
            "{}",
            ended.text()
        );
        assert_eq!(ended.with(&format!("[{rank}]: oops")).len(), 1);
    }
    assert!(ended.with("all workers have finished")[0].contains("workers=4"), "{}", ended.text());
}

#[test]
fn the_first_command_of_the_readme_does_what_it_says() {
    let readme = include_str!("../../../../README.md");
    let line = readme.lines().find_map(|line| line.strip_prefix("scripts/rallypoint run ")).unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("exec {RALLYPOINT} run {line}")]);
    let ended = Launcher::spawn(command).ended().expect(0);
    for said in readme.lines().filter(|line| line.starts_with('[') && line.contains("]: ")) {
        assert_eq!(ended.with(said), [said], "{}", ended.text());
    }
    assert_eq!(ended.with("worker ").len(), 4);
    assert_eq!(ended.with("all workers have finished").len(), 1);
}

#[test]
fn at_the_level_debug_it_is_the_launcher_that_speaks_and_not_http() {
    let ended = Launcher::run(&["--log-level", "debug", "--", "true"]).expect(0);
    assert!(!ended.with("DEBUG").is_empty(), "{}", ended.text());
    assert_eq!(ended.with("frame="), Vec::<&str>::new());
}

#[test]
fn lines_of_many_workers_stay_whole() {
    let script = "for i in $(seq 500); do printf 'aaaaaaaaaaaaaaaaaaaa'; printf 'bbbbbbbbbb\\n'; done";
    let ended = Launcher::run(&["--nproc-per-node", "4", "--", "sh", "-c", script]).expect(0);
    let lines = ended.with("aaaa");
    assert_eq!(lines.len(), 2000);
    assert!(lines.iter().all(|line| line.ends_with("]: aaaaaaaaaaaaaaaaaaaabbbbbbbbbb")), "{}", ended.text());
}

/// `2>&1 | tee log`
#[test]
fn lines_stay_whole_where_both_streams_are_one() {
    let text = "x".repeat(300);
    let script = format!("for i in $(seq 300); do echo {text}; echo {text} >&2; done");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("exec {RALLYPOINT} run --nproc-per-node 4 -- sh -c '{script}' 2>&1")]);
    let ended = Launcher::spawn(command).ended().expect(0);
    let whole = |line: &&str| line.split_once("]: ").is_some_and(|(_, said)| said == text);
    assert_eq!(ended.with("xxx").into_iter().filter(whole).count(), 2400, "{}", ended.text());
}

#[test]
fn the_prefix_is_the_users_choice() {
    let with = |template: &str| {
        Launcher::run(&[
            "--role",
            "trainer",
            "--log-line-prefix-template",
            template,
            "--",
            "echo",
            "well met",
        ])
        .expect(0)
    };
    assert_eq!(with("<${role_name}${local_rank}> ").with("well met"), ["<trainer0> well met"]);
    assert_eq!(with("").with("well met"), ["well met"]);
}

#[test]
fn a_python_script_and_a_module_are_run_by_python() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.py"), "import os, sys; print(os.environ['RANK'], sys.argv[1:])")
        .unwrap();
    for args in [&["train.py", "--lr", "0.1"][..], &["-m", "train", "--lr", "0.1"]] {
        let launcher = Launcher::start_with(args, |command| {
            command.current_dir(folder.path()).env("PYTHON_EXEC", "python3");
        });
        assert_eq!(launcher.ended().expect(0).with("--lr"), ["[0]: 0 ['--lr', '0.1']"]);
    }
    // A Python that is named as the program does not keep its lines to itself either.
    let mut launcher =
        Launcher::start(&["--", "python3", "-c", "import time; print('now'); time.sleep(600)"]);
    launcher.wait_for("[0]: now");
    launcher.signal("INT");
    launcher.ended().expect(130);
}

#[test]
fn everything_after_the_program_is_the_programs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("args.py"), "import sys; print('ARGS', sys.argv[1:])").unwrap();
    let theirs =
        ["--log-dir", "--role", "-m", "--module", "--help", "--nproc-per-node", "--no-such", "--", "-r"];
    for first in 0..theirs.len() {
        for before in [&["--standalone"][..], &["--standalone", "--"]] {
            let args = [before, &["args.py"], &theirs[first..], &["x"]].concat();
            let launcher = Launcher::start_with(&args, |command| {
                command.current_dir(folder.path()).env("PYTHON_EXEC", "python3");
            });
            let said: Vec<String> =
                theirs[first..].iter().chain(&["x"]).map(|arg| format!("'{arg}'")).collect();
            let ended = launcher.ended().expect(0);
            assert_eq!(ended.with("ARGS"), [format!("[0]: ARGS [{}]", said.join(", "))], "{}", ended.text());
        }
    }
}

#[test]
fn a_failure_is_told_with_all_that_is_known() {
    let script = r#"
        if [ $RANK = 1 ]; then
            echo 'first line of the end' >&2
            printf '{"message": {"message": "ValueError: no data", "extraInfo": {"py_callstack": "Traceback: here", "timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE
            echo 'last words' >&2
            exit 7
        fi
        sleep 600"#;
    let ended =
        Launcher::run(&["--nproc-per-node", "3", "--rdzv-id", "job", "--", "sh", "-c", script]).expect(1);
    let text = ended.text();
    for part in [
        "run job: rank 1 failed first",
        "local rank 1, process ",
        "ended with  exit code 7",
        "error       ValueError: no data",
        "    Traceback: here",
        "    last words",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(!text.contains("error.json"), "a file that is gone is not named:\n{text}");
    assert!(!text.contains("after that, rank"), "those that were stopped did not fail:\n{text}");
}

#[test]
fn a_failure_by_signal_is_told_by_its_name() {
    let ended = Launcher::run(&["--", "sh", "-c", "kill -SEGV $$"]).expect(1);
    assert!(ended.text().contains("ended with  signal 11 (SIGSEGV)"), "{}", ended.text());
}

#[test]
fn a_sigkill_that_nobody_here_sent_is_told_as_such() {
    let ended = Launcher::run(&["--", "sh", "-c", "kill -KILL $$"]).expect(1);
    let text = ended.text();
    assert!(text.contains("ended with  signal 9 (SIGKILL)"), "{text}");
    // What the kernel's count says of it depends on what else happens on this machine.
    let hint = ended.with("  hint  ")[0];
    assert!(hint.contains("rallypoint did not send it") || hint.contains("out of memory"), "{text}");
    let ended = Launcher::run(&["--", "sh", "-c", "kill -SEGV $$"]).expect(1);
    assert!(ended.with("  hint  ").is_empty(), "{}", ended.text());
}

/// In a control group of its own, of either version, with little memory.
#[test]
#[ignore = "it makes a control group, which needs root"]
fn a_worker_that_the_kernel_killed_for_lack_of_memory_is_told_as_such() {
    let (root, limit) = match Path::new("/sys/fs/cgroup/memory") {
        first if first.is_dir() => (first, "memory.limit_in_bytes"),
        _ => (Path::new("/sys/fs/cgroup"), "memory.max"),
    };
    let group = root.join(format!("rallypoint-test-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join(limit), "200M").unwrap();
    let mut command = std::process::Command::new("sh");
    let script = "echo $$ > $0/cgroup.procs && exec \"$@\"";
    let worker = "x = bytearray(1 << 30); x[::4096] = b'1' * len(x[::4096])";
    command.args(["-c", script]).arg(&group);
    command.args([RALLYPOINT, "run", "--standalone", "--no-python", "python3", "-c", worker]);
    let ended = Launcher::spawn(command).ended();
    std::fs::remove_dir(&group).unwrap();
    let text = ended.expect(1).text();
    assert!(text.contains("hint        out of memory: the kernel has killed for lack of it"), "{text}");
}

#[test]
fn for_machines_a_failure_is_one_line_of_json() {
    let ended =
        Launcher::run(&["--log-format", "json", "--", "sh", "-c", "echo dying >&2; exit 3"]).expect(1);
    let line = ended.with("\"failure\"")[0];
    let json: serde_json::Value = serde_json::from_str(line).unwrap();
    let failure = &json["fields"]["failure"]["first"];
    assert_eq!((failure["rank"].as_u64(), failure["exit_code"].as_i64()), (Some(0), Some(3)), "{line}");
    assert_eq!(failure["stderr"][0], "dying");
    assert!(json["timestamp"].as_str().unwrap() >= failure["time"].as_str().unwrap(), "{line}");
    // Every line but the workers' is an object of its own.
    for line in ended.lines.iter().filter(|line| !line.starts_with('[')) {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    // So is what keeps it from its work.
    let ended = Launcher::run(&["--log-format", "json", "no-such-program"]).expect(127);
    let json: serde_json::Value = serde_json::from_str(ended.lines.last().unwrap()).unwrap();
    assert_eq!((&json["level"], &json["fields"]["exit_code"]), (&"ERROR".into(), &127.into()), "{json}");
    assert!(json["timestamp"].is_string() && json["fields"]["message"].as_str().unwrap().contains("PATH"));
}

#[test]
fn failed_workers_are_started_again_as_often_as_they_may() {
    let script = "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT = 2 ]";
    let run = |restarts: &str| {
        Launcher::run(&["--max-restarts", restarts, "--nproc-per-node", "2", "--", "sh", "-c", script])
    };
    let ended = run("2").expect(0);
    for attempt in 0..3 {
        assert!(!ended.with(&format!("attempt {attempt} of 2")).is_empty(), "{}", ended.text());
    }
    let ended = run("1").expect(1);
    assert!(ended.with("attempt 2").is_empty(), "{}", ended.text());
}

#[test]
fn log_files_lie_where_torchrun_puts_them() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("made/for/it");
    let args = ["--log-dir", dir.to_str().unwrap(), "--rdzv-id", "job", "--nproc-per-node", "2"];
    // Rank 0 fails the first time, when rank 1 has said all it has to say.
    let said = folder.path().join("said");
    let script = format!(
        "echo out $RANK; echo err $RANK >&2; [ $RANK = 0 ] || {{ touch {said}; exit 0; }}
         while [ ! -e {said} ]; do sleep 0.01; done; [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
        said = said.display()
    );
    let more = ["-r", "0:3", "-t", "1:1", "--max-restarts", "1", "--", "sh", "-c", &script];
    let ended = Launcher::run(&[&args[..], &more[..]].concat()).expect(0);
    let run = only(&dir);
    assert!(run.file_name().unwrap().to_str().unwrap().starts_with("job_"));
    for attempt in ["attempt_0", "attempt_1"] {
        let read = |file: &str| std::fs::read_to_string(run.join(attempt).join(file)).unwrap();
        assert_eq!((read("0/stdout.log"), read("0/stderr.log")), ("out 0\n".into(), "err 0\n".into()));
        assert_eq!(read("1/stdout.log"), "out 1\n");
        assert!(!run.join(attempt).join("1/stderr.log").exists());
    }
    assert!(ended.with("out 0").is_empty(), "redirected is not shown");
    assert_eq!(ended.with("[1]: out 1").len(), 2, "tee'd is shown");
    assert_eq!(ended.with("[1]: err 1").len(), 2);
}

#[test]
fn a_failure_report_finds_redirected_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let ended =
        Launcher::run(&["--log-dir", dir, "-r", "3", "--", "sh", "-c", "echo gone >&2; exit 1"]).expect(1);
    assert!(ended.text().contains("    gone") && ended.text().contains("stderr.log"), "{}", ended.text());
}

#[test]
fn chosen_lines_go_to_a_file_of_their_own_and_chosen_workers_to_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let ended = Launcher::run(&[
        "--log-dir",
        dir,
        "--nproc-per-node",
        "2",
        "--tee",
        "1",
        "--duplicate-stdout-filters",
        "apple,pear",
        "--local-ranks-filter",
        "1",
        "--",
        "sh",
        "-c",
        "echo apple $RANK; echo plum $RANK",
    ]);
    let ended = ended.expect(0);
    assert!(ended.with("[0]:").is_empty(), "{}", ended.text());
    assert_eq!(ended.with("[1]: plum 1").len(), 1);
    let filtered =
        std::fs::read_to_string(only(folder.path()).join("attempt_0/filtered_stdout.log")).unwrap();
    let mut lines: Vec<_> = filtered.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[1]: apple 1"], "those of the workers that are shown, as torchrun has it");
}

#[test]
fn log_files_without_a_folder_for_them_are_kept_and_it_is_said_where() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--redirects", "--tee"] {
        let launcher =
            Launcher::start_with(&[flag, "3", "--", "sh", "-c", "echo out; echo err >&2"], |command| {
                command.env("TMPDIR", folder.path());
            });
        let ended = launcher.ended().expect(0);
        let logs = only(folder.path());
        let run = only(&logs);
        assert!(!ended.with("log files are kept in").is_empty(), "{}", ended.text());
        assert!(ended.with("log files are kept in")[0].contains(run.to_str().unwrap()), "{}", ended.text());
        assert_eq!(std::fs::read_to_string(run.join("attempt_0/0/stdout.log")).unwrap(), "out\n");
        assert_eq!(std::fs::read_to_string(run.join("attempt_0/0/stderr.log")).unwrap(), "err\n");
        std::fs::remove_dir_all(logs).unwrap();
    }
    let ended = Launcher::run(&["--log-dir", "/dev/null", "-r", "3", "--", "echo", "shown"]).expect(0);
    assert_eq!(ended.with("[0]: shown").len(), 1, "what has no file is shown: {}", ended.text());
}

#[test]
fn a_log_folder_alone_keeps_no_empty_folders() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("logs");
    let ended =
        Launcher::run(&["--log-dir", dir.to_str().unwrap(), "--nproc-per-node", "2", "true"]).expect(0);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    assert!(ended.with("logs=").is_empty(), "{}", ended.text());
    // The other has ended by then: one that still runs has its stacks in a folder of its own. Its number stays taken.
    let script = "[ $RANK = 0 ] || { echo $$ > $0; exit 0; }
        until [ -s $0 ]; do sleep 0.05; done
        until grep -q 'State:.Z' /proc/$(cat $0)/status; do sleep 0.05; done
        echo '{\"message\": \"x\"}' > $TORCHELASTIC_ERROR_FILE; exit 1";
    let other = folder.path().join("pid");
    let args = ["--log-dir", dir.to_str().unwrap(), "--nproc-per-node", "2", "--", "sh", "-c", script];
    let args = [&args[..], &[other.to_str().unwrap()]].concat();
    Launcher::run(&args).expect(1);
    let attempt = only(&only(&dir));
    assert_eq!(only(&attempt), attempt.join("0"), "only where there is an error");
}

#[test]
fn nothing_stays_in_the_temporary_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (script, code) in [("echo $TORCHELASTIC_ERROR_FILE", 0), ("echo $TORCHELASTIC_ERROR_FILE; exit 1", 1)]
    {
        let launcher = Launcher::start_with(&["--", "sh", "-c", script], |command| {
            command.env("TMPDIR", folder.path());
        });
        let ended = launcher.ended().expect(code);
        let file = ended.with("[0]: /")[0].trim_start_matches("[0]: ");
        assert!(
            Path::new(file).starts_with(folder.path()) && file.ends_with("/attempt_0/0/error.json"),
            "{file}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn local_rank_is_put_into_arguments() {
    let ended =
        Launcher::run(&["--nproc-per-node", "2", "--", "echo", "data.${local_rank}.bin", "$$5"]).expect(0);
    assert_eq!(ended.with("[1]: data.1.bin $$5").len(), 1, "{}", ended.text());
}

/// Each is one line that names what is wrong and what to do.
#[test]
fn bad_input_is_one_line_and_an_exit_code() {
    let taken = Silent::start();
    let refused = format!("etcd://{}", refused_endpoint());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let not_a_folder = file.join("logs");
    let not_a_folder = not_a_folder.to_str().unwrap();
    let taken = taken.endpoint();
    let meet =
        |endpoint: &'static str| ["--nnodes", "2", "--rdzv-id", "x", "--rdzv-endpoint", endpoint, "true"];
    let refused_args =
        ["--connect-timeout", "0", "--nnodes", "2", "--rdzv-id", "x", "--rdzv-endpoint", &refused, "true"];
    let taken_args = ["--nnodes", "2", "--rdzv-id", "x", "--rdzv-endpoint", &taken, "true"];
    for (args, code, words) in [
        (&["--nnode", "2", "true"][..], 2, &["--nnode", "--nnodes"][..]),
        (&["--nproc_per_nod", "2", "true"], 2, &["--nproc_per_nod"]),
        (&["--nnodes", "4:2", "true"], 2, &["--nnodes", "MIN 4 is above MAX 2", "2:4"]),
        (&["--nnodes", "1:0", "true"], 2, &["--nnodes", "a job needs at least 1 node"]),
        (&["--nnodes", "0", "true"], 2, &["at least 1 node"]),
        (&["--nproc-per-node", "0", "true"], 2, &["--nproc-per-node", "at least 1 worker"]),
        (&["--nproc-per-node", "npu", "true"], 2, &["auto, gpu, xpu, cpu"]),
        (&["--nproc-per-node", "gpu", "true"], 2, &["no GPU"]),
        (&["--tee", "9", "true"], 2, &["--tee", "1 (stdout)"]),
        (&["--standalone"], 2, &["no program", "--help"]),
        (&["--standalone", "--nnodes", "2", "true"], 2, &["--standalone", "--nnodes"]),
        (&["--nnodes", "2", "true"], 2, &["--rdzv-endpoint"]),
        (&["--nnodes", "2", "--rdzv-endpoint", "a:1", "true"], 2, &["--rdzv-id"]),
        (&meet("a:b:c"), 2, &["--rdzv-endpoint", "a:b:c"]),
        (&["--rdzv-conf", "a", "true"], 2, &["--rdzv-conf", "'a'"]),
        (&["--rdzv-conf", "join_timout=1", "true"], 2, &["--rdzv-conf", "did you mean 'join_timeout'?"]),
        (&["--rdzv-conf", "join_timeout=abc", "true"], 2, &["--rdzv-conf", "'join_timeout'", "'abc'"]),
        (&["--rdzv-backend", "zeus", "true"], 2, &["zeus", "rallypoint"]),
        (&["--module", "--no-python", "x"], 2, &["--no-python"]),
        (&["--log-level", "lo=ud=er", "true"], 2, &["log level"]),
        (&["--log-level", "chatty", "true"], 2, &["chatty", "info, debug"]),
        (&["--tee", "9:1", "true"], 2, &["--tee", "local rank 9"]),
        (&["-r", "0:1,2:3", "--nproc-per-node", "2", "true"], 2, &["--redirects", "local rank 2", "0 to 1"]),
        (&["--local-ranks-filter", "7", "true"], 2, &["--local-ranks-filter", "local rank 7"]),
        (&["--log-line-prefix-template", "${host}", "true"], 2, &["${host}", "${hostname}"]),
        (&["--standalone", "--rdzv-endpoint", "a:1", "true"], 2, &["--standalone", "--rdzv-endpoint", "a:1"]),
        (
            &["--signals-to-handle", "SIGTERM,SIGFOO", "true"],
            2,
            &["--signals-to-handle", "SIGFOO", "SIGUSR1"],
        ),
        (&["--max-restarts", "-1", "true"], 2, &["--max-restarts", "'-1'", "0 or more"]),
        (&["--nnodes", "-1", "true"], 2, &["--nnodes", "'-1'", "MIN:MAX"]),
        (&["no-such-program"], 127, &["no-such-program", "PATH"]),
        (&["./no/such/program"], 127, &["./no/such/program", "check the path"]),
        (&["no_such_script.py"], 127, &["no_such_script.py"]),
        (&["/etc/passwd"], 126, &["not executable"]),
        (&refused_args, 4, &["etcd://", "127.0.0.1", "--rdzv-endpoint"][1..]),
        (&taken_args, 4, &[&taken, "in use", "--rdzv-endpoint"]),
        (&["--log-dir", not_a_folder, "true"], 6, &["file/logs", "--log-dir"]),
    ] {
        let output = std::process::Command::new(RALLYPOINT)
            .arg("run")
            .args(args)
            .env("RALLYPOINT_LOG_LEVEL", "error")
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: {word:?} is missing in: {text}");
        }
    }
}

/// What comes from a variable is not blamed on a flag.
#[test]
fn a_variable_that_is_wrong_is_named() {
    for (name, value, code, words) in [
        ("PET_NNODES", "4:2", 2, &["PET_NNODES", "MIN 4 is above MAX 2"][..]),
        ("PET_STANDALONE", "maybe", 2, &["'maybe'", "PET_STANDALONE", "1 for yes"]),
        ("PET_MAX_RESTARTS", "many", 2, &["'many'", "PET_MAX_RESTARTS"]),
        ("PET_NUMA_BINDING", "near", 2, &["'near'", "PET_NUMA_BINDING"]),
        ("PET_RDZV_BACKEND", "zeus", 2, &["PET_RDZV_BACKEND", "zeus"]),
        ("PET_SIGNALS_TO_HANDLE", "SIGFOO", 2, &["PET_SIGNALS_TO_HANDLE", "SIGFOO"]),
        ("PET_TEE", "9:1", 2, &["PET_TEE", "local rank 9"]),
        ("PET_RDZV_CONF", "join_timeout=abc", 2, &["PET_RDZV_CONF", "'join_timeout'", "'abc'"]),
        ("PET_RDZV_CONF", "join_timout=5", 2, &["PET_RDZV_CONF", "did you mean 'join_timeout'?"]),
        ("PET_LOG_DIR", "/proc/logs", 6, &["/proc/logs", "PET_LOG_DIR"]),
        ("PET_NODE_RANK", "a", 2, &["'a'", "PET_NODE_RANK", "whole number"]),
        ("RALLYPOINT_LOG_LEVEL", "loud", 2, &["RALLYPOINT_LOG_LEVEL", "loud"]),
    ] {
        let mut command = std::process::Command::new(RALLYPOINT);
        command.args(["run", "true"]).env("RALLYPOINT_LOG_LEVEL", "error").env(name, value);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{name}: {text}");
        for word in words {
            assert!(text.contains(word), "{name}: {word:?} is missing in: {text}");
        }
        let flag = format!("--{}", name.trim_start_matches("PET_").to_lowercase().replace('_', "-"));
        assert!(!text.contains(&flag), "{name}: {text}");
    }
}

#[test]
fn a_log_folder_that_cannot_be_written_is_named() {
    let ended = Launcher::run(&["--log-dir", "/proc/logs", "true"]).expect(6);
    assert!(ended.text().contains("/proc/logs"), "{}", ended.text());
}

/// The others would start their workers, and stop them again.
#[test]
fn what_the_workers_files_have_no_room_for_is_told_before_the_nodes_meet() {
    let folder = tempfile::tempdir().unwrap();
    // A path has up to 4095 bytes: enough for the run's folder, not for its workers' files.
    let mut dir = folder.path().display().to_string();
    dir.push_str(&"/0123456789".repeat((4068 - dir.len()) / 11));
    dir.push_str(&"x".repeat(4068 - dir.len()));
    let endpoint = refused_endpoint();
    let meet = ["--nnodes", "2", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job"];
    let files = ["--rdzv-conf", "join_timeout=5", "--log-dir", &dir, "-r", "3", "true"];
    let ended = Launcher::run(&[&meet[..], &files].concat()).expect(6);
    let text = ended.text();
    assert!(text.contains("/attempt_0/0/std") && text.contains("File name too long"), "{text}");
    assert!(!text.contains("waiting for"), "{text}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn torchruns_variables_and_underscores_are_understood() {
    let launcher =
        Launcher::start_with(&["--", "sh", "-c", "echo $RANK of $WORLD_SIZE as $ROLE_NAME"], |command| {
            command.env("PET_NPROC_PER_NODE", "2").env("PET_ROLE", "reader").env("PET_STANDALONE", "1");
        });
    let ended = launcher.ended().expect(0);
    assert_eq!(ended.with("1 of 2 as reader").len(), 1, "{}", ended.text());
    let ended = Launcher::run(&["--nproc_per_node=2", "--max_restarts=0", "--start_method", "fork", "true"])
        .expect(0);
    assert!(ended.text().contains("--start-method has no effect"), "{}", ended.text());
}

#[test]
fn what_says_nothing_by_itself_is_told_and_a_command_of_the_plugins_works_as_it_stands() {
    let conf = ["--rdzv-conf", "worker_store=rank0,is_host=1"];
    let alone = ["--max-departures", "2", "--restarts-return-after", "9", "--replacement-timeout", "9"];
    let script = "echo store $TORCHELASTIC_USE_AGENT_STORE";
    let ended = Launcher::run(&[&conf[..], &alone, &["--", "sh", "-c", script]].concat()).expect(0);
    let text = ended.text();
    assert!(text.contains("store False"), "{text}");
    let flags =
        ["--max-departures", "--restarts-return-after", "--replacement-timeout", "--rdzv-conf is_host"];
    for flag in flags {
        assert_eq!(ended.with(&format!("{flag} has no effect")).len(), 1, "{text}");
    }
    let ended = Launcher::run(&["--rdzv-conf", "worker_store=rank1", "true"]).expect(2);
    assert!(
        ended.text().contains("worker_store=rank1") && ended.text().contains("agent"),
        "{}",
        ended.text()
    );
}
