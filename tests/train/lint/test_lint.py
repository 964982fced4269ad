"""The training linter: every rule on a run that violates it, and on a run that does not."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from wholestep import nn
from wholestep.cli import app
from wholestep.train.lint.lint import REFUSED, RULES, SHAPES

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 8)).astype("f4")
CLASS = rng.integers(0, 3, 60).astype("i4")
BINARY = rng.integers(0, 2, (60, 1)).astype("f4")
NUMBER = rng.standard_normal((60, 1)).astype("f4")
IMAGES = rng.standard_normal((20, 1, 4, 4)).astype("f4")


def mlp(*last: nn.Module, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs), *last)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.used(x)


def frozen_spare() -> nn.Module:
    model = Unused()
    model.freeze("spare.*")
    return model


def dead(bias: float) -> nn.Module:
    model = mlp()
    model.load_state_dict({**model.state_dict(), "0.bias": np.full(16, bias, "f4")})
    return model


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GlobalAvgPool2d(), nn.Linear(4, 3))


def classes(**settings: Any) -> dict[str, Any]:
    return {"model": mlp(), "data": (X, CLASS), "loss": "cross_entropy", **settings}


def numbers(**settings: Any) -> dict[str, Any]:
    return {"model": mlp(outputs=1), "data": (X, NUMBER), "loss": "mse", **settings}


def images(**settings: Any) -> dict[str, Any]:
    return {"model": conv(), "data": (IMAGES, CLASS[:20]), "loss": "cross_entropy", **settings}


Settings = Callable[[], dict[str, Any]]
BCE = {"model": mlp(outputs=1), "data": (X, BINARY), "loss": "bce"}
# code -> (a run with the mistake, the same run without it, a pattern of the text)
CASES: dict[str, tuple[Settings, Settings, str]] = {
    "WS100": (lambda: classes(data=(X, CLASS[:40])), classes, "rows"),
    "WS101": (lambda: classes(model=mlp(nn.Softmax())), classes, "leave the softmax out"),
    "WS102": (lambda: {**BCE, "model": mlp(nn.Sigmoid(), outputs=1)}, lambda: BCE, "leave the sigmoid out"),
    "WS103": (lambda: numbers(data=(X, NUMBER[:, 0])), numbers, "reshape"),
    "WS104": (lambda: classes(data=(X, CLASS + 1)), classes, "go up to 3"),
    "WS105": (lambda: classes(model=Unused()), lambda: classes(model=frozen_spare()), "'spare.weight'"),
    "WS106": (
        lambda: classes(model=mlp(nn.Softmax()), loss="nll"),
        lambda: classes(model=mlp(nn.LogSoftmax()), loss="nll"),
        "log_softmax in place of softmax",
    ),
    "WS201": (lambda: classes(model=mlp(nn.Dropout(0.1))), classes, "'output' is the result of a dropout"),
    "WS202": (lambda: images(batch_size=1), images, "has 1 batch norms"),
    "WS203": (lambda: classes(model=dead(-50.0)), lambda: classes(model=dead(0.1)), "16 of 16 units are 0"),
    "WS301": (
        lambda: classes(optimizer=ws.AdamW(decay_on=("*",))),
        lambda: classes(optimizer=ws.AdamW(decay_on=("*.weight",))),
        "2 vectors, the first is '0.bias'",
    ),
    "WS302": (
        lambda: classes(optimizer=ws.Adam(lr=0.1)),
        lambda: classes(optimizer=ws.Adam(lr=0.01)),
        "100 times the default of Adam",
    ),
    "WS303": (
        lambda: classes(schedule=ws.schedules.Cosine(1e-3, 1000, unit="step")),
        lambda: classes(schedule=ws.schedules.cosine()),
        "goes on for 1000 steps, the run has 2",
    ),
    "WS304": (lambda: numbers(metrics=["accuracy"]), lambda: numbers(metrics=["mae"]), "'accuracy' is a metric of"),
    "WS401": (lambda: classes(data=(np.rint(60 * X), CLASS)), classes, "and all integers"),
    "WS402": (
        lambda: classes(validation=(X[:5], CLASS[:5])),
        lambda: classes(data=(X[5:], CLASS[5:]), validation=(X[:5], CLASS[:5])),
        "5 of 5 validation rows",
    ),
    "WS403": (
        lambda: classes(data=(np.concatenate([X, X[:10] + 1e-4]), np.concatenate([CLASS, CLASS[:10]]))),
        classes,
        "10 of 70 rows",
    ),
}  # fmt: skip


def test_every_rule_has_a_case_a_reason_and_a_fix() -> None:
    assert CASES.keys() == RULES.keys()
    for rule in RULES.values():
        assert rule.title
        assert rule.reason.endswith(".")
        assert rule.fix


@pytest.mark.parametrize("code", CASES)
def test_a_rule_reports_its_mistake_and_no_other_run(code: str) -> None:
    wrong, right, pattern = CASES[code]
    report = ws.lint(**wrong())
    assert report.codes.count(code) >= 1, report
    assert any(pattern in f.text for f in report if f.code == code), report
    assert code not in ws.lint(**right()).codes
    if code not in (REFUSED, SHAPES):  # the run could not be traced further
        assert code not in ws.lint(**wrong(), silence=(code,)).codes


@pytest.mark.parametrize("settings", [classes, numbers, images, lambda: BCE])
def test_a_usual_run_has_no_findings(settings: Settings) -> None:
    report = ws.lint(**settings())
    assert (len(report), str(report)) == (0, "no findings")


def test_findings_name_the_users_line_and_explain_themselves() -> None:
    (finding,) = ws.lint(**CASES["WS101"][0]())
    assert "test_lint.py:" in finding.text
    assert str(finding).splitlines()[1:] == [f"  why: {finding.rule.reason}", f"  fix: {finding.rule.fix}"]


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ws.errors.OptionError, match=r"silence=\['WS999'\]: the linter has no such code"):
        ws.lint(**classes(), silence=("WS999",))


def test_a_fit_logs_the_quick_findings_unless_they_are_silenced(caplog: pytest.LogCaptureFixture) -> None:
    settings = {**CASES["WS302"][0](), "device": "reference", "progress": False}
    with caplog.at_level(logging.WARNING, "wholestep"):
        ws.fit(**settings)
    assert "WS302 a learning rate far outside" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "wholestep"):
        ws.fit(**settings, silence=("WS302",))
    assert caplog.text == ""


SCRIPT = """
import numpy as np, wholestep as ws
def build(rate: float = 1e-3):
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.ReLU(), ws.nn.Linear(16, 10))
    return ws.Experiment(model=model, data=(x, y), loss="cross_entropy", optimizer=ws.Adam(lr=rate))
