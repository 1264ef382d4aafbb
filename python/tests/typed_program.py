"""A program as a user would type it. mypy and pyright read it, and nobody runs it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from typing_extensions import assert_type

import rallypoint
from rallypoint import errors
from rallypoint.torch import EtcdStore


def worker() -> None:
    rallypoint.heartbeat()


def store() -> None:
    with rallypoint.Store("etcd1:2379", "/job", timeout=60, cacert=Path("ca.pem"), user="u", password="p") as store:
        assert_type(store, rallypoint.Store)
        assert_type(store.get("key"), bytes)
        assert_type(store.add(b"key", 1), int)
        assert_type(store.multi_get(["a", b"b"]), list[bytes])
        assert_type(store.timeout, timedelta)
        store.wait(["a"], timeout=timedelta(seconds=1))
        store.barrier("all", 2, timeout=0.5)
    try:
        store.queue_pop("queue", block=False)
    except (errors.QueueEmptyError, errors.StoreTimeoutError) as error:
        assert_type(str(error), str)


async def async_store() -> None:
    async with await rallypoint.AsyncStore.connect("etcd1:2379", "/job", api="v2") as store:
        assert_type(store, rallypoint.AsyncStore)
        assert_type(await store.get("key"), bytes)
        await store.set("key", "value")


def preemption() -> None:
    told = rallypoint.preemption()
    assert_type(told, "rallypoint.Preemption | None")
    if told is not None:
        assert_type(told.nodes, "tuple[rallypoint.PreemptedNode, ...]")
        assert_type(told.seconds_left, "float | None")
        assert_type([node.ranks for node in told.nodes if node.here], "list[tuple[int, ...]]")
        rallypoint.preemption_saved()


def rendezvous() -> None:
    with rallypoint.Rendezvous("etcd1:2379", "job", 2, 4, last_call_timeout=5, rank_policy="hint", rank_hint=3) as node:
        met = node.next_rendezvous()
        assert_type(met, "rallypoint.Round[rallypoint.Store]")
        assert_type(met.rank, int)
        assert_type(met.store.get("key"), bytes)
        change = node.wait_for_change(timeout=1)
        if change is not None and change.kind == "closed":
            assert_type(change.reason, str | None)
        assert_type([member.address for member in node.members()], list[str])
        assert_type(node.close("done"), bool)


async def async_rendezvous() -> None:
    async with await rallypoint.AsyncRendezvous.connect("etcd1:2379", "job", 2) as node:
        met = await node.next_rendezvous()
        assert_type(await met.store.get("key"), bytes)
        assert_type(await node.wait_for_change(), rallypoint.GroupChange | None)


def servers() -> None:
    with rallypoint.EtcdServer(embedded=True) as server:
        assert_type(server.get_endpoint(), str)
        with server.get_client() as client:
            assert_type(client.get("key"), bytes | None)
            assert_type(client.list("/"), list[tuple[bytes, bytes]])
    with rallypoint.TcpStoreServer("127.0.0.1:0") as workers:
        assert_type(workers.port, int)


def torch_store() -> None:
    made = EtcdStore("etcd1:2379", "/job", timeout=timedelta(seconds=5))
    assert_type(made.get("key"), bytes)
    assert_type(made.list_keys(), list[str])


def wrong(store: rallypoint.Store) -> None:
    store.set("key", 1)  # type: ignore[arg-type]
    rallypoint.Store("etcd1", "/job", api="v4")  # type: ignore[arg-type]
    rallypoint.Rendezvous("etcd1", "job", last_cal_timeout=1)  # type: ignore[call-arg]
