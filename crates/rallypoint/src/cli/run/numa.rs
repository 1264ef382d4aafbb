//! `--numa-binding`: which CPUs each worker may run on, so that it is near its GPU and its memory near to it.
//!
//! The modes are torchrun's. A worker's place is the NUMA node of the GPU with its local rank; where there is no GPU, which
//! torchrun refuses, the workers are spread over the NUMA nodes in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rallypoint_core::text::count;

use crate::cli::exit::Problem;

pub(crate) type Cpus = BTreeSet<usize>;

/// How near, by torchrun's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// All CPUs of the NUMA node.
    Node,
    /// All CPUs of the NUMA nodes on the same socket.
    Socket,
    /// Cores of the NUMA node that no other worker has.
    Exclusive,
    /// Cores of the NUMA node that share a cache, another for each worker as far as they go.
    CoreComplex,
}

/// What the system tells of its CPUs.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// `/`, but for tests.
    pub(crate) root: &'a Path,
    /// The CPUs that this process may use.
    pub(crate) allowed: Cpus,
}

/// The CPUs of each of so many workers, by local rank. `gpus` are the PCI addresses of the GPUs that they see; none for
/// workers on CPUs.
pub(crate) fn bind(
    mode: Mode,
    workers: usize,
    gpus: &[String],
    machine: &Machine<'_>,
) -> Result<Vec<Cpus>, Problem> {
    let refused = |why: String| Problem::usage(format!("--numa-binding: {why}"));
    if !gpus.is_empty() && workers > gpus.len() {
        return Err(refused(format!(
            "there are {workers} workers and {}; start as many, or set CUDA_VISIBLE_DEVICES= for workers on CPUs",
            count(gpus.len(), "GPU")
        )));
    }
    let nodes = machine.nodes();
    // The NUMA node of each device: of each GPU that is seen, or of each worker.
    let devices: Vec<usize> = if gpus.is_empty() {
        let usable: Vec<usize> = nodes.keys().copied().collect();
        (0..workers).map(|worker| usable.get(worker * usable.len() / workers).copied().unwrap_or(0)).collect()
    } else {
        gpus.iter().map(|gpu| machine.node_of(gpu).map_err(&refused)).collect::<Result<_, _>>()?
    };
    let choose = |worker: usize| {
        let node = devices[worker];
        let cpus = nodes.get(&node).ok_or_else(|| {
            refused(format!(
                "worker {worker} belongs to NUMA node {node}, none of whose CPUs may be used here"
            ))
        })?;
        let beside = devices.iter().filter(|other| **other == node).count();
        let turn = devices[..worker].iter().filter(|other| **other == node).count();
        match mode {
            Mode::Node => Ok(cpus.clone()),
            Mode::Socket => {
                let socket = machine.socket(cpus);
                let same = nodes.values().filter(|cpus| machine.socket(cpus) == socket);
                Ok(same.flatten().copied().collect())
            }
            Mode::Exclusive => {
                let cores = grouped(cpus, |cpu| machine.core(cpu));
                share(&cores, turn, beside).ok_or_else(|| {
                    refused(format!(
                        "exclusive: NUMA node {node} has {} for {}; start fewer, or use node",
                        count(cores.len(), "core"),
                        count(beside, "worker")
                    ))
                })
            }
            Mode::CoreComplex => {
                let mut complexes = grouped(cpus, |cpu| machine.complex(cpu));
                // The largest first: some may be in use by others, in part.
                complexes.sort_by_key(|cpus| (std::cmp::Reverse(cpus.len()), cpus.first().copied()));
                Ok(complexes[turn % complexes.len()].clone())
            }
        }
    };
    (0..workers).map(choose).collect()
}

/// An even share of groups of CPUs; the first ones get what is left over. None if there is not one for each.
fn share(groups: &[Cpus], turn: usize, of: usize) -> Option<Cpus> {
    let (each, over) = (groups.len() / of, groups.len() % of);
    let from = turn * each + turn.min(over);
    let to = from + each + usize::from(turn < over);
    (each > 0).then(|| groups[from..to].iter().flatten().copied().collect())
}

/// CPUs with the same key together, in the order of their keys.
fn grouped(cpus: &Cpus, key: impl Fn(usize) -> usize) -> Vec<Cpus> {
    let mut groups: BTreeMap<usize, Cpus> = BTreeMap::new();
    for cpu in cpus {
        groups.entry(key(*cpu)).or_default().insert(*cpu);
    }
    groups.into_values().collect()
}

