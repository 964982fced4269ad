"""Attention and its gradients over complete arrays; the backward pass recomputes the weights from log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backends.reference.values import Array, Values, accumulator
from wholestep.compiler.plan.model.bodies import Call

Operands = Mapping[str, Array]
GROUPED = ("q", "mask", "lse", "gradient", "out", "dq", "dmask")  # operands with one array per head that shares keys


def run_call(call: Call, values: Values) -> None:
    """Run a routine over all of its rows at once.  After the rows, operands have an axis of heads that share keys."""
    rows, dtype, operands = call.rows, accumulator(call.dtype), {}
    for item in call.operands:
        value = values.over(item.load, (*rows, *item.axes)).astype(dtype)
        operands[item.name] = value if item.name in GROUPED else np.expand_dims(value, len(rows))
    results = ROUTINES[call.routine](call, operands)
    for item in call.results:
        result = results[item.name] if item.name in GROUPED else results[item.name].sum(axis=len(rows))
        values.put(item.load, (*rows, *item.axes), result)


def operand(call: Call, x: Array) -> Array:
    """A factor of a product: rounded to the operands' dtype if that is a half type."""
    return x.astype(call.dtype.numpy).astype(x.dtype) if call.dtype.is_half else x


def scores(call: Call, operands: Operands) -> Array:
    """The scores of every query with every key; -inf for keys that are masked out."""
    products = dict(call.numbers)["scale"] * (operands["q"] @ operands["k"].swapaxes(-1, -2))
    if "mask" in operands:
        products = products + operands["mask"]
    return np.where(np.tri(*products.shape[-2:]) > 0, products, -np.inf) if dict(call.extents)["causal"] else products


def attention(call: Call, operands: Operands) -> Operands:
    """A query without any visible key has weights of 0, and +inf as its log-sum-exp."""
    logits = scores(call, operands)
    row_max = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    row_max = np.where(row_max == -np.inf, 0.0, row_max)
    weights = np.exp(logits - row_max)
    total = weights.sum(axis=-1, keepdims=True)
    lse = np.where(total == 0, np.inf, row_max + np.log(np.where(total == 0, 1.0, total)))
    return {"out": operand(call, weights / np.where(total == 0, 1.0, total)) @ operands["v"], "lse": lse[..., 0]}


def attention_grad(call: Call, operands: Operands) -> Operands:
    scale, upstream = dict(call.numbers)["scale"], operands["gradient"]
    weights = np.exp(scores(call, operands) - operands["lse"][..., None])
    grad_weights = upstream @ operands["v"].swapaxes(-1, -2)
    inner = weights * (grad_weights - (weights * grad_weights).sum(axis=-1, keepdims=True))
    scaled = operand(call, scale * inner)
    return {
        "dq": scaled @ operands["k"],
        "dk": scaled.swapaxes(-1, -2) @ operands["q"],
        "dv": operand(call, weights).swapaxes(-1, -2) @ upstream,
        "dmask": inner,
    }


ROUTINES: Mapping[str, Callable[[Call, Operands], Operands]] = {
    "attention": attention,
    "attention_grad": attention_grad,
}
