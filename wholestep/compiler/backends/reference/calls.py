"""Ops with a routine of their own: attention, and its gradients from the logarithms of its rows' sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backends.reference.values import Array, Values, accumulator
from wholestep.compiler.plan.model.bodies import Call

Operands = Mapping[str, Array]
GROUPED = ("q", "mask", "lse", "gradient", "out", "dq", "dmask")  # one for each head of queries that shares keys


def run_call(call: Call, values: Values) -> None:
    """A routine over all of its rows at once.  Every operand has an axis of heads that share keys behind the rows."""
    rows, dtype, operands = call.rows, accumulator(call.dtype), {}
    for item in call.operands:
        found = values.over(item.load, (*rows, *item.axes)).astype(dtype)
        operands[item.name] = found if item.name in GROUPED else np.expand_dims(found, len(rows))
    made = ROUTINES[call.routine](call, operands)
    for item in call.results:
        whole = made[item.name] if item.name in GROUPED else made[item.name].sum(axis=len(rows))
        values.put(item.load, (*rows, *item.axes), whole)


def operand(call: Call, x: Array) -> Array:
    """What is multiplied with an operand: of half operands it is rounded as well."""
    return x.astype(call.dtype.numpy).astype(x.dtype) if call.dtype.is_half else x


def scores(call: Call, operands: Operands) -> Array:
    """Of every query with every key; -inf of the keys that it may not see."""
    found = dict(call.numbers)["scale"] * (operands["q"] @ operands["k"].swapaxes(-1, -2))
    if "mask" in operands:
        found = found + operands["mask"]
    return np.where(np.tri(*found.shape[-2:]) > 0, found, -np.inf) if dict(call.extents)["causal"] else found


def attention(call: Call, operands: Operands) -> Operands:
    """A query that may look nowhere has weights of 0, and +inf as the logarithm of its sum."""
    found = scores(call, operands)
    most = found.max(axis=-1, keepdims=True, initial=-np.inf)
    most = np.where(most == -np.inf, 0.0, most)
    weights = np.exp(found - most)
    total = weights.sum(axis=-1, keepdims=True)
    lse = np.where(total == 0, np.inf, most + np.log(np.where(total == 0, 1.0, total)))
    return {"out": operand(call, weights / np.where(total == 0, 1.0, total)) @ operands["v"], "lse": lse[..., 0]}


def attention_grad(call: Call, operands: Operands) -> Operands:
    scale, upstream = dict(call.numbers)["scale"], operands["gradient"]
    weights = np.exp(scores(call, operands) - operands["lse"][..., None])
    slopes = upstream @ operands["v"].swapaxes(-1, -2)
    inner = weights * (slopes - (weights * slopes).sum(axis=-1, keepdims=True))
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
