"""The store for asyncio."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import pytest

import rallypoint
from rallypoint import errors


def test_every_operation_can_be_awaited(etcd, prefix, api):
    async def main():
        store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=30, api=api)
        await store.set("key", "value")
        assert await store.get("key") == b"value"
        assert await store.add("count", 2) == 2
        await store.wait(["key"])
        assert await store.check(["key"])
        assert await store.compare_set("key", "value", "new") == b"new"
        await store.append("key", "er")
        await store.multi_set(["a"], ["1"])
        assert await store.multi_get(["a", "key"]) == [b"1", b"newer"]
        assert await store.list_keys() == [b"a", b"count", b"key"]
        assert await store.num_keys() == 3
        assert await store.delete_key("a")
        await store.queue_push("q", "x")
        assert await store.queue_len("q") == 1
        assert await store.queue_pop("q") == b"x"
        await store.barrier("all", 1)
        clone = store.clone()
        clone.set_timeout(7)
        assert (await clone.get("key"), clone.timeout) == (b"newer", timedelta(seconds=7))
        assert store.timeout == timedelta(seconds=30)
        assert repr(clone) == f"<rallypoint.AsyncStore '{prefix}' at {etcd} ({api})>".replace("'", '"')
        async with store as entered:
            assert entered is store
        with pytest.raises(errors.StoreError, match="the store is closed"):
            await store.get("key")
        await store.close()

    asyncio.run(main())


def test_many_wait_at_once_and_the_loop_goes_on(etcd, prefix):
    async def main():
        store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=30)
        waiting = [asyncio.ensure_future(store.get(f"key{i}")) for i in range(200)]
        await asyncio.gather(*(store.set(f"key{i}", str(i)) for i in range(200)))
        assert await asyncio.gather(*waiting) == [str(i).encode() for i in range(200)]

    asyncio.run(main())


def test_errors_arrive_as_they_do_in_threads(etcd, prefix):
    async def main():
        store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=0.05)
        with pytest.raises(errors.StoreTimeoutError, match="missing"):
            await store.get("missing")
        with pytest.raises(errors.StoreConnectionError):
            await rallypoint.AsyncStore.connect("127.0.0.1:9", "/x", connect_timeout=1)

    asyncio.run(main())


def test_what_is_cancelled_ends(etcd, prefix):
    async def main():
        store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=30)
        pop = asyncio.ensure_future(store.queue_pop("q"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pop, 0.05)
        # Had it gone on, it would have taken the value.
        await store.queue_push("q", "x")
        assert await store.queue_pop("q") == b"x"

    asyncio.run(main())


def test_each_event_loop_gets_its_own_results(etcd, prefix):
    for i in range(3):

        async def main():
            store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=30)
            return await store.add("loops", 1)

        assert asyncio.run(main()) == i + 1


def test_a_forked_process_uses_it_on_a_loop_of_its_own(etcd, prefix):
    async def connect():
        store = await rallypoint.AsyncStore.connect(etcd, prefix, timeout=30)
        await store.set("from the parent", "")
        return store

    store = asyncio.run(connect())
    pid = os.fork()
    if pid == 0:
        try:

            async def child():
                await store.get("from the parent")
                await store.set("from the child", "")

            asyncio.run(child())
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0

    async def read():
        return await store.get("from the child")

    assert asyncio.run(read()) == b""


def test_outside_of_an_event_loop_it_says_so(etcd, prefix):
    with pytest.raises(RuntimeError, match="no running event loop"):
        rallypoint.AsyncStore.connect(etcd, prefix)
