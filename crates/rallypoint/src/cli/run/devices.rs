//! How many workers a node can have, and where its GPUs are, found out without PyTorch.

use std::fs;
use std::path::{Path, PathBuf};

use super::values::WorkersPerNode;
use crate::cli::exit::Problem;

/// PCI's number for Intel.
const INTEL: &str = "0x8086";

/// The number of workers on this node.
pub(crate) fn workers(wanted: WorkersPerNode) -> Result<usize, Problem> {
    let system = System { root: "/".into(), listed: |name: &str| std::env::var(name).ok() };
    let cpus = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let some = |count: usize| Some(count).filter(|count| *count > 0);
    let none = |kind: &str, what: &str| {
        Problem::usage(format!("--nproc-per-node {kind}: this node has no {what}; give a number, or cpu"))
    };
    match wanted {
        WorkersPerNode::Number(number) => Ok(number),
        WorkersPerNode::Cpu => Ok(cpus()),
        WorkersPerNode::Auto => Ok(some(system.gpus()).or_else(|| some(system.xpus())).unwrap_or_else(cpus)),
        WorkersPerNode::Gpu => some(system.gpus()).ok_or_else(|| none("gpu", "GPU")),
        WorkersPerNode::Xpu => some(system.xpus()).ok_or_else(|| none("xpu", "GPU of Intel's")),
    }
}

/// The PCI addresses of the GPUs that a worker would see, in their order.
pub(crate) fn addresses() -> Result<Vec<String>, Problem> {
    let system = System { root: "/".into(), listed: |name: &str| std::env::var(name).ok() };
    system.addresses().map_err(|why| Problem::usage(format!("--numa-binding: {why}")))
}

/// Where the drivers tell of their devices, and the environment that chooses among them.
struct System<E> {
    root: PathBuf,
    listed: E,
}

impl<E: Fn(&str) -> Option<String>> System<E> {
    /// GPUs that a worker would see: those listed in the environment, or else those the drivers show.
    fn gpus(&self) -> usize {
        let nvidia = numbered(&self.root.join("dev"), "nvidia").len();
        if nvidia > 0 {
            self.chosen(&["CUDA_VISIBLE_DEVICES"], nvidia)
        } else {
            self.chosen(&["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"], self.amd().len())
        }
    }

    /// GPUs of Intel's that a worker would see.
    fn xpus(&self) -> usize {
        let found = self.intel().iter().map(|device| numbered(device, "tile").len().max(1)).sum();
        self.chosen(&["ZE_AFFINITY_MASK"], found)
    }

    fn chosen(&self, variables: &[&str], found: usize) -> usize {
        let list = variables.iter().find_map(|name| (self.listed)(name));
        list.map_or(found, |list| visible(&list).len().min(found))
    }

    fn addresses(&self) -> Result<Vec<String>, String> {
        let (kind, all) = match (self.nvidia(), self.amd(), self.intel()) {
            (nvidia, ..) if !nvidia.is_empty() => (&["CUDA_VISIBLE_DEVICES"][..], nvidia),
            (_, amd, _) if !amd.is_empty() => {
                let unnamed = |address| (address, String::new());
                (&["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"][..], amd.into_iter().map(unnamed).collect())
            }
            (.., intel) => {
                let address = |device: &PathBuf| {
                    device.file_name()?.to_str().map(|name| (name.to_owned(), String::new()))
                };
                (&["ZE_AFFINITY_MASK"][..], intel.iter().filter_map(address).collect())
            }
        };
        let Some(list) = kind.iter().find_map(|name| (self.listed)(name)) else {
            return Ok(all.into_iter().map(|(address, _)| address).collect());
        };
        let find = |wanted: &&str| {
            let number = wanted.split('.').next().and_then(|number| number.parse::<usize>().ok());
            let found = match number {
                Some(number) => all.get(number),
                None => all.iter().find(|(_, name)| !name.is_empty() && name.starts_with(*wanted)),
            };
            found
                .map(|(address, _)| address.clone())
                .ok_or_else(|| format!("there is no GPU {wanted:?}, of {}", kind[0]))
        };
        visible(&list).iter().map(find).collect()
    }

    /// Address and name of NVIDIA's, in the order of their addresses, as nvidia-smi has them.
    fn nvidia(&self) -> Vec<(String, String)> {
        let folder = fs::read_dir(self.root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
        let mut found: Vec<(String, String)> = folder
            .filter_map(|entry| {
                let text = fs::read_to_string(entry.path().join("information")).ok()?;
                let field = |name: &str| {
                    let line =
                        text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
                    line.map(|value| value.trim().to_owned())
                };
                // A container shows the others here too, and not their devices.
                let there = self.root.join(format!("dev/nvidia{}", field("Device Minor")?)).exists();
                let address = entry.file_name().to_str()?.to_lowercase();
                there.then(|| (address, field("GPU UUID").unwrap_or_default()))
            })
            .collect();
        found.sort();
        found
    }

    /// The addresses of those nodes of AMD's topology that can compute like a GPU; the others are CPUs.
    fn amd(&self) -> Vec<String> {
        let topology = self.root.join("sys/class/kfd/kfd/topology/nodes");
        let nodes = numbered(&topology, "");
        let gpu = |node: &u32| {
            let text = fs::read_to_string(topology.join(node.to_string()).join("properties")).ok()?;
            let number = |name: &str| -> u64 {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
            };
            let (domain, place) = (number("domain"), number("location_id"));
            let address =
                format!("{domain:04x}:{:02x}:{:02x}.{}", place >> 8 & 0xff, place >> 3 & 0x1f, place & 7);
            (number("simd_count") > 0).then_some(address)
        };
        nodes.iter().filter_map(gpu).collect()
    }

    /// The devices of Intel's that can compute, in the order of their addresses: those with memory of their own, or
    /// else the one on the processor, which is on the first bus.
    fn intel(&self) -> Vec<PathBuf> {
        let drm = self.root.join("sys/class/drm");
        let device = |number: &u32| {
            let device = fs::canonicalize(drm.join(format!("renderD{number}/device"))).ok()?;
            let vendor = fs::read_to_string(device.join("vendor")).ok()?;
            (vendor.trim() == INTEL).then_some(device)
        };
        let mut all: Vec<PathBuf> = numbered(&drm, "renderD").iter().filter_map(device).collect();
        all.sort();
        let own = |device: &PathBuf| {
            !device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("0000:00:"))
        };
        let discrete: Vec<PathBuf> = all.iter().filter(|device| own(device)).cloned().collect();
        if discrete.is_empty() { all } else { discrete }
    }
}

