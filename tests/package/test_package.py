"""The package itself: what it exports, and that importing it loads nothing heavy."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import wholestep as ws
import wholestep.session
import wholestep.sklearn
import wholestep.train
from wholestep.interop import ancestors
from wholestep.lazy import Exports

HEAVY = ("filelock", "platformdirs", "rich", "safetensors", "sklearn", "subprocess", "torch", "typer")


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


PACKAGES = [
    ws, ws.callbacks, ws.data, ws.losses, ws.metrics, ws.models, ws.nn, ws.optim, ws.schedules, wholestep.session,
    wholestep.train, wholestep.sklearn,
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_packages_export_what_their_one_list_says(package: ModuleType) -> None:
    """`__init__.pyi` is the list: what a checker sees is what is there, under the same object."""
    folder = Path(package.__file__).parent
    assert "__all__ = [\n" not in (folder / "__init__.py").read_text(), "a second list"
    found = Exports(package.__name__, package.__file__)
    assert [*found.names, *(["__version__"] if package is ws else [])] == package.__all__
    assert sorted(package.__all__) == dir(package)
    for name, (home, own) in found.home_of.items():
        value = getattr(package, name)
        if not inspect.ismodule(value):
            assert value is getattr(import_module(home), own), f"{package.__name__}.{name}"
    assert not hasattr(package, "nothing")


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    program = "import wholestep.optim, wholestep.models.gpt2, wholestep as ws; print(ws.optim.sgd, ws.models.gpt2)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.count("<function ") == 2


def test_the_ancestors_names_are_those_of_the_packages() -> None:
    for name in ancestors.__all__:
        places = [p for p in PACKAGES if name in p.__all__]
        assert places, f"{name} is exported nowhere"
        assert all(getattr(p, name) is getattr(ancestors, name) for p in places)


def test_a_window_is_the_convolutions() -> None:
    """Several batches of one update are micro-batches."""
    folder = Path(ws.__file__).parent
    files = [
        folder / "accumulation.py",
        *(f for n in ("session", "steps", "train") for f in (folder / n).rglob("*.py")),
    ]
    assert len(files) > 50
    texts = {f.name: f.read_text().replace("Family.WINDOW", "").replace("Kind.WINDOW", "") for f in files}  # of ops
    assert [name for name, text in texts.items() if "window" in text.lower()] == []


def test_an_optimizer_is_known_by_name_before_it_was_used():
    program = "import wholestep as ws; print(type(ws.Optimizer.from_config({'kind': 'Lion', 'lr': 0.1})).__name__)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "Lion"


FIRST_STEP = """
import builtins, sys
before, written, run = set(sys.modules), [], builtins.exec
def exec(text, *more):
    written.extend([text] if isinstance(text, str) else [])
    run(text, *more)
builtins.exec = exec
import numpy as np, wholestep as ws
g = ws.Graph()
x, labels = g.input("x", ("batch", 4)), g.input("labels", ("batch",), dtype="int32")
g.set_outputs([ws.losses.cross_entropy(x @ g.parameter("w", (4, 3)), labels)])
session, report = ws.build_session_with_report(g, optimizer=ws.SGD(lr=0.1), batch_size=8)
float(session.step(x=np.ones((8, 4), np.float32), labels=np.zeros(8, np.int32)))
print(report.cached)
print(*sorted(set(sys.modules) - before))
print(len([text for text in written if "def __" in text]))
"""
FOR_NEW_PLANS = (
    "wholestep.compiler.pipeline", "wholestep.compiler.backends.cpu.render", "wholestep.compiler.passes.autodiff",
    "wholestep.compiler.passes.egraph.rules", "wholestep.compiler.plan.lower.draft",
    "wholestep.compiler.ir.semantics.interpret",
)  # fmt: skip
FOR_OTHER_STEPS = (
    "wholestep.metrics", "wholestep.losses.arrays", "wholestep.optim.algorithms.adam", "wholestep.schedules.curves",
    "wholestep.steps.micro_batches", "wholestep.session.running.micro_batches", "wholestep.optim.core.arrays",
    "difflib",
    "wholestep.session.inspect.profile", "wholestep.train", "wholestep.data",
    "wholestep.callbacks", "wholestep.models", "wholestep.cli", "importlib.metadata", "subprocess", "tempfile",
    "shutil", "asyncio", "concurrent", "multiprocessing", "matplotlib", "ml_dtypes",
)  # fmt: skip
# What a step from the cache loads of the folders that plans are made in: a plan is read and laid out; the
# planner checked it before it was stored.
FOR_PLANS_THAT_ARE_THERE: dict[str, set[str]] = {
    "passes": {"egraph", "egraph.report"},  # the report of the build is stored with the plan
    "plan": {
        *("io", "io.serialize", "memory", "memory.peak_memory"),
        *("model", "model.bodies", "model.kernel", "model.layout", "model.target_formats"),
    },
    "backends.cpu": {
        *("kernel_schedule", "layout", "layout.stored_layout", "plan_format", "target"),
        *("runtime", "runtime.compiler", "runtime.device", "runtime.launch_handles", "runtime.library"),
        *("runtime.object_loader", "runtime.program", "runtime.scratch"),
    },
    "backends.reference": set(),
    "backends.cuda": set(),
}
MOST_MODULES = 113  # of ours, without packages, which hold a docstring: each costs a start some 0.2 ms
MOST_METHODS = 160  # of dataclasses that are written as text and compiled, 780 without `records.py`: 0.1 ms each


def test_a_step_from_the_cache_loads_nothing_that_makes_plans(tmp_path: Path) -> None:
    def loaded() -> tuple[str, list[str], int]:
        environment = {**os.environ, "WHOLESTEP_CACHE_DIR": str(tmp_path), "WHOLESTEP_THREADS": "1"}
        command = [sys.executable, "-c", FIRST_STEP]
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        cached, modules, methods = out.splitlines()
        return cached, modules.split(), int(methods)

    cached, modules, _ = loaded()
    assert cached == "False"
    assert set(FOR_NEW_PLANS) <= set(modules)
    cached, modules, methods = loaded()
    assert cached == "True"
    assert not set(FOR_NEW_PLANS + FOR_OTHER_STEPS) & set(modules)
    for folder, known in FOR_PLANS_THAT_ARE_THERE.items():
        home = f"wholestep.compiler.{folder}."
        assert {m.removeprefix(home) for m in modules if m.startswith(home)} <= known
    root = Path(ws.__file__).parents[1]
    files = [m for m in modules if m.startswith("wholestep") and not root.joinpath(*m.split(".")).is_dir()]
    assert len(files) <= MOST_MODULES
    assert 0 < methods <= MOST_METHODS
