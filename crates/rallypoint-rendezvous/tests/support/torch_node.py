"""Nodes that run PyTorch's rendezvous. For each port read from standard input a process is forked, whose id is
printed; it connects to that port and does what it is told there, one JSON object a line."""
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import subprocess
import sys

logging.disable(logging.CRITICAL)
# Otherwise the dynamic handler keeps the master of its first round for ever, and a node that joins a later round
# waits in vain for rank 0 to name it, on PyTorch's own backend, too.
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
import torch.distributed.elastic.rendezvous.etcd_rendezvous as etcd_rendezvous
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous import dynamic_rendezvous, registry
from torch.distributed.elastic.rendezvous import etcd_rendezvous_backend
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

etcd_rendezvous.logger.setLevel(logging.CRITICAL)
registry._register_default_handlers()

KINDS = [
    (RendezvousClosedError, "closed"),
    (RendezvousTimeoutError, "timeout"),
    (RendezvousConnectionError, "connection"),
    (RendezvousStateError, "state"),
    (ValueError, "value"),
]


class RustBackend(dynamic_rendezvous.RendezvousBackend):
    """The backend of this crate, in a process that is asked line by line."""

    def __init__(self, program, endpoint, run):
        environment = dict(os.environ, RALLYPOINT_TEST_BACKEND=json.dumps([endpoint, run]))
        self.process = subprocess.Popen(
            [*program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def name(self):
        return "etcd-v2"

    def ask(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RendezvousConnectionError("the backend's process has ended")
            if line.startswith("@"):
                break
        answer = json.loads(line[1:])
        if answer and answer[0] == "error":
            kinds = {"connection": RendezvousConnectionError, "state": RendezvousStateError}
            raise kinds.get(answer[1], RuntimeError)(answer[2])
        return answer

    def get_state(self):
        answer = self.ask("get")
        return answer and (bytes.fromhex(answer[0]), answer[1])

    def set_state(self, state, token=None):
        answer = self.ask("set", state.hex(), token)
        return answer and (bytes.fromhex(answer[0]), answer[1], answer[2])


def open_handler(command):
    parameters = RendezvousParameters(
        backend=command["backend"],
        endpoint=command["endpoint"],
        run_id=command["run"],
        min_nodes=command["min"],
        max_nodes=command["max"],
        local_addr="127.0.0.1",
        **command["config"],
    )
    if "program" not in command:
        return get_rendezvous_handler(parameters)
    _, store = etcd_rendezvous_backend.create_backend(parameters)
    backend = RustBackend(command["program"], command["endpoint"], command["run"])
    return dynamic_rendezvous.create_handler(store, backend, parameters)


class Node:
    def open(self, command):
        self.handler = open_handler(command)
        return True

    def meet(self, command):
        info = self.handler.next_rendezvous()
        self.store = info.store
        where = info.bootstrap_store_info
        return {
            "rank": info.rank,
            "world": info.world_size,
            "address": where.master_addr,
            "port": where.master_port,
        }

    def waiting(self, command):
        return self.handler.num_nodes_waiting()

    def set(self, command):
        self.store.set(command["key"], command["value"])
        return True

    def get(self, command):
        return self.store.get(command["key"]).decode()

    def close(self, command):
        self.handler.set_closed()
        return True

    def closed(self, command):
        return self.handler.is_closed()

    def shutdown(self, command):
        return self.handler.shutdown()

    def extra_set(self, command):
        self.handler._rdzv_impl.store_extra_data(command["version"], command["key"], command["value"])
        return True

    def extra_get(self, command):
        return self.handler._rdzv_impl.load_extra_data(command["version"], command["key"])


def serve(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = connection.makefile("rw")
    node = Node()
    for line in lines:
        command = json.loads(line)
        # Whoever reads why a test has failed sees what it did, shortly before the test gives it up.
        faulthandler.dump_traceback_later(250)
        try:
            answer = {"ok": getattr(node, command["do"])(command)}
        except Exception as error:
            kind = next((kind for what, kind in KINDS if isinstance(error, what)), "other")
            answer = {"error": kind, "text": f"{type(error).__name__}: {error}"}
        faulthandler.cancel_dump_traceback_later()
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(int(line))
            finally:
                os._exit(0)
        print(child)
