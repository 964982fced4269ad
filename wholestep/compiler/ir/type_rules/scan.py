"""`scan`: a loop whose body graph runs once per step of a sequence and passes carries from one step to the next.

Inputs are the initial carries, the sequences (one slice of the first axis per step), and the loop-invariant values.
The body maps (carries, slices, loop-invariant values) to (carries, outputs).  Results are one *trail* per carry, then
the stacked outputs.  A trail holds every value of a carry: `trail[t]` is the value before step t, `trail[t + 1]` the
value after it.  A reverse scan runs from the last step to the first: `trail[t + 1]` is the carry before step t, and
`trail[t]` after it.  In both directions step t reads slice t of each sequence and writes slice t of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.require import need
from wholestep.compiler.ir.types import Extent, TensorType, TupleType, Type, shape_text

if TYPE_CHECKING:
    from wholestep.compiler.ir.graph import IRGraph

Array = np.ndarray[Any, Any]


def trail_type(carry: TensorType, length: Extent) -> TensorType:
    """The type of a trail: the initial value of a carry and its value after each step."""
    return TensorType((length + 1, *carry.shape), carry.dtype)


def type_over_steps(step: TensorType, length: Extent) -> TensorType:
    """The type of an output, stacked over the steps."""
    return TensorType((length, *step.shape), step.dtype)


def scan(a: at.ScanAttrs, *xs: TensorType) -> Type:
    """The type rule."""
    carries, steps = xs[: a.carries], xs[a.carries : a.carries + a.sequences]
    need(
        len(xs) >= a.carries + a.sequences,
        f"scan: {a.carries} carries and {a.sequences} sequences need at least that many inputs; received {len(xs)}.",
    )
    for t in steps:
        need(
            t.rank >= 1 and t.shape[0] == a.length, f"scan: a sequence of {a.length} steps was expected; received {t}."
        )
    slices = tuple(TensorType(t.shape[1:], t.dtype) for t in steps)
    expected = tuple(i.type for i in a.graph.inputs)
    received = (*carries, *slices, *xs[a.carries + a.sequences :])
    need(
        received == expected,
        f"scan: the values {', '.join(map(str, received))} of a step do not fit the parameters "
        f"{', '.join(map(str, expected))} of its body.",
    )
    results = tuple(o.node.type for o in a.graph.outputs)
    need(
        len(results) >= a.carries,
        f"scan: a body with {a.carries} carries must return them all; it returns {len(results)} results.",
    )
    for i, (before, after) in enumerate(zip(carries, results, strict=False)):
        need(
            before == after,
            f"scan: carry {i} begins as {before} and is {after} after a step; its type must not change "
            f"(shape {shape_text(before.shape)}, {before.dtype}).",
        )
    trails = tuple(trail_type(t, a.length) for t in carries)
    return TupleType((*trails, *(type_over_steps(t, a.length) for t in results[a.carries :])))


def scan_value(
    evaluate: Callable[[IRGraph, Sequence[Array]], Sequence[Array]], length: int, a: at.ScanAttrs, xs: Sequence[Array]
) -> tuple[Array, ...]:
    """The reference value: runs the steps one after the other; `evaluate` runs the body."""
    carries, sequences = list(xs[: a.carries]), xs[a.carries : a.carries + a.sequences]
    invariants = xs[a.carries + a.sequences :]
    shapes = [(length + 1, *np.shape(c)) for c in carries]
    trails = [np.zeros(shape, np.asarray(c).dtype) for shape, c in zip(shapes, carries, strict=True)]
    stacks: list[list[Array]] = [[np.zeros(0)] * length for _ in a.graph.outputs[a.carries :]]
    for trail, c in zip(trails, carries, strict=True):
        trail[length if a.reverse else 0] = c
    for t in reversed(range(length)) if a.reverse else range(length):
        results = evaluate(a.graph, [*carries, *(s[t] for s in sequences), *invariants])
        carries = list(results[: a.carries])
        for trail, c in zip(trails, carries, strict=True):
            trail[t if a.reverse else t + 1] = c
        for stack, y in zip(stacks, results[a.carries :], strict=True):
            stack[t] = y
    return (*trails, *(np.stack(s) for s in stacks))
