"""Norms and attention as users call them: axes, what may be left out, refusals.  Numbers: tests/ops/table.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.support.oracles import assert_close
from tests.support.recording import value
from wholestep.errors import DTypeError, OptionError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4))


def ops_of(function: Callable[..., ws.Tensor]) -> list[str]:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 3, 4)), g.parameter("w", (4,))
    g.set_outputs([function(x, w)])
    return [n.op for n in g.to_ir().nodes if n.op not in ("input", "parameter")]


def test_a_layer_is_one_node() -> None:
    assert ops_of(lambda x, w: ws.layer_norm(x, w, w)) == ["layer_norm"]
    assert ops_of(lambda x, w: ws.rms_norm(x, w)) == ["rms_norm"]
    assert ops_of(lambda x, w: ws.group_norm(x, 3)) == ["group_norm"]
    assert ops_of(lambda x, w: ws.attention(x, x, x)) == ["attention"]


def test_axes_before_the_last_are_moved_there() -> None:
    first = F.layer_norm(torch.tensor(X).permute(1, 2, 0), (2,)).permute(2, 0, 1)
    assert_close(value(lambda x: ws.layer_norm(x, axis=0), X), first, "float64")
    outer = F.rms_norm(torch.tensor(X).permute(1, 0, 2), (2, 4), eps=0.1).permute(1, 0, 2)
    assert_close(value(lambda x: ws.rms_norm(x, axis=(0, -1), eps=0.1), X), outer, "float64")
    every = F.layer_norm(torch.tensor(X), (2, 3, 4))
    assert_close(value(lambda x: ws.layer_norm(x, axis=None), X), every, "float64")


def test_eps_of_rms_norm_is_the_dtypes_unless_given() -> None:
    x = X.astype(np.float32) * 1e-4
    assert_close(value(ws.rms_norm, x), F.rms_norm(torch.tensor(x), (4,)), "float32")


def test_numbers_and_arrays_may_be_weights() -> None:
    weight = np.arange(4.0)
    expected = F.layer_norm(torch.tensor(X), (4,), torch.tensor(weight))
    assert_close(value(lambda x: ws.layer_norm(x, weight), X), expected, "float64")


def test_scale_of_attention_is_one_over_the_root_of_the_width() -> None:
    expected = F.scaled_dot_product_attention(*[torch.tensor(X)] * 3, is_causal=True)
    assert_close(value(lambda x: ws.attention(x, x, x, causal=True), X), expected, "float64")


REFUSED = {
    "weight of another shape": (
        lambda x: ws.layer_norm(x, np.ones(3)), ShapeError,
        r"layer_norm: the weight must have the shape of the normalised axes, \(4,\) of \(2, 3, 4\); received \(3,\)",
    ),
    "weight that is a number": (lambda x: ws.layer_norm(x, 2.0), ShapeError, r"\(4,\) of .* received \(\)"),
    "bias alone, of another shape": (lambda x: ws.layer_norm(x, bias=np.ones(3)), ShapeError, "bias must have the"),
    "weight of another dtype": (
        lambda x: ws.rms_norm(x, np.ones(4, np.float32)), DTypeError,
        r"rms_norm received float64\[2, 3, 4\] and float32\[4\]",
    ),
    "no axis": (lambda x: ws.layer_norm(x, axis=()), ShapeError, "layer_norm needs an axis to normalise over"),
    "axis outside": (lambda x: ws.layer_norm(x, axis=3), ShapeError, "axis 3 does not exist"),
    "negative eps": (lambda x: ws.rms_norm(x, eps=-1.0), OptionError, "rms_norm: eps must not be negative"),
    "groups": (lambda x: ws.group_norm(x, 2), ShapeError, r"3 channels of \(2, 3, 4\) do not divide into 2"),
    "rows of integers": (lambda x: ws.layer_norm(x.astype("int32")), DTypeError, "layer_norm needs a float tensor"),
    "keys of another width": (
        lambda x: ws.attention(x, x[..., :2], x), ShapeError, "last axes of equal length, not 4 and 2",
    ),
    "heads that differ": (
        lambda x: ws.attention(x.permute(1, 0, 2), x, x), ShapeError,
        r"query heads \(3\) must be a multiple",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_the_reason(what: str) -> None:
    function, error, text = REFUSED[what]
    with pytest.raises(error, match=f"{text}(?s:.*)at .*test_layers.py"):
        value(function, X)


def test_a_width_known_at_run_time_only_needs_a_scale() -> None:
    q = ws.Graph().input("q", (3, "width"))
    with pytest.raises(ShapeError, match="the width width of the queries is symbolic; pass scale="):
        ws.attention(q, q, q)
    assert ws.attention(q, q, q, scale=0.5).shape == q.shape
