"""One line per op: how it is written here, how in torch, and the arrays it is tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.ops.cases.custom_gradients import CUSTOM
from tests.ops.cases.loops import LOOPS
from tests.ops.cases.sequences import SEQUENCES
from tests.ops.cases.sequences import SYMBOLIC as SYMBOLIC_SEQUENCES
from tests.ops.cases.windows import WINDOWS
from tests.ops.unary import SIGNED, UNARY, Domain, Unary

Array = np.ndarray[Any, Any]

_RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    ours: Callable[..., ws.Tensor]
    theirs: Callable[..., torch.Tensor]
    arrays: tuple[Array, ...]
    slope: bool = True  # False: the result has no gradient, its value alone is compared


def normal(*shape: int) -> Array:
    return _RNG.normal(size=shape)


def positive(*shape: int) -> Array:
    return np.abs(normal(*shape)) + 0.2


def case(function: Any, *arrays: Array, torch_function: Any = None, slope: bool = True) -> Case:
    """`function` is applied to ours and to torch's tensors alike, unless torch's own is given."""
    return Case(function, torch_function or function, arrays, slope)


def named(name: str, *arrays: Array, slope: bool = True) -> Case:
    """An op that both packages have under one name."""
    return Case(getattr(ws, name), getattr(torch, name, None) or getattr(F, name), arrays, slope)


X, Y = normal(7, 19), normal(7, 19)
CUBE = normal(3, 5, 18)
ROW, COLUMN = normal(19), normal(7, 1)
TIES = np.array([[2.0, 7.0, 7.0], [1.0, 1.0, 1.0], [0.0, -3.0, 0.0]])
LABELS, LABELS3 = _RNG.integers(0, 19, 7).astype(np.int32), _RNG.integers(0, 18, (3, 5)).astype(np.int64)
INTS, INTS2 = _RNG.integers(-9, 9, (3, 20)).astype(np.int32), _RNG.integers(1, 5, (3, 20)).astype(np.int32)
BITS, BITS2 = normal(3, 20) > 0, normal(3, 20) > 0
ROWS, GRID = np.array([1, 6, 0, 6, 6], np.int32), np.array([[2, 0, 4], [4, 4, 1]], np.int32)
MASK = normal(7, 19) > 0


def _overwritten(start: int) -> Callable[..., torch.Tensor]:
    def write(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:start], rows[: len(x) - start], x[start + len(rows) :]])

    return write


def _scattered(axis: int, size: int) -> Callable[..., torch.Tensor]:
    def add(updates: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        shape = list(updates.shape)
        flat = updates.reshape(*shape[:axis], -1, *shape[axis + index.ndim :])
        zeros = torch.zeros(*shape[:axis], size, *shape[axis + index.ndim :], dtype=updates.dtype)
        return zeros.index_add(axis, index.reshape(-1).long(), flat)

    return add


def _class_axis_last(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.movedim(-1, 1), labels.long(), reduction="none")


def _argument(row: Unary) -> Array:
    if not row.slope:
        return 3 * X
    return positive(7, 19) if row.domain is Domain.POSITIVE else X


POINTWISE = {
    **{
        name: case(row.function(name), _argument(row), torch_function=row.theirs, slope=row.slope)
        for name, row in (UNARY | SIGNED).items()
    },
    "gelu": case(ws.gelu, X, torch_function=F.gelu),
    "gelu by tanh": case(
        lambda x: ws.gelu(x, "tanh"), X, torch_function=lambda x: F.gelu(x, approximate="tanh")
    ),
    "stop_gradient": case(
        lambda x: x * ws.stop_gradient(x * x), X, torch_function=lambda x: x * (x * x).detach()
    ),
    "cast up": case(
        lambda x: x.astype("float64").sin().astype(x.dtype), X, torch_function=lambda x: x.sin()
    ),
    "sign": named("sign", np.where(MASK, X, 0.0), slope=False),
    "cast to int": case(
        lambda x: x.astype("int32"), 3 * X, torch_function=lambda x: x.to(torch.int32), slope=False
    ),
    "cast of bool": case(lambda c: c.astype("float32"), BITS, torch_function=lambda c: c.float(), slope=False),
    "cast of int": case(lambda i: i.astype("float64"), INTS, torch_function=lambda i: i.double(), slope=False),
}  # fmt: skip

BINARY = {
    "add": case(lambda x, y: x + y, X, Y),
    "sub": case(lambda x, y: x - y, X, Y),
    "mul": case(lambda x, y: x * y, X, Y),
    "div": case(lambda x, y: x / y, X, positive(7, 19)),
    "maximum": named("maximum", X, Y),
    "minimum": named("minimum", X, Y),
    "pow": case(lambda x, y: x**y, positive(7, 19), Y),
    "power by a number": case(lambda x: x**2.5, positive(7, 19)),
    "powers with names": case(lambda x: x**2 + x**3 + x**0.5 + x**-1, positive(7, 19)),
    "number to a power": case(lambda x: 2.5**x, X),
    "number minus": case(lambda x: 3.0 - x, X),
    "number over": case(lambda x: 3.0 / x, positive(7, 19)),
    "add a row": case(lambda x, b: x + b, X, ROW),
    "add a column": case(lambda x, b: x + b, X, COLUMN),
    "row plus column": case(lambda a, b: a + b, ROW, COLUMN),
    "mul a row": case(lambda x, b: x * b, X, ROW),
    "mul a column": case(lambda x, b: x * b, X, COLUMN),
    "div by a column": case(lambda x, b: x / b, X, positive(7, 1)),
    "mul a scalar": case(lambda x, b: x * b, X, normal()),
    "mul the middle": case(lambda x, b: x * b, CUBE, normal(5, 1)),
    "maximum of a row": named("maximum", X, ROW),
    "where": case(ws.where, MASK, X, Y, torch_function=torch.where),
    "where, broadcast": case(ws.where, MASK, ROW, COLUMN, torch_function=torch.where),
    "mod": case(ws.mod, X, Y, torch_function=torch.remainder, slope=False),
    "less": case(lambda x, y: x < y, X, Y, slope=False),
    "less_equal": case(lambda x, y: x <= y, INTS, INTS2, slope=False),
    "equal": case(lambda x, y: x == y, INTS, INTS2, slope=False),
    "not_equal": case(lambda x, y: x != y, BITS, BITS2, slope=False),
    "greater": case(lambda x, y: (x > y) & (x >= y), X, Y, slope=False),
    "logical_and": case(lambda x, y: x & y, BITS, BITS2, slope=False),
    "logical_or": case(lambda x, y: x | y, BITS, BITS2, slope=False),
    "logical_not": case(lambda x: ~x, BITS, slope=False),
    "integers": case(lambda x, y: x * y - x + abs(y) - (-x), INTS, INTS2, slope=False),
    "floor_divide": case(lambda x, y: x // y, INTS, INTS2, slope=False),
    "bitwise": case(lambda x, y: (x & y) - 3 * (x | y) + (x ^ y), INTS, INTS2, slope=False),
    "shifts": case(lambda x, y: (x << y) - (x >> y), INTS, INTS2, slope=False),
    "mod of integers": case(lambda x, y: x % y, INTS, INTS2, slope=False),
}  # fmt: skip

REDUCE = {
    **{
        f"sum over {axes}": case(lambda x, a=axes: x.sum(a), CUBE)
        for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    },
    **{
        f"max over {axes}": case(lambda x, a=axes: x.max(a), CUBE, torch_function=lambda x, a=axes: x.amax(a))
        for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2))
    },
    **{f"mean over {axes}": case(lambda x, a=axes: x.mean(a), CUBE) for axes in ((0,), (1,), (2,), (0, 2))},
    "mean": case(lambda x: x.mean(), X),
    "mean, dims kept": case(
        lambda x: x - x.mean(-1, keepdims=True), X, torch_function=lambda x: x - x.mean(-1, keepdim=True)
    ),
    "min": case(lambda x: x.min(1), X, torch_function=lambda x: x.amin(1)),
    "max, ties": case(lambda x: x.max(1), TIES, torch_function=lambda x: x.amax(1)),
    "ratio": case(
        lambda x, y: ws.ratio(x.sum(), y.sum()), X, positive(4), torch_function=lambda x, y: x.sum() / y.sum()
    ),
    "long sum": case(lambda x: (x * x).sum(1), normal(3, 1000)),
    "tall sum": case(lambda x: (x * x).sum(0), normal(500, 3)),
    **{
        f"argmax over {axis}": case(lambda x, a=axis: x.argmax(a), CUBE, slope=False) for axis in (0, 1, 2, None)
    },
    "argmax, ties": case(lambda x: x.argmax(1), TIES, slope=False),
    "sum of integers": case(lambda x: x.sum(1), INTS, torch_function=lambda x: x.sum(1).int(), slope=False),
    "max of integers": case(lambda x: x.max(1), INTS, torch_function=lambda x: x.amax(1), slope=False),
}  # fmt: skip

MOVEMENT = {
    "reshape": case(lambda x: x.reshape(5, 54) * 2.0, CUBE),
    "permute": case(lambda x: x.permute(2, 0, 1) * 2.0, CUBE),
    "transposed": case(lambda x: x.T * 2.0, X),
    "expand": case(lambda x: x.expand(4, 7, 19) * 2.0, COLUMN),
    "slice": case(lambda x: x[1:, ::2, 3:17:5], CUBE),
    "slice of one": case(lambda x: x[1, :, -1], CUBE),
    "slice, new axes": case(lambda x: x[..., None, 2], CUBE),
    "overlapping slices": case(lambda x: x[:, :10] * x[:, 5:15], X),
    "pad": case(
        lambda x: ws.pad(x, [(1, 0), (0, 0), (2, 3)], 1.5), CUBE,
        torch_function=lambda x: F.pad(x, (2, 3, 0, 0, 1, 0), value=1.5),
    ),
    "concat": case(
        lambda x, y, z: ws.concat([x, y, z], 1), X, normal(7, 1), Y, torch_function=lambda *t: torch.cat(t, 1)
    ),
    "concat of rows": case(lambda x, y: ws.concat([x, y]), X, normal(2, 19), torch_function=lambda *t: torch.cat(t)),
    "stack": case(lambda x, y: ws.stack([x, y], 1), X, Y, torch_function=lambda x, y: torch.stack([x, y], 1)),
    "gather": case(lambda x, i: x[i], X, ROWS, torch_function=lambda x, i: x[i.long()]),
    "gather by a grid": case(
        lambda x, i: ws.gather(x, i, 1), CUBE, GRID, torch_function=lambda x, i: x[:, i.long()]
    ),
    "take of columns": case(
        lambda x, i: ws.take(x, i, 1), X, ROWS, torch_function=lambda x, i: x.index_select(1, i)
    ),
    "scatter_add": case(
        lambda u, i: ws.scatter_add(u, i, 7), normal(5, 18), ROWS, torch_function=_scattered(0, 7)
    ),
    "scatter_add by a grid": case(
        lambda u, i: ws.scatter_add(u, i, 6, 1), normal(3, 2, 3, 4), GRID, torch_function=_scattered(1, 6)
    ),
    "write_rows": case(lambda x, r: ws.write_rows(x, r, 2), X, normal(3, 19), torch_function=_overwritten(2)),
    "write_rows over the end": case(
        lambda x, r: ws.write_rows(x, r, 5), X, normal(4, 19), torch_function=_overwritten(5)
    ),
    "one_hot": case(
        lambda i: ws.one_hot(i, 7), ROWS, torch_function=lambda i: F.one_hot(i.long(), 7).float(), slope=False
    ),
}  # fmt: skip

CONTRACTION = {
    "matmul": case(lambda a, b: a @ b, normal(7, 19), normal(19, 33)),
    "matmul, one row": case(lambda a, b: a @ b, normal(1, 19), normal(19, 5)),
    "matmul, one column": case(lambda a, b: a @ b, normal(7, 19), normal(19, 1)),
    "matmul, inner one": case(lambda a, b: a @ b, normal(7, 1), normal(1, 17)),
    "matmul, deep": case(lambda a, b: a @ b, normal(5, 700), normal(700, 18)),
    "a.T @ b": case(lambda a, b: a.T @ b, normal(19, 7), normal(19, 33)),
    "a @ b.T": case(lambda a, b: a @ b.T, normal(7, 19), normal(33, 19)),
    "a.T @ b.T": case(lambda a, b: a.T @ b.T, normal(19, 7), normal(33, 19)),
    "gram": case(lambda a: a @ a.T, normal(7, 19)),
    "vector @ vector": case(lambda a, b: a @ b, normal(19), normal(19)),
    "vector @ matrix": case(lambda a, b: a @ b, normal(19), normal(19, 33)),
    "matrix @ vector": case(lambda a, b: a @ b, normal(7, 19), normal(19)),
    "vector @ stack": case(lambda a, b: a @ b, normal(5), normal(3, 5, 18)),
    "stack @ vector": case(lambda a, b: a @ b, normal(3, 5, 18), normal(18)),
    "stack @ matrix": case(lambda a, b: a @ b, normal(3, 5, 18), normal(18, 17)),
    "stack @ stack": case(lambda a, b: a @ b, normal(3, 5, 18), normal(3, 18, 4)),
    "stack @ stack.T": case(
        lambda a, b: a @ b.transpose(-1, -2), normal(2, 3, 5, 18), normal(2, 3, 17, 18)
    ),
    "stack.T @ stack": case(lambda a, b: a.transpose(1, 2) @ b, normal(3, 5, 18), normal(3, 5, 4)),
    "broadcast stacks": case(lambda a, b: a @ b, normal(2, 1, 5, 18), normal(3, 18, 4)),
    "matrix @ stack": case(lambda a, b: a @ b, normal(5, 18), normal(3, 18, 4)),
}  # fmt: skip

COMPOSITE = {
    **{f"softmax over {a}": case(lambda x, a=a: ws.softmax(x, a), CUBE, torch_function=lambda x, a=a: x.softmax(a))
       for a in (0, 1, 2)},
    **{f"log_softmax over {a}": case(lambda x, a=a: ws.log_softmax(x, a), CUBE,
       torch_function=lambda x, a=a: x.log_softmax(a)) for a in (0, 1, 2)},
    **{f"logsumexp over {a}": case(lambda x, a=a: ws.logsumexp(x, a), CUBE,
       torch_function=lambda x, a=a: x.logsumexp(a)) for a in (0, 1, 2)},
    "logsumexp, kept": case(lambda x: x - ws.logsumexp(x, 1, keepdims=True), X,
                            torch_function=lambda x: x - x.logsumexp(1, keepdim=True)),
    "cross_entropy": case(
        lambda x, i: ws.losses.cross_entropy(x, i, reduction="none"), X, LABELS, torch_function=_class_axis_last
    ),
    "cross_entropy, mean": case(
        ws.losses.cross_entropy, X, LABELS, torch_function=lambda x, i: F.cross_entropy(x, i.long())
    ),
    "cross_entropy of a cube": case(
        lambda x, i: ws.losses.cross_entropy(x, i, reduction="none"), CUBE, LABELS3, torch_function=_class_axis_last
    ),
    "cross_entropy, ignored rows": case(
        lambda x, i: ws.losses.cross_entropy(x, i, ignore_index=int(LABELS[0])), X, LABELS,
        torch_function=lambda x, i: F.cross_entropy(x, i.long(), ignore_index=int(LABELS[0])),
    ),
    "mse_loss": case(ws.losses.mse_loss, X, Y, torch_function=F.mse_loss),
    "mae_loss": case(ws.losses.mae_loss, X, Y, torch_function=F.l1_loss),
    "rmse_loss": case(ws.losses.rmse_loss, X, Y, torch_function=lambda x, y: F.mse_loss(x, y).sqrt()),
    "huber_loss": case(
        lambda x, y: ws.losses.huber_loss(x, y, 0.7), X, Y, torch_function=lambda x, y: F.huber_loss(x, y, delta=0.7)
    ),
    "smooth_l1_loss": case(
        lambda x, y: ws.losses.smooth_l1_loss(x, y, 0.7), X, Y,
        torch_function=lambda x, y: F.smooth_l1_loss(x, y, beta=0.7),
    ),
    "binary cross entropy": case(
        ws.losses.binary_cross_entropy_with_logits_loss, X, positive(7, 19),
        torch_function=F.binary_cross_entropy_with_logits,
    ),
    "cross entropy of probabilities": case(
        lambda x, t: ws.losses.cross_entropy_with_logits_loss(x, ws.softmax(t)), X, Y,
        torch_function=lambda x, t: F.cross_entropy(x, t.softmax(-1)),
    ),
    "kl divergence": case(
        lambda x, t: ws.losses.kl_div_with_logits_loss(x, ws.softmax(t)), X, Y,
        torch_function=lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    ),
}  # fmt: skip


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, mask: Any = 0.0
) -> torch.Tensor:
    """Written out: torch's own op has no second derivative here."""
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale) + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf)
    return scores.softmax(-1) @ v


