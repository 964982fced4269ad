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


def test_packages_export_what_they_say():
    for package in (ws.losses, ws.metrics, ws.nn, ws.optim, ws.schedules):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert not hasattr(package, "nothing")
    assert inspect.isfunction(ws.optim.sgd), "the function, not the module of this name"


def test_an_optimizer_is_known_by_name_before_it_was_used():
    program = "import wholestep as ws; print(type(ws.Optimizer.from_config({'kind': 'Lion', 'lr': 0.1})).__name__)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "Lion"
