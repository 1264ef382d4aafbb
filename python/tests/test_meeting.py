"""The rendezvous without torch, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from datetime import timedelta

import pytest

import rallypoint
from rallypoint import errors

QUICK = {"last_call_timeout": 1, "lease_timeout": 10, "join_timeout": timedelta(seconds=30)}


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


def in_a_thread(function) -> tuple[threading.Thread, list]:
    results: list = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def test_nodes_meet_share_data_and_meet_again_when_one_leaves(etcd, run_id):
    def other():
        with rallypoint.Rendezvous(etcd, run_id, 1, 2, node_id="other", **QUICK) as node:
            met = node.next_rendezvous()
            met.store.set(f"rank {met.rank}", "here")
            # The first asks for nothing more before this one leaves.
            return met.world_size, met.store.get("seen")

    with rallypoint.Rendezvous(etcd, run_id, 1, 2, node_id="first", about="the first", **QUICK) as node:
        assert node.run_id == run_id
        # A second after the first is enough.
        thread, results = in_a_thread(other)
        met = node.next_rendezvous()
        while met.world_size != 2:
            node.wait_for_change()
            met = node.next_rendezvous()
        assert met.store.get(f"rank {1 - met.rank}") == b"here"
        by_name = {member.node: member for member in node.members()}
        assert by_name["first"].rank == met.rank and by_name["first"].about == "the first"
        assert node.wait_for_change(timeout=0) is None
        met.store.set("seen", "yes")
        change = node.wait_for_change(timeout=30)
        assert (change.kind, change.node, change.rank, change.reason) == ("left", "other", 1 - met.rank, None)
        assert "other" in str(change)
        thread.join()
        assert results == [(2, b"yes")]
        again = node.next_rendezvous()
        assert (again.rank, again.world_size) == (0, 1) and again.round > met.round
        assert not node.is_closed() and node.num_nodes_waiting() == 0
        assert node.close("enough") and node.is_closed()
    with rallypoint.Rendezvous(etcd, run_id, 1, 2, **QUICK) as late:
        with pytest.raises(errors.RendezvousClosedError, match="enough"):
            late.next_rendezvous()


def test_asyncio_has_the_same(etcd, run_id):
    async def main():
        async with await rallypoint.AsyncRendezvous.connect(etcd, run_id, 2, **QUICK) as one:
            async with await rallypoint.AsyncRendezvous.connect(etcd, run_id, 2, **QUICK) as two:
                rounds = await asyncio.gather(one.next_rendezvous(), two.next_rendezvous())
                assert sorted(met.rank for met in rounds) == [0, 1]
                assert {(met.master_addr, met.master_port) for met in rounds} == {(rounds[0].master_addr, rounds[0].master_port)}
                await rounds[0].store.set("key", "value")
                assert await rounds[1].store.get("key") == b"value"
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(one.wait_for_change(), 0.1)
                told = asyncio.ensure_future(one.wait_for_change())
                assert await two.close("done")
                change = await told
                assert (change.kind, change.reason, str(change)) == ("closed", "done", "the run is closed: done")

    asyncio.run(main())


def test_what_cannot_work_is_refused_with_what_is_meant(etcd, run_id):
    with pytest.raises(TypeError, match='no option "last_cal_timeout"; did you mean "last_call_timeout"?'):
        rallypoint.Rendezvous(etcd, run_id, last_cal_timeout=1)
    with pytest.raises(ValueError, match="at least 2 s"):
        rallypoint.Rendezvous(etcd, run_id, lease_timeout=1)
    with pytest.raises(errors.RendezvousConnectionError):
        rallypoint.Rendezvous("127.0.0.1:9", run_id, join_timeout=0.5, connect_timeout=0.5)
    with rallypoint.Rendezvous(etcd, run_id, 2, join_timeout=3, request_timeout=5) as node:
        with pytest.raises(errors.RendezvousTimeoutError):
            node.next_rendezvous()


def test_a_forked_process_does_not_leave_for_its_parent(etcd, run_id):
    with rallypoint.Rendezvous(etcd, run_id, **QUICK) as node:
        node.next_rendezvous()
        pid = os.fork()
        if pid == 0:
            try:
                node.__exit__(None, None, None)
                node.is_closed()
            except errors.RendezvousError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert node.wait_for_change(timeout=0.5) is None
    # Once more is no harm.
    node.leave()
