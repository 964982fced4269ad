from __future__ import annotations

import pytest
from sessions import mlp
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_version() -> None:
    assert run("--version") == (0, f"wholestep {ws.__version__}\n")


def test_doctor_finds_a_working_installation() -> None:
    code, text = run("doctor")
    assert code == 0, text
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert rows["self-test"] == "ok"
    assert {"wholestep", "python", "numpy", "target", "threads", "compiler", "cache"} <= rows.keys()


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    code, text = run("doctor")
    assert code == 1
    assert "compiler    FAILED: the C compiler 'no-such-compiler' was not found" in text


def test_plan_show(tmp_path) -> None:
    plan, _ = ws.compile_training_graph(mlp(), batch_size=8)
    ws.save_plan(plan, mlp(), tmp_path / "mlp.plan")
    code, text = run("plan", "show", str(tmp_path / "mlp.plan"))
    assert code == 0
    assert "mlp.plan: batch=8" in text
    assert f"{plan.flops:,}" in text
    (tmp_path / "damaged").write_bytes(b"x")
    code, text = run("plan", "show", str(tmp_path / "damaged"))
    assert code == 1
    assert "not a plan file" in text
