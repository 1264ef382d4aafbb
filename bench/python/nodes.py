"""Nodes that run PyTorch's rendezvous backends and those of others, each in a process forked from this one.

    python nodes.py [MODULE...]

Imports the modules too, which the forked nodes then share. Prints "ready". Then it reads lines:

    start COUNT PORT   so many nodes connect to that port of this machine, and do what they are told there
    end                kills all nodes, waits until they are gone, and prints "ended"

What a node is told is in bench/src/nodes/mod.rs.
"""
import ctypes
import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.disable(logging.CRITICAL)
import torch.distributed as dist

calls = 0


def counted(store):
    """The class of a store, whose requests are counted: a TCPStore's server counts none."""

    def counter(name):
        method = getattr(store, name)

        def count(self, *args):
            global calls
            calls += 1
            return method(self, *args)

        return count

    names = ("set", "get", "add", "compare_set", "wait", "check", "delete_key", "num_keys", "multi_get", "multi_set", "append")
    return type(store.__name__, (store,), {name: counter(name) for name in names})


dist.TCPStore, dist.PrefixStore = counted(dist.TCPStore), counted(dist.PrefixStore)

from torch.distributed.elastic.rendezvous import RendezvousParameters, c10d_rendezvous_backend, registry

# The registry would import them in each node.
from torch.distributed.elastic.rendezvous import dynamic_rendezvous, etcd_rendezvous, etcd_rendezvous_backend  # noqa: F401

registry._register_default_handlers()
logging.getLogger("torch.distributed.elastic.rendezvous.etcd_rendezvous").setLevel(logging.CRITICAL)
logging.getLogger("urllib3").setLevel(logging.CRITICAL)
for module in sys.argv[1:]:
    importlib.import_module(module)


def etcd(index, parameters):
    return registry.get_rendezvous_handler(parameters)


def c10d(index, parameters):
    parameters.config["is_host"] = index == 0
    return registry.get_rendezvous_handler(parameters)


def lm_resiliency(index, parameters):
    """Its own entry point: PyTorch 2.15 cannot register it, see bench/notes/formation.md."""
    from lm_resiliency.integrations.torchrun import create_rendezvous_handler

    # A node is a machine, and a machine has an id.
    folder = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=os.environ["BENCH_NODES"])
    os.environ["LM_RESILIENCY_MACHINE_ID_PATH"] = os.path.join(folder, "machine-id")
    with open(os.environ["LM_RESILIENCY_MACHINE_ID_PATH"], "w") as file:
        file.write(f"{index + 1:032x}\n")
    del parameters.config["last_call_timeout"]  # It has none.
    parameters.config["is_host"] = index == 0
    parameters.config["lm_resiliency_restart_context_path"] = os.path.join(folder, "context.json")
    return create_rendezvous_handler(parameters)


def nvidia_resiliency_ext(index, parameters):
    """What its launcher does, without its worker processes."""
    from nvidia_resiliency_ext.fault_tolerance import ft_rendezvous_barrier as barrier

    # It refuses several nodes of one address, unless it is told that they stand for machines.
    os.environ["NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE"] = "1"
    # A launcher is a process, with a socket named after it.
    barrier.FT_LAUNCHER_IPC_SOCKET = os.path.join(os.environ["BENCH_NODES"], f"{os.getpid()}.socket")
    parameters.config["is_host"] = parameters.config["is_store_host"] = index == 0
    backend, store = c10d_rendezvous_backend.create_backend(parameters)
    handler = barrier.create_handler(store, backend, parameters)
    handler.set_worker_group(SimpleNamespace(spec=SimpleNamespace(local_world_size=1)))
    return handler


# Those whose store is in the node with index 0.
HOSTED = ("c10d", "lm_resiliency", "nvidia_resiliency_ext")

BACKENDS = {
    "etcd": etcd,
    "etcd-v2": etcd,
    "c10d": c10d,
    "lm_resiliency": lm_resiliency,
    "nvidia_resiliency_ext": nvidia_resiliency_ext,
}


def node(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = connection.makefile("rw")
    handler = None

    def say(answer):
        lines.write(answer + "\n")
        lines.flush()

    for line in lines:
        what, *words = line.split()
        if what == "open":
            index, backend, endpoint, run, low, high = words
            parameters = RendezvousParameters(
                backend=backend,
                endpoint=endpoint,
                run_id=run,
                min_nodes=int(low),
                max_nodes=int(high),
                local_addr="127.0.0.1",
                last_call_timeout=1,
            )
            if backend in HOSTED and index == "0":
                # An etcd listens before anybody connects, and so does this. The handler's own store shares the server,
                # as both are of one process.
                host, _, at = endpoint.rpartition(":")
                server = dist.TCPStore(host, int(at), None, True, multi_tenant=True, wait_for_workers=False)  # noqa: F841
            answer = "ready"
        elif what == "meet":
            try:
                handler = handler or BACKENDS[backend](int(index), parameters)
                info = handler.next_rendezvous()
            except Exception as error:
                say(f"failed {type(error).__name__}: {error}".replace("\n", " "))
                return
            answer = f"{info.rank} {info.world_size}"
        elif what == "watch":
            while not handler.num_nodes_waiting():
                time.sleep(0.01)
            answer = "changed"
        elif what == "leave":
            # There is no other way: the handler goes, and with it what renews the node's keep-alive.
            handler = None
            answer = "left"
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "requests":
            answer = str(calls)
        say(answer)
        if what == "leave":
            return


# What was imported is not looked through again in each node, where every page that is touched has to be copied.
gc.collect()
gc.freeze()
print("ready")
nodes = []
for line in sys.stdin:
    what, *words = line.split()
    if what == "start":
        count, port = map(int, words)
        os.environ["BENCH_NODES"] = tempfile.mkdtemp(prefix="bench-nodes-")
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                try:
                    node(port)
                finally:
                    os._exit(0)
            nodes.append(pid)
    elif what == "end":
        for pid in nodes:
            os.kill(pid, signal.SIGKILL)
        for pid in nodes:
            os.waitpid(pid, 0)
        nodes.clear()
        shutil.rmtree(os.environ["BENCH_NODES"])
        print("ended")