"""


def test_the_command_prints_findings_and_exits_with_1(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    clean = CliRunner().invoke(app, ["lint", str(script)])
    assert (clean.exit_code, clean.stdout) == (0, "no findings\n")
    found = CliRunner().invoke(app, ["lint", str(script), "--set", "rate=0.5", "--json"])
    assert found.exit_code == 1
    assert [each["code"] for each in json.loads(found.stdout)] == ["WS302"]
    assert CliRunner().invoke(app, ["lint", str(script), "--set", "rate=0.5", "--silence", "WS302"]).exit_code == 0


def test_validation_on_the_training_rows_is_wanted_by_overfit_batches() -> None:
    run = classes(validation=(X[:5], CLASS[:5]))
    assert "WS402" in ws.lint(**run).codes
    assert "WS402" not in ws.lint(**run, overfit_batches=1).codes


def test_categories_agree_by_chance() -> None:
    categories = rng.integers(0, 3, (60, 8)).astype("f4")
    categories[30:] = categories[:30]
    assert "WS403" not in ws.lint(**classes(data=(categories, CLASS))).codes


def test_a_private_run_may_have_a_large_rate() -> None:
    run = classes(optimizer=ws.SGD(lr=1.0), batch_size=16)
    assert "WS302" in ws.lint(**run).codes
    assert "WS302" not in ws.lint(**run, privacy=ws.Privacy(noise=1.0, delta=1e-3, clip=1.0)).codes


def test_settings_that_a_run_refuses_are_a_finding() -> None:
    (finding,) = ws.lint(**classes(schedule=ws.schedules.cosine(warmup=100)))
    assert finding.code == REFUSED
    assert "a warm-up of 100 steps leaves nothing of a run of 2 steps" in finding.text


@pytest.mark.parametrize("seed", [None, 3])
def test_linting_does_not_change_the_run(seed: int | None) -> None:
    ws.manual_seed(0)
    plain, linted = mlp(), mlp()
    settings = {"data": (X, CLASS), "loss": "cross_entropy", "seed": seed}
    quiet = {"device": "reference", "progress": False}
    expected = ws.fit(plain, **settings, **quiet)["loss"]
    ws.manual_seed(0)
    assert len(ws.lint(linted, **settings)) == 0
    assert ws.fit(linted, **settings, **quiet)["loss"] == expected
    assert str(ws.lint(linted, **settings)) == "no findings"  # with weights
