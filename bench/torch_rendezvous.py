"""Nodes that run PyTorch's `etcd` rendezvous, each in a process forked from this one.

    python torch_rendezvous.py

Prints PyTorch's version. Reads lines `COUNT PORT`: so many nodes connect to that port of this machine and do what
they are told there; see bench/src/processes.rs.
"""
import ctypes
import logging
import os
import signal
import socket
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.disable(logging.CRITICAL)
import torch
import torch.distributed.elastic.rendezvous.etcd_rendezvous as etcd_rendezvous
from torch.distributed.elastic.rendezvous import RendezvousParameters

etcd_rendezvous.logger.setLevel(logging.CRITICAL)


def node(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = connection.makefile("rw")
    handler = None
    for line in lines:
        what, *words = line.split()
        if what == "open":
            backend, endpoint, run, low, high = words
            parameters = RendezvousParameters(
                backend=backend,
                endpoint=endpoint,
                run_id=run,
                min_nodes=int(low),
                max_nodes=int(high),
                local_addr="127.0.0.1",
                last_call_timeout=1,
            )
            answer = "ready"
        elif what == "meet":
            handler = handler or etcd_rendezvous.create_rdzv_handler(parameters)
            info = handler.next_rendezvous()
            answer = f"{info.rank} {info.world_size}"
        elif what == "leave":
            # There is no other way: the handler goes, and with it what renews the node's keep-alive.
            handler = None
            answer = "left"
        lines.write(answer + "\n")
        lines.flush()


signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(torch.__version__)
for line in sys.stdin:
    count, port = map(int, line.split())
    for _ in range(count):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            try:
                node(port)
            finally:
                os._exit(0)
