"""What torch asks of a store, of ours alone and of ours under torch's ``PrefixStore``."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import rallypoint
from rallypoint.torch import EtcdStore, errors


@pytest.fixture
def etcd_store(etcd, prefix, api):
    return EtcdStore(etcd, prefix, timeout=timedelta(seconds=30), api=api)


@pytest.fixture(params=["itself", "under a PrefixStore", "under two"])
def store(request, etcd_store):
    if request.param == "itself":
        return etcd_store
    inner = dist.PrefixStore("outer", etcd_store)
    return inner if request.param == "under a PrefixStore" else dist.PrefixStore("inner", inner)


def test_set_and_get(store):
    store.set("key", "text")
    store.set("bytes", b"\0\xff")
    assert (store.get("key"), store.get("bytes")) == (b"text", b"\0\xff")
    store.set("key", "other")
    assert store.get("key") == b"other"
    store.set("empty", "")
    assert store.get("empty") == b""


def test_get_waits(store):
    got = []
    waiter = threading.Thread(target=lambda: got.append(store.get("late")))
    waiter.start()
    store.set("late", "value")
    waiter.join()
    assert got == [b"value"]


def test_add(store):
    assert [store.add("count", step) for step in (1, 2, -4)] == [1, 3, -1]
    assert store.get("count") == b"-1"
    store.set("count", "40")
    assert store.add("count", 2) == 42


def test_add_from_many_threads(store):
    counts, clones = [], [store] * 4

    def count(store):
        for _ in range(25):
            counts.append(store.add("count", 1))

    threads = [threading.Thread(target=count, args=(clone,)) for clone in clones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == list(range(1, 101))


def test_compare_set(store):
    assert store.compare_set("key", "wrong", "new") == b"wrong"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "wrong", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_check_delete_and_count(store, etcd_store):
    assert not store.check(["key"])
    before = store.num_keys()
    store.set("key", "value")
    assert store.check(["key"])
    assert store.num_keys() == before + 1 == etcd_store.num_keys()
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert not store.check(["key"])


def test_append(store):
    store.append("key", "a")
    store.append("key", "b")
    assert store.get("key") == b"ab"


def test_multi(store):
    assert store.has_extended_api()
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"]
    store.multi_set(["b", "c"], [b"\xff", "3"])
    assert store.multi_get(["a", "b", "c"]) == [b"1", b"\xff", b"3"]


def test_multi_get_waits(store):
    store.set("there", "1")
    got = []
    waiter = threading.Thread(target=lambda: got.append(store.multi_get(["there", "late"])))
    waiter.start()
    store.set("late", "2")
    waiter.join()
    assert got == [[b"1", b"2"]]


def test_large_values(store):
    # Above it the server refuses: etcd's limit for one request is 1.5 MiB, the v2 API writes in base64.
    value = bytes(range(256)) * 3000
    store.set("large", value)
    assert store.get("large") == value
    assert store.multi_get(["large", "large"]) == [value, value]


def test_a_value_beyond_the_limit_is_refused_with_the_limit(store):
    with pytest.raises(dist.DistStoreError, match="the server's limit is about") as caught:
        store.set("huge", b"x" * (8 << 20))
    assert isinstance(caught.value, ValueError)


def test_a_wait_in_vain_is_torchs_error_and_a_lookup_error(store):
    # TCPStore's words, which torch's own tests look for: wait timeout after 50ms, keys: /missing
    with pytest.raises(dist.DistStoreError, match="wait timeout after .*missing") as caught:
        store.wait(["missing"], timedelta(milliseconds=50))
    for kind in (LookupError, TimeoutError, rallypoint.errors.StoreTimeoutError):
        assert isinstance(caught.value, kind)


def test_the_timeout_can_be_set_from_outside(store):
    assert store.timeout == timedelta(seconds=30)
    store.set_timeout(timedelta(milliseconds=50))
    assert store.timeout == timedelta(milliseconds=50)
    for call in (lambda: store.get("missing"), lambda: store.wait(["missing"]), lambda: store.multi_get(["missing"])):
        with pytest.raises(dist.DistStoreError, match="timeout after 0.050 s"):
            call()


def test_whatever_torch_asks_a_store_for_is_there():
    """C++ looks the methods of a Python store up by name, and what it does not find there does nothing good."""
    asked = set()

    class Bare(dist.Store):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

    bare = Bare()
    store, second = dist.PrefixStore("p", bare), timedelta(seconds=1)
    for name, *args in [
        *(("set", "key", "1"), ("get", "key"), ("add", "n", 1), ("compare_set", "key", "1", "2")),
        *(("check", ["key"]), ("wait", ["key"]), ("wait", ["key"], second), ("append", "key", "3")),
        *(("multi_set", ["a"], ["1"]), ("multi_get", ["a"]), ("has_extended_api",), ("num_keys",)),
        *(("delete_key", "a"), ("clone",), ("list_keys",), ("barrier", "all", 1, second), ("set_timeout", second)),
        *(("queue_push", "q", "1"), ("queue_pop", "q"), ("queue_len", "q")),
    ]:
        # It can do nothing, and an older torch has not all of them.
        with contextlib.suppress(Exception):
            getattr(store, name)(*args)
    assert {"set", "get", "multi_set", "deleteKey", "getNumKeys"} <= asked
    assert asked - set(vars(EtcdStore)) == set()


@pytest.mark.skipif(not hasattr(dist.Store, "clone"), reason="this torch has no clone")
def test_a_clone_lives_on_without_the_original(etcd, prefix, api):
    store = dist.PrefixStore("p", EtcdStore(etcd, prefix, api=api))
    clone = store.clone()
    clone.set_timeout(timedelta(seconds=7))
    assert store.timeout == timedelta(minutes=5)
    clone.set("key", "value")
    assert store.get("key") == b"value"
    twice = clone.clone()
    assert twice.get("key") == b"value" and twice.timeout == timedelta(seconds=7)


@pytest.mark.skipif(not hasattr(dist.Store, "barrier"), reason="this torch has no barrier")
def test_barrier(store):
    others = [threading.Thread(target=store.barrier, args=("all", 3)) for _ in range(2)]
    for other in others:
        other.start()
    with pytest.raises(dist.DistStoreError):
        store.barrier("alone", 2, timedelta(milliseconds=50))
    store.barrier("all", 3, timedelta(seconds=30))
    for other in others:
        other.join()


def test_queues_and_the_list_of_keys(etcd_store):
    etcd_store.queue_push("q", "first")
    etcd_store.queue_push("q", b"second")
    assert etcd_store.queue_len("q") == 2
    assert etcd_store.queue_pop("q") == b"first"
    assert etcd_store.queue_pop("q", block=False) == b"second"
    with pytest.raises(getattr(dist, "QueueEmptyError", dist.DistStoreError)):
        etcd_store.queue_pop("q", block=False)
    etcd_store.multi_set(["b", "a"], ["", ""])
    assert etcd_store.list_keys() == ["a", "b"]


def test_v2_data_are_those_of_torchs_own_store(etcd, prefix):
    etcd_client = pytest.importorskip("etcd")
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as Theirs

    host, port = etcd.split(":")
    theirs = Theirs(etcd_client.Client(host, int(port), allow_reconnect=True), prefix, timedelta(seconds=30))
    ours = EtcdStore(etcd, prefix, api="v2")
    theirs.set("from theirs", "1")
    ours.set("from ours", "2")
    assert (ours.get("from theirs"), theirs.get("from ours")) == (b"1", b"2")
    assert [theirs.add("n", 1), ours.add("n", 1), theirs.add("n", 1)] == [1, 2, 3]


def train(rank, etcd, prefix, api):
    # Python has no reference to the store after this line; torch has.
    dist.init_process_group("gloo", store=EtcdStore(etcd, prefix, api=api), rank=rank, world_size=3)
    total = torch.full((4,), float(rank + 1))
    dist.all_reduce(total)
    assert total.tolist() == [6.0] * 4
    gathered = [None] * 3
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": i} for i in range(3)]
    # Each subgroup puts another prefix around the store.
    pair = dist.new_group([0, 2])
    if rank != 1:
        value = torch.tensor([rank])
        dist.all_reduce(value, group=pair)
        assert value.item() == 2
    dist.monitored_barrier()
    dist.destroy_process_group()


def test_process_groups_of_gloo_meet_on_it(etcd, prefix, api):
    # Forked, from a process in which a store is open.
    EtcdStore(etcd, prefix, api=api).set("open", "")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(rank, etcd, prefix, api)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_errors_go_from_process_to_process(etcd_store):
    """A pool and a data loader hand errors over so."""
    with pytest.raises(errors.StoreTimeoutError) as caught:
        etcd_store.wait(["never"], timedelta(milliseconds=10))
    raised = pickle.loads(pickle.dumps(caught.value))
    assert type(raised) is errors.StoreTimeoutError and str(raised) == str(caught.value)
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and not name.startswith("_")}
    ours = {name for name in vars(rallypoint.errors) if name.startswith(("Store", "Queue", "Outcome", "Rendezvous"))}
    assert classes.keys() == ours
    for name, kind in classes.items():
        copied = pickle.loads(pickle.dumps(kind("text")))
        assert type(copied) is kind and copied.args == ("text",), name
        assert isinstance(copied, getattr(rallypoint.errors, name))
