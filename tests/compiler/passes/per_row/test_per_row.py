"""Losses, gradient norms and private gradients of single rows equal the values from explicit gradients, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from tests.compiler.passes.per_row.cases import CASES, Case, norm_of, row_by_row
from wholestep import nn
from wholestep.compiler.passes.per_row.contributions import RULES

CLIP, LARGEST, RECORDED = 0.7, 1e-9, ("loss", "gradient_norm")
COMPILED = (
    *("dense layers and a norm", "a convolution", "a tied embedding, attention, and masked targets"),
    *(
        "a convolution and a pool",
        "a table of positions",
        "a three-dimensional convolution",
        "a weight in factors",
        "layers without a rule",
    ),
)
CASES_TO_COMPILE = [name if name in COMPILED else pytest.param(name, marks=pytest.mark.long) for name in CASES]


@cache
def oracle(name: str) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    return row_by_row(CASES[name])


def share_of_rows(case: Case) -> np.ndarray:
    """The weight of each row in the mean: rows with more targets, or larger weights, have a larger one."""
    counted = np.ones(len(case.y)) if case.weights is None else case.weights
    if isinstance(case.loss, ws.losses.Loss):
        counted = (case.y >= 0).sum(1)
    return counted / counted.mean()


def check_values(name: str, device: str, dtype: str = "float64") -> None:
    """Losses and norms of rows are those of explicit gradients; a private step adds up clipped ones."""
    near: dict[str, Any] = {"rtol": LARGEST, "atol": LARGEST} if dtype == "float64" else {"rtol": 2e-4, "atol": 2e-6}
    case, (losses, gradients) = CASES[name], oracle(name)
    norms = np.array([norm_of(g) for g in gradients])
    result = case.session(device, dtype, per_row=["loss", "gradient_norm"]).step(case.arrays())
    np.testing.assert_allclose(result["row_loss"], losses, **near)
    np.testing.assert_allclose(result["row_gradient_norm"], norms * share_of_rows(case), **near)
    private = case.session(device, dtype, privacy=ws.Privacy(noise=0.0, clip=CLIP), optimizer=ws.SGD(lr=1.0))
    before = private.state_dict()
    private.step(case.arrays())
    factors = np.minimum(1.0, CLIP / norms)
    assert factors.min() < 1.0, "the clip has to matter"
    for parameter in gradients[0]:
        clipped = sum(c * g[parameter] for c, g in zip(factors, gradients, strict=True)) / len(factors)
        moved = before[parameter] - private.get(parameter)
        np.testing.assert_allclose(moved, clipped, **near, err_msg=parameter)


def float32_of_float64(device: str, per_row: Sequence[str]) -> ws.Session:
    """A layer whose weight is stored in float32 and used in float64."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter((6, 2), ws.init.normal(1.0))

        def forward(self, x: Any) -> Any:
            return ws.tanh(x @ self.weight.astype("float64"))

    return replace(CASES["numbers"], model=Wide, is_float64=True).session(device, per_row=per_row)


def loss_of_sums(device: str, per_row: Sequence[str]) -> ws.Session:
    """A loss of sums over the rows, which are joined, cut, subtracted and divided; it is linear in the rows."""

    def loss(output: Any, target: Any) -> Any:
        error = ((output - target) ** 2).sum(0)
        both = ws.concat([error, -3.0 * ws.abs(output).sum(0)[:1]])
        return (both.mean() - ws.stop_gradient(error).sum() / 8.0) / 5.0

    return replace(CASES["numbers"], loss=loss).session(device, per_row=per_row)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("build", [float32_of_float64, loss_of_sums])
def test_values_of_rows_of_casts_and_of_losses_of_sums(build: Any, device: str) -> None:
    """The values of a row are such that the loss is their mean: five times those of the row alone for a sum."""
    case, near = CASES["numbers"], 1e-6 if build is float32_of_float64 else LARGEST
    session = build(device, RECORDED)
    result = session.step(case.arrays())
    scale = 5 if build is loss_of_sums else 1
    assert result.loss == pytest.approx(result["row_loss"].mean(), rel=near)
    for i in range(5):
        row = case.arrays(slice(i, i + 1))
        gradients = {n: np.array(g, np.float64) for n, g in session.gradients(row).items()}
        assert result["row_gradient_norm"][i] == pytest.approx(scale * norm_of(gradients), rel=near)
        assert result["row_loss"][i] == pytest.approx(scale * session.step(row).loss, rel=near)


def test_every_rule_is_used_by_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set[str]()

    def watch(name: str, rule: Any) -> Any:
        def call(rows: Any, node: Any) -> Any:
            used.add(name)
            return rule(rows, node)

        return call

    for name, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, name, watch(name, rule))
    for case in CASES.values():
        case.session("null", per_row=RECORDED).close()
    for name in (float32_of_float64, loss_of_sums):
        name("null", RECORDED).close()
    assert set(RULES) - used == set()


@pytest.mark.parametrize("name", CASES)
def test_values_of_rows_are_those_of_explicit_gradients(name: str) -> None:
    check_values(name, "reference")


@pytest.mark.parametrize("name", CASES_TO_COMPILE)
def test_values_of_rows_on_a_cpu(name: str) -> None:
    check_values(name, "cpu")


