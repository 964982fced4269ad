"""Control flow of torch: branches, loops and maps whose bodies are graphs stored in the op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder, Pair, is_live
from wholestep.interop.torch.aten.table import row

MOST_ROUNDS = 1000  # the most rounds of a loop that is unrolled


def _tensors(r: AtenRecorder, values: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(r.tensor(v) for v in values)


@row("cond")
def _cond(r: AtenRecorder, asked: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> list[Any]:
    """Compute both branches of a condition and select one: a step has no branches.

    A branch that is not taken has the gradient 0, but NaN where its own slope is not finite, as behind any `where`.
    """
    if not is_live(asked):
        return r.inside(then if bool(asked) else otherwise, operands)
    taken, other = r.inside(then, operands), r.inside(otherwise, operands)
    condition = r.tensor(asked)
    return [_select(r, condition.reshape(()), a, b) for a, b in zip(taken, other, strict=True)]


def _select(r: AtenRecorder, condition: Tensor, a: Any, b: Any) -> Any:
    if isinstance(a, Pair) or isinstance(b, Pair):
        r.refuse("chooses between complex numbers: choose between their real and imaginary parts")
    if not isinstance(a, Tensor | torch.Tensor) or not isinstance(b, Tensor | torch.Tensor):
        return a  # None, or a size; torch requires both branches to return the same size
    first, second = r.tensor(a), r.tensor(b)
    return ws.where(condition, first, second)


@row("scan")
def _scan(r: AtenRecorder, body: Any, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any] = ()) -> list[Tensor]:
    start = _tensors(r, init)

    def step(carry: tuple[Tensor, ...], slices: tuple[Tensor, ...]) -> tuple[Any, Any]:
        results = _tensors(r, r.inside(body, [*carry, *slices, *more]))
        return results[: len(start)], results[len(start) :]

    last, stacked = ws.scan(step, start, _tensors(r, xs))
    return [*last, *stacked]


@row("map_impl")
def _map(r: AtenRecorder, body: Any, xs: Sequence[Any], more: Sequence[Any] = ()) -> list[Tensor]:
    def step(_: Any, slices: tuple[Tensor, ...]) -> tuple[Any, Any]:
        return (), _tensors(r, r.inside(body, [*slices, *more]))

    return list(ws.scan(step, (), _tensors(r, xs))[1])


@row("associative_scan")
def _associative_scan(r: AtenRecorder, body: Any, xs: Sequence[Any], more: Sequence[Any] = ()) -> list[Tensor]:
    """A sequential scan from the first element on: for an associative function the order does not matter."""
    elements = _tensors(r, xs)

    def step(carry: tuple[Tensor, ...], slices: tuple[Tensor, ...]) -> tuple[Any, Any]:
        results = _tensors(r, r.inside(body, [*carry, *slices, *more]))
        return results, results

    _, rest = ws.scan(step, tuple(x[0] for x in elements), tuple(x[1:] for x in elements))
    return [ws.concat([x[:1], y], 0) for x, y in zip(elements, rest, strict=True)]


@row("while_loop", refuses="a number of rounds that depends on the data")
def _while(r: AtenRecorder, asks: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> list[Any]:
    values, rounds = list(carried), 0
    while _goes_on(r, asks, [*values, *more]):
        if rounds == MOST_ROUNDS:
            r.refuse(f"runs more than {MOST_ROUNDS} times, and is written out round by round: use scan")
        values, rounds = r.inside(body, [*values, *more]), rounds + 1
    return values


def _goes_on(r: AtenRecorder, asks: Any, operands: Sequence[Any]) -> bool:
    (going,) = r.inside(asks, operands)
    if is_live(going):
        r.refuse("runs as often as the data says; a step has a fixed number of rounds, by a loop of Python or scan")
    return bool(going)


@row("invoke_subgraph")
def _invoke(r: AtenRecorder, body: Any, name: Any, *operands: Any) -> list[Any]:
    return r.inside(body, operands)


@row("wrap_with_autocast")
def _autocast(
    r: AtenRecorder, device: Any, dtype: Any, enabled: Any, caches: Any, body: Any, *operands: Any
) -> list[Any]:
    if enabled:
        r.refuse("computes in another precision; leave autocast out, and say precision='bfloat16' to ws.fit")
    return r.inside(body, operands)
