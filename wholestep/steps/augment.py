"""Augmentations inside the training step: their random numbers, and the loss of mixed rows (MixUp, CutMix).

A counter-based generator (a 32-bit integer hash of seed, epoch, row and draw) computes each random number from the
number of the row, so that the order of batches, the number of workers and a resume do not change it.  `by_mode` leaves
augmentations out of evaluation and prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import prod
from typing import Any

from wholestep import losses
from wholestep.compiler.frontend.functions.primitives import arange
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import by_mode
from wholestep.compiler.frontend.shape.sequences import flip
from wholestep.compiler.frontend.step import ROW_NUMBERS
from wholestep.compiler.frontend.tensor import Tensor, ratio
from wholestep.compiler.frontend.trace import fail
from wholestep.data.augment import Augmentations, Mixing
from wholestep.errors import OptionError, UsageError

SEED = "augment.seed"
WORD = 0xFFFFFFFF
DRAWS = 64  # draws per augmentation whose numbers do not overlap


class RowDraws:
    """Uniform random numbers in [0, 1) for the rows of a batch; each augmentation has a separate stream."""

    def __init__(self, rows: Tensor, stream: int) -> None:
        self._rows, self._stream = rows, stream  # rows: int64, (batch,), row numbers hashed with seed and epoch

    def uniform(self, number: int, axes: int = 1) -> Tensor:
        """Random numbers (batch, 1, ...), one per row, with `axes` axes; another `number` gives independent ones."""
        key = self._stream * DRAWS + number
        return _fraction(_hash(self._rows ^ _hash_number(key))).reshape((-1, *(1,) * (axes - 1)))

    def each(self, shape: Sequence[int]) -> Tensor:
        """Random numbers (batch, *shape), one per element."""
        count = prod(shape)
        elements = arange(count).astype("int64").reshape((1, count))
        key = _hash_number(self._stream * DRAWS)
        rows = _hash(self._rows ^ key).reshape((-1, 1))
        return _fraction(_hash(rows ^ _hash(elements))).reshape((-1, *shape))


def _hash(x: Tensor) -> Tensor:
    """A bijective hash of 32-bit words, stored as int64: a change of one bit of x changes half of the result's bits."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & WORD
    return x ^ (x >> 16)


def _hash_number(x: int) -> int:
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & WORD
    return x ^ (x >> 16)


def _fraction(x: Tensor) -> Tensor:
    """The upper 24 bits of a word as a number in [0, 1)."""
    return (x >> 8).astype("float32") * 2.0**-24


def _row_keys(graph: Graph, rows: Tensor, seed: int) -> Tensor:
    """A 32-bit key for each row: a hash of the row's number, the seed and the epoch."""
    words = _hash(rows.astype("int64") & WORD)
    for scalar in (graph.scalar(SEED, float(seed & WORD)), graph.epoch):
        words = _hash(words ^ scalar.astype("int64"))
    return words


def augment_inputs(
    graph: Graph, tensors: Mapping[str, Tensor], augmentations: Augmentations
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The augmented inputs, and for mixed rows the weight (batch,) of each row's own target; None without mixing."""
    inputs, share = dict(tensors), None
    rows = _row_keys(graph, inputs[ROW_NUMBERS], augmentations.seed)
    stream = 0
    for name, chain in augmentations.chains.items():
        if name not in inputs or name == ROW_NUMBERS:
            fail(OptionError, f"augment: there is no input {name!r}; there are: {', '.join(_names(inputs))}.")
        changed = inputs[name]
        for augmentation in chain:
            draws, stream = RowDraws(rows, stream), stream + 1
            if isinstance(augmentation, Mixing):
                if share is not None:
                    fail(UsageError, "augment: rows are mixed once; give one of MixUp and CutMix.")
                changed, share = augmentation.mix(changed, draws)
            else:
                changed = augmentation.apply(changed, draws)
        inputs[name] = by_mode(changed, inputs[name])
    return inputs, share


def _names(inputs: Mapping[str, Tensor]) -> list[str]:
    return [name for name in inputs if name != ROW_NUMBERS]


def mixed_loss(loss: Any, share: Tensor) -> Callable[..., Tensor]:
    """The loss of mixed rows: `share` · loss for a row's own target + (1 - `share`) · loss for its partner's target.

    The partner of row i of a batch of n rows is row n - 1 - i.  For cross entropy this is the loss for the mixed
    distribution of classes.
    """
    function = losses.get(loss) if not isinstance(loss, Mapping) or "kind" in loss else loss
    if isinstance(function, losses.Loss) and function.options.get("reduction", "mean") != "mean":
        fail(OptionError, "MixUp and CutMix take a loss that is a mean over rows; leave its reduction= out.")
    if not isinstance(function, losses.Loss) or "reduction" not in signature(function.function).parameters:
        fail(
            UsageError,
            "MixUp and CutMix mix the losses of rows, so the loss is one by name, such as 'cross_entropy'; received "
            f"{loss!r}.",
        )

    def loss_of_both(prediction: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        plain = function(prediction, target, **({} if sample_weight is None else {"sample_weight": sample_weight}))
        each = losses.Loss(function.kind, **{**function.options, "reduction": "none"})
        own, other = each(prediction, target), each(prediction, flip(target, 0))
        part = share.astype(own.dtype).reshape((-1, *(1,) * (own.ndim - 1)))
        rows = part * own + (1.0 - part) * other
        if sample_weight is None:
            return by_mode(rows.mean(), plain)
        weight = sample_weight.reshape((*sample_weight.shape, *(1,) * (own.ndim - sample_weight.ndim)))
        return by_mode(ratio((rows * weight).sum(), (weight + rows * 0.0).sum()), plain)

    return loss_of_both