def attention_case(*arrays: Array, causal: bool = False, scale: float | None = None) -> Case:
    return Case(
        lambda q, k, v: ws.attention(q, k, v, causal, scale), lambda q, k, v: _attended(q, k, v, causal, scale), arrays
    )


IMAGES = normal(3, 6, 4, 5)

LAYERS = {
    "layer_norm": case(ws.layer_norm, X, torch_function=lambda x: F.layer_norm(x, (19,))),
    "layer_norm, weight": case(ws.layer_norm, X, ROW, torch_function=lambda x, w: F.layer_norm(x, (19,), w)),
    "layer_norm, weight and bias": case(
        lambda x, w, b: ws.layer_norm(x, w, b, eps=0.1), CUBE, normal(18), normal(18),
        torch_function=lambda x, w, b: F.layer_norm(x, (18,), w, b, 0.1),
    ),
    "layer_norm, bias": case(
        lambda x, b: ws.layer_norm(x, bias=b), X, ROW, torch_function=lambda x, b: F.layer_norm(x, (19,)) + b
    ),
    "layer_norm of two axes": case(
        lambda x, w, b: ws.layer_norm(x, w, b, axis=(1, 2)), CUBE, normal(5, 18), normal(5, 18),
        torch_function=lambda x, w, b: F.layer_norm(x, (5, 18), w, b),
    ),
    "layer_norm of the middle": case(
        lambda x, w, b: ws.layer_norm(x, w, b, axis=1), CUBE, normal(5), normal(5),
        torch_function=lambda x, w, b: F.layer_norm(x.mT, (5,), w, b).mT,
    ),
    "layer_norm of one row": case(
        ws.layer_norm, ROW, ROW[::-1].copy(), torch_function=lambda x, w: F.layer_norm(x, (19,), w)
    ),
    "rms_norm": case(lambda x: ws.rms_norm(x, eps=1e-6), X, torch_function=lambda x: F.rms_norm(x, (19,), eps=1e-6)),
    "rms_norm, weight": case(
        lambda x, w: ws.rms_norm(x, w, eps=0.1), CUBE, normal(18),
        torch_function=lambda x, w: F.rms_norm(x, (18,), w, 0.1),
    ),
    "group_norm": case(lambda x: ws.group_norm(x, 2), IMAGES, torch_function=lambda x: F.group_norm(x, 2)),
    "group_norm, weight and bias": case(
        lambda x, w, b: ws.group_norm(x, 3, w, b), IMAGES, normal(6), normal(6),
        torch_function=lambda x, w, b: F.group_norm(x, 3, w, b),
    ),
    "group_norm, bias": case(
        lambda x, b: ws.group_norm(x, 3, bias=b), IMAGES, normal(6),
        torch_function=lambda x, b: F.group_norm(x, 3) + b[:, None, None],
    ),
    "batch_norm": case(
        ws.batch_norm, IMAGES, torch_function=lambda x: F.batch_norm(x, None, None, training=True)
    ),
    "batch_norm, weight and bias": case(
        lambda x, w, b: ws.batch_norm(x, w, b, eps=0.1), IMAGES, normal(6), normal(6),
        torch_function=lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=0.1),
    ),
    "batch_norm of rows, bias": case(
        lambda x, b: ws.batch_norm(x, bias=b), X, ROW,
        torch_function=lambda x, b: F.batch_norm(x, None, None, training=True) + b,
    ),
    "batch_norm of signals, weight": case(
        lambda x, w: ws.batch_norm(x, w), CUBE, normal(5),
        torch_function=lambda x, w: F.batch_norm(x, None, None, w, training=True),
    ),
    "attention": attention_case(normal(5, 4), normal(7, 4), normal(7, 3)),
    "attention, causal": attention_case(normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 4), causal=True),
    "attention, causal, more keys": attention_case(normal(2, 3, 17), normal(2, 20, 17), normal(2, 20, 3), causal=True),
    "attention, scale": attention_case(normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), scale=0.3),
    "attention, added mask": case(
        lambda q, k, v, m: ws.attention(q, k, v, mask=m, causal=True), *(normal(2, 3, 5, 4) for _ in range(3)),
        normal(3, 5, 5),
        torch_function=lambda q, k, v, m: _attended(q, k, v, True, None, m),
    ),
    "attention, mask": case(
        lambda q, k, v, m: ws.attention(q, k, v, mask=m), *(normal(2, 3, 5, 4) for _ in range(3)), np.tri(5) > 0,
        torch_function=lambda q, k, v, m: _attended(q, k, v, False, None, torch.where(m, 0.0, -torch.inf)),
    ),
    "attention, grouped heads": case(
        lambda q, k, v: ws.attention(q, k, v, causal=True), normal(2, 6, 5, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 3),
        torch_function=lambda q, k, v: _attended(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), True, None),
    ),
    "attention to itself": case(
        lambda x: ws.attention(x, x, x, causal=True), CUBE, torch_function=lambda x: _attended(x, x, x, True, None)
    ),
}  # fmt: skip


