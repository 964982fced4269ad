"""CONTRIBUTING.md: it has a row for every kind of addition, and what no other table forces is forced here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import wholestep as ws

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "CONTRIBUTING.md"
STABILITY = TESTS.parent / "docs" / "stability.md"
ROW = re.compile(r"^\| \*\*([^*]+)\*\* \|([^|]+)\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
ADDITIONS = [
    *("activation", "layer", "loss", "optimizer", "schedule", "metric", "callback", "command", "op with gradient"),
    *("pass", "e-graph rule", "fusion", "ATen row", "ONNX row", "CPU kernel", "GPU kernel", "backend"),
]
ACTIVATIONS = "wholestep.nn.layers.activations"
# Networks with jumps differ from PyTorch's by rounding; the others take a weight, halves or an axis.
NOT_FUZZED = {"Hardshrink", "Threshold", "PReLU", "GLU", "SwiGLU", "LogSoftmax", "Softmin"}
# ATen rows from before this test whose op no case names, mostly aliases.  The list may only shrink.
WITHOUT_CASE = TESTS / "golden" / "aten_rows_without_case.txt"


@cache
def written_in(*folders: str) -> str:
    """The text of the tests in folders, without this file."""
    files = [path for folder in folders for path in sorted((TESTS / folder).rglob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files if path != Path(__file__))


@pytest.mark.skipif(not PAGE.exists(), reason="the page is part of the repository, not of the package")
def test_every_kind_of_addition_has_a_row() -> None:
    assert [row[0] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))] == ADDITIONS


def test_every_layer_is_in_a_table() -> None:
    """By its name, as `nn.Linear` or "Linear"."""
    exported = {name: getattr(ws.nn, name) for name in ws.nn.__all__}
    ours = [name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, ws.nn.Module)]
    text = written_in("nn", "interop", "fuzz", "models", "train", "callbacks", "ops", "session", "user")
    assert [name for name in ours if not re.search(rf"""["'.]{name}\b""", text)] == [], (
        "add it to tests/nn/test_layers.py"
    )


def test_every_activation_is_fuzzed() -> None:
    """By its name, in a row of `ACTIVATIONS` or another table of tests/fuzz/layers."""
    text = written_in("fuzz/layers")
    classes = {name: getattr(ws.nn, name) for name in ws.nn.__all__}
    ours = {name for name, kind in classes.items() if getattr(kind, "__module__", "") == ACTIVATIONS}
    fuzzed = {name for name in ours if re.search(rf"ws\.nn\.{name}\b", text)}
    assert sorted(ours - fuzzed - NOT_FUZZED) == [], "add it to ACTIVATIONS of tests/fuzz/layers/kinds.py"
    assert sorted(NOT_FUZZED & fuzzed) == [], "these are fuzzed now: remove them from NOT_FUZZED"


def test_every_schedule_is_in_a_table() -> None:
    exported = {name: getattr(ws.schedules, name) for name in ws.schedules.__all__}
    ours = [
        name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, ws.schedules.Schedule)
    ]
    text = written_in("schedules") + (TESTS / "train" / "test_schedules_in_loops.py").read_text(encoding="utf-8")
    bases = {"Schedule", "Planned", "TorchSchedule"}
    lacking = [name for name in ours if name not in bases and not re.search(rf"\b{name}\b", text)]
    assert lacking == [], "add it to tests/schedules/cases.py"


def commands() -> list[tuple[str, ...]]:
    """Every command as it is typed: ("train",), ("plan", "show")."""
    from wholestep.cli import app

    def of(typer: Any) -> list[str]:
        return [c.name or c.callback.__name__ for c in typer.registered_commands]

    return [(name,) for name in of(app)] + [
        (str(g.name), c) for g in app.registered_groups for c in of(g.typer_instance)
    ]


def calls(text: str) -> Iterator[tuple[str, ...]]:
    """Strings that could be a command line: arguments of `run` or `command`, a list, or what follows the module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("run", "command"):
            items = node.args
        elif isinstance(node, ast.List):
            items = node.elts
        else:
            continue
        words = tuple(i.value if isinstance(i, ast.Constant) and isinstance(i.value, str) else "" for i in items)
        yield words[words.index("wholestep.cli") + 1 :] if "wholestep.cli" in words else words


def test_every_command_is_called_in_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path != Path(__file__)]
    called = {words[:n] for text in texts if "wholestep.cli" in text for words in calls(text) for n in (1, 2)}
    assert len(commands()) >= 10
    assert [" ".join(c) for c in commands() if c not in called] == [], (
        'call it in tests/user/test_cli.py: run("train", "small.py")'
    )


def test_a_command_is_called_where_it_is_typed() -> None:
    assert [*calls('run("plan", "show", path)')] == [("plan", "show", "")]
    assert [*calls('[sys.executable, "-m", "wholestep.cli", "launch", "-n"]')] == [("launch", "-n")]
    assert [*calls('config["version"], start("launch")')] == []


@pytest.mark.skipif(not STABILITY.exists(), reason="the page is part of the repository, not of the package")
def test_every_command_has_a_stability() -> None:
    lines = [line for line in STABILITY.read_text(encoding="utf-8").splitlines() if "`wholestep " in line]
    named = {word for line in lines for word in re.findall(r"`(?:wholestep )?(\w+)`", line)}
    assert sorted({c[0] for c in commands()} - named) == [], "add it to a row of docs/stability.md"


def test_every_aten_row_has_a_case(request: pytest.FixtureRequest) -> None:
    from importlib import import_module

    from wholestep.interop.torch.aten import table

    for family in table.FAMILIES:
        import_module(f"wholestep.interop.torch.aten.{family}")
    text = written_in("interop/aten", "interop/onnx")
    ops = {name.partition(".")[0] for name in table.ROWS}
    lacking = {op for op in ops if not re.search(rf"\b{re.escape(op.strip('_'))}_?\b", text)}
    if request.config.getoption("--update-golden"):
        WITHOUT_CASE.write_text("".join(f"{op}\n" for op in sorted(lacking)), encoding="utf-8")
    allowed = set(WITHOUT_CASE.read_text(encoding="utf-8").split())
    assert sorted(lacking - allowed) == [], "add a case to tests/interop/aten/cases.py"
    assert sorted(allowed - lacking) == [], f"these have cases now: remove them from {WITHOUT_CASE.name}"