impl Machine<'_> {
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn cpu(&self, cpu: usize) -> PathBuf {
        format!("sys/devices/system/cpu/cpu{cpu}").into()
    }

    /// The CPUs of each NUMA node that may be used; a kernel without NUMA is one node.
    fn nodes(&self) -> BTreeMap<usize, Cpus> {
        let entries = fs::read_dir(self.root.join("sys/devices/system/node")).into_iter().flatten().flatten();
        let mut nodes = BTreeMap::new();
        for entry in entries {
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else {
                continue;
            };
            let cpus =
                fs::read_to_string(entry.path().join("cpulist")).map(|text| parse(&text)).unwrap_or_default();
            let cpus: Cpus = cpus.intersection(&self.allowed).copied().collect();
            if !cpus.is_empty() {
                nodes.insert(number, cpus);
            }
        }
        if nodes.is_empty() {
            nodes.insert(0, self.allowed.clone());
        }
        nodes
    }

    /// The NUMA node of a GPU. Where there is only one, the kernel says -1.
    fn node_of(&self, gpu: &str) -> Result<usize, String> {
        let node = self.read(format!("sys/bus/pci/devices/{gpu}/numa_node"));
        let node = node.and_then(|text| text.parse::<i64>().ok());
        node.map(|node| usize::try_from(node).unwrap_or(0))
            .ok_or_else(|| format!("the kernel does not tell the NUMA node of the GPU at {gpu}"))
    }

    fn socket(&self, cpus: &Cpus) -> Option<String> {
        self.read(self.cpu(*cpus.first()?).join("topology/physical_package_id"))
    }

    /// A core is named by the first of its CPUs.
    fn core(&self, cpu: usize) -> usize {
        let siblings = self.read(self.cpu(cpu).join("topology/thread_siblings_list"));
        siblings.and_then(|text| parse(&text).first().copied()).unwrap_or(cpu)
    }

    /// So is what shares the last cache.
    fn complex(&self, cpu: usize) -> usize {
        let folder = self.root.join(self.cpu(cpu)).join("cache");
        let mut last = (0, cpu);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let level: u32 = read("level").trim().parse().unwrap_or(0);
            if level > last.0 && matches!(read("type").trim(), "Unified" | "Data") {
                last = (level, parse(&read("shared_cpu_list")).first().copied().unwrap_or(cpu));
            }
        }
        last.1
    }
}

/// A list as the kernel writes it: `0-3,8,10-11`.
fn parse(text: &str) -> Cpus {
    let mut cpus = Cpus::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse()) {
            cpus.extend(from..=to);
        }
    }
    cpus
}

