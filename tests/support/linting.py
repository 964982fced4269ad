"""Applies the linter to every run of a program under test: examples and documents must not contain mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import wholestep as ws
from wholestep.compiler.frontend.step import Step
from wholestep.train.experiment import Experiment
from wholestep.train.lint.lint import lint_experiment
from wholestep.train.lint.rules import Finding


def lint_every_fit(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """The findings about every `ws.fit` of a module that trains from now on; documents show runs that are refused."""
    findings: list[Finding] = []
    fit = Experiment.fit

    def linted(self: Experiment, *, config: Mapping[str, Any] | None = None, **settings: Any) -> ws.TrainHistory:
        run = self.having(settings)
        report = () if isinstance(run.model, Step) else lint_experiment(run, run.silence)
        history = fit(self, config=config, **settings)
        findings.extend(report)
        return history

    monkeypatch.setattr(Experiment, "fit", linted)
    return findings
