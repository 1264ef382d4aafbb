"""The store without torch."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta

import pytest
from support import wait_until

import rallypoint
from rallypoint import errors


@pytest.fixture
def store(etcd, prefix, api):
    return rallypoint.Store(etcd, prefix, timeout=30, api=api)


def test_every_operation(store):
    store.set("text", "value")
    store.set(b"bytes\xff\0", b"\0\xff")
    assert store.get(b"text") == b"value"
    assert store.get(b"bytes\xff\0") == b"\0\xff"
    assert store.add("count", 5) == 5
    assert store.add("count", -7) == -2
    assert store.get("count") == b"-2"
    assert store.check(["text", "count"]) and not store.check(["text", "missing"])
    store.wait(["text", "count"])
    assert store.compare_set("text", "other", "new") == b"value"
    assert store.compare_set("text", "value", "new") == b"new"
    assert store.compare_set("absent", "expected", "new") == b"expected"
    assert store.compare_set("fresh", "", "first") == b"first"
    store.append("text", " and more")
    assert store.get("text") == b"new and more"
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"]
    assert store.list_keys() == sorted([b"a", b"b", b"bytes\xff\0", b"count", b"fresh", b"text"])
    assert store.num_keys() == 6
    assert store.delete_key("a") and not store.delete_key("a")
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    assert store.queue_len("q") == 2
    assert [store.queue_pop("q"), store.queue_pop("q", block=False)] == [b"first", b"second"]
    store.barrier("all", 1)


def test_what_gives_nothing_gives_none(store):
    assert store.set("text", "value") is None
    assert store.wait(["text"]) is None
    assert store.multi_set(["a"], ["1"]) is None
    assert store.queue_push("q", "first") is None


def test_clones_share_the_data_and_not_the_timeout(store):
    clone = store.clone()
    clone.set_timeout(timedelta(milliseconds=10))
    clone.set("key", "value")
    assert store.get("key") == b"value"
    assert (store.timeout, clone.timeout) == (timedelta(seconds=30), timedelta(milliseconds=10))


def test_a_closed_store_is_done_and_its_clones_are_not(etcd, prefix, api):
    with rallypoint.Store(etcd, prefix, timeout=30, api=api) as store:
        clone = store.clone()
        store.set("key", "value")
    for call in (lambda: store.get("key"), store.clone, lambda: store.timeout, lambda: store.check(["key"])):
        with pytest.raises(errors.StoreError, match="the store is closed"):
            call()
    store.close()
    assert prefix in repr(store)
    assert clone.get("key") == b"value"


def test_a_closed_client_is_done(etcd):
    with rallypoint.Client(etcd) as client:
        assert client.get("no such key") is None
    with pytest.raises(errors.StoreError, match="the client is closed"):
        client.list()


def test_close_ends_the_connection():
    with rallypoint.EtcdServer(embedded=True) as server:
        port = f"{server.get_port():04X}"

        def connections() -> int:
            """Of this process to the server, as the kernel has them: 01 is an established one."""
            rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()]
            return sum(row[2].endswith(f":{port}") and row[3] == "01" for row in rows)

        store = rallypoint.Store(server.get_endpoint(), "/job")
        store.set("key", "value")
        assert connections() >= 1
        store.close()
        wait_until("the connection is closed", lambda: connections() == 0)


def test_a_wait_in_vain_is_a_timeout_that_names_the_key(store):
    store.set_timeout(0.05)
    for call in (lambda: store.get("missing"), lambda: store.wait(["missing"], timedelta(milliseconds=50))):
        with pytest.raises(errors.StoreTimeoutError, match="missing") as caught:
            call()
        assert isinstance(caught.value, LookupError) and isinstance(caught.value, TimeoutError)
    with pytest.raises(errors.QueueEmptyError, match="the queue \"q\" is empty"):
        store.queue_pop("q", block=False)


def test_errors_say_what_is_wrong(etcd, prefix):
    store = rallypoint.Store(etcd, prefix)
    store.set("word", "hello")
    with pytest.raises(errors.StoreValueError, match="not a number") as caught:
        store.add("word", 1)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        store.multi_set(["a", "b"], ["1"])
    with pytest.raises(TypeError, match="expected a list of str or bytes, not one str"):
        store.check("text")
    with pytest.raises(TypeError, match="expected str or bytes, not int"):
        store.set("key", 1)
    with pytest.raises(TypeError, match='no connection option "colour"; there are: cacert, cert'):
        rallypoint.Store(etcd, prefix, colour="red")
    with pytest.raises(ValueError, match='"v2" or "v3", not "v4"'):
        rallypoint.Store(etcd, prefix, api="v4")
    with pytest.raises(ValueError, match="is not an etcd endpoint"):
        rallypoint.Store("ftp://a", prefix)
    with pytest.raises(ValueError, match="a user without a password"):
        rallypoint.Store(etcd, prefix, user="root")
    with pytest.raises(ValueError, match="has no key"):
        rallypoint.Store(etcd, prefix, cert="c.pem")


def test_an_etcd_that_is_not_there_is_a_connection_error(api):
    with pytest.raises(errors.StoreConnectionError, match="127.0.0.1:9") as caught:
        rallypoint.Store("127.0.0.1:9", "/x", api=api, connect_timeout=1)
    assert isinstance(caught.value, ConnectionError)


def test_threads_wait_without_the_gil(store):
    got = []
    waiters = [threading.Thread(target=lambda: got.append(store.get("go"))) for _ in range(8)]
    for waiter in waiters:
        waiter.start()
    store.set("go", "now")
    for waiter in waiters:
        waiter.join()
    assert got == [b"now"] * 8


def test_a_forked_process_uses_the_store_and_does_not_disturb_its_parent(store):
    store.set_timeout(20)
    pid = os.fork()
    if pid == 0:
        try:
            store.set("from the child", str(store.timeout))
            store.get("from the parent")
            del store
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    assert store.get("from the child") == str(timedelta(seconds=20)).encode()
    store.set("from the parent", "")
    assert os.waitpid(pid, 0)[1] == 0


def run(etcd, prefix, api, code, **kwargs):
    code = textwrap.dedent(code)
    header = f"import rallypoint\nstore = rallypoint.Store({etcd!r}, {prefix!r}, api={api!r})\n"
    return subprocess.Popen([sys.executable, "-c", header + code], **kwargs)


def test_ctrl_c_interrupts_a_wait(etcd, prefix, api):
    process = run(
        etcd,
        prefix,
        api,
        """
        import signal
        # Whoever runs the tests in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            store.set("ready", "")
            store.get("missing")
        except KeyboardInterrupt:
            print("interrupted")
            # It is as good as before.
            store.set("after", "")
        """,
        stdout=subprocess.PIPE,
        text=True,
    )
    rallypoint.Store(etcd, prefix, timeout=30, api=api).get("ready")
    process.send_signal(signal.SIGINT)
    # Far sooner than the store's own five minutes.
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 0


def test_nothing_keeps_the_interpreter_from_ending(etcd, prefix, api):
    process = run(
        etcd,
        prefix,
        api,
        """
        import asyncio, threading
        # Daemon threads and tasks that wait while the interpreter ends.
        threading.Thread(target=lambda: store.get("missing"), daemon=True).start()
        async def main():
            other = await rallypoint.AsyncStore.connect(%r, %r)
            asyncio.ensure_future(other.get("missing"))
            await other.set("k", "v")
        asyncio.run(main())
        server = rallypoint.EtcdServer(embedded=True)
        server.start()
        """
        % (etcd, prefix + "-async"),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")
