"""What an optimizer refuses, and how it says so; the registry and rules of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.optim.table import ROWS
from wholestep.errors import DTypeError, OptionError, ShapeError, UnknownNameError, UsageError
from wholestep.optim.core.options import Range, range_of

KINDS = sorted({type(row.ours) for row in ROWS.values()}, key=lambda kind: kind.__name__)


def ranged(kind: type[ws.Optimizer]) -> list[tuple[str, Range, Any]]:
    made = kind()
    found = [(f.name, range_of(f, getattr(made, f.name)), getattr(made, f.name)) for f in fields(made)]
    return [(name, limits, value) for name, limits, value in found if limits is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_a_range_and_an_error_that_names_it(kind: type[ws.Optimizer]) -> None:
    options = ranged(kind)
    assert "lr" in [name for name, _, _ in options]
    for name, limits, value in options:
        for bad in (float("nan"), limits.low - 1.0, limits.below, limits.high + 1.0):
            given = (bad, *value[1:]) if limits.parts else int(bad) if limits.whole and bad == 0.0 else bad
            if limits.whole and not isinstance(given, int):
                continue
            place = f"{name}[0]" if limits.parts else name
            with pytest.raises(
                OptionError, match=rf"{kind.__name__}: {place.replace('[', '.').replace(']', '.')} must"
            ):
                kind(**{name: given})
        with pytest.raises(UsageError, match=rf"{kind.__name__}: {name}.* must be a (whole )?number; received 'x'"):
            kind(**{name: ("x", *value[1:]) if limits.parts else "x"})


@pytest.mark.parametrize("kind", KINDS)
def test_examples_run_and_habits_are_answered(kind: type[ws.Optimizer]) -> None:
    example = str(kind.__doc__).split("Example: `")[1].split("`")[0]
    assert isinstance(eval(example, {"ws": ws}), kind)  # noqa: S307
    with pytest.raises(UsageError, match=rf"ws\.{kind.__name__} takes no parameters"):
        kind([ws.Graph().parameter("w", ())])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: ws.SGD(lr=-0.1), OptionError, r"(?s)SGD: lr must be at least 0 and finite.*test_mistakes\.py"),
        (
            lambda: ws.Lion(betas=(0.9, 1.0)),
            OptionError,
            r"Lion: betas\[1\] must be at least 0 and below 1; received 1\.0",
        ),
        (lambda: ws.RMSprop(alpha=1.0), OptionError, "RMSprop: alpha must be at least 0 and below 1"),
        (lambda: ws.Adafactor(beta2_decay=0.5), OptionError, "beta2_decay must be at most 0; received 0.5"),
        (lambda: ws.Muon(ns_coefficients=(1.0, 2.0)), OptionError, "ns_coefficients is 3 numbers, e.g"),
        (lambda: ws.Muon(ns_steps=2.5), UsageError, "ns_steps must be an integer; received 2.5"),
        (
            lambda: ws.Muon(adjust_lr_fn="wide"),
            OptionError,
            "adjust_lr_fn must be one of original, match_rms_adamw, none",
        ),
        (lambda: ws.Muon().step([np.ones(3)], [np.ones(3)]), ShapeError, r"Muon moves matrices; 'param0' has 1 axes"),
    ],
)
def test_options_out_of_range(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_arrays_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    o, w = ws.SGD(), np.ones(3)
    good = np.ones(3)
    for params, grads, kind, text in (
        ([w], [good, good], UsageError, "each parameter needs one gradient"),
        ([w], [np.ones(2)], ShapeError, r"must be float64 of shape \(3,\); received float64 of shape \(2,\)"),
        ([w], [good.astype(np.float32)], ShapeError, r"must be float64 of shape \(3,\); received float32"),
        (
            [np.ones(3, np.int32)],
            [good],
            DTypeError,
            "an array of float32 or float64, changed in place; received int32",
        ),
        ([[1.0, 2.0]], [good], DTypeError, "changed in place; received list"),
        ("w", [good], UsageError, "params must be an array, a list or a dict of arrays; received str"),
    ):
        with pytest.raises(kind, match=text):
            o.step(params, grads)  # type: ignore[arg-type]
    fixed = np.ones(3)
    fixed.flags.writeable = False
    with pytest.raises(UsageError, match="the array is read-only; pass a copy"):
        o.step([fixed], [good])
    o.step([w], [good])
    with pytest.raises(ShapeError, match="this optimizer updates arrays of"):
        o.step([np.ones(4)], [np.ones(4)])
    np.testing.assert_array_equal(w, 0.99)
    for bad in (-1.0, float("nan"), "fast"):
        with pytest.raises(OptionError, match=r"optimizer\.lr must be"):
            o.set_lr(bad)  # type: ignore[arg-type]


def test_a_state_dict_of_another_optimizer_is_refused() -> None:
    adam, sgd = ws.Adam(), ws.SGD()
    for o in (adam, sgd):
        o.step([np.ones(3)], [np.ones(3)])
    with pytest.raises(UnknownNameError, match="the state dict does not fit this session"):
        adam.load_state_dict(sgd.state_dict())


def test_configs_that_mean_nothing() -> None:
    with pytest.raises(OptionError, match=r"there is no optimizer 'Sgd'; there are: .*Adam.*SGD"):
        ws.Optimizer.from_config({"kind": "Sgd"})
    with pytest.raises(OptionError, match="SGD has no option 'rate'; it has: name"):
        ws.Optimizer.from_config({"kind": "SGD", "rate": 1.0})
    with pytest.raises(UsageError, match="a dict with a 'kind'"):
        ws.Optimizer.from_config({"lr": 1.0})
    assert ws.Optimizer.from_config({"kind": "SGD", "lr": 0.1}) == ws.SGD(0.1)


def test_a_rule_of_ones_own() -> None:
    @dataclass(frozen=True)
    class SignDescent(ws.Optimizer):
        """w ← w - lr·sign(g)"""

        lr: float = 0.1

        def descend(self, graph: ws.Graph, params: Sequence[ws.Tensor], grads: Sequence[ws.Tensor]) -> list[ws.Tensor]:
            s = self.scalars(graph)
            return [w - s["lr"] * ws.sign(g) for w, g in zip(params, grads, strict=True)]

    optimizer = SignDescent(groups=[ws.Group("b", lr=0.5)])
    weights = {"a": np.zeros(2), "b": np.zeros(2)}
    optimizer.step(weights, {"a": np.array([3.0, -4.0]), "b": np.array([3.0, -4.0])})
    np.testing.assert_allclose(weights["a"], [-0.1, 0.1])
    np.testing.assert_allclose(weights["b"], [-0.5, 0.5])
    assert ws.Optimizer.from_config(optimizer.to_config()) == optimizer
    with pytest.raises(OptionError, match="SignDescent: lr must be finite; received inf"):
        SignDescent(lr=float("inf"))