def _counted(x: ws.Tensor) -> ws.Tensor:
    return x * ws.arange("time").astype(x.dtype).reshape("time", 1) / ws.size("batch")


def _counted_by_torch(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(x.shape[1])[:, None] / x.shape[0]


# Of x with the shape (batch, time, 5): the same function of ours and of torch's tensors, unless there are two.
SYMBOLIC = {
    **{f"sum over {a}": (lambda x, a=a: x.sum(a),) for a in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2))},
    **{f"mean over {a}": (lambda x, a=a: x.mean(a),) for a in ((0,), (1,), (0, 1), (0, 1, 2))},
    **{f"max over {a}": (lambda x, a=a: x.max(a), lambda x, a=a: x.amax(a)) for a in ((0,), (1,), (0, 2))},
    **{f"softmax over {a}": (lambda x, a=a: ws.softmax(x, a), lambda x, a=a: x.softmax(a)) for a in (0, 1, 2)},
    "log_softmax": (lambda x: ws.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    "logsumexp": (lambda x: ws.logsumexp(x, 1), lambda x: x.logsumexp(1)),
    "reshape": (lambda x: x.reshape(-1, 5) * 2.0,),
    "permute": (lambda x: x.permute(1, 2, 0) * 2.0,),
    "all but the first": (lambda x: x[1:, 1:],),
    "all but the last": (lambda x: x[:-1, :-1],),
    "the first and the last": (lambda x: x[0] + x[-1],),
    "pad": (lambda x: ws.pad(x, [(0, 0), (1, 2), (0, 0)]), lambda x: F.pad(x, (0, 0, 1, 2))),
    "concat along the batch": (lambda x: ws.concat([x, x * x]), lambda x: torch.cat([x, x * x])),
    "concat along time": (lambda x: ws.concat([x, x * x], 1), lambda x: torch.cat([x, x * x], 1)),
    "rows @ rows.T": (lambda x: x.reshape(-1, 5) @ x.reshape(-1, 5).T,),
    "rows.T @ rows": (lambda x: x.reshape(-1, 5).T @ x.reshape(-1, 5),),
    "scores of attention": (lambda x: x @ x.transpose(1, 2),),
    "attention": (
        lambda x: ws.softmax(x @ x.transpose(1, 2)) @ x, lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x
    ),
    "causal attention": (
        lambda x: ws.attention(x, x * x, x, causal=True), lambda x: _attended(x, x * x, x, True, None),
    ),
    "layer_norm": (ws.layer_norm, lambda x: F.layer_norm(x, (5,))),
    "layer_norm over time": (lambda x: ws.layer_norm(x, axis=1), lambda x: F.layer_norm(x.mT, x.shape[1:2]).mT),
    "batch_norm": (ws.batch_norm, lambda x: F.batch_norm(x, None, None, training=True)),  # a channel has 5·batch values
    "rms_norm over both": (lambda x: ws.rms_norm(x, axis=(1, 2), eps=0.1),
                           lambda x: F.rms_norm(x, x.shape[1:], eps=0.1)),
    **SYMBOLIC_SEQUENCES,
    "broadcast over both": (lambda x: x * x.mean((0, 1)) + x.sum(2, keepdims=True),
                            lambda x: x * x.mean((0, 1)) + x.sum(2, keepdim=True)),
    "arange and size": (_counted, _counted_by_torch),
    "cross_entropy": (
        lambda x: ws.losses.cross_entropy(x, x.argmax(-1)),
        lambda x: F.cross_entropy(x.reshape(-1, 5), x.argmax(-1).reshape(-1)),
    ),
}  # fmt: skip

GROUPS = {
    "pointwise": POINTWISE,
    "binary": BINARY,
    "reduce": REDUCE,
    "movement": MOVEMENT,
    "contraction": CONTRACTION,
    "composite": COMPOSITE,
    "layers": LAYERS,
    "windows": {name: Case(*row) for name, row in WINDOWS.items()},
    "sequences": {name: Case(*row) for name, row in SEQUENCES.items()},
    "loops": {name: Case(*row) for name, row in LOOPS.items()},
    "custom gradients": {name: Case(*row) for name, row in CUSTOM.items()},
}
