"""A worker's sign of progress."""

from __future__ import annotations

import os
import pathlib
import struct
import subprocess
import sys

BEGINS = b"rpbeat1\n"


def beats(path: pathlib.Path, code: str, **more: str) -> tuple[int, str]:
    """What a program that beats in this file leaves there: the counter, and what it said."""
    environment = {**os.environ, "RALLYPOINT_HEARTBEAT_FILE": str(path), **more}
    program = f"import os, sys, threading, rallypoint\n{code}\nprint('torch' in sys.modules, 'rallypoint._rallypoint' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    (count,) = struct.unpack_from("<Q", path.read_bytes(), 8) if path.stat().st_size >= 16 else (0,)
    return count, ran.stdout


def fresh(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "0"
    path.write_bytes(BEGINS + bytes(16))
    return path


def test_every_beat_counts_from_any_thread_and_nothing_else_is_loaded(tmp_path):
    # All at once, and each is interrupted all the time: also while it finds out where to beat.
    code = """
sys.setswitchinterval(1e-6)
together = threading.Barrier(4)
threads = [
    threading.Thread(target=lambda: [together.wait(), *(rallypoint.heartbeat() for _ in range(100))]) for _ in range(4)
]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
rallypoint.heartbeat()
"""
    count, said = beats(fresh(tmp_path), code)
    assert (count, said) == (401, "False False\n")


def test_a_signal_handler_may_beat_while_the_first_beat_finds_out_where_to(tmp_path):
    # The signal comes in the middle of it, in the same thread.
    code = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: rallypoint.heartbeat())
opens = os.open
def interrupted(*given):
    os.open = opens
    signal.raise_signal(signal.SIGUSR1)
    return opens(*given)
os.open = interrupted
rallypoint.heartbeat()
rallypoint.heartbeat()
"""
    assert beats(fresh(tmp_path), code)[0] == 3


def test_what_a_worker_forks_or_starts_beats_for_nobody(tmp_path):
    code = """
{first}
if not (child := os.fork()):
    rallypoint.heartbeat()
    os._exit(0)
os.waitpid(child, 0)
rallypoint.heartbeat()
import subprocess
subprocess.run([sys.executable, "-c", "import rallypoint; rallypoint.heartbeat()"], check=True)
"""
    assert beats(fresh(tmp_path), code.format(first=""))[0] == 1
    assert beats(fresh(tmp_path), code.format(first="rallypoint.heartbeat()"))[0] == 2


def test_a_worker_that_is_started_again_goes_on_counting(tmp_path):
    path = fresh(tmp_path)
    for expected in (1, 2):
        assert beats(path, "rallypoint.heartbeat()")[0] == expected


def test_it_does_nothing_where_no_launcher_looks(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"something else that is long enough")
    for path in (other, tmp_path):
        before = path.read_bytes() if path.is_file() else None
        environment = {**os.environ, "RALLYPOINT_HEARTBEAT_FILE": str(path)}
        code = "import rallypoint; rallypoint.heartbeat(); rallypoint.heartbeat()"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
        assert (path.read_bytes() if path.is_file() else None) == before
    environment = {name: value for name, value in os.environ.items() if name != "RALLYPOINT_HEARTBEAT_FILE"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_a_program_that_is_over_says_so_and_what_it_forked_does_not(tmp_path):
    path = fresh(tmp_path)
    said = """
rallypoint.heartbeat()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(open(os.environ["RALLYPOINT_HEARTBEAT_FILE"], "rb").read(8))
"""
    count, said = beats(path, said)
    assert (count, said.splitlines()[-2]) == (1, str(BEGINS))
    assert path.read_bytes()[:8] == b"rpends1\n"
