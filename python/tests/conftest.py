"""What the tests are given."""

from __future__ import annotations

import uuid

import pytest
from support import Cluster


@pytest.fixture(scope="session")
def etcd():
    """The endpoint of a real etcd, for tests that leave it as it is."""
    cluster = Cluster(1)
    yield cluster.endpoint
    cluster.stop()


@pytest.fixture
def prefix() -> str:
    """A place in etcd that no other test uses."""
    return f"/test/{uuid.uuid4().hex}"


@pytest.fixture(params=["v3", "v2"])
def api(request) -> str:
    return request.param