/// A list ends at the first that is none, as CUDA reads it.
fn visible(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).take_while(|gpu| !gpu.is_empty() && *gpu != "-1").collect()
}

/// The numbers of `name0`, `name1`, ... in a folder, in their order.
fn numbered(folder: &Path, name: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |file: &str| file.strip_prefix(name).and_then(|rest| rest.parse::<u32>().ok());
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str().and_then(number)).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn seen(
        root: &Path,
        variable: &'static str,
        list: &'static str,
    ) -> System<impl Fn(&str) -> Option<String>> {
        System { root: root.into(), listed: move |name: &str| (name == variable).then(|| list.to_owned()) }
    }

    #[test]
    fn gpus_are_counted_and_found_from_what_the_drivers_show() {
        let root = tempfile::tempdir().unwrap();
        let plain = seen(root.path(), "", "");
        assert_eq!((plain.gpus(), plain.xpus()), (0, 0));
        assert_eq!(plain.addresses(), Ok(Vec::new()));
        for (node, simd, place) in [("0", 0, 0), ("1", 64, 0x1700), ("10", 64, 0xb108), ("2", 64, 0x1808)] {
            let properties = format!("cpu_cores 4\nsimd_count {simd}\nlocation_id {place}\ndomain 0\n");
            write(root.path(), &format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"), &properties);
        }
        assert_eq!(plain.gpus(), 3);
        assert_eq!(plain.addresses().unwrap(), ["0000:17:00.0", "0000:18:01.0", "0000:b1:01.0"]);
        assert_eq!(
            seen(root.path(), "HIP_VISIBLE_DEVICES", "2,0").addresses().unwrap(),
            ["0000:b1:01.0", "0000:17:00.0"]
        );

        for device in ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"] {
            write(root.path(), &format!("dev/{device}"), "");
        }
        for (address, minor, uuid) in [
            ("0000:B1:00.0", 0, "GPU-aa01"),
            ("0000:17:00.0", 2, "GPU-bb02"),
            ("0000:18:00.0", 1, "GPU-cc03"),
            ("0000:99:00.0", 7, "GPU-dd04"),
        ] {
            let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
            write(root.path(), &format!("proc/driver/nvidia/gpus/{address}/information"), &text);
        }
        assert_eq!(plain.gpus(), 3);
        assert_eq!(plain.addresses().unwrap(), ["0000:17:00.0", "0000:18:00.0", "0000:b1:00.0"]);
        let listed = |list| seen(root.path(), "CUDA_VISIBLE_DEVICES", list);
        assert_eq!((listed("0,2").gpus(), listed("1,-1,2").gpus(), listed("").gpus()), (2, 1, 0));
        assert_eq!(listed("2,GPU-cc").addresses().unwrap(), ["0000:b1:00.0", "0000:18:00.0"]);
        assert_eq!(listed("").addresses(), Ok(Vec::new()));
        assert!(listed("MIG-1").addresses().unwrap_err().contains("MIG-1"));
    }

    #[test]
    fn gpus_of_intels_are_those_on_cards_or_else_the_processors_own() {
        let root = tempfile::tempdir().unwrap();
        let add = |number: u32, address: &str, vendor: &str| {
            let device = root.path().join("sys/devices/pci").join(address);
            write(&device, "vendor", &format!("{vendor}\n"));
            let render = root.path().join(format!("sys/class/drm/renderD{number}"));
            fs::create_dir_all(&render).unwrap();
            std::os::unix::fs::symlink(&device, render.join("device")).unwrap();
        };
        let plain = seen(root.path(), "", "");
        add(128, "0000:00:02.0", INTEL);
        add(129, "0000:01:00.0", "0x10de");
        assert_eq!((plain.xpus(), plain.gpus()), (1, 0));
        add(130, "0000:4d:00.0", INTEL);
        add(131, "0000:3a:00.0", INTEL);
        assert_eq!(plain.xpus(), 2);
        assert_eq!(plain.addresses().unwrap(), ["0000:3a:00.0", "0000:4d:00.0"]);
        for tile in ["tile0", "tile1"] {
            fs::create_dir_all(root.path().join("sys/devices/pci/0000:3a:00.0").join(tile)).unwrap();
        }
        assert_eq!((plain.xpus(), seen(root.path(), "ZE_AFFINITY_MASK", "0.0,0.1").xpus()), (3, 2));
    }
}
