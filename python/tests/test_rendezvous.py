"""The handlers, driven as torchrun drives them."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid

import pytest
import torch.distributed as dist
from support import TIED, Cluster, free_ports, states, status, wait_until
from torch.distributed.elastic.rendezvous import RendezvousParameters, api

import rallypoint
from rallypoint.torch import EtcdRendezvousBackend, create_backend, create_rdzv_handler

QUICK = {"last_call_timeout": "1", "lease_timeout": "5"}


def parameters(backend, endpoint, run_id=None, nodes=(1, 1), **options) -> RendezvousParameters:
    run_id = run_id or uuid.uuid4().hex
    return RendezvousParameters(backend, endpoint, run_id, *nodes, local_addr="127.0.0.1", **options)


def together(*calls) -> list:
    """What the calls return, made at the same time."""
    results = [None] * len(calls)

    def make(i):
        try:
            results[i] = calls[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=make, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd"])
def test_two_nodes_meet_and_share_a_store(etcd, backend):
    options = {"last_call_timeout": "1"}
    run_id = uuid.uuid4().hex
    nodes = [create_rdzv_handler(parameters(backend, etcd, run_id, (2, 2), **options)) for _ in range(2)]
    infos = together(*(node.next_rendezvous for node in nodes))
    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    assert len({(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}) == 1
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert [(node.get_backend(), node.get_run_id()) for node in nodes] == [(backend, run_id)] * 2
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    assert not nodes[0].is_closed()
    assert nodes[0].shutdown()
    wait_until("the run is closed", nodes[1].is_closed)
    # By one that is done, which is no reason to stop.
    assert nodes[1].num_nodes_waiting() == 0
    with pytest.raises(api.RendezvousClosedError, match=run_id):
        nodes[1].next_rendezvous()
    nodes[1].shutdown()


def test_a_node_that_ends_well_says_so_even_where_somebody_handles_an_error(etcd):
    handler = create_rdzv_handler(parameters("rallypoint", etcd, **QUICK))
    handler.next_rendezvous()
    try:
        raise ValueError("another's")
    except ValueError:
        (lambda: handler.shutdown())()
    assert status(etcd, handler.get_run_id())["closed"] == "a node has finished"


def test_a_node_that_fails_says_what_with(etcd):
    handler = create_rdzv_handler(parameters("rallypoint", etcd, **QUICK))
    handler.next_rendezvous()
    with pytest.raises(OSError):
        try:
            raise OSError("no room\nleft")
        finally:
            handler.shutdown()
    closed = status(etcd, handler.get_run_id())["closed"]
    assert re.fullmatch(rf"torchrun on {re.escape(socket.gethostname())}-[0-9.]+(-\d+)? failed with OSError: no room", closed)


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd"])
def test_where_the_workers_meet_is_torchs_to_listen_at_and_nobody_elses(etcd, backend):
    """A worker takes seconds to come up, in which a port that is only free may become another's."""
    node = create_rdzv_handler(parameters(backend, etcd, last_call_timeout="1", worker_store="rank0"))
    assert not node.use_agent_store
    for _ in range(2):
        port = node.next_rendezvous().bootstrap_store_info.master_port
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("0.0.0.0", port))
        for libuv in (True, False):
            store = dist.TCPStore("127.0.0.1", port, 1, True, use_libuv=libuv)
            store.set("key", "value")
            del store
    node.shutdown()


def client(info) -> dist.TCPStore:
    where = info.bootstrap_store_info
    return dist.TCPStore(where.master_addr, where.master_port, is_master=False)


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd"])
def test_the_agent_of_rank_0_serves_the_workers_store_and_it_is_empty_in_every_round(etcd, backend):
    run_id = uuid.uuid4().hex
    nodes = [create_rdzv_handler(parameters(backend, etcd, run_id, (2, 2), last_call_timeout="1")) for _ in range(2)]
    ports = set()
    for _ in range(2):
        infos = together(*(node.next_rendezvous for node in nodes))
        # The one that does not serve has been told by the other.
        assert [node.use_agent_store for node in nodes] == [True, True]
        port = infos[0].bootstrap_store_info.master_port
        assert port not in ports
        ports.add(port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("0.0.0.0", port))
        # PyTorch before 2.6 has this prefix, with a number of each node's own.
        stores = [dist.PrefixStore(f"/worker/attempt_{i}", client(info)) for i, info in enumerate(infos)]
        assert not stores[0].check(["key"])
        stores[0].set("key", "value")
        assert stores[1].get("key") == b"value"
    for node in nodes:
        node.shutdown()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10).close()


