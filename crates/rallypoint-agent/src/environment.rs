//! What a worker finds in its environment: the variables that torchrun 2.15 sets, with its values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use thiserror::Error;

/// Signals that torchrun handles, where nobody says otherwise; workers find the list in their environment.
pub const DEFAULT_SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

/// A worker's place in its round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRanks {
    /// Among all workers.
    pub rank: usize,
    /// Among the workers of this node.
    pub local_rank: usize,
    /// Among the workers of its role.
    pub role_rank: usize,
    /// The number of workers.
    pub world_size: usize,
    /// The number of workers on this node.
    pub local_world_size: usize,
    /// The number of workers of its role.
    pub role_world_size: usize,
    /// The node's place among the nodes.
    pub group_rank: usize,
    /// The number of nodes.
    pub group_world_size: usize,
}

/// What all workers of a node share in a round.
#[derive(Debug, Clone)]
pub struct Common<'a> {
    /// Their role.
    pub role: &'a str,
    /// The run.
    pub run_id: &'a str,
    /// Where the workers meet.
    pub master_addr: &'a str,
    /// The port there.
    pub master_port: u16,
    /// Whether an agent serves the store there; if not, the worker with rank 0 does.
    pub agent_store: bool,
    /// How often this node has started its workers again after a failure.
    pub restart_count: u32,
    /// How often it may.
    pub max_restarts: u32,
    /// The signals that the launcher handles, as torchrun lists them.
    pub signals: &'a str,
    /// Each worker sees the one GPU that is its own, as the first.
    pub virtual_local_rank: bool,
}

/// A worker without a GPU of its own.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("worker {local_rank} has no GPU: {variable} lists {listed:?}; start fewer workers or list more GPUs")]
pub struct NoGpu {
    local_rank: usize,
    variable: &'static str,
    listed: String,
}

/// The variables that are set for a worker, over those it inherits. `inherited` is the launcher's environment;
/// `error_file` is where the worker may write what went wrong, empty where there is no place for it.
pub fn environment(
    common: &Common<'_>,
    place: &WorkerRanks,
    error_file: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Result<BTreeMap<&'static str, OsString>, NoGpu> {
    let mut set: BTreeMap<&'static str, OsString> = BTreeMap::new();
    for (name, number) in [
        ("RANK", place.rank),
        ("ROLE_RANK", place.role_rank),
        ("GROUP_RANK", place.group_rank),
        ("WORLD_SIZE", place.world_size),
        ("LOCAL_WORLD_SIZE", place.local_world_size),
        ("ROLE_WORLD_SIZE", place.role_world_size),
        ("GROUP_WORLD_SIZE", place.group_world_size),
        ("MASTER_PORT", usize::from(common.master_port)),
        ("TORCHELASTIC_RESTART_COUNT", common.restart_count as usize),
        ("TORCHELASTIC_MAX_RESTARTS", common.max_restarts as usize),
    ] {
        set.insert(name, number.to_string().into());
    }
    for (name, text) in [
        ("ROLE_NAME", common.role),
        ("MASTER_ADDR", common.master_addr),
        ("TORCHELASTIC_RUN_ID", common.run_id),
        // As Python writes it.
        ("TORCHELASTIC_USE_AGENT_STORE", if common.agent_store { "True" } else { "False" }),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", common.signals),
    ] {
        set.insert(name, text.into());
    }
    set.insert("TORCHELASTIC_ERROR_FILE", error_file.into());
    let errors = inherited("TORCH_NCCL_ASYNC_ERROR_HANDLING").unwrap_or_else(|| "1".into());
    set.insert("TORCH_NCCL_ASYNC_ERROR_HANDLING", errors);
    // Many workers with as many threads each as there are cores would be in each other's way.
    if place.local_world_size > 1 && inherited("OMP_NUM_THREADS").is_none() {
        set.insert("OMP_NUM_THREADS", "1".into());
    }
    if common.virtual_local_rank {
        set.insert("LOCAL_RANK", "0".into());
        own_gpu(&mut set, place.local_rank, inherited)?;
    } else {
        set.insert("LOCAL_RANK", place.local_rank.to_string().into());
    }
    Ok(set)
}

fn own_gpu(
    set: &mut BTreeMap<&'static str, OsString>,
    local_rank: usize,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Result<(), NoGpu> {
    // On ROCm the one of HIP wins over CUDA's.
    let hip = inherited("HIP_VISIBLE_DEVICES").filter(|listed| !listed.is_empty());
    let is_hip = hip.is_some();
    let variable = if is_hip { "HIP_VISIBLE_DEVICES" } else { "CUDA_VISIBLE_DEVICES" };
    let gpu = match hip.or_else(|| inherited("CUDA_VISIBLE_DEVICES")) {
        None => local_rank.to_string(),
        Some(listed) => {
            let listed = listed.to_string_lossy().into_owned();
            match listed.split(',').nth(local_rank) {
                Some(gpu) => gpu.trim().to_owned(),
                None => return Err(NoGpu { local_rank, variable, listed }),
            }
        }
    };
    if is_hip {
        set.insert("HIP_VISIBLE_DEVICES", gpu.clone().into());
    }
    set.insert("CUDA_VISIBLE_DEVICES", gpu.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn common() -> Common<'static> {
        Common {
            role: "default",
            run_id: "job42",
            master_addr: "10.0.0.7",
            master_port: 29500,
            agent_store: true,
            restart_count: 1,
            max_restarts: 3,
            signals: DEFAULT_SIGNALS,
            virtual_local_rank: false,
        }
    }

    fn place(local_world_size: usize) -> WorkerRanks {
        WorkerRanks {
            rank: 5,
            local_rank: 1,
            role_rank: 3,
            world_size: 8,
            local_world_size,
            role_world_size: 4,
            group_rank: 2,
            group_world_size: 3,
        }
    }

    fn with(
        common: &Common<'_>,
        inherited: &[(&str, &str)],
    ) -> Result<BTreeMap<&'static str, OsString>, NoGpu> {
        let find = |name: &str| inherited.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        environment(common, &place(4), Path::new("/log/1/error.json"), find)
    }

    #[test]
    fn threads_are_limited_only_where_workers_share_a_node_and_nobody_chose() {
        assert_eq!(with(&common(), &[]).unwrap()["OMP_NUM_THREADS"], "1");
        assert!(!with(&common(), &[("OMP_NUM_THREADS", "4")]).unwrap().contains_key("OMP_NUM_THREADS"));
        let alone = environment(&common(), &place(1), Path::new(""), |_| None).unwrap();
        assert!(!alone.contains_key("OMP_NUM_THREADS"));
    }

    #[test]
    fn a_virtual_local_rank_is_0_and_sees_one_gpu() {
        let common = Common { virtual_local_rank: true, ..common() };
        let gpu =
            |inherited: &[(&str, &str)]| with(&common, inherited).unwrap()["CUDA_VISIBLE_DEVICES"].clone();
        assert_eq!(with(&common, &[]).unwrap()["LOCAL_RANK"], "0");
        assert_eq!(gpu(&[]), "1");
        assert_eq!(gpu(&[("CUDA_VISIBLE_DEVICES", "4, 6")]), "6");
        assert_eq!(gpu(&[("CUDA_VISIBLE_DEVICES", "4,6"), ("HIP_VISIBLE_DEVICES", "2,3")]), "3");
        let refused = with(&common, &[("CUDA_VISIBLE_DEVICES", "4")]).unwrap_err().to_string();
        assert!(refused.contains("CUDA_VISIBLE_DEVICES lists \"4\""), "{refused}");
    }
}
