"""The Grafana dashboard, read by Grafana's own library for such files."""

from __future__ import annotations

import json

import pytest
from support import ROOT

encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason="scripts/setup python brings it")


def test_all_of_it_means_something_to_grafana():
    from grafana_foundation_sdk.models.dashboard import Dashboard

    written = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    read = json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(written)))
    assert len(read["panels"]) > 20
    # What Grafana's editor shows of a variable; the library for 10.1 has no word for it.
    assert sorted(unknown(written, read, "")) == ["/templating/list/1/definition"]


def unknown(written, read, path: str):
    """What the library does not know, and so leaves out, or changes."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from unknown(value, read[key], f"{path}/{key}") if key in read else [f"{path}/{key}"]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, pair in enumerate(zip(written, read, strict=True)):
            yield from unknown(*pair, f"{path}/{number}")
    elif written != read:
        yield path