def test_with_proxies_each_node_has_an_entrance_of_its_own_and_nobody_else_gets_in(etcd):
    run_id = uuid.uuid4().hex
    options = {"last_call_timeout": "1", "worker_store": "proxy"}
    nodes = [create_rdzv_handler(parameters("rallypoint", etcd, run_id, (2, 2), **options)) for _ in range(2)]
    before = None
    for _ in range(2):
        infos = together(*(node.next_rendezvous for node in nodes))
        assert all(node.use_agent_store for node in nodes)
        first, second = sorted(infos, key=lambda info: info.rank)
        places = [info.bootstrap_store_info for info in (first, second)]
        assert [place.master_addr for place in places] == ["127.0.0.1"] * 2
        assert places[0].master_port != places[1].master_port
        a, b = client(first), client(second)
        assert not b.check(["key"])
        a.set("key", "value")
        assert b.get("key") == b"value"
        if before is not None:
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", before))
        before = places[1].master_port
    with pytest.raises(ValueError, match="are for worker_store=proxy"):
        create_rdzv_handler(parameters("rallypoint", etcd, store_cert="cert.pem"))
    for node in nodes:
        node.shutdown()


def test_who_serves_the_workers_store_is_agent_or_rank0(etcd, monkeypatch):
    with pytest.raises(ValueError, match="'worker_store' is agent, proxy or rank0, not 'rank1'"):
        create_rdzv_handler(parameters("rallypoint", etcd, worker_store="rank1"))
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    node = create_rdzv_handler(parameters("rallypoint", etcd))
    assert not node.use_agent_store
    node.shutdown()


