"""PyTorch's stores, asked to do what is asked of ours.

    python stores.py HOST:PORT

HOST:PORT is an etcd that serves the v2 API, for EtcdStore; TCPStore gets a server in a process of its own. Prints a
line when it is ready. Then it reads lines, and answers each with a number:

    fill STORE KEYS           puts k0, k1, ... into a store of that size; 0
    set STORE SECONDS         sets a second, one after the other, by one client
    get STORE KEYS SECONDS    gets a second, from the store of that size
    add STORE SECONDS         adds a second
    adds STORE CLIENTS SECONDS   of so many clients on one counter, each a process
    wait STORE WAITERS        milliseconds from a set until so many processes that wait for it have the value

STORE is etcd or tcp.
"""
import ctypes
import datetime
import itertools
import json
import os
import signal
import sys
import time
import uuid

os.environ.setdefault("OMP_NUM_THREADS", "1")
import etcd
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

HOST, PORT = sys.argv[1].split(":")
PREFIX = "/bench/" + uuid.uuid4().hex
VALUE = b"x" * 64
TIMEOUT = datetime.timedelta(seconds=60)


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def tcp_server():
    """A TCPStore's server in a process of its own; its port."""
    read, write = os.pipe()
    if os.fork() == 0:
        end_with_parent()
        store = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        signal.pause()
    return int(os.read(read, 100))


TCP_PORT = tcp_server()


def connect(kind, name):
    """A new client of the store of that name."""
    if kind == "etcd":
        return EtcdStore(etcd.Client(HOST, int(PORT), allow_reconnect=True), f"{PREFIX}/{name}", TIMEOUT)
    return dist.PrefixStore(name, dist.TCPStore("127.0.0.1", TCP_PORT, None, False, TIMEOUT, wait_for_workers=False))


stores = {}


def store(kind, name):
    key = kind, str(name)
    if key not in stores:
        stores[key] = connect(kind, str(name))
    return stores[key]


def rate(operation, seconds):
    began = time.perf_counter()
    for done in itertools.count(1):
        operation(done)
        took = time.perf_counter() - began
        if took >= seconds:
            return done / took


def fork(count, kind, name, work):
    """So many processes, each with a client of its own, that begin when the pipe is closed; their pids and pipes."""
    gate, opener = os.pipe()
    reports, report = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            try:
                os.close(opener)
                client = connect(kind, name)
                os.write(report, b"r")
                os.read(gate, 1)
                os.write(report, work(client).encode())
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(gate)
    os.close(report)
    for _ in range(count):
        assert os.read(reports, 1) == b"r", "a client has ended"
    return pids, reports, opener


def finish(pids, reports):
    text = b""
    while more := os.read(reports, 1 << 16):
        text += more
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(reports)
    return text.decode()


def adds(kind, clients, seconds):
    def work(client):
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            client.add("counter", 1)
            done += 1
        return f"{done}\n"

    pids, reports, opener = fork(clients, kind, uuid.uuid4().hex, work)
    began = time.perf_counter()
    os.close(opener)
    done = sum(map(int, finish(pids, reports).split()))
    return done / (time.perf_counter() - began)


def wait(kind, waiters):
    name = uuid.uuid4().hex
    setter = connect(kind, name)
    setter.set("before", VALUE)
    pids, reports, opener = fork(waiters, kind, name, lambda client: client.get("go").decode()[:1])
    os.close(opener)
    # As on the other side: all of them wait by then.
    time.sleep(0.5)
    began = time.perf_counter()
    setter.set("go", VALUE)
    assert finish(pids, reports) == "x" * waiters
    return (time.perf_counter() - began) * 1e3


print("ready")
for line in sys.stdin:
    what, kind, *numbers = line.split()
    if what == "fill":
        keys = int(numbers[0])
        for i in range(keys):
            store(kind, keys).set(f"k{i}", VALUE)
        answer = 0
    elif what == "set":
        answer = rate(lambda i: store(kind, "one").set("k0", VALUE), float(numbers[0]))
    elif what == "get":
        keys = int(numbers[0])
        answer = rate(lambda i: store(kind, keys).get(f"k{i % keys}"), float(numbers[1]))
    elif what == "add":
        answer = rate(lambda i: store(kind, "one").add("counter", 1), float(numbers[0]))
    elif what == "adds":
        answer = adds(kind, int(numbers[0]), float(numbers[1]))
    elif what == "wait":
        answer = wait(kind, int(numbers[0]))
    print(json.dumps(answer), flush=True)
