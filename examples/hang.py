"""Works together with other workers, step by step, until one of them hangs: to see how that is found.

    rallypoint run --standalone --nproc-per-node 4 --hang-timeout 10 --max-restarts 1 examples/hang.py --rank 2 --way lock

Started again it does not hang, and runs to its end. With --backend nccl each worker uses the GPU of its local rank.
"""
import argparse
import os
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist

import rallypoint

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
parser.add_argument("--rank", type=int, default=1, help="the one that hangs")
parser.add_argument("--way", default="lock", choices=["lock", "socket", "stop", "spin", "collective", "none"])
parser.add_argument("--at", type=int, default=20, help="the step at which it does")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pace", type=float, default=0.1, help="seconds that a step takes")
options = parser.parse_args()


def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_a_socket():
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def spins():
    while True:
        pass


def is_in_another_collective():
    # The others add up; this one gathers. Of gloo and NCCL neither notices.
    dist.all_gather([torch.empty(1, device=device) for _ in range(world_size)], torch.ones(1, device=device))


WAYS = {
    "lock": waits_for_a_lock,
    "socket": waits_for_a_socket,
    "stop": is_stopped,
    "spin": spins,
    "collective": is_in_another_collective,
}

if options.backend == "nccl":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda" if options.backend == "nccl" else "cpu")
dist.init_process_group(options.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()
# The node of the one that hung has counted it, and tells the others.
restarted = torch.tensor([int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))], device=device)
dist.all_reduce(restarted)
hangs = rank == options.rank and options.way != "none" and not restarted.item()

total = torch.zeros(4, device=device)
for step in range(1, options.steps + 1):
    rallypoint.heartbeat()
    time.sleep(options.pace)
    if hangs and step == options.at:
        WAYS[options.way]()
    part = torch.full((4,), float(step), device=device)
    dist.all_reduce(part)
    total += part
    if device.type == "cuda":
        torch.cuda.synchronize()
    if rank == 0 and step % 10 == 0:
        print(f"step {step} of {options.steps} with {world_size} workers", flush=True)
if rank == 0:
    print(f"done: {total[0].item():.0f}", flush=True)
dist.destroy_process_group()
