"""session.explain and session.optimization: what the e-graph did, told to people and to programs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import wholestep as ws
from wholestep.compiler.passes.egraph.report import EGraphReport
from wholestep.compiler.spans import parse_report
from wholestep.errors import UnknownNameError, UsageError


def gelu_by_hand(x: ws.Tensor) -> ws.Tensor:
    return 0.5 * x * (1 + ws.erf(x / 2**0.5))  # the line that stories end at


def network() -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 6)), g.input("labels", ("batch",), dtype="int32")
    hidden = gelu_by_hand(x @ g.parameter("w0", (6, 8)) + g.parameter("b0", (8,)))
    g.set_outputs({"loss": ws.losses.cross_entropy(hidden @ g.parameter("w1", (8, 5)), labels), "hidden": hidden})
    return g


def session(folder: Path, **options: object) -> ws.Session:
    chosen = ws.CompileOptions(egraph=True, cache_dir=str(folder), **options)  # type: ignore[arg-type]
    return ws.build_session(network(), optimizer=ws.Adam(), batch_size=8, device="null", options=chosen)


@pytest.mark.parametrize("name", ["w0.grad", "w1.grad", "loss", "hidden", "w0", "w0.adam.m"])
def test_a_tensor_is_explained_down_to_the_users_line(name: str, tmp_path: Path) -> None:
    told = session(tmp_path).explain(name)
    text = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, t in enumerate(text) if "stories end at" in t)
    assert "name-gelu" in told.rules
    assert told.exactness == "reassociating"
    assert f"test_explain.py:{line}" in str(told)
    assert "name-gelu" in str(told)
    assert "[reassociating]" in str(told)
    assert "gelu(x, 0)" in str(told)


def test_a_gradient_names_the_operations_it_was_derived_through(tmp_path: Path) -> None:
    """The README's example: nothing is rewritten in a perceptron, and its gradient still has a derivation."""
    model = ws.nn.Sequential(ws.nn.Linear(64, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))
    built = ws.build_session(
        model,
        inputs=ws.Spec(("batch", 64)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        batch_size=8,
        device="null",
        options=ws.CompileOptions(cache_dir=str(tmp_path)),
    )
    told = built.explain("0.weight.grad")
    operations = [rule.partition(" at ")[0] for rule in told.gradient_rules]
    assert operations[-6:] == [
        "cross_entropy in (loss)",
        "add in 2",
        "matmul in 2",
        "relu in 1",
        "add in 0",
        "matmul in 0",
    ]
    assert built.explain("2.bias.grad").gradient_rules[-2].startswith("add in 2 at ")  # before the bias is expanded
    assert "gradient rules of 8 operations" in str(told)
    assert "whole step: no rewrite was applied" in str(told)
    assert built.explain("loss").gradient_rules == ()


def test_an_unknown_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"nothing named 'w9.grad' to explain; there are: 'loss', .*'w0.grad'"):
        session(tmp_path).explain("w9.grad")


def test_without_the_e_graph_there_is_no_story(tmp_path: Path) -> None:
    options = ws.CompileOptions(egraph=False, cache_dir=str(tmp_path))
    plain = ws.build_session(network(), batch_size=8, device="null", options=options)
    assert plain.explain("loss").stages == ()
    alone = ws.Session(plain.plan, device="null", options=options)
    with pytest.raises(UsageError, match="built from a plan alone and cannot compile an explanation"):
        alone.explain("loss")


def test_the_report_has_rules_integers_times_and_the_class(tmp_path: Path) -> None:
    report = session(tmp_path).optimization()
    assert report.exactness == "reassociating"
    assert report.egraph[0].applied == {"name-gelu": 1}
    assert report.before is not None
    assert report.after is not None
    for name in ("kernels", "flops", "bytes_moved", "peak_bytes"):
        assert 0 < getattr(report.after, name) <= getattr(report.before, name)
    assert report.after.flops < report.before.flops
    text = str(report)
    assert f"{report.before.flops:,}" in text
    assert f"{report.after.bytes_moved:,}" in text
    for part in ("encode", "saturate", "extract", "before autodiff", "whole step"):
        assert part in text


def test_integers_before_are_planned_only_when_asked_for(tmp_path: Path) -> None:
    _, report = ws.compile_training_graph(network(), batch_size=8, options=ws.CompileOptions(egraph=True))
    assert report.after is not None
    assert report.before is None


def test_a_report_is_data(tmp_path: Path) -> None:
    report = dataclasses.replace(session(tmp_path).optimization(), spans=())
    assert parse_report(report.to_json()) == report
    assert json.loads(report.to_json())["egraph"][0]["applied"] == {"name-gelu": 1}


WARM = """
import sys
import tests.session.test_explain as t
report = t.session(sys.argv[1]).optimization()
assert report.cached
assert not [m for m in sys.modules if m.endswith(("egraph.saturate", "egraph.optimize", "compiler.pipeline"))]
print(report.to_json())
"""


def test_a_warm_start_still_shows_it(tmp_path: Path) -> None:
    cold = session(tmp_path).optimization()
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", WARM, str(tmp_path)], capture_output=True, text=True, cwd=root, check=False
    )
    assert run.returncode == 0, run.stderr
    warm = parse_report(run.stdout)
    assert warm == dataclasses.replace(cold, spans=(), cached=True)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (EGraphReport("bitwise", 9, 9, failure="it died"), "is unchanged: it died"),
        (EGraphReport("bitwise", 9, 9, rounds=3, stopped="rounds"), "budget: 3 rounds were not enough"),
        (EGraphReport("bitwise", 9, 9, paused={"scale-scale": 7}), "disabled by round 7: scale-scale"),
        (EGraphReport("bitwise", 9, 9, skipped="no rule can match"), "nothing to do: no rule can match"),
        (EGraphReport("bitwise", 90, 80, entered=30), "of 30 distinct nodes"),
    ],
)
def test_what_happened_is_said(report: EGraphReport, text: str) -> None:
    assert text in str(report)
