"""How a worker learns that a node is going to be taken away."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest


def program(code: str, **environment: str) -> subprocess.Popen:
    """A Python of its own, since a process listens once."""
    inherited = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    return subprocess.Popen([sys.executable, "-c", code], env={**inherited, **environment}, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    return text


def test_outside_of_a_launcher_there_is_none_and_nothing_is_loaded_for_it():
    code = """if True:
        import sys
        import rallypoint
        assert rallypoint.preemption() is None
        rallypoint.preemption_saved()
        print([name for name in ("torch", "rallypoint._rallypoint") if name in sys.modules])
    """
    assert said(program(code)) == "[]\n"
    # So it is where the launcher is gone.
    assert said(program(code, RALLYPOINT_PREEMPTION_FILE="/nowhere/0.json")) == "[]\n"


def test_a_worker_is_told_who_goes_until_when_and_says_that_it_has_saved(tmp_path):
    file = tmp_path / "0.json"
    code = """if True:
        import dataclasses, json, sys
        import rallypoint
        assert rallypoint.preemption() is None
        print(flush=True)
        while (told := rallypoint.preemption()) is None:
            pass
        assert rallypoint.preemption() == told
        print(json.dumps([dataclasses.asdict(told), told.seconds_left]), flush=True)
        rallypoint.preemption_saved()
        rallypoint.preemption_saved()
    """
    worker = program(code, RALLYPOINT_PREEMPTION_FILE=str(file))
    assert worker.stdout is not None and worker.stdout.readline() == "\n"
    assert (tmp_path / "0.json.listening").exists()
    deadline = time.time() + 60
    known = {"node": 2, "host": "n2", "ranks": [4, 5], "signal": "SIGTERM", "deadline": deadline, "here": True}
    unknown = {"node": 0, "host": "n0", "ranks": [0], "signal": "SIGUSR1", "deadline": None, "here": False, "later": 1}
    notice = {"here": True, "deadline": deadline, "seconds_left": 60, "nodes": [known, unknown]}
    new = tmp_path / "new"
    new.write_text(json.dumps(notice))
    new.rename(file)
    told, left = json.loads(said(worker))
    assert 0 < left <= 60
    assert told["here"] is True and told["deadline"] == deadline
    assert [(node["node_rank"], node["ranks"], node["deadline"], node["here"]) for node in told["nodes"]] == [
        (2, [4, 5], deadline, True),
        (0, [0], None, False),
    ]
    assert (tmp_path / "0.json.saved").exists()


def test_what_is_told_stays_as_it_is():
    from rallypoint import Preemption

    told = Preemption(nodes=(), here=False, deadline=None)
    assert told.seconds_left is None
    assert Preemption(nodes=(), here=False, deadline=1.0).seconds_left == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.here = True  # type: ignore[misc]


@pytest.mark.parametrize("handler", ["", r"signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'handled\n'))"])
def test_slurms_signal_to_every_process_does_not_end_who_listens(handler, tmp_path):
    # It may come while what was written before is still being flushed: print would not be entered twice.
    code = f"""if True:
        import os, signal, time
        import rallypoint
        {handler}
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        rallypoint.preemption()
        print("listens", flush=True)
        signal.sigtimedwait([signal.SIGTERM], 60)
    """
    worker = program(code, SLURM_JOB_ID="7", RALLYPOINT_PREEMPTION_FILE=str(tmp_path / "0.json"))
    assert worker.stdout is not None and worker.stdout.readline() == "listens\n"
    worker.send_signal(signal.SIGUSR1)
    # By this one it knows that the other has come.
    worker.send_signal(signal.SIGTERM)
    assert said(worker) == ("handled\n" if handler else "")


def test_under_a_launcher_a_worker_that_listens_saves_before_it_is_stopped():
    worker = """if True:
        import time
        import rallypoint
        rallypoint.preemption()
        print("listens", flush=True)
        while (told := rallypoint.preemption()) is None:
            time.sleep(0.01)
        (node,) = told.nodes
        print("told", told.here, node.node_rank, node.ranks, node.signal, told.seconds_left > 10, flush=True)
        rallypoint.preemption_saved()
        time.sleep(600)
    """
    command = [sys.executable, "-m", "rallypoint", "run", "--standalone", "--nproc-per-node=2", "--", sys.executable, "-c", worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[0]: listens\n", "[1]: listens\n"]
            launcher.send_signal(signal.SIGTERM)
            rest = sorted(launcher.stdout.read().splitlines())
            assert rest == [f"[{rank}]: told True 0 (0, 1) SIGTERM True" for rank in range(2)]
            assert launcher.wait() == 128 + signal.SIGTERM
        finally:
            launcher.kill()
