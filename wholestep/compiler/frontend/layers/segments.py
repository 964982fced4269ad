"""Segments of packed rows: several sequences in one row of fixed length, which no layer may mix.

A packed row is described by the offsets of its sequences, (batch, sequences + 1), the format of variable-length
attention kernels.  While a model is recorded on packed rows, `packed_rows` makes them known to the layers that relate
positions of a row: attention masks pairs of different segments (arXiv:2107.02027), recurrent layers reset their state,
convolutions along time mask their taps, and `positions` counts from the first element of each segment.  Each of them
registers its result in `respected`, so that `steps/segment_check.py` can refuse all other operations along a row.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from contextvars import ContextVar

from wholestep.compiler.frontend.functions.primitives import arange, matmul
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import bind_value, fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Extent, boolean, shape_text
from wholestep.errors import ShapeError

__all__ = ["positions"]

OFFSETS = "sequence_offsets"  # the input of packed rows that says where their sequences begin and end
POOLS = ("mean", "sum", "max", "first", "last")


class PackedSegments:
    """The sequences of the packed rows that are being recorded."""

    def __init__(self, offsets: Tensor, time: Extent) -> None:
        self.batch, self.time = offsets.shape[0], time
        count = offsets.shape[1] - 1
        self.respected: dict[Node, int | None] = {}  # results that respect segments -> their time axis
        self.starts, self.ends = (part.reshape((self.batch, count, 1)) for part in (offsets[:, :-1], offsets[:, 1:]))
        self._is_empty = self.starts == self.ends
        steps = arange(time).reshape((1, 1, time))
        is_after = steps >= self.ends  # (batch, sequences, time)
        ids = is_after.astype("int32").sum(1)  # padding has the number after the last sequence
        passed = where(is_after, self.ends - self.starts, 0).sum(1)
        counted = where(ids < count, arange(time).reshape((1, time)) - passed, 0)
        is_last = (steps + 1 == self.ends).astype("int32").sum(1) > 0
        self.members = ~is_after & (steps >= self.starts)
        # (batch, time): the number of the segment, the position in it, and whether a position begins or ends one
        self.ids, self.positions = self._respects(ids, 1), self._respects(counted, 1)
        self.begins, self.ends_here = self._respects(counted == 0, 1), self._respects(is_last, 1)

    def _respects(self, x: Tensor, axis: int | None) -> Tensor:
        self.respected[x.node] = axis
        return x

    # -- attention -----------------------------------------------------------------------------------------------

    def attention_mask(self, q: Tensor, k: Tensor, mask: Operand | None) -> Tensor:
        """A mask (batch, 1, ..., time, time) of pairs in one segment, combined with the mask of the call."""
        for what, x in (("queries", q), ("keys", k)):
            if x.ndim < 3 or x.shape[0] != self.batch or x.shape[-2] != self.time:
                fail(
                    ShapeError,
                    f"attention over packed rows takes {what} (batch, ..., {self.time}, width) of one row each, so "
                    f"that no query sees another sequence; received {shape_text(x.shape)}. Keep the batch as the first "
                    "axis; attention to a memory of another length needs rows of one sequence.",
                )
        inner = (1,) * (q.ndim - 3)
        same = self.ids.reshape((self.batch, *inner, self.time, 1)) == self.ids.reshape(
            (self.batch, *inner, 1, self.time)
        )
        if mask is None:
            return same
        own = as_tensor(mask)
        return where(same, own, False) if own.dtype == boolean else where(same, own, -math.inf)

    # -- recurrent layers ----------------------------------------------------------------------------------------

    def state_factors(self, steps: Tensor, reverse: bool) -> Tensor:
        """(time, batch, 1): 0 where a segment begins in the direction of the loop, and the state is reset; else 1."""
        if steps.shape[:2] != (self.time, self.batch):
            fail(
                ShapeError,
                f"a recurrent layer over packed rows takes ({self.time}, batch, features), or batch first with "
                f"batch_first=True; received (time, batch, features) = {shape_text(steps.shape)}.",
            )
        resets = self.ends_here if reverse else self.begins
        return where(resets, 0.0, 1.0).astype(steps.dtype).T.reshape((self.time, self.batch, 1))

    def recurrent_outputs(self, outputs: Tensor) -> Tensor:
        """The outputs (time, batch, hidden) of a loop whose state was reset."""
        return self._respects(outputs, 0)

    # -- attention, convolutions and positions -------------------------------------------------------------------

    def register_attention(self, out: Tensor) -> Tensor:
        """The result of an attention with `attention_mask`."""
        return self._respects(out, out.ndim - 2)

    def taps(self, x: Tensor, kernel: int, low: int, high: int, dilation: int) -> list[Tensor]:
        """For each tap of a kernel, x (batch, channels, time) shifted by it; 0 where that is another segment."""
        if x.shape[0] != self.batch or x.shape[2] != self.time or low + high != dilation * (kernel - 1):
            fail(
                ShapeError,
                f"a convolution over packed rows takes (batch, channels, {self.time}) and gives as many steps, so that "
                f'each belongs to a sequence: stride 1, padding "causal" or "same"; received {shape_text(x.shape)} '
                f"with a kernel of {kernel}, dilation {dilation} and padding {low + high}.",
            )
        ids, padded = _pad_time(self.ids, low, high, -1.0), _pad_time(x, low, high, 0.0)
        taps = []
        for first in range(0, kernel * dilation, dilation):
            same = (_slice_time(ids, first, self.time) == self.ids).reshape((self.batch, 1, self.time))
            taps.append(where(same, _slice_time(padded, first, self.time), 0.0))
        return taps

    def register_convolution(self, out: Tensor) -> Tensor:
        """The result (batch, channels, time) of a convolution of `taps`."""
        return self._respects(out, 2)

    # -- pooling -------------------------------------------------------------------------------------------------

    def pool(self, x: Tensor, how: str) -> Tensor:
        """One vector for each segment, (batch, sequences, features); 0 for an empty segment."""
        if x.shape[:2] != (self.batch, self.time):
            fail(ShapeError, f"pooling of packed rows takes (batch, {self.time}, ...); received {shape_text(x.shape)}.")
        flat = x.reshape((*x.shape[:2], -1))
        if how == "max":
            members = self.members.reshape((*self.members.shape, 1))
            largest = where(members, flat.reshape((self.batch, 1, *flat.shape[1:])), -math.inf).max(2)
            pooled = where(self._is_empty, 0.0, largest)
        else:
            pooled = matmul(self._selection(how).astype(x.dtype), flat)
        if how == "mean":
            pooled = pooled / where(self._is_empty, 1, self.ends - self.starts).astype(x.dtype)
        return self._respects(pooled.reshape((*pooled.shape[:2], *x.shape[2:])), None)

    def _selection(self, how: str) -> Tensor:
        """(batch, sequences, time): the positions that are summed."""
        steps = arange(self.time).reshape((1, 1, self.time))
        at = {"first": self.starts, "last": self.ends - 1}.get(how)
        return self.members if at is None else self.members & (steps == at)


def _pad_time(x: Tensor, low: int, high: int, value: float) -> Tensor:
    rest = (0,) * (x.ndim - 1)
    return Tensor(record("pad", [x.node], at.PadAttrs((*rest, low), (*rest, high), value)), x.graph)


def _slice_time(x: Tensor, first: int, time: Extent) -> Tensor:
    rest = x.shape[:-1]
    attrs = at.SliceAttrs((*(0 for _ in rest), first), (*rest, first + time), (1,) * x.ndim)
    return Tensor(record("slice", [x.node], attrs), x.graph)


_SEGMENTS: ContextVar[PackedSegments | None] = ContextVar("segments", default=None)


def packed_rows(segments: PackedSegments) -> AbstractContextManager[None]:
    """Layers recorded inside respect the boundaries of these segments."""
    return bind_value(_SEGMENTS, segments)


def current_segments() -> PackedSegments | None:
    """The segments of the rows that are being recorded; None if a row is one sequence."""
    return _SEGMENTS.get()


def positions(x: Tensor) -> Tensor:
    """The position of each element of x (batch, time, ...) in its sequence: (time,), of packed rows (batch, time).

    Write it in place of `ws.arange(time)`, and position embeddings begin at 0 in every sequence of `ws.data.Ragged`.

    Example: `x = self.words(tokens) + self.places(ws.positions(tokens))`.
    """
    if x.ndim < 2:
        fail(ShapeError, f"positions takes (batch, time, ...); received {shape_text(x.shape)}.")
    segments = current_segments()
    if segments is None:
        return arange(x.shape[1])
    if x.shape[:2] != (segments.batch, segments.time):
        expected = f"(batch, {segments.time}, ...)"
        fail(ShapeError, f"positions: the packed rows are {expected}; received {shape_text(x.shape)}.")
    return segments.positions


def pool_sequences(x: Tensor, how: str) -> Tensor:
    """(batch, time, ...) reduced over each sequence: (batch, ...), of packed rows (batch, sequences, ...)."""
    if x.ndim < 2:
        fail(ShapeError, f"SequencePool takes (batch, time, ...); received {shape_text(x.shape)}.")
    segments = current_segments()
    if segments is not None:
        return segments.pool(x, how)
    if how in ("first", "last"):
        return x[:, 0 if how == "first" else -1]
    reduced: Tensor = getattr(x, how)(1)
    return reduced
