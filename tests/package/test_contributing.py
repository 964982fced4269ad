"""CONTRIBUTING.md: it has a row for every kind of addition, and what no other table forces is forced here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import wholestep as ws

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "CONTRIBUTING.md"
ROW = re.compile(r"^\| \*\*([^*]+)\*\* \|([^|]+)\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
ADDITIONS = [
    *("activation", "layer", "loss", "optimizer", "schedule", "metric", "callback", "command", "op with gradient"),
    *("pass", "e-graph rule", "fusion", "ATen row", "ONNX row", "CPU kernel", "GPU kernel", "backend"),
]
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


def test_every_schedule_is_in_a_table() -> None:
    exported = {name: getattr(ws.schedules, name) for name in ws.schedules.__all__}
    ours = [
        name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, ws.schedules.Schedule)
    ]
    text = written_in("schedules") + (TESTS / "train" / "test_schedules_in_loops.py").read_text(encoding="utf-8")
    bases = {"Schedule", "Planned", "TorchSchedule"}
    lacking = [name for name in ours if name not in bases and not re.search(rf"\b{name}\b", text)]
    assert lacking == [], "add it to tests/schedules/cases.py"


def test_every_command_is_called_in_a_test() -> None:
    from wholestep.cli import app

    commands = [*(c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None)]
    commands += [group.name or "" for group in app.registered_groups]
    assert len(commands) >= 8
    assert [c for c in commands if not re.search(rf"""["']{c}["']""", written_in("."))] == [], (
        "add it to tests/user/test_cli.py"
    )


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
