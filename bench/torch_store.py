"""The rate of PyTorch's EtcdStore.get with many keys in the store.

    python torch_store.py HOST:PORT KEYS ROUNDS

HOST:PORT is an etcd that serves the v2 API. Prints one line of JSON.
"""
import datetime
import json
import sys
import time
import uuid

import etcd
import torch
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

host, port = sys.argv[1].split(":")
keys, rounds = int(sys.argv[2]), int(sys.argv[3])
client = etcd.Client(host, int(port), allow_reconnect=True)
store = EtcdStore(client, "/bench/" + uuid.uuid4().hex, datetime.timedelta(seconds=60))
for i in range(keys):
    store.set(f"k{i}", b"x" * 64)

rates = []
for _ in range(rounds):
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < 2.0:
        store.get(f"k{done % keys}")
        done += 1
    rates.append(done / (time.perf_counter() - began))
print(json.dumps({"version": torch.__version__, "get": rates}))
