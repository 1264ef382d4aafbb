"""Metrics and traces of a node under torchrun, as Prometheus and a collector read them."""

from __future__ import annotations

import http.server
import os
import pathlib
import subprocess
import threading
import urllib.request

import pytest
from support import free_ports, wait_until
from torchrun import Job

import rallypoint

ROOT = pathlib.Path(os.environ["RALLYPOINT_ROOT"])
PROMTOOL = pathlib.Path(os.environ.get("RALLYPOINT_PROMETHEUS") or ROOT / ".tools" / "prometheus") / "promtool"


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def check(text: str) -> None:
    """That Prometheus' own tool finds nothing wrong."""
    if not PROMTOOL.exists():
        print(f"promtool is not tried: {PROMTOOL} is not there")
        return
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), text


@pytest.mark.parametrize("backend", ["rallypoint", pytest.param("rallypoint-etcd", marks=pytest.mark.long)])
def test_a_node_under_torchrun_tells_of_its_rounds(tmp_path, etcd, backend):
    ports = free_ports(2)
    conf = "last_call_timeout=1" + (",lease_timeout=5" if backend == "rallypoint" else "")
    run = Job(tmp_path, etcd, "2", backend=backend)
    try:
        agents = [
            run.start(name, **{"rdzv-conf": f"{conf},metrics_listen=127.0.0.1:{port}"})
            for name, port in zip("ab", ports, strict=True)
        ]
        run.wait_until_all_work(agents)
        texts = [page(port) for port in ports]
        for text in texts:
            check(text)
            lines = text.splitlines()
            assert "rallypoint_members 2" in lines, text
            assert 'rallypoint_phase{phase="working"} 1' in lines, text
            assert 'rallypoint_rounds_total{outcome="joined"} 1' in lines, text
            assert f'run_id="{run.run_id}"' in text, text
            # The workers are torchrun's.
            assert "rallypoint_workers" not in text and "rallypoint_restarts" not in text, text
        ranks = {line for text in texts for line in text.splitlines() if line.startswith("rallypoint_node_rank ")}
        assert ranks == {"rallypoint_node_rank 0", "rallypoint_node_rank 1"}, texts
        # Whoever has rank 0 serves the workers' store, and counts what they ask for.
        asked = [line for text in texts for line in text.splitlines() if line.startswith("rallypoint_worker_store_ope")]
        assert any('kind="set"' in line and not line.endswith(" 0") for line in asked), asked
        run.finish(agents)
    finally:
        run.stop()


def test_a_program_of_its_own_can_tell_too(etcd, prefix):
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    with rallypoint.Rendezvous(etcd, "job", 1, etcd_prefix=prefix, last_call_timeout=0, metrics_listen=place) as node:
        met = node.next_rendezvous()
        met.store.set("key", b"value")
        text = page(port)
        check(text)
        assert 'rallypoint_store_operations_total{kind="set"} 1' in text.splitlines(), text
    del met, node
    wait_until("nobody listens there any more", lambda: not listens(port))


def test_what_is_no_place_is_refused(etcd):
    with pytest.raises(ValueError, match="metrics_listen.*'nowhere'|metrics_listen.*\"nowhere\""):
        rallypoint.Rendezvous(etcd, "job", 1, metrics_listen="nowhere")


def listens(port: int) -> bool:
    try:
        page(port)
    except OSError:
        return False
    return True


def test_rounds_under_torchrun_are_traces(tmp_path, etcd):
    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        conf = f"last_call_timeout=1,otlp_endpoint=http://127.0.0.1:{server.server_port}"
        run = Job(tmp_path, etcd, "2", conf=conf)
        try:
            agents = [run.start("a"), run.start("b")]
            run.wait_until_all_work(agents)
            run.finish(agents)
        finally:
            run.stop()
        # What they had left was sent when they left. A name of a span is field 5, and its length stands before it.
        everything = b"".join(bodies)
        counts = {name: everything.count(b"*" + bytes([len(name)]) + name) for name in (b"rendezvous", b"join", b"round")}
        assert counts == {b"rendezvous": 1, b"join": 2, b"round": 2}, everything
        server.shutdown()