@pytest.mark.parametrize("name", CASES_TO_COMPILE)
def test_values_of_rows_on_an_emulated_gpu(name: str) -> None:
    # Emulated attention in float64 needs aligned rows, which vocabularies of 11 words have not.
    dtype = "float32" if "attention" in name else "float64"
    with emulated_device():
        check_values(name, "emulated", dtype)


SPLIT = ("shared weights", "weights of rows", "a tied embedding, attention, and masked targets", "a GRU")
SPLIT_ON_DEVICES = [("reference", name) for name in SPLIT] + [("cpu", SPLIT[1]), ("emulated", SPLIT[1])]


@pytest.mark.parametrize(("device", "name"), SPLIT_ON_DEVICES)
def test_values_of_rows_of_a_step_in_micro_batches(device: str, name: str) -> None:
    """The values of 5 rows in micro-batches of 2, 2 and 1, and of 3 rows in the same program."""
    case, (losses, gradients) = CASES[name], oracle(name)
    norms = np.array([norm_of(g) for g in gradients]) * share_of_rows(case)
    with emulated_device():
        session = case.session(device, per_row=["loss", "gradient_norm"], batch_size=2, accumulate=3)
        for _ in range(2):
            result = session.step(case.arrays())
            np.testing.assert_allclose(result["row_loss"], losses, rtol=LARGEST, atol=LARGEST)
            np.testing.assert_allclose(result["row_gradient_norm"], norms, rtol=LARGEST, atol=LARGEST)
        few = session.step(case.arrays(slice(0, 3)))
    np.testing.assert_allclose(few["row_loss"], losses[:3], rtol=LARGEST, atol=LARGEST)
    assert any("products of norms" in note or "Gram" in note for note in session.report().notes)


UNCHANGED = ("a convolution", "a convolution and a pool", "a sequence, whose contribution is a Gram form")


@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_update_is_that_of_the_plain_step(name: str, accumulate: int) -> None:
    """Gradients may be sums of explicit rows, in another order of additions."""
    options: dict[str, Any] = {"optimizer": ws.SGD(lr=1.0), "batch_size": 6 // accumulate, "accumulate": accumulate}
    case = CASES[name]
    plain, measured = case.session("reference", **options), case.session("reference", per_row=RECORDED, **options)
    assert plain.step(case.arrays()).loss == pytest.approx(measured.step(case.arrays()).loss, rel=LARGEST)
    before, after = plain.state_dict(), measured.state_dict()
    for parameter in oracle(name)[1][0]:
        np.testing.assert_allclose(before[parameter], after[parameter], rtol=LARGEST, atol=1e-12)


def test_a_penalty_that_no_row_affects_is_left_out_and_never_clipped() -> None:
    case, (losses, gradients) = CASES["numbers"], oracle("numbers")
    penalized = replace(case, model=lambda: nn.Linear(6, 2, kernel_regularizer="l2"))
    result = penalized.session("reference", per_row=["loss", "gradient_norm"]).step(case.arrays())
    np.testing.assert_allclose(result["row_loss"], losses, rtol=LARGEST)
    np.testing.assert_allclose(result["row_gradient_norm"], [norm_of(g) for g in gradients], rtol=LARGEST)
    steps = {}
    for which in (case, penalized):
        private = which.session("reference", privacy=ws.Privacy(noise=0.0, clip=CLIP), optimizer=ws.SGD(lr=1.0))
        before = private.get("weight").copy()
        private.step(case.arrays())
        steps[which is penalized] = before - private.get("weight")
    np.testing.assert_allclose(steps[True] - steps[False], 2 * 0.01 * before, rtol=1e-9)


def test_the_report_says_how_norms_are_computed() -> None:
    measured = CASES["layers without a rule"].session("reference", per_row=["gradient_norm"])
    assert [note for note in measured.report().notes if "norms of rows" in note] == [
        "gradient norms of rows by explicit rows in a loop, as `conv2d_grad_input` has no rule: image",
        "gradient norms of rows by explicit rows in a loop, as `conv2d_grad_weight` has no rule: layer.weight",
        "gradient norms of rows by explicit rows: layer.bias, head.bias",
        "gradient norms of rows by products of norms: head.weight",
    ]
    private = CASES["shared weights"].session("reference", privacy=ws.Privacy(noise=0.0, clip=CLIP))
    assert "gradient norms of rows by Gram matrices: layer.weight" in private.report().notes
    assert not [n for n in CASES["numbers"].session("reference", per_row=["loss"]).report().notes if "of rows" in n]
    many = CASES["a tied embedding, attention, and masked targets"].session("reference", per_row=["gradient_norm"])
    assert "h.0.attn.c_attn.bias, h.0.attn.c_proj.weight, h.0.attn.c_proj.bias and 4 more" in str(many.report())


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"per_row": ["losses"]}, r"per_row=\['losses'\]: expected some of 'loss', 'gradient_norm'"),
        ({"per_row": ["loss"], "accumulate": 2, "shards": 2}, r"needs all rows of a micro-batch in one process"),
    ],
)
def test_what_is_not_supported_is_refused(options: dict[str, Any], pattern: str) -> None:
    with pytest.raises((ws.errors.OptionError, ws.errors.UsageError), match=pattern):
        CASES["numbers"].session("cpu", **options)


def test_a_loss_that_is_no_mean_over_rows_has_no_losses_of_rows() -> None:
    with pytest.raises(ws.errors.GraphError, match=r"a weighted sum of means or sums over the rows; this one ends in"):
        replace(CASES["numbers"], loss="rmse").session("reference", per_row=["loss"])
