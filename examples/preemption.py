"""Trains a small model on CPUs, and saves when a node is going to be taken away: no step is lost by a preemption.

    rallypoint run --nnodes 4 --rdzv-endpoint etcd1:2379 --rdzv-id job1 examples/preemption.py --checkpoint model.pt \\
        --steps 600 --pace 0.1

Then take a node away, `kill -TERM` its launcher, and start another in its place. docs/preemption.md tells the rest.
"""
import argparse
import os
import sys
import time

import rallypoint
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# From the first call on, a preemption gives this worker time to save.
rallypoint.preemption()

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", required=True, help="a file that all nodes can reach")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints, where nothing happens")
parser.add_argument("--ask-every", type=int, default=1, help="steps between asking all workers for a preemption")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(7)
inputs = torch.randn(240, 8)
targets = inputs @ torch.randn(8, 1) + 0.1 * torch.randn(240, 1)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def save(step: int) -> None:
    """Writes the checkpoint, on rank 0. One that is half written is never seen."""
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, options.checkpoint + ".new")
        os.replace(options.checkpoint + ".new", options.checkpoint)
        print(f"saved step {step}", flush=True)


def is_preempted() -> bool:
    """Whether a worker knows of a preemption: all get the same answer, so all save after the same step.

    Each learns of it at its own moment. If each went by what it knows itself, some would save while others wait for them in
    the next step.
    """
    flag = torch.tensor([float(rallypoint.preemption() is not None)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


begin = 0
if os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
if rank == 0:
    print(f"from step {begin} with {world_size} workers", flush=True)

for step in range(begin, options.steps):
    began = time.monotonic()
    errors = (model(inputs[rank::world_size]) - targets[rank::world_size]) ** 2
    # DDP takes the mean over the workers, so that this makes it the mean over all data.
    loss = errors.sum() * world_size / len(inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % options.ask_every == 0 and is_preempted():
        save(step + 1)
        # Each worker says it when its own part is on disk; the node leaves when all have.
        rallypoint.preemption_saved()
        dist.destroy_process_group()
        sys.exit()
    if (step + 1) % options.save_every == 0:
        save(step + 1)
    time.sleep(max(0.0, options.pace - (time.monotonic() - began)))

with torch.no_grad():
    loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
if rank == 0:
    print(f"done after {options.steps} steps: loss {loss:.6f}", flush=True)
dist.destroy_process_group()