def test_a_tcp_store_server_is_there_until_it_is_stopped():
    with rallypoint.TcpStoreServer("localhost:0") as server:
        store = dist.TCPStore(server.host, server.port, is_master=False)
        store.set("key", "value")
        assert store.get("key") == b"value"
        with pytest.raises(rallypoint.errors.ServerError, match="in use"):
            rallypoint.TcpStoreServer(f"{server.host}:{server.port}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), timeout=10).close()
    server.stop()
    with pytest.raises(ValueError, match="no host and port"):
        rallypoint.TcpStoreServer("localhost")


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd"])
def test_a_node_that_never_got_in_closes_nothing(etcd, backend):
    run_id = uuid.uuid4().hex
    member = create_rdzv_handler(parameters(backend, etcd, run_id, last_call_timeout="1"))
    member.next_rendezvous()
    never = create_rdzv_handler(parameters(backend, etcd, run_id, last_call_timeout="1"))
    assert never.shutdown()
    assert not member.is_closed() and member.num_nodes_waiting() == 0
    member.shutdown()


def test_a_node_of_pytorchs_barrier_gives_up_in_its_join_timeout(etcd):
    # torchrun always gives a timeout; whoever gives a join_timeout means that.
    waits = {"last_call_timeout": "1", "timeout": "900", "join_timeout": "1.5"}
    alone = create_rdzv_handler(parameters("rallypoint-etcd", etcd, nodes=(2, 2), **waits))
    with pytest.raises(api.RendezvousTimeoutError):
        alone.next_rendezvous()
    assert alone.shutdown()


def test_a_node_that_waits_says_what_for(etcd, capfd):
    # Quicker than after ten seconds nobody wants to read it.
    alone = create_rdzv_handler(parameters("rallypoint", etcd, nodes=(2, 2), **{**QUICK, "join_timeout": "11.5"}))
    with pytest.raises(api.RendezvousTimeoutError):
        alone.next_rendezvous()
    said = [line for line in capfd.readouterr().err.splitlines() if "waiting for" in line]
    # A moment later where the machine has other things to do.
    assert len(said) == 1 and re.search(r"waiting for 1 node: 1 of 2 is here \(1[01] s so far\), run ", said[0]), said
    assert alone.shutdown()


def test_a_spare_waits_for_as_long_as_the_run_lives_and_closes_nothing(etcd):
    run_id = uuid.uuid4().hex
    member = create_rdzv_handler(parameters("rallypoint", etcd, run_id, **QUICK))
    member.next_rendezvous()
    spare = create_rdzv_handler(parameters("rallypoint", etcd, run_id, timeout="1", **QUICK))
    ends = []

    def stand_by():
        with pytest.raises(getattr(api, "RendezvousGracefulExitError", api.RendezvousError)) as caught:
            spare.next_rendezvous()
        ends.append(caught.value)

    standing_by = threading.Thread(target=stand_by)
    standing_by.start()
    wait_until("the spare stands by", lambda: states(etcd, run_id) == ["member", "spare"])
    # For longer than its time.
    standing_by.join(3)
    assert standing_by.is_alive() and not ends
    assert spare.shutdown()
    standing_by.join()
    assert len(ends) == 1
    assert not member.is_closed() and member.num_nodes_waiting() == 0
    member.shutdown()


def test_who_is_left_alone_names_who_is_gone(etcd):
    run_id = uuid.uuid4().hex
    params = parameters("rallypoint", etcd, run_id, (2, 2), join_timeout="5", **QUICK)
    first, second = create_rdzv_handler(params), create_rdzv_handler(params)
    together(first.next_rendezvous, second.next_rendezvous)
    second._leave()
    with pytest.raises(api.RendezvousTimeoutError, match=r"1 node is here after 5 s: node \d \(.*\) left"):
        first.next_rendezvous()
    first.shutdown()


def test_a_spare_that_stands_by_is_nobody_to_meet_for(etcd):
    params = parameters("rallypoint", etcd, **QUICK)
    member, spare = create_rdzv_handler(params), create_rdzv_handler(params)
    member.next_rendezvous()
    ends = []

    def stand_by():
        # Outside torchrun, whose own agent has no result for it.
        graceful = getattr(api, "RendezvousGracefulExitError", api.RendezvousError)
        with pytest.raises(graceful, match="has ended well; this node stood by as a spare") as caught:
            spare.next_rendezvous()
        ends.append(caught.value)

    standing_by = threading.Thread(target=stand_by)
    standing_by.start()
    wait_until("the spare stands by", lambda: states(etcd, params.run_id) == ["member", "spare"])
    assert [member.num_nodes_waiting() for _ in range(100)] == [0] * 100
    member.shutdown()
    standing_by.join()
    assert len(ends) == 1
    spare.shutdown()


def test_num_nodes_waiting_asks_etcd_nothing(etcd):
    server = rallypoint.EtcdServer(embedded=True)
    server.start()
    member = create_rdzv_handler(parameters("rallypoint", server.get_endpoint(), nodes=(1, 2), **QUICK))
    member.next_rendezvous()
    server.stop()
    # With nobody to ask, it answers still.
    assert [member.num_nodes_waiting() for _ in range(100)] == [0] * 100


def forked(node) -> int:
    """Runs ``node`` in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            node()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return pid


def test_a_waiting_node_and_a_dead_member_are_told_of(etcd, prefix, caplog):
    run_id = uuid.uuid4().hex
    params = parameters("rallypoint", etcd, run_id, (1, 2), **QUICK)
    flags = rallypoint.Store(etcd, prefix, timeout=30)
    member = create_rdzv_handler(params)
    member.next_rendezvous()

    def other():
        handler = create_rdzv_handler(params)
        handler.next_rendezvous()
        flags.set("met", "")
        signal.pause()

    pid = forked(other)
    wait_until("a node waits", lambda: member.num_nodes_waiting() == 1)
    assert member.next_rendezvous().world_size == 2
    flags.get("met")
    assert member.num_nodes_waiting() == 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until("a member is gone", lambda: member.num_nodes_waiting() == 1)
    # torchrun asks once more, or not.
    assert member.num_nodes_waiting() == 1
    assert member.next_rendezvous().world_size == 1
    member.shutdown()
    # Without LOGLEVEL=INFO torchrun says nothing of why it stops its workers.
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2, told
    assert "1 more node waits to get in; the workers stop, and the nodes meet again" in told[0]
    assert re.search(r"node \d \(.*\) died; the workers stop, and the nodes meet again", told[1])


def test_a_node_that_is_told_to_end_says_goodbye(etcd, prefix):
    """Without it the others would wait for the lease, which here is longer than the test may take."""
    params = parameters("rallypoint", etcd, nodes=(1, 2), last_call_timeout="1", lease_timeout="120")
    flags = rallypoint.Store(etcd, prefix, timeout=30)
    member = create_rdzv_handler(params)
    member.next_rendezvous()

    code = f"""
import signal, sys, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.torch import create_rdzv_handler
import rallypoint
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
handler = create_rdzv_handler(RendezvousParameters("rallypoint", {etcd!r}, {params.run_id!r}, 1, 2,
    local_addr="127.0.0.1", last_call_timeout=1, lease_timeout=120))
handler.next_rendezvous()
rallypoint.Store({etcd!r}, {prefix!r}).set("met", "")
# A signal that comes just before a long sleep is heeded when that is over.
while True:
    time.sleep(0.1)
"""
    other = subprocess.Popen([sys.executable, "-c", code])
    wait_until("a node waits", lambda: member.num_nodes_waiting() == 1)
    assert member.next_rendezvous().world_size == 2
    flags.get("met")
    other.terminate()
    assert other.wait() == 1
    wait_until("a member is gone", lambda: member.num_nodes_waiting() == 1)
    assert member.next_rendezvous().world_size == 1
    member.shutdown()


WAIT_FOR_ANOTHER = """
import signal, sys, threading
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.torch import create_rdzv_handler
signal.signal(signal.SIGINT, signal.default_int_handler)
handler = create_rdzv_handler(RendezvousParameters("rallypoint", sys.argv[1], sys.argv[2], 2, 2, "127.0.0.1"))
"""


def test_ctrl_c_interrupts_a_rendezvous_and_the_node_is_gone_at_once(etcd):
    code = WAIT_FOR_ANOTHER + "try:\n  handler.next_rendezvous()\nexcept KeyboardInterrupt:\n  print('interrupted')"
    run_id = uuid.uuid4().hex
    process = subprocess.Popen([sys.executable, "-c", code, etcd, run_id], stdout=subprocess.PIPE, text=True)
    wait_until("it waits", lambda: states(etcd, run_id) == ["joining"])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\n", None)
    assert process.returncode == 0
    assert states(etcd, run_id) == []


def test_a_thread_that_meets_others_does_not_keep_the_interpreter_from_ending(etcd):
    code = WAIT_FOR_ANOTHER + "threading.Thread(target=handler.next_rendezvous, daemon=True).start()\nsys.stdin.read()"
    run_id = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", code, etcd, run_id], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    wait_until("it waits", lambda: states(etcd, run_id) == ["joining"])
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert states(etcd, run_id) == []


def test_a_forked_process_is_another_node_and_leaves_its_parents_alone(etcd):
    params = parameters("rallypoint", etcd, **QUICK)
    member = create_rdzv_handler(params)
    member.next_rendezvous()

    def child():
        for call in (member.next_rendezvous, member.num_nodes_waiting, member.set_closed):
            with pytest.raises(api.RendezvousError, match="belongs to another process"):
                call()
        assert not member.shutdown()
        # Its own it can have.
        own = create_rdzv_handler(parameters("rallypoint", etcd, **QUICK))
        assert own.next_rendezvous().world_size == 1
        os._exit(0)

    assert os.waitpid(forked(child), 0)[1] == 0
    assert not member.is_closed() and member.num_nodes_waiting() == 0
    member.shutdown()


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_any_one_etcd_of_three_may_die(dies):
    cluster = Cluster(3)
    try:
        params = parameters("rallypoint", cluster.endpoint, nodes=(2, 2), **QUICK)
        nodes = [create_rdzv_handler(params) for _ in range(2)]
        infos = together(*(node.next_rendezvous for node in nodes))
        cluster.kill(dies)
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"
        infos = together(*(node.next_rendezvous for node in nodes))
        assert sorted(info.rank for info in infos) == [0, 1]
        for node in nodes:
            node.shutdown()
    finally:
        cluster.stop()


@pytest.mark.parametrize("endpoint", ["", "localhost:0", "127.0.0.1:{port}", "localhost:{port}"])
@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"])
def test_a_node_alone_needs_no_etcd(backend, endpoint):
    endpoint = endpoint.format(port=free_ports(1)[0])
    handler = create_rdzv_handler(parameters(backend, endpoint, last_call_timeout="1"))
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    handler.shutdown()


def test_a_node_that_is_not_the_host_waits_for_the_one_that_is():
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    run_id = uuid.uuid4().hex
    made = []

    def guest():
        handler = create_rdzv_handler(parameters("rallypoint", endpoint, run_id, (2, 2), is_host="false", **QUICK))
        made.append("guest")
        return handler.next_rendezvous().world_size

    def host():
        handler = create_rdzv_handler(parameters("rallypoint", endpoint, run_id, (2, 2), **QUICK))
        return handler.next_rendezvous().world_size

    thread = threading.Thread(target=guest)
    thread.start()
    assert made == []
    assert host() == 2
    thread.join()
    assert made == ["guest"]


def test_options_are_checked_and_the_unknown_one_is_named(etcd):
    for backend in ("rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"):
        meant = f"'{backend}' has no option 'last_cal_timeout'; did you mean 'last_call_timeout'[?]$"
        with pytest.raises(ValueError, match=meant):
            create_rdzv_handler(parameters(backend, etcd, last_cal_timeout="1"))
        with pytest.raises(ValueError, match="has no option 'zzz'; there are: .*cert"):
            create_rdzv_handler(parameters(backend, etcd, zzz="1"))
    with pytest.raises(ValueError, match="at least 2 s"):
        create_rdzv_handler(parameters("rallypoint", etcd, lease_timeout="1"))
    with pytest.raises(ValueError, match="The etcd protocol must be HTTP or HTTPS."):
        create_rdzv_handler(parameters("rallypoint-etcd", etcd, protocol="ftp"))
    with pytest.raises(ValueError, match="The read timeout must be a positive integer."):
        create_rdzv_handler(parameters("rallypoint-etcd-v2", etcd, read_timeout="0"))
    with pytest.raises(ValueError, match="no rendezvous backend 'other'"):
        create_rdzv_handler(parameters("other", etcd))


def test_settings_that_differ_are_named_with_both_values(etcd):
    run_id = uuid.uuid4().hex
    member = create_rdzv_handler(parameters("rallypoint", etcd, run_id, (1, 2), **QUICK))
    member.next_rendezvous()
    late = create_rdzv_handler(parameters("rallypoint", etcd, run_id, (1, 3), **QUICK))
    with pytest.raises(api.RendezvousStateError, match="2 for MAX of --nnodes, this node has 3"):
        late.next_rendezvous()
    late.shutdown()
    assert not member.is_closed()
    member.shutdown()


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"])
def test_an_etcd_that_is_not_there_is_a_connection_error_with_its_cause(backend):
    with pytest.raises(api.RendezvousConnectionError, match="127.0.0.1:9") as caught:
        create_rdzv_handler(parameters(backend, "etcd://127.0.0.1:9", timeout="1"))
    assert isinstance(caught.value, ConnectionError) and caught.value.__cause__ is not None


WAIT_FOR_ETCD = """
import sys
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.torch import create_rdzv_handler
params = RendezvousParameters(sys.argv[1], sys.argv[2], "run", 1, 1, "127.0.0.1", last_call_timeout=1)
handler = create_rdzv_handler(params)
print(handler.next_rendezvous().world_size)
handler.shutdown()
"""


@pytest.mark.parametrize(
    "backend", ["rallypoint", *(pytest.param(it, marks=pytest.mark.long) for it in ("rallypoint-etcd", "rallypoint-etcd-v2"))]
)
@pytest.mark.parametrize("where", [pytest.param("etcd://{0}", marks=pytest.mark.long), "{0},{1}"])
def test_a_node_waits_for_an_etcd_that_is_not_there_yet_and_says_so(backend, where):
    here, nobody = (f"127.0.0.1:{port}" for port in free_ports(2))
    node = subprocess.Popen(
        [sys.executable, "-c", WAIT_FOR_ETCD, backend, where.format(here, nobody)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = node.stderr.readline()
    while said and "has not answered for" not in said:
        said = node.stderr.readline()
    assert here in said and node.poll() is None, said
    serve = [*TIED, sys.executable, "-m", "rallypoint", "serve", "--listen", here]
    with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as server:
        out, errors = node.communicate(timeout=60)
        server.terminate()
    assert (node.returncode, out) == (0, "1\n"), said + errors
    assert "answers again" in errors, errors


def test_the_state_backend_keeps_what_torch_asks_of_one(etcd, prefix, api):
    backend = EtcdRendezvousBackend(etcd, "run", prefix, api=api)
    assert backend.name == "rallypoint-etcd-v2"
    assert backend.get_state() is None
    state, first, was_set = backend.set_state(b"one")
    assert (state, was_set) == (b"one", True)
    assert backend.get_state() == (b"one", first)
    # Without a token it is set only where there is none; with an old one, or nonsense, not at all.
    assert backend.set_state(b"two") == (b"one", first, False)
    state, second, was_set = backend.set_state(b"two", first)
    assert (state, was_set) == (b"two", True) and second != first
    for token in (first, "nonsense"):
        assert backend.set_state(b"three", token) == (b"two", second, False)
    with pytest.raises(ValueError, match="The run id must be a non-empty string."):
        EtcdRendezvousBackend(etcd, "", prefix, api=api)


def test_create_backend_makes_what_pytorchs_does(etcd):
    pytest.importorskip("etcd")
    from torch.distributed.elastic.rendezvous import etcd_rendezvous_backend as theirs

    params = parameters("rallypoint-etcd-v2", etcd, read_timeout=10)
    backend, store = create_backend(params)
    their_backend, their_store = theirs.create_backend(params)
    _, token, _ = their_backend.set_state(b"theirs")
    assert backend.get_state() == (b"theirs", token)
    store.set(params.run_id, "ours")
    assert their_store.get(params.run_id) == b"ours"


def test_the_host_of_the_server_is_reached_by_the_name_that_the_others_use():
    """Many systems have their own name at a loopback address, which is no use to other machines."""
    name = socket.gethostname()
    params = RendezvousParameters("rallypoint", f"{name}:{free_ports(1)[0]}", uuid.uuid4().hex, 1, 2, **QUICK)
    handler = create_rdzv_handler(params)
    assert handler.next_rendezvous().bootstrap_store_info.master_addr == name
    handler.shutdown()


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd"])
def test_a_node_that_is_not_fit_does_not_join(backend, etcd, tmp_path, monkeypatch):
    well = tmp_path / "well"
    check = f"disk=1M;echo no GPU && test -e {well}"
    options = {"last_call_timeout": "1", "health_check": check, "when_unhealthy": "end"}
    node = create_rdzv_handler(parameters(backend, etcd, **options))
    with pytest.raises(api.RendezvousError, match="this node is not fit: .*no GPU"):
        node.next_rendezvous()
    node.shutdown()
    with pytest.raises(ValueError, match="health_check_timeout"):
        create_rdzv_handler(parameters(backend, etcd, health_check="gpu", health_check_timeout="soon"))
    # One that waits comes when it passes.
    if backend == "rallypoint":
        monkeypatch.setenv("RALLYPOINT_HEALTH_CHECK", check)
        node = create_rdzv_handler(parameters(backend, etcd, last_call_timeout="1", health_check_interval="0.2"))
        timer = threading.Timer(0.5, well.touch)
        timer.start()
        assert node.next_rendezvous().rank == 0
        assert well.exists()
        node.shutdown()


def test_a_node_that_is_not_fit_is_kept_out_with_its_machine_for_as_long_as_is_said(etcd, monkeypatch):
    # The run has to be there: before anybody has met there is nothing to be kept out of.
    run_id = uuid.uuid4().hex
    member = create_rdzv_handler(parameters("rallypoint", etcd, run_id, (1, 2), last_call_timeout="0"))
    assert member.next_rendezvous().rank == 0
    monkeypatch.setenv("RALLYPOINT_HOST", "machine-7")
    monkeypatch.setenv("RALLYPOINT_EXCLUDE_FOR", "2h")
    sick = {"health_check": "false", "when_unhealthy": "exclude"}
    node = create_rdzv_handler(parameters("rallypoint", etcd, run_id, (1, 2), **sick))
    with pytest.raises(api.RendezvousError, match="this node is not fit"):
        node.next_rendezvous()
    node.shutdown()
    # Under another name it is the same machine, though it passes.
    again = create_rdzv_handler(parameters("rallypoint", etcd, run_id, (1, 2), node_id="another"))
    with pytest.raises(api.RendezvousError, match="excluded from the run, until .*health check"):
        again.next_rendezvous()
    again.shutdown()
    member.shutdown()
    with pytest.raises(ValueError, match="exclude_for.*when_unhealthy=exclude"):
        create_rdzv_handler(parameters("rallypoint", etcd, exclude_for="2h", health_check="disk=1M"))
