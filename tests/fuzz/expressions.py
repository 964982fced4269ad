"""The operations of random expressions over floats."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F

import wholestep as ws
from tests.fuzz.programs import OpRow, Pool
from tests.ops import unary

Drawn = tuple[tuple[int, ...], dict[str, Any]] | None


def _within(function: Callable[[Any], Any], within: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(within(x))


UNARY = {
    **{
        name: (_within(row.function(name), row.within), _within(row.theirs, row.within))
        for name, row in (unary.UNARY | unary.SIGNED).items()
        if row.slope
    },
    "gelu": (ws.gelu, F.gelu),
    "square": (lambda x: x * x, lambda x: x * x),
    "cube": (lambda x: x**3, lambda x: x**3),
    "scale": (lambda x: 2.0 * x / 3.0 + 0.25, lambda x: 2.0 * x / 3.0 + 0.25),
}
BINARY = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: x - y, lambda x, y: x - y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "div": (lambda x, y: x / (1.0 + y * y), lambda x, y: x / (1.0 + y * y)),
    "pow": (lambda x, y: (0.5 + x * x) ** ws.tanh(y), lambda x, y: (0.5 + x * x) ** torch.tanh(y)),
    "cross_entropy_of_scores": (
        lambda x, y: ws.losses.binary_cross_entropy_with_logits_loss(x, ws.sigmoid(y), reduction="none"),
        lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y), reduction="none"),
    ),
    "maximum": (ws.maximum, torch.maximum),
    "minimum": (ws.minimum, torch.minimum),
    "where": (lambda x, y: ws.where(x > y, x * 2.0, y), lambda x, y: torch.where(x > y, x * 2.0, y)),
}


def one(rank: int = 0, most: int = 9):
    def draw(rng: Random, p: Pool) -> Drawn:
        i = p.a_float(rng, rank, most)
        return None if i is None else ((i,), {})

    return draw


def two(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng)
    return None if i is None else ((i, p.same_or_new(rng, i)), {})


def along(rank: int = 1):
    def draw(rng: Random, p: Pool) -> Drawn:
        i = p.a_float(rng, rank)
        return None if i is None else ((i,), {"axis": rng.randrange(len(p.shape(i)))})

    return draw


# -- movement ----------------------------------------------------------------------------------------------------


def draw_permute(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 2)
    if i is None:
        return None
    order = list(range(len(p.shape(i))))
    rng.shuffle(order)
    return (i,), {"order": order}


def draw_merge(rng: Random, p: Pool) -> Drawn:
    """Two axes as one, whatever they count: products of symbolic dimensions."""
    i = p.a_float(rng, 2)
    return None if i is None else ((i,), {"axis": rng.randrange(len(p.shape(i)) - 1)})


def merge(x: Any, axis: int) -> Any:
    return x.reshape((*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def draw_split(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1, 3)
    axes = [d for d, e in enumerate(p.shape(i)) if isinstance(e, int)] if i is not None else []
    if not axes:
        return None
    axis = rng.choice(axes)
    extent = p.shape(i)[axis]
    return (i,), {"axis": axis, "parts": rng.choice([k for k in range(1, extent + 1) if extent % k == 0])}


def split(x: Any, axis: int, parts: int) -> Any:
    return x.reshape((*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :]))


def draw_cut(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1)
    axes = [d for d, e in enumerate(p.shape(i)) if isinstance(e, int) and e > 1] if i is not None else []
    if not axes:
        return None
    axis = rng.choice(axes)
    return (i,), {"axis": axis, "start": rng.randrange(p.shape(i)[axis]), "step": rng.choice([1, 1, 2])}


def cut(x: Any, axis: int, start: int, step: int) -> Any:
    return x[(*[slice(None)] * axis, slice(start, None, step))]


def draw_pad(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1, 4)
    return None if i is None else ((i,), {"around": [[rng.randrange(3), rng.randrange(2)] for _ in p.shape(i)]})


def torch_pad(x: torch.Tensor, around: list[list[int]]) -> torch.Tensor:
    return F.pad(x, [n for pair in reversed(around) for n in pair])


def draw_concat(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1)
    if i is None:
        return None
    return (i, rng.choice(p.alike(i)), p.same_or_new(rng, i)), {"axis": rng.randrange(len(p.shape(i)))}


# -- products ----------------------------------------------------------------------------------------------------


def draw_linear(rng: Random, p: Pool) -> Drawn:
    """With a parameter on the last axis."""
    i = p.a_float(rng, 1)
    if i is None or not isinstance(p.shape(i)[-1], int):
        return None
    width = rng.choice([1, 2, 3, 17, 33])
    turned = rng.random() < 0.5
    shape = (width, p.shape(i)[-1]) if turned else (p.shape(i)[-1], width)
    return (i, p.leaf(shape, "parameter")), {"turned": turned}


def linear(x: Any, w: Any, turned: bool) -> Any:
    return x @ (w.T if turned else w) * 0.4


def draw_product(rng: Random, p: Pool) -> Drawn:
    """Of two values of the same shape, one of them transposed: symbolic rows and columns."""
    i = p.a_float(rng, 2)
    if i is None:
        return None
    return (i, rng.choice(p.alike(i))), {"first": rng.random() < 0.5}


def product(x: Any, y: Any, first: bool) -> Any:
    turned = (x if first else y).transpose(-1, -2)
    return (turned @ y if first else x @ turned) * 0.3


def draw_attention(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 2, 4)
    if i is None:
        return None
    return (i, rng.choice(p.alike(i)), rng.choice(p.alike(i))), {"causal": rng.random() < 0.4}


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return ws.attention(q, k, v, causal=causal, scale=0.4)


def torch_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = 0.4 * q @ k.transpose(-1, -2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ v


# -- windows -----------------------------------------------------------------------------------------------------


def draw_conv(rng: Random, p: Pool) -> Drawn:
    """Of an image in the pool, or of a new one with 1..47 channels a group."""
    images = [i for i in p.floats(4, 4) if all(isinstance(e, int) for e in p.shape(i)[1:])]
    groups = rng.choice([1, 1, 2, 3])
    if images and rng.random() < 0.6:
        i = rng.choice(images)
    else:
        channels = groups * rng.choice([1, 2, 3, 17, 18, 31, rng.randint(1, 47)])
        i = p.leaf((rng.choice(["batch", "time", 1, 2]), channels, rng.randint(1, 5), rng.randint(1, 5)))
    channels = p.shape(i)[1]
    groups = rng.choice([1, groups if channels % groups == 0 else 1, channels])
    kernel = [min(rng.randint(1, 3), p.shape(i)[2]), min(rng.randint(1, 3), p.shape(i)[3])]
    outputs = groups * (rng.choice([1, 2, 17, 18]) if groups < 4 else 1)
    weight = p.leaf((outputs, channels // groups, *kernel), "parameter")
    return (i, weight), {"groups": groups, "stride": rng.choice([1, 1, 2]), "padding": rng.choice([0, 1, 1])}


def conv(x: Any, w: Any, **options: Any) -> Any:
    return ws.conv2d(x, w, **options) * 0.3


def torch_conv(x: Any, w: Any, **options: Any) -> Any:
    return F.conv2d(x, w, **options) * 0.3


def draw_pool(rng: Random, p: Pool) -> Drawn:
    images = [i for i in p.floats(4, 4) if all(isinstance(e, int) for e in p.shape(i)[1:])]
    if not images:
        return None
    i = rng.choice(images)
    window = [min(rng.randint(1, 3), e) for e in p.shape(i)[2:]]
    return (i,), {"window": window, "stride": rng.choice([None, 1, 2]), "mean": rng.random() < 0.3}


def pool(x: Any, window: list[int], stride: int | None, mean: bool) -> Any:
    return (ws.avg_pool2d if mean else ws.max_pool2d)(x, tuple(window), stride)


def torch_pool(x: Any, window: list[int], stride: int | None, mean: bool) -> Any:
    return (F.avg_pool2d if mean else F.max_pool2d)(x, tuple(window), stride)


# -- norms, sequences, indices -----------------------------------------------------------------------------------


def torch_rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 0.1)


def torch_layer_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 0.1)


def draw_scan(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1, 4)
    return None if i is None else ((i,), {"reverse": rng.random() < 0.3})


def scan(x: Any, reverse: bool) -> Any:
    def cell(h: Any, now: Any) -> Any:
        h = ws.tanh(now + 0.5 * h)
        return h, h * now

    return ws.scan(cell, x[0] * 0.0, x, reverse=reverse)[1]


def torch_scan(x: torch.Tensor, reverse: bool) -> torch.Tensor:
    steps, h, out = list(x.unbind(0)), torch.zeros_like(x[0]), []
    for now in reversed(steps) if reverse else steps:
        h = torch.tanh(now + 0.5 * h)
        out.append(h * now)
    return torch.stack(out[::-1] if reverse else out)


def draw_lookup(rng: Random, p: Pool) -> Drawn:
    """Rows of a value whose first axis is a number, by indices."""
    tables = [i for i in p.floats(1, 3) if isinstance(p.shape(i)[0], int)]
    if not tables:
        return None
    i = rng.choice(tables)
    shape = rng.choice([("batch",), (3,), ("batch", "time"), ("time", 2)])
    return (i, p.leaf(shape, dtype="int32", below=p.shape(i)[0])), {}


def torch_cumsum(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cumsum(x, axis) * 0.5


OPS: dict[str, OpRow] = {
    **{name: OpRow(*both, one(), 1) for name, both in UNARY.items()},
    **{name: OpRow(*both, two, 2) for name, both in BINARY.items()},
    "sum": OpRow(lambda x, axis: x.sum(axis) * 0.5, lambda x, axis: x.sum(axis) * 0.5, along()),
    "mean": OpRow(lambda x, axis: x.mean(axis), lambda x, axis: x.mean(axis), along()),
    "max": OpRow(lambda x, axis: x.max(axis), lambda x, axis: x.amax(axis), along()),
    "min": OpRow(lambda x, axis: x.min(axis), lambda x, axis: x.amin(axis), along(), 1),
    "logsumexp": OpRow(ws.logsumexp, torch.logsumexp, along(), 1),
    "softmax": OpRow(ws.softmax, torch.softmax, along()),
    "log_softmax": OpRow(ws.log_softmax, torch.log_softmax, along(), 1),
    "cumsum": OpRow(lambda x, axis: ws.cumsum(x, axis) * 0.5, torch_cumsum, along()),
    "flip": OpRow(ws.flip, lambda x, axis: x.flip(axis), along(), 1),
    "sort": OpRow(ws.sort, lambda x, axis: x.sort(axis).values, along(), 1),
    "permute": OpRow(lambda x, order: x.permute(*order), lambda x, order: x.permute(*order), draw_permute, 6),
    "merge": OpRow(merge, merge, draw_merge, 4),
    "split": OpRow(split, split, draw_split, 4),
    "cut": OpRow(cut, cut, draw_cut, 2),
    "pad": OpRow(lambda x, around: ws.pad(x, [tuple(a) for a in around]), torch_pad, draw_pad, 1),
    "concat": OpRow(
        lambda *xs, axis: ws.concat(list(xs), axis), lambda *xs, axis: torch.cat(list(xs), axis), draw_concat, 2
    ),
    "linear": OpRow(linear, linear, draw_linear, 8),
    "product": OpRow(product, product, draw_product, 4),
    "attention": OpRow(attention, torch_attention, draw_attention, 4),
    "conv": OpRow(conv, torch_conv, draw_conv, 8),
    "pool": OpRow(pool, torch_pool, draw_pool, 6),
    "layer_norm": OpRow(lambda x: ws.layer_norm(x, eps=0.1), torch_layer_norm, one(1), 3),
    "rms_norm": OpRow(lambda x: ws.rms_norm(x, eps=0.1), torch_rms, one(1), 2),
    "scan": OpRow(scan, torch_scan, draw_scan, 3),
    "lookup": OpRow(lambda x, i: x[i], lambda x, i: x[torch.tensor(i).long()], draw_lookup, 3),
}  # fmt: skip
