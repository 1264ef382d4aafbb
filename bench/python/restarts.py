"""A worker whose first attempt fails on rank 1 after all have met, and whose second has to work."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
total = torch.ones(1)
dist.all_reduce(total)
group = dist.new_group(list(range(dist.get_world_size())))
dist.barrier(group)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit(1)
if total.item() != dist.get_world_size():
    sys.exit(2)
dist.destroy_process_group()
