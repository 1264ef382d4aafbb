"""What Python's own tools show of the package: help(), signatures, and types."""

from __future__ import annotations

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from support import ROOT, public_modules

import rallypoint

PACKAGE = pathlib.Path(rallypoint.__file__).parent
PROGRAM = pathlib.Path(__file__).parent / "typed_program.py"
# Made by other operations, and not by a call of the class.
MADE_ELSEWHERE = {"AsyncRendezvous", "AsyncStore", "GroupChange", "Member", "PreemptedNode", "Preemption", "Round"}


def public_names(module: str) -> list[str]:
    """What a module offers: its ``__all__``, or else what is defined in it."""
    loaded = importlib.import_module(module)
    own = [name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module]
    return [name for name in getattr(loaded, "__all__", own) if not name.startswith("_")]


def public_things() -> dict[str, Any]:
    """Everything public that can be called, or is a class, and the public parts of classes, by name."""
    found = {}
    for module in public_modules():
        for name in public_names(module):
            thing = getattr(importlib.import_module(module), name)
            if not callable(thing):
                continue
            found[f"{module}.{name}"] = thing
            # What torch's classes and object bring along is theirs.
            ours = [kind for kind in getattr(thing, "__mro__", ()) if kind.__module__.startswith("rallypoint")]
            parts = {part: value for kind in reversed(ours) for part, value in vars(kind).items()}
            found.update({f"{module}.{name}.{part}": value for part, value in parts.items() if not part.startswith("_")})
    return found


def problem_with(name: str, thing: Any) -> str | None:
    """What help() would not show of it."""
    thing = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
    text = inspect.getdoc(thing)
    if not text:
        return "no docstring"
    is_an_error = isinstance(thing, type) and issubclass(thing, BaseException)
    if not callable(thing) or is_an_error or name.rpartition(".")[2] in MADE_ELSEWHERE:
        return None
    signature = inspect.signature(thing)
    if "..." in str(signature):
        return f"a default is not shown: {signature}"
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.kind == parameter.VAR_KEYWORD:
            continue
        # Signatures of Rust have no types: they stand in the text. Some refer to another's.
        described = re.search(rf"^ +([\w, ]+, )?{parameter.name}(, [\w, ]+)? \([\w |\[\], ]+\): ", text, re.MULTILINE)
        if parameter.annotation is parameter.empty and not described and "For the arguments" not in text:
            return f"no type of {parameter.name}"
    return None


def test_everything_public_says_what_it_is_and_what_it_takes():
    problems = {name: problem_with(name, thing) for name, thing in public_things().items()}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def check(*command: str, **kwargs) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_stubs_are_those_of_the_module(tmp_path):
    check("mypy.stubtest", "rallypoint._rallypoint", cwd=tmp_path)


def test_mypy_finds_nothing_in_the_package_nor_in_a_program_that_uses_it(tmp_path):
    mypy = ["mypy", "--config-file", str(ROOT / "python/pyproject.toml"), "--cache-dir", str(tmp_path)]
    check(*mypy, "-p", "rallypoint", cwd=tmp_path)
    check(*mypy, str(PROGRAM), cwd=tmp_path)


@pytest.mark.long
def test_pyright_finds_nothing_in_the_package_nor_in_a_program_that_uses_it_and_knows_every_type(tmp_path):
    # It looks for packages where the python of the path does.
    path = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**os.environ, **path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    check("pyright", str(PACKAGE), str(PROGRAM), cwd=tmp_path, env=environment)
    said = check("pyright", "--verifytypes", "rallypoint", "--ignoreexternal", cwd=tmp_path, env=environment)
    assert "Type completeness score: 100%" in said, said
