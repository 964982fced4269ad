"""Layers over axes: loops, attention, movement; each fitted to a shape, in our words and in torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch

import wholestep as ws
from tests.fuzz.layers import twins
from tests.fuzz.layers.layer import Made, Row, Shape, fixed, nothing, of_both, some_axis
from tests.fuzz.layers.twins import Only, TorchNormOfOne, TorchOnly

# -- sequences ---------------------------------------------------------------------------------------------------

RECURRENT = {
    "rnn": (ws.nn.RNN, torch.nn.RNN),
    "lstm": (ws.nn.LSTM, torch.nn.LSTM),
    "gru": (ws.nn.GRU, torch.nn.GRU),
}


def recurrent(shape: Shape, cell: str, hidden: int, layers: int, both: bool, batch_first: bool, last: bool, bias: bool):
    """All outputs, or in one direction the last state of the last layer."""
    if len(shape) != 3 or not fixed(shape, -1):
        return None
    ours, theirs, last = *RECURRENT[cell], last and not both
    options = {"num_layers": layers, "bidirectional": both, "batch_first": batch_first, "bias": bias}
    batch = shape[0] if batch_first else shape[1]
    out = (batch, hidden) if last else (*shape[:2], hidden * (2 if both else 1))
    pick = _last_state if last else _outputs
    width = shape[-1]
    return Made(Only(ours(width, hidden, **options), pick), TorchOnly(pick, theirs(width, hidden, **options)), out)


def _outputs(result: Any) -> Any:
    return result[0]


def _last_state(result: Any) -> Any:
    state = result[1]
    return (state[0] if isinstance(state, tuple) else state)[-1]


def draw_recurrent(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if len(shape) != 3:
        return None
    return {
        "cell": rng.choice(list(RECURRENT)),
        "hidden": rng.choice([1, 2, 3, 5, 17]),
        "layers": rng.choice([1, 1, 1, 2]),
        "both": rng.random() < 0.2,
        "batch_first": rng.random() < 0.6,
        "last": rng.random() < 0.3,
        "bias": rng.random() < 0.8,
    }


def scan(shape: Shape, hidden: int, reverse: bool, batch_first: bool) -> Made | None:
    """A cell of the user's own in a `ws.scan`."""
    if len(shape) != 3 or not fixed(shape, -1):
        return None
    options = (shape[-1], hidden, reverse, batch_first)
    return Made(twins.Cell(*options), twins.TorchCell(*options), (*shape[:2], hidden))


def draw_scan(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if len(shape) != 3:
        return None
    return {"hidden": rng.choice([1, 3, 5, 17]), "reverse": rng.random() < 0.3, "batch_first": rng.random() < 0.5}


def cumsum(shape: Shape, axis: int, reverse: bool) -> Made | None:
    if not 0 <= axis < len(shape):
        return None

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x.flip(axis), axis).flip(axis) if reverse else torch.cumsum(x, axis)

    return of_both(lambda x: ws.cumsum(x, axis, reverse) * 0.5, lambda x: theirs(x) * 0.5, shape)


def flip(shape: Shape, axis: int) -> Made | None:
    if not 0 <= axis < len(shape):
        return None
    return of_both(lambda x: ws.flip(x, axis), lambda x: x.flip(axis), shape)


# -- attention ---------------------------------------------------------------------------------------------------


def heads(shape: Shape, count: int, causal: bool) -> Made | None:
    if len(shape) != 3 or not fixed(shape, -1):
        return None
    width, count = shape[-1], count if shape[-1] % count == 0 else 1
    ours = ws.nn.MultiHeadAttention(width, count, causal=causal)
    theirs = torch.nn.MultiheadAttention(width, count, batch_first=True)
    itself = Only(ours, lambda result: result)
    return Made(itself, TorchOnly(_outputs, theirs, lambda x: (x, x, x, *_causal(x, causal))), shape)


def _causal(x: torch.Tensor, causal: bool) -> tuple[Any, ...]:
    """need_weights=False, and a mask where one is wanted: the arguments after q, k, v."""
    t = x.shape[1]
    mask = torch.triu(torch.full((t, t), -math.inf, dtype=x.dtype), 1) if causal else None
    return None, False, mask


def block(shape: Shape, count: int, hidden: int) -> Made | None:
    if len(shape) != 3 or not fixed(shape, -1):
        return None
    width, count = shape[-1], count if shape[-1] % count == 0 else 1
    theirs = torch.nn.TransformerEncoderLayer(width, count, hidden, 0.0, "gelu", batch_first=True, norm_first=True)
    if width == 1:
        theirs.norm1, theirs.norm2 = TorchNormOfOne(1), TorchNormOfOne(1)
    return Made(ws.nn.TransformerBlock(width, count, hidden), theirs, shape)


def attention(shape: Shape, causal: bool) -> Made | None:
    """Over itself, without parameters: three axes, or four."""
    if len(shape) not in (3, 4) or not fixed(shape, -1):
        return None
    return of_both(
        lambda x: ws.attention(x, x, x, causal=causal),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal),
        shape,
    )


def draw_heads(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"count": rng.choice([1, 2, 3, 4]), "causal": rng.random() < 0.4}


def draw_block(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"count": rng.choice([1, 2, 4]), "hidden": rng.choice([3, 8, 17])}


