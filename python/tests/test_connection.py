"""How to connect, tried on an etcd that asks for it: TLS, a user with a password, and a prefix before all keys."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from support import Cluster, self_signed
from torch.distributed.elastic.rendezvous import RendezvousParameters, api

import rallypoint
from rallypoint.torch import EtcdRendezvousBackend, EtcdStore, create_rdzv_handler

# What one whose password is wrong is told to look at.
WHO = (
    "check token_file, or user and password, in --rdzv-conf, "
    "RALLYPOINT_TOKEN, or RALLYPOINT_USER and RALLYPOINT_PASSWORD"
)


@pytest.fixture(scope="module")
def secure():
    """An etcd with TLS; its v3 API asks for a password. (The v2 API has users of its own.)"""
    cluster = Cluster(1, tls=True)
    cluster.ask_for_passwords("secret")
    yield cluster
    cluster.stop()


@pytest.fixture
def options(secure):
    return {"cacert": secure.cacert, "user": "root", "password": "secret", "etcd_prefix": f"/{uuid.uuid4().hex}"}


def test_every_face_takes_the_options_and_the_prefix_is_before_all_keys(secure, options):
    store = rallypoint.Store(secure.endpoint, "/a", timeout=30, **options)
    store.set("key", "1")
    torch_store = EtcdStore(secure.endpoint, "/a", **options)
    assert torch_store.get("key") == b"1"

    async def main():
        return await (await rallypoint.AsyncStore.connect(secure.endpoint, "/a", **options)).get("key")

    assert asyncio.run(main()) == b"1"
    backend = EtcdRendezvousBackend(secure.endpoint, "run", "/states", api="v3", **options)
    assert backend.set_state(b"state")[2]
    prefix = options.pop("etcd_prefix")
    keys = [key.decode() for key, _ in rallypoint.Client(secure.endpoint, **options).list(prefix)]
    assert any(key.startswith(f"{prefix}/a/") for key in keys), keys
    assert any(key.startswith(f"{prefix}/states") for key in keys), keys
    # Without the prefix it is another store.
    assert not rallypoint.Store(secure.endpoint, "/a", **options).check(["key"])


def test_v2_speaks_tls_too(secure, prefix):
    store = rallypoint.Store(secure.endpoint, prefix, timeout=30, api="v2", cacert=secure.cacert)
    store.set("key", "1")
    assert store.get("key") == b"1"


def test_who_is_not_let_in_is_told_why(secure, options):
    for wrong, match in [
        ({"password": "wrong"}, "authentication failed"),
        ({"user": None, "password": None}, "user name is empty"),
        ({"cacert": None}, secure.endpoint),
    ]:
        with pytest.raises(rallypoint.errors.StoreConnectionError, match=match) as caught:
            rallypoint.Store(secure.endpoint, "/a", connect_timeout=5, retry_timeout=1, **{**options, **wrong}).set("k", "")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("rallypoint", {"cacert": "cacert", "user": "user", "password": "password", "etcd_prefix": "etcd_prefix"}),
        ("rallypoint", {"cacert": "cacert", "user": "user", "password_file": "password_file", "etcd_prefix": "etcd_prefix"}),
        pytest.param("rallypoint-etcd", {"cacert": "cacert", "etcd_prefix": "etcd_prefix"}, marks=pytest.mark.long),
        pytest.param("rallypoint-etcd-v2", {"cacert": "ca_cert"}, marks=pytest.mark.long),
    ],
)
def test_the_backends_take_them_by_their_names(secure, options, backend, names, tmp_path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    options["password_file"] = str(password)
    config = {theirs: options[ours] for ours, theirs in names.items()}
    run = RendezvousParameters(
        backend, secure.endpoint, "run", 1, 1, "127.0.0.1", protocol="https", last_call_timeout=1, **config
    )
    handler = create_rdzv_handler(run)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    # Without TLS it gets nowhere, and no server is started for it.
    plain = RendezvousParameters(backend, f"etcd://{secure.endpoint}", "run", 1, 1, "127.0.0.1")
    with pytest.raises(api.RendezvousConnectionError, match=secure.endpoint):
        create_rdzv_handler(plain).next_rendezvous()


def test_the_native_backend_takes_them_from_the_environment_too(secure, options, monkeypatch, tmp_path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    monkeypatch.setenv("RALLYPOINT_CACERT", options["cacert"])
    monkeypatch.setenv("RALLYPOINT_USER", "root")
    monkeypatch.setenv("RALLYPOINT_PREFIX", options["etcd_prefix"])
    monkeypatch.setenv("RALLYPOINT_PASSWORD", "wrong")
    run = RendezvousParameters("rallypoint", secure.endpoint, "run", 1, 1, "127.0.0.1", last_call_timeout=1)
    with pytest.raises(api.RendezvousConnectionError, match=WHO):
        create_rdzv_handler(run).next_rendezvous()
    # As for the commands, the file comes first.
    monkeypatch.setenv("RALLYPOINT_PASSWORD_FILE", str(password))
    handler = create_rdzv_handler(run)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    prefix = options.pop("etcd_prefix")
    assert rallypoint.Client(secure.endpoint, **options).list(prefix)
    monkeypatch.setenv("RALLYPOINT_PASSWORD_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="nowhere, which RALLYPOINT_PASSWORD_FILE names"):
        create_rdzv_handler(run)
    # A server of one's own asks for nothing of that.
    alone = create_rdzv_handler(RendezvousParameters("rallypoint", "localhost:0", "run", 1, 1, password="x"))
    assert alone.next_rendezvous().world_size == 1
    alone.shutdown()


def test_who_gets_nowhere_under_torchrun_is_told_what_to_do(secure, options, tmp_path):
    other, _ = self_signed(str(tmp_path))
    del options["etcd_prefix"]
    for wrong, match in [
        ({"cacert": None}, "does not speak plain etcd: if it uses TLS give cacert in --rdzv-conf, otherwise check --rdzv-endpoint"),
        ({"cacert": __file__}, f"{__file__}: no certificate in it$"),
        ({"cacert": other}, "check cacert, cert and key in --rdzv-conf, or RALLYPOINT_CACERT"),
        ({"password": "wrong"}, WHO),
    ]:
        config = {name: value for name, value in {**options, **wrong}.items() if value is not None}
        run = RendezvousParameters("rallypoint", f"etcd://{secure.endpoint}", "run", 1, 1, "127.0.0.1", **config)
        with pytest.raises(api.RendezvousConnectionError, match=match):
            create_rdzv_handler(run).next_rendezvous()
