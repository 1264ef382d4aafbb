//! A Slurm of several nodes on one machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::net::reserved_port;
use crate::port::ReservedPort;
use crate::process;
use crate::tools::{in_tools, own_tool};

/// Daemons that start, and jobs that do little, take less by far.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A controller and its nodes, each a daemon of its own at an address of its own, whose name it has: `127.0.0.1`,
/// `127.0.0.2` and so on. The first three are below one switch, and the others below another. Nobody asks who you are:
/// jobs are this user's. Dropped, all of it is killed, jobs included.
#[derive(Debug)]
pub struct Slurm {
    folder: TempDir,
    programs: PathBuf,
    controller: Child,
    nodes: Vec<Child>,
    _ports: Vec<ReservedPort>,
}

impl Slurm {
    /// Starts it with so many nodes; none where this machine has no Slurm. `scripts/test` says so. Its first job has the
    /// number `first_job`: what a launcher takes from it, a port for one, is not to be another Slurm's of this machine.
    #[must_use]
    pub fn start(nodes: usize, first_job: u32) -> Option<Self> {
        let own = own_tool("RALLYPOINT_SLURM");
        let programs = own.clone().unwrap_or_else(|| in_tools("slurm"));
        if !programs.join("slurmctld").exists() {
            assert!(own.is_none(), "RALLYPOINT_SLURM names {}, which has no slurmctld", programs.display());
            eprintln!("Slurm is not tried: {} is not there; run `scripts/setup slurm`", programs.display());
            return None;
        }
        let folder = TempDir::new().expect("a temporary folder can be made");
        // The controller's first.
        let ports: Vec<_> = (0..=nodes).map(|_| reserved_port()).collect();
        configure(folder.path(), &programs, &ports, first_job);
        let daemon = |name: &str, log: &str, args: &[&str]| {
            let mut command = process::command(&programs.join(name));
            set_environment(&mut command, folder.path(), &programs);
            let log = fs::File::create(folder.path().join(log)).expect("a log can be made");
            command.arg("-D").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            process::spawn(command)
        };
        let controller = daemon("slurmctld", "slurmctld.log", &[]);
        let stepd = programs.join("slurmstepd").display().to_string();
        let nodes = (1..=nodes).map(name_of);
        let nodes =
            nodes.map(|node| daemon("slurmd", &format!("slurmd-{node}.log"), &["-d", &stepd, "-N", &node]));
        let nodes = nodes.collect();
        let slurm = Slurm { folder, programs, controller, nodes, _ports: ports };
        let wanted = slurm.nodes.len().to_string();
        slurm.wait_until("all nodes are idle", || {
            slurm.ask("sinfo", &["--noheader", "--states=idle", "--format=%D"]).trim() == wanted
        });
        Some(slurm)
    }

