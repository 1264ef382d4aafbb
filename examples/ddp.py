"""Trains a small model with PyTorch's DistributedDataParallel, on CPUs, from checkpoint to checkpoint.

    rallypoint run --standalone --nproc-per-node 2 examples/ddp.py --checkpoint /tmp/ddp.pt
    torchrun --standalone --nproc-per-node 2 examples/ddp.py --checkpoint /tmp/ddp.pt

It does not care how many workers there are: each takes its share of the data, and the gradients of all shares add up
to that of the whole. So workers may come and go, and the loss at the end is the same.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", required=True, help="a file that all nodes can reach")
parser.add_argument("--steps", type=int, default=60)
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

begin = 0
if os.path.exists(options.checkpoint):
    saved = torch.load(options.checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
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
    if rank == 0:
        if (step + 1) % 5 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)
        print(f"step {step + 1} with {world_size} workers", flush=True)
    time.sleep(max(0.0, options.pace - (time.monotonic() - began)))

with torch.no_grad():
    loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
if rank == 0:
    print(f"done after {options.steps} steps: loss {loss:.6f}", flush=True)
dist.destroy_process_group()
