"""PyTorch's own TCPStore with libuv, as a process that only serves. Prints its port."""

import signal
from datetime import timedelta

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=300), wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
signal.pause()
