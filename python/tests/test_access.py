"""Who gets in: users, tokens and certificates, and the server that an agent starts for them."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess

import pytest
from support import free_ports, self_signed
from torch.distributed.elastic.rendezvous import RendezvousParameters, api
from torchrun import TORCHRUN

import rallypoint
from rallypoint.torch import _options, create_rdzv_handler

TOKEN = "correct horse battery staple"
QUICK = {"last_call_timeout": 1, "join_timeout": 5, "lease_timeout": 5}


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch):
    """Of other tests."""
    monkeypatch.setattr(_options, "_taken", {})


@pytest.fixture
def endpoint() -> str:
    """Where nothing listens."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def run(endpoint: str, backend: str = "rallypoint", nodes: int = 1, **options) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "run", nodes, nodes, "127.0.0.1", **options)


def listens(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def test_a_user_means_a_server_that_is_there_and_none_is_started(endpoint):
    with pytest.raises(api.RendezvousConnectionError):
        create_rdzv_handler(run(endpoint, user="root", password="secret", **QUICK))
    assert not listens(endpoint)


def test_a_server_that_is_started_asks_for_the_token_of_its_nodes(endpoint, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    host = create_rdzv_handler(run(endpoint, token_file=str(file), **QUICK))
    assert host.next_rendezvous().world_size == 1
    with pytest.raises(rallypoint.errors.StoreConnectionError, match="user name is empty"):
        rallypoint.Client(endpoint).get("key")
    with pytest.raises(rallypoint.errors.StoreConnectionError, match="authentication failed"):
        rallypoint.Client(endpoint, user="root", password="a token of somebody else").get("key")
    with pytest.raises(api.RendezvousConnectionError, match="token_file in --rdzv-conf, or RALLYPOINT_TOKEN"):
        create_rdzv_handler(run(endpoint, **QUICK)).next_rendezvous()
    monkeypatch.setenv("RALLYPOINT_TOKEN", TOKEN)
    guest = create_rdzv_handler(RendezvousParameters("rallypoint", endpoint, "other", 1, 1, "127.0.0.1", **QUICK))
    assert guest.next_rendezvous().world_size == 1
    assert "RALLYPOINT_TOKEN" not in os.environ
    guest.shutdown()
    host.shutdown()


def test_a_node_with_a_token_keeps_away_from_a_server_that_is_open(endpoint):
    host = create_rdzv_handler(run(endpoint, **QUICK))
    with pytest.raises(api.RendezvousConnectionError, match="is open to all, and a token was given"):
        create_rdzv_handler(run(endpoint, token=TOKEN, **QUICK)).next_rendezvous()
    host.shutdown()


@pytest.mark.parametrize("backend", ["rallypoint-etcd", "rallypoint-etcd-v2"])
def test_backends_that_show_no_token_start_no_server_in_spite_of_one(endpoint, backend, monkeypatch):
    monkeypatch.setenv("RALLYPOINT_TOKEN", TOKEN)
    with pytest.raises(ValueError, match="cannot show a token"):
        create_rdzv_handler(run(endpoint, backend))
    assert not listens(endpoint) and "RALLYPOINT_TOKEN" not in os.environ


def test_with_certificates_on_all_nodes_the_server_asks_for_one(endpoint, tmp_path):
    cert, key = self_signed(str(tmp_path))
    tls = {"cacert": cert, "cert": cert, "key": key}
    host = create_rdzv_handler(run(endpoint, **tls, **QUICK))
    assert host.next_rendezvous().world_size == 1
    guest = create_rdzv_handler(RendezvousParameters("rallypoint", endpoint, "other", 1, 1, "127.0.0.1", **tls, **QUICK))
    assert guest.next_rendezvous().world_size == 1
    for less in [{}, {"cacert": cert}]:
        with pytest.raises(rallypoint.errors.StoreConnectionError):
            rallypoint.Client(endpoint, connect_timeout=2, retry_timeout=1, **less).get("key")
    guest.shutdown()
    host.shutdown()


@pytest.mark.parametrize("backend", ["rallypoint", pytest.param("rallypoint-etcd", marks=pytest.mark.long)])
def test_workers_of_torchrun_find_no_secret_in_their_environment(backend, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n")
    said = tmp_path / "environment"
    secrets = {"RALLYPOINT_PASSWORD": "secret of the user"}
    if backend == "rallypoint":
        secrets["RALLYPOINT_TOKEN"] = "secret of the nodes"
    command = [*TORCHRUN, "--nnodes=1", f"--rdzv-backend={backend}", "--rdzv-endpoint=localhost:0", "--rdzv-id=run"]
    conf = ["--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1"]
    subprocess.run([*command, *conf, str(script), str(said)], check=True, env={**os.environ, **secrets}, timeout=120)
    environment = json.loads(pathlib.Path(said).read_text())
    assert environment["RANK"] == "0"
    assert not [name for name, value in environment.items() if "secret of" in value]
