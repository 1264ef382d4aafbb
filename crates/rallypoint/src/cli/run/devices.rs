//! How many workers a node can have, found out without PyTorch.

use std::path::Path;

use super::options::WorkersPerNode;
use crate::cli::exit::Problem;

/// The number of workers on this node.
pub(crate) fn workers(wanted: WorkersPerNode) -> Result<usize, Problem> {
    let listed = |name: &str| std::env::var(name).ok();
    let gpus = || gpus(Path::new("/"), listed);
    let cpus = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match wanted {
        WorkersPerNode::Number(number) => Ok(number),
        WorkersPerNode::Cpu => Ok(cpus()),
        WorkersPerNode::Auto => Ok(Some(gpus()).filter(|count| *count > 0).unwrap_or_else(cpus)),
        WorkersPerNode::Gpu => Some(gpus()).filter(|count| *count > 0).ok_or_else(|| {
            Problem::usage("--nproc-per-node gpu: this node has no GPU; give a number, or cpu")
        }),
    }
}

/// GPUs that a worker would see: those listed in the environment, or else those the drivers show.
fn gpus(root: &Path, listed: impl Fn(&str) -> Option<String>) -> usize {
    let nvidia = numbered(&root.join("dev"), "nvidia");
    let amd = amd(&root.join("sys/class/kfd/kfd/topology/nodes"));
    let (found, variables) = if nvidia > 0 {
        (nvidia, &["CUDA_VISIBLE_DEVICES"][..])
    } else {
        (amd, &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"][..])
    };
    let chosen = variables.iter().find_map(|name| listed(name));
    match chosen {
        // A list ends at the first that is none, as CUDA reads it.
        Some(list) => list
            .split(',')
            .map(str::trim)
            .take_while(|gpu| !gpu.is_empty() && *gpu != "-1")
            .count()
            .min(found),
        None => found,
    }
}

/// Devices `name0`, `name1`, ... in a folder.
fn numbered(folder: &Path, name: &str) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |file: &str| file.strip_prefix(name).is_some_and(|rest| rest.parse::<u32>().is_ok());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).count()
}

/// Nodes of AMD's topology that can compute like a GPU; the others are CPUs.
fn amd(topology: &Path) -> usize {
    let entries = std::fs::read_dir(topology).into_iter().flatten().flatten();
    let is_gpu = |properties: String| {
        let count = properties.lines().find_map(|line| line.strip_prefix("simd_count "));
        count.is_some_and(|count| count.trim() != "0")
    };
    let properties =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("properties")).ok());
    properties.filter(|text| is_gpu(text.clone())).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn gpus_are_counted_from_what_the_drivers_show() {
        let root = tempfile::tempdir().unwrap();
        let none = |_: &str| None;
        assert_eq!(gpus(root.path(), none), 0);
        let topology = root.path().join("sys/class/kfd/kfd/topology/nodes");
        for (node, simd) in [("0", 0), ("1", 64), ("2", 64)] {
            std::fs::create_dir_all(topology.join(node)).unwrap();
            std::fs::write(
                topology.join(node).join("properties"),
                format!("cpu_cores 4\nsimd_count {simd}\n"),
            )
            .unwrap();
        }
        assert_eq!(gpus(root.path(), none), 2);
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        for device in ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"] {
            std::fs::write(root.path().join("dev").join(device), "").unwrap();
        }
        assert_eq!(gpus(root.path(), none), 3);
        let listed =
            |list: &'static str| move |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| list.to_owned());
        assert_eq!(gpus(root.path(), listed("0,2")), 2);
        assert_eq!(gpus(root.path(), listed("1,-1,2")), 1);
        assert_eq!(gpus(root.path(), listed("")), 0);
    }
}
