"""Prints, as JSON, the flags of the installed torchrun and the variables that its code reads."""

import ast
import json
import os
import pathlib

for name in [name for name in os.environ if name.startswith("PET_")]:
    del os.environ[name]

import torch.distributed.launcher.api as launcher
import torch.distributed.run as run


def flags():
    for action in run.get_args_parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or "--help" in names:
            continue
        reads = type(action).__name__ in ("env", "check_env")
        yield {
            "flag": next(name for name in names if "_" not in name),
            "names": action.option_strings,
            "variable": f"PET_{action.dest.upper()}" if reads else None,
            "default": None if action.default in (None, "", []) else str(action.default),
            "takes": action.nargs != 0,
            "choices": list(action.choices or []),
        }


def is_environ(node):
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def variables(path):
    """The names that a file asks the environment for: written there, or in a name that is set there."""
    tree = ast.parse(path.read_text())
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, node.value)

    def text(node):
        for _ in range(5):
            if isinstance(node, ast.Constant):
                return {node.value} if isinstance(node.value, str) else set()
            node = known.get(node.id) if isinstance(node, ast.Name) else None
        return set()

    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="getenv"), args=[name, *_]):
                found |= text(name)
            case ast.Call(func=ast.Attribute(attr="get", value=value), args=[name, *_]) if is_environ(value):
                found |= text(name)
            case ast.Subscript(value=value, slice=name, ctx=ast.Load()) if is_environ(value):
                found |= text(name)
            case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[value]) if is_environ(value):
                found |= text(name)
    return found


elastic = pathlib.Path(run.__file__).parent / "elastic"
files = [pathlib.Path(run.__file__), pathlib.Path(launcher.__file__), *sorted(elastic.rglob("*.py"))]
print(json.dumps({"flags": list(flags()), "variables": sorted(set().union(*map(variables, files)))}))
