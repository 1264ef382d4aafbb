"""What the workers of the torchrun tests do: they add up numbers together until they are told to stop.

Every step is an all-reduce over gloo. The folder given has a file ``stop`` once it is over, and gets a file per node,
with a line for each thing that its worker has to say.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

# A worker is not to outlive its agent, which the tests kill.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)

folder = pathlib.Path(sys.argv[1])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(what: str, **more: object) -> None:
    line = {"what": what, "rank": rank, "world": world, "pid": os.getpid(), **more}
    with open(folder / os.environ["NODE"], "a") as log:
        log.write(json.dumps(line) + "\n")


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
restarts, agent_store = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["TORCHELASTIC_USE_AGENT_STORE"]
master, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
say("met", master=master, port=port, restarts=restarts, agent_store=agent_store)
step = 0
while True:
    step += 1
    # Rank 0 says whether it is over, so that all stop after the same step.
    total = torch.tensor([1, int(rank == 0 and (folder / "stop").exists())])
    dist.all_reduce(total)
    assert total[0] == world
    if step == 3:
        say("works")
    if step % 25 == 0:
        say("goes on", step=step)
    if total[1]:
        break
    time.sleep(0.02)
say("done", steps=step)
dist.destroy_process_group()
