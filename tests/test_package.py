"""The package itself: what it exports, and that importing it loads nothing heavy."""

from __future__ import annotations

import inspect
import subprocess
import sys

import wholestep as ws

HEAVY = ("egglog", "filelock", "platformdirs", "rich", "safetensors", "sklearn", "subprocess", "torch", "typer")


def test_every_public_function_and_class_is_documented():
    for name in ws.__all__:
        value = getattr(ws, name)
        if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"ws.{name} has no docstring"


def test_importing_loads_nothing_heavy():
    program = f"import sys, wholestep; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
