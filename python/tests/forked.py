"""Processes that run a program of Python's which takes seconds to import: each is a fork of one that has imported it."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
from multiprocessing import forkserver

_CONTEXT = multiprocessing.get_context("forkserver")


class Forked:
    """``python -m MODULE ARGUMENTS`` with both streams in a file. It is used as a ``subprocess.Popen`` is."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str], output: pathlib.Path):
        _serve(module, environment)
        output.touch()
        self._process = _CONTEXT.Process(target=_run, args=(module, arguments, environment, str(output)))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _serve(module: str, environment: dict[str, str]) -> None:
    """Imports it, in a process beside this one, unless that was done. What it reads of the environment then is of the first."""
    _CONTEXT.set_forkserver_preload([module])
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(module: str, arguments: list[str], environment: dict[str, str], output: str) -> None:
    # It is not to outlive the tests.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.argv = [module, *arguments]
    try:
        importlib.import_module(module).main(arguments)
    finally:
        # A process that was forked so ends without.
        atexit._run_exitfuncs()
        sys.stdout.flush()
