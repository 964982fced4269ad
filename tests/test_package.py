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


def test_names_are_loaded_when_they_are_first_used():
    program = (
        "import sys, wholestep as ws; before = 'wholestep.session' in sys.modules; ws.build_session; "
        "print(before, 'wholestep.session' in sys.modules, hasattr(ws, 'nothing'), set(ws.__all__) <= set(dir(ws)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True", "False", "True"]
