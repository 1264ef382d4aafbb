//! torchrun, unmodified, brings two nodes together on this server with both of PyTorch's etcd backends.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use rallypoint_testkit::Python;
use v2_support::Target;

/// One node: torchrun with one worker.
const NODE: &str = r#"
import os, sys
from torch.distributed.run import main

backend, port = sys.argv[1:]
worker = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([int(os.environ["RANK"]) + 1])
dist.all_reduce(total)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "total", total.item(), flush=True)
dist.destroy_process_group()
"""
os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
main([
    "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=run", f"--rdzv-backend={backend}",
    f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--no-python",
    sys.executable, "-c", worker,
])
"#;

async fn two_nodes_train(backend: &'static str) {
    let target = Target::embedded().await;
    let port = target.address.port().to_string();
    let nodes: Vec<_> = (0..2).map(|_| Python::spawn(NODE, &[backend, &port])).collect();
    let finished = tokio::task::spawn_blocking(|| nodes.into_iter().map(Python::finish).collect::<Vec<_>>());
    let mut lines: Vec<String> = finished
        .await
        .unwrap()
        .iter()
        .flat_map(|output| output.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    lines.sort();
    assert_eq!(lines, ["rank 0 of 2 total 3", "rank 1 of 2 total 3"]);
}

#[tokio::test]
async fn with_the_etcd_backend() {
    two_nodes_train("etcd").await;
}

#[tokio::test]
async fn with_the_etcd_v2_backend() {
    two_nodes_train("etcd-v2").await;
}
