"""Losses with custom gradients, split into micro-batches: equal to the large batch, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.ops.cases.custom_gradients import clipped, reversed_gradient
from tests.support.oracles import assert_close
from wholestep.errors import GraphError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(10, 6)).astype(np.float32)
W = RNG.normal(size=(6, 4)).astype(np.float32)


def fitted(loss: Any, accumulate: int, rows: slice = slice(None), **options: Any) -> tuple[float, np.ndarray[Any, Any]]:
    """The loss and the weights after one update with ten rows, or some of them."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 6)), g.parameter("w", (6, 4), init=W)
    g.set_outputs({"loss": loss(x, w)})
    session = ws.build_session(
        g, optimizer=ws.SGD(lr=0.1), batch_size=10 // accumulate, accumulate=accumulate, **options
    )
    return float(session.run(x=X[rows], shuffle=False)[0]), session.get("w")


def masked(w: Any) -> Any:
    return ws.custom_gradient(lambda w: (ws.sign(w), lambda g: ws.where(ws.abs(w) < 1.0, g, 0.0)))(w)


def terms(x: Any, w: Any) -> Any:
    """Rows, weights and a sum over the batch with gradients of their own."""
    total = reversed_gradient(ws.exp(x @ w).sum())
    return clipped(x @ w).mean() + (x @ masked(w)).mean() + (w * w).sum() + ws.ratio(total, 4 * x.shape[0])


def outer(x: Any, w: Any) -> Any:
    """A function of a mean: its slope comes in behind the gradients of the parts."""
    return ws.sqrt(((x @ masked(w)) ** 2).mean()) + (w * w).sum()


@pytest.mark.parametrize("loss", [terms, outer])
def test_micro_batches_equal_the_large_batch(loss: Any) -> None:
    whole, cut = fitted(loss, 1), fitted(loss, 2)
    assert_close(cut[0], whole[0])
    assert_close(cut[1], whole[1])


@ws.custom_gradient
def normalized(x: Any) -> Any:
    return x, lambda upstream: upstream / ws.sqrt((upstream * upstream).sum())


@ws.custom_gradient
def own_mean(x: Any) -> Any:
    return x.mean(), lambda upstream: upstream * ws.sign(x) / x.shape[0]


REFUSED = {
    "all rows at once": (lambda x, w: normalized(x @ w).mean(), "in which `mul` is not linear|`sqrt` is not linear"),
    "a part of a sum": (lambda x, w: (x @ clipped(w)).mean(), "in which `minimum` is not linear in a sum over"),
    "a constant": (
        lambda x, w: (x @ ws.custom_gradient(lambda w: (w, lambda g: w))(w)).mean(),
        "does not add up over the parts of a batch",
    ),
    "a mean": (lambda x, w: own_mean(x @ w), "for a mean over the batch; apply it to the sum, and divide afterwards"),
    "bent, under a root": (
        lambda x, w: ws.sqrt((clipped(x @ w) ** 2).mean()),
        "not linear in the upstream gradient, under a function of a mean",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(name: str) -> None:
    loss, text = REFUSED[name]
    with pytest.raises(GraphError, match=rf"since `custom_gradient` .*(?:{text})"):
        fitted(loss, 2)


def test_evaluation_of_many_rows_asks_for_no_gradient() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 6)), g.parameter("w", (6, 4), init=W)
    g.set_outputs({"loss": normalized(x @ w).mean()})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=4)
    assert_close(session.evaluate(x=X).loss, (X @ W).mean(), scale=1.0)


def test_the_mean_of_the_parts_may_be_accepted() -> None:
    parts = [fitted(REFUSED["a mean"][0], 1, rows=rows) for rows in (slice(0, 5), slice(5, 10))]
    loss, weights = fitted(REFUSED["a mean"][0], 2, per_micro_batch=True)
    assert_close(loss, np.mean([p[0] for p in parts]))
    assert_close(weights, np.mean([p[1] for p in parts], axis=0))