    /// One of Slurm's commands, to be run: `srun`, `sbatch` and so on.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join("usr/bin").join(name));
        set_environment(&mut command, self.folder.path(), &self.programs);
        command
    }

    /// Runs one of Slurm's commands; what it printed.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn ask(&self, name: &str, args: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            self.command(name).args(args).output().expect("it can be run");
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{name} {args:?} failed: {stdout}{stderr}");
        stdout.into_owned()
    }

    /// Hands a script in; the number of the job. Its output goes to [`Slurm::output`].
    pub fn submit(&self, options: &[&str], script: &str) -> String {
        let file = self.folder.path().join("job.sh");
        fs::write(&file, format!("#!/bin/bash\n{script}\n")).expect("a script can be written");
        let output = self.folder.path().join("job-%j.out").display().to_string();
        let file = file.display().to_string();
        let always = ["--parsable", "--open-mode=append", "--output", &output];
        self.ask("sbatch", &[&always, options, &[&file]].concat()).trim().to_owned()
    }

    /// Where jobs run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What a job has printed so far.
    #[must_use]
    pub fn output(&self, job: &str) -> String {
        fs::read_to_string(self.folder.path().join(format!("job-{job}.out"))).unwrap_or_default()
    }

    /// What Slurm calls a job's state: `PENDING`, `RUNNING`, `COMPLETED`, `TIMEOUT` and so on.
    #[must_use]
    pub fn state(&self, job: &str) -> String {
        let shown = self.ask("scontrol", &["show", "job", job]);
        let state = shown.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        state.unwrap_or_default().to_owned()
    }

    /// Waits until a job has printed this.
    pub fn wait_for_output(&self, job: &str, part: &str) {
        self.wait_until(&format!("job {job} says {part:?}"), || self.output(job).contains(part));
    }

    /// Waits until a job is in this state.
    pub fn wait_for_state(&self, job: &str, state: &str) {
        self.wait_until(&format!("job {job} is {state}"), || self.state(job) == state);
    }

    /// Waits until a job is over, however it ended.
    pub fn wait_for_end(&self, job: &str) {
        self.wait_until(&format!("job {job} is over"), || {
            !["PENDING", "RUNNING", "COMPLETING"].contains(&self.state(job).as_str())
        });
    }

    /// The machine of a node dies with all that runs on it, and Slurm is told at once.
    pub fn kill_node(&mut self, number: usize) {
        let node = &mut self.nodes[number - 1];
        let _ = node.kill();
        let _ = node.wait();
        // Its steps, their tasks, and whatever those started.
        self.kill_all(&format!("SLURMD_NODENAME={}", name_of(number)));
        let node = format!("NodeName={}", name_of(number));
        self.ask("scontrol", &["update", &node, "State=DOWN", "Reason=killed"]);
    }

    /// Kills every process of this Slurm with this in its environment too; daemons have no node's name in theirs.
    fn kill_all(&self, variable: &str) {
        let own = format!("SLURM_CONF={}", conf(self.folder.path()).display());
        let has = |environment: &[u8], wanted: &str| {
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        };
        loop {
            let mut killed = false;
            for pid in processes() {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                if has(&environment, &own) && has(&environment, variable) {
                    killed |= Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
                }
            }
            // One that was about to start another has started it.
            if !killed {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}\n{}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let logs = files.filter(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            name.ends_with(".log") || name.ends_with(".out")
        });
        logs.map(|file| {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            format!("--- {}\n{text}", file.file_name().to_string_lossy())
        })
        .collect()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.nodes.iter_mut().chain([&mut self.controller]) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.kill_all(&format!("SLURM_CONF={}", conf(self.folder.path()).display()));
    }
}

fn conf(folder: &Path) -> PathBuf {
    folder.join("slurm.conf")
}

fn name_of(node: usize) -> String {
    format!("127.0.0.{node}")
}

fn set_environment(command: &mut Command, folder: &Path, programs: &Path) {
    let libraries = programs.join("libraries");
    let path = format!("{}:{}", libraries.join("slurm-wlm").display(), libraries.display());
    // Scripts of jobs find srun by it.
    let own = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{own}", programs.join("usr/bin").display()));
    // What the tests run under must not choose for them.
    for (name, _) in std::env::vars_os() {
        let chooses = ["SLURM", "SBATCH_", "PET_", "RALLYPOINT_"];
        if name.to_str().is_some_and(|name| chooses.iter().any(|chooses| name.starts_with(chooses))) {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", path).env("SLURM_CONF", conf(folder)).current_dir(folder);
}

/// The files that the daemons and commands read.
fn configure(folder: &Path, programs: &Path, ports: &[ReservedPort], first_job: u32) {
    let user = Command::new("id").arg("-un").output().expect("id can be run").stdout;
    let user = String::from_utf8_lossy(&user).trim().to_owned();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let at = folder.display();
    let plugins = programs.join("libraries/slurm-wlm");
    let (controller, nodes) = (ports[0].number(), ports.len() - 1);
    let mut text = format!(
        "ClusterName=yard
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={}
StateSaveLocation={at}
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
JobRequeue=1
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
SlurmdTimeout=300
KillWait=5
MinJobAge=600
PartitionName=all Nodes=ALL Default=YES
",
        plugins.display()
    );
    for (node, port) in ports.iter().enumerate().skip(1) {
        let (name, port) = (name_of(node), port.number());
        text.push_str(&format!(
            "NodeName={name} NodeHostname={host} NodeAddr={name} Port={port} CPUs=4 RealMemory=100\n"
        ));
        fs::create_dir(folder.join(format!("spool-{name}"))).expect("a folder can be made");
    }
    fs::write(conf(folder), text).expect("a file can be written");
    let near = nodes.min(3);
    let mut topology = format!("SwitchName=near Nodes=127.0.0.[1-{near}]\n");
    if nodes > near {
        topology.push_str(&format!("SwitchName=far Nodes=127.0.0.[{}-{nodes}]\n", near + 1));
        topology.push_str("SwitchName=core Switches=near,far\n");
    }
    fs::write(folder.join("topology.conf"), topology).expect("a file can be written");
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
