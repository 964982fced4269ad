"""docs/catalogue.md: it is up to date, a row without an oracle is an error, and its rows are rendered for a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

import wholestep as ws
from docs import make_catalogue
from tests.train.families import FAMILIES
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.losses.table import LossEntry


def test_the_catalogue_is_up_to_date() -> None:
    page = make_catalogue.PAGE.read_text(encoding="utf-8")
    assert page == make_catalogue.render(), "run `python docs/make_catalogue.py`"


def test_a_row_without_an_oracle_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ws.losses.LOSSES, "new", LossEntry("regression.mse_loss", ()))
    with pytest.raises(LookupError, match=r"ws\.losses\.new has no oracle: add a case to the table of tests/losses"):
        make_catalogue.render()


def test_a_test_that_lacks_the_row_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_catalogue.OTHERS, "ws.metrics.BLEU", ("torch", "tests/metrics/test_detection.py"))
    with pytest.raises(LookupError, match=r"tests/metrics/test_detection\.py does not test ws\.metrics\.BLEU"):
        make_catalogue.render()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_planned_and_rendered_for_a_gpu(family: str) -> None:
    """The kernels' text; `tests/compiler/backends/cuda` runs such kernels on the host."""
    trainer, _ = replace(FAMILIES[family](), device="null:cuda/sm_90").trainer()
    assert "__global__" in render(trainer.session.plan).text
