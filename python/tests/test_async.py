"""The store for asyncio."""

from __future__ import annotations

import asyncio

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


def test_outside_of_an_event_loop_it_says_so(etcd, prefix):
    with pytest.raises(RuntimeError, match="no running event loop"):
        rallypoint.AsyncStore.connect(etcd, prefix)