def positions(shape: Shape) -> Made | None:
    """A learned vector for each place, added."""
    if len(shape) < 2 or not fixed(shape, *range(1, len(shape))):
        return None
    return Made(twins.Positions(shape[1:]), twins.TorchPositions(shape[1:]), shape)


# -- movement ----------------------------------------------------------------------------------------------------


def permute(shape: Shape, order: list[int]) -> Made | None:
    if sorted(order) != list(range(len(shape))):
        return None
    return of_both(lambda x: x.permute(*order), lambda x: x.permute(*order), tuple(shape[d] for d in order))


def draw_permute(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if len(shape) < 2:
        return None
    order = list(range(len(shape)))
    if rng.random() < 0.4 and len(shape) > 2:
        order[-2:] = order[:-3:-1]
    else:
        rng.shuffle(order)
    return {"order": order}


def flatten(shape: Shape) -> Made | None:
    if len(shape) < 3 or not fixed(shape, *range(1, len(shape))):
        return None
    return Made(ws.nn.Flatten(), torch.nn.Flatten(), (shape[0], math.prod(shape[1:])))


def split(shape: Shape, axis: int, parts: int) -> Made | None:
    """An axis as two."""
    if len(shape) > 3 or not 0 < axis < len(shape) or not fixed(shape, axis) or shape[axis] % parts:
        return None

    def cut(x: Any) -> Any:
        return x.reshape((*x.shape[:axis], parts, shape[axis] // parts, *x.shape[axis + 1 :]))

    return of_both(cut, cut, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]))


def draw_split(rng: Random, shape: Shape) -> dict[str, Any] | None:
    axes = [d for d in range(1, len(shape)) if isinstance(shape[d], int)]
    if not axes or len(shape) > 3:
        return None
    axis = rng.choice(axes)
    return {"axis": axis, "parts": rng.choice([p for p in range(1, shape[axis] + 1) if shape[axis] % p == 0])}


def merge(shape: Shape, axis: int) -> Made | None:
    """Two axes as one, both of numbers."""
    if len(shape) < 3 or not 0 < axis < len(shape) - 1 or not fixed(shape, axis, axis + 1):
        return None

    def join(x: Any) -> Any:
        return x.reshape((*x.shape[:axis], shape[axis] * shape[axis + 1], *x.shape[axis + 2 :]))

    return of_both(join, join, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def cut(shape: Shape, axis: int, start: int, step: int) -> Made | None:
    """x[:, start::step] along an axis of numbers."""
    if not 0 <= axis < len(shape) or not fixed(shape, axis) or shape[axis] <= start:
        return None
    key = (*[slice(None)] * axis, slice(start, None, step))
    left = len(range(start, shape[axis], step))
    return of_both(lambda x: x[key], lambda x: x[key], (*shape[:axis], left, *shape[axis + 1 :]))


def draw_cut(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"axis": rng.randrange(len(shape)), "start": rng.choice([0, 1, 2]), "step": rng.choice([1, 1, 2])}


def one(shape: Shape, axis: int, place: int) -> Made | None:
    """x[:, place]: the first or last along an axis."""
    if not 0 < axis < len(shape) or len(shape) < 3:
        return None
    key = (*[slice(None)] * axis, place)
    return of_both(lambda x: x[key], lambda x: x[key], (*shape[:axis], *shape[axis + 1 :]))


def reduce(shape: Shape, axis: int, by: str) -> Made | None:
    if len(shape) < 3 or not 0 <= axis < len(shape):
        return None
    return of_both(*REDUCTIONS[by](axis), (*shape[:axis], *shape[axis + 1 :]))


REDUCTIONS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "mean": lambda d: (lambda x: x.mean(d), lambda x: x.mean(d)),
    "sum": lambda d: (lambda x: x.sum(d) * 0.3, lambda x: x.sum(d) * 0.3),
    "max": lambda d: (lambda x: x.max(d), lambda x: x.amax(d)),
    "logsumexp": lambda d: (lambda x: ws.logsumexp(x, d), lambda x: torch.logsumexp(x, d)),
}

ROWS: dict[str, Row] = {
    "recurrent": Row(draw_recurrent, recurrent, 6),
    "scan": Row(draw_scan, scan, 3),
    "cumsum": Row(lambda r, s: {**some_axis(r, s), "reverse": r.random() < 0.3}, cumsum, 1),
    "flip": Row(some_axis, flip, 1),
    "heads": Row(draw_heads, heads, 3),
    "block": Row(draw_block, block, 1),
    "attention": Row(lambda r, s: {"causal": r.random() < 0.4}, attention, 3),
    "positions": Row(nothing, positions, 1),
    "permute": Row(draw_permute, permute, 5),
    "flatten": Row(nothing, flatten, 2),
    "split": Row(draw_split, split, 3),
    "merge": Row(lambda r, s: {"axis": r.choice([1, 2])}, merge, 2),
    "cut": Row(draw_cut, cut, 1),
    "one": Row(lambda r, s: {"axis": r.choice([1, 2]), "place": r.choice([0, -1])}, one, 1),
    "reduce": Row(lambda r, s: {**some_axis(r, s), "by": r.choice(list(REDUCTIONS))}, reduce, 1),
}