/// The same the other way.
pub(crate) fn list(cpus: &Cpus) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = ranges
        .into_iter()
        .map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    /// Two sockets of two NUMA nodes each. A node has 4 cores of 2 threads; pairs of cores share a cache. Thread 1 of core
    /// N is CPU N + 16.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for node in 0..4 {
            let (first, last) = (4 * node, 4 * node + 3);
            write(
                format!("sys/devices/system/node/node{node}/cpulist"),
                format!("{first}-{last},{}-{}\n", first + 16, last + 16),
            );
        }
        for cpu in 0..32 {
            let (core, dir) = (cpu % 16, format!("sys/devices/system/cpu/cpu{cpu}"));
            let pair = core / 2 * 2;
            write(format!("{dir}/topology/physical_package_id"), format!("{}\n", core / 8));
            write(format!("{dir}/topology/thread_siblings_list"), format!("{core},{}\n", core + 16));
            for (index, kind, level, shared) in [
                (0, "Data", 1, format!("{core},{}", core + 16)),
                (1, "Instruction", 9, "0-31".to_owned()),
                (2, "Unified", 3, format!("{pair}-{},{}-{}", pair + 1, pair + 16, pair + 17)),
            ] {
                let cache = format!("{dir}/cache/index{index}");
                write(format!("{cache}/type"), format!("{kind}\n"));
                write(format!("{cache}/level"), format!("{level}\n"));
                write(format!("{cache}/shared_cpu_list"), format!("{shared}\n"));
            }
        }
        for (gpu, node) in
            [("0000:17:00.0", "1"), ("0000:18:00.0", "1"), ("0000:b1:00.0", "3"), ("0000:00:02.0", "-1")]
        {
            write(format!("sys/bus/pci/devices/{gpu}/numa_node"), format!("{node}\n"));
        }
        root
    }

    fn bound(mode: Mode, workers: usize, gpus: &[&str], allowed: &str) -> Result<Vec<String>, String> {
        let root = machine();
        let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        let machine = Machine { root: root.path(), allowed: parse(allowed) };
        let bound = bind(mode, workers, &gpus, &machine);
        bound.map(|bound| bound.iter().map(list).collect()).map_err(|problem| problem.text)
    }

    const GPUS: [&str; 3] = ["0000:17:00.0", "0000:18:00.0", "0000:b1:00.0"];

    #[test]
    fn a_worker_is_bound_near_its_gpu() {
        let all = |mode| bound(mode, 3, &GPUS, "0-31").unwrap();
        assert_eq!(all(Mode::Node), ["4-7,20-23", "4-7,20-23", "12-15,28-31"]);
        assert_eq!(all(Mode::Socket), ["0-7,16-23", "0-7,16-23", "8-15,24-31"]);
        assert_eq!(all(Mode::Exclusive), ["4-5,20-21", "6-7,22-23", "12-15,28-31"]);
        assert_eq!(all(Mode::CoreComplex), ["4-5,20-21", "6-7,22-23", "12-13,28-29"]);
        // The GPUs that no worker has count: another launcher's workers may have them.
        assert_eq!(bound(Mode::Exclusive, 1, &GPUS, "0-31").unwrap(), ["4-5,20-21"]);
        assert_eq!(bound(Mode::Node, 1, &["0000:00:02.0"], "0-31").unwrap(), ["0-3,16-19"]);
    }

    #[test]
    fn only_what_may_be_used_is_shared_out() {
        assert_eq!(bound(Mode::Node, 1, &GPUS, "0-6").unwrap(), ["4-6"]);
        assert_eq!(
            bound(Mode::Exclusive, 2, &GPUS, "4-6").unwrap(),
            ["4-5", "6"],
            "the first gets what is left over"
        );
        assert_eq!(bound(Mode::CoreComplex, 2, &GPUS, "5-7").unwrap(), ["6-7", "5"], "the largest first");
        assert!(bound(Mode::Exclusive, 2, &GPUS, "4").unwrap_err().contains("1 core for 2 workers"));
        assert!(bound(Mode::Node, 1, &GPUS, "0-3").unwrap_err().contains("NUMA node 1"));
        assert!(bound(Mode::Node, 4, &GPUS, "0-31").unwrap_err().contains("4 workers and 3 GPUs"));
        assert!(bound(Mode::Node, 1, &["0000:99:00.0"], "0-31").unwrap_err().contains("0000:99:00.0"));
    }

    #[test]
    fn workers_on_cpus_are_spread_over_the_numa_nodes() {
        let nodes = ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"];
        assert_eq!(bound(Mode::Node, 4, &[], "0-31").unwrap(), nodes);
        assert_eq!(bound(Mode::Node, 2, &[], "0-31").unwrap(), [nodes[0], nodes[2]]);
        assert_eq!(bound(Mode::Socket, 2, &[], "0-31").unwrap(), ["0-7,16-23", "8-15,24-31"]);
        let eight = bound(Mode::Exclusive, 8, &[], "0-31").unwrap();
        assert_eq!(eight[..3], ["0-1,16-17", "2-3,18-19", "4-5,20-21"]);
        // A kernel without NUMA.
        let empty = tempfile::tempdir().unwrap();
        let machine = Machine { root: empty.path(), allowed: parse("0-3") };
        let bound = bind(Mode::Exclusive, 2, &[], &machine).unwrap();
        assert_eq!(bound.iter().map(list).collect::<Vec<_>>(), ["0-1", "2-3"]);
    }

    /// PyTorch's own code, on the same machine that is none: it reads the files of another root, and is told where the
    /// GPUs are and which CPUs it may use.
    #[test]
    #[ignore = "it takes long: scripts/test long"]
    fn pytorch_binds_to_the_same_cpus() {
        const THEIRS: &str = "
import builtins, json, os, sys, types
import torch.numa.binding as numa
root, nodes, allowed = sys.argv[1], json.loads(sys.argv[2]), numa._get_set_of_int_from_ranges_str(sys.argv[3])
numa.open = lambda path, *args: builtins.open(root + path, *args)
numa.os = types.SimpleNamespace(path=os.path, listdir=lambda path: os.listdir(root + path))
numa._get_device_count = lambda: len(nodes)
numa._get_numa_node_index_for_device_index = lambda *, device_index: nodes[device_index]
numa._get_allowed_cpu_indices_for_current_thread = lambda: allowed
for mode in sys.argv[4:]:
    for gpu in range(len(nodes)):
        options = numa.NumaOptions(affinity_mode=numa.AffinityMode(mode))
        print(numa._get_ranges_str_from_ints(numa._get_logical_cpus_to_bind_to(device_index=gpu, numa_options=options)))
";
        let root = machine();
        fs::write(root.path().join("sys/devices/system/node/possible"), "0-3\n").unwrap();
        let modes = [Mode::Node, Mode::Socket, Mode::Exclusive, Mode::CoreComplex];
        let names = ["node", "socket", "exclusive", "core-complex"];
        for allowed in ["0-31", "0-6,9,12-30"] {
            let args = [&[root.path().to_str().unwrap(), "[1, 1, 3]", allowed], &names[..]].concat();
            let theirs = rallypoint_testkit::run_python(THEIRS, &args);
            let ours = modes.iter().flat_map(|mode| bound(*mode, 3, &GPUS, allowed).unwrap());
            assert_eq!(theirs.lines().collect::<Vec<_>>(), ours.collect::<Vec<_>>(), "{allowed}");
        }
    }
}
