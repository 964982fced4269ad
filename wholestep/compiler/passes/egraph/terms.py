"""The e-graph term of each op: its attributes as integers that rules can compute with, and the way back.

The last slot of every constructor is the id of its result type, so that no shape rules are needed: a pattern binds the
types of the terms that it matches, and a new term takes its type from them.  The lowest four bits of a type's id are
its dtype, the next four its rank.

Axes are packed into an integer, four bits each, so that one law holds for every rank: a permutation is padded with the
identity and the axes of an expand with NOWHERE, and composing two is the same arithmetic for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import NONE, Attrs
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import TensorType

RANK = 8  # the largest rank with packed axes; nodes beyond it are opaque
NOWHERE = RANK  # the padding of an expand's axes
IDENTITY = sum(d << 4 * d for d in range(RANK))  # the packed identity permutation

Read = Callable[[tuple[int, ...], TensorType], Attrs]


@dataclass(frozen=True)
class TermRow:
    """The names of an op's attribute slots, and the conversions from attributes to slots and back."""

    slots: tuple[str, ...]
    write: Callable[[Any], tuple[int, ...]]
    read: Read


def pack_order(order: Sequence[int]) -> int:
    return sum(d << 4 * i for i, d in enumerate((*order, *range(len(order), RANK))))


def unpack_order(packed: int, rank: int) -> tuple[int, ...]:
    return tuple(packed >> 4 * i & 15 for i in range(rank))


def pack_axes(axes: Sequence[int]) -> int:
    """The output axis of each dimension of an expand's input, packed."""
    padded = (*axes, *(NOWHERE for _ in range(len(axes), RANK + 1)))
    return sum(d << 4 * i for i, d in enumerate(padded))


def unpack_axes(packed: int) -> tuple[int, ...]:
    axes = (packed >> 4 * i & 15 for i in range(RANK))
    return tuple(d for d in axes if d != NOWHERE)


def pack_set(axes: Sequence[int]) -> int:
    """The axes of a reduction as a bit set."""
    return sum(1 << d for d in axes)


def unpack_set(packed: int) -> tuple[int, ...]:
    return tuple(d for d in range(RANK) if packed >> d & 1)


def _axis_row(kind: type[Any]) -> TermRow:
    return TermRow(("axis",), lambda a: (a.axis,), lambda s, t: kind(s[0]))


_PLAIN = TermRow((), lambda a: (), lambda s, t: NONE)

TERMS: dict[str, TermRow] = {
    **{name: _PLAIN for name, op in OPS.items() if op.attrs is Attrs and op.family is not Family.CONTROL},
    "cast": TermRow((), lambda a: (), lambda s, t: at.CastAttrs(t.dtype)),
    "iota": TermRow(("axis",), lambda a: (a.axis,), lambda s, t: at.IotaAttrs(t, s[0])),
    "sum": TermRow(("axes",), lambda a: (pack_set(a.axes),), lambda s, t: at.SumAttrs(unpack_set(s[0]), t.dtype)),
    "max": TermRow(("axes",), lambda a: (pack_set(a.axes),), lambda s, t: at.MaxAttrs(unpack_set(s[0]))),
    "argmax": _axis_row(at.ArgmaxAttrs),
    "reshape": TermRow((), lambda a: (), lambda s, t: at.ReshapeAttrs(t.shape)),
    "permute": TermRow(
        ("order",), lambda a: (pack_order(a.order),), lambda s, t: at.PermuteAttrs(unpack_order(s[0], t.rank))
    ),
    "expand": TermRow(
        ("axes",), lambda a: (pack_axes(a.axes),), lambda s, t: at.ExpandAttrs(t.shape, unpack_axes(s[0]))
    ),
    "concat": _axis_row(at.ConcatAttrs),
    "gather": _axis_row(at.GatherAttrs),
    "matmul": TermRow(
        ("transpose_a", "transpose_b"),
        lambda a: (int(a.transpose_a), int(a.transpose_b)),
        lambda s, t: at.MatmulAttrs(bool(s[0]), bool(s[1]), t.dtype),
    ),
    "softmax": _axis_row(at.SoftmaxAttrs),
    "log_softmax": _axis_row(at.SoftmaxAttrs),
    "logsumexp": _axis_row(at.SoftmaxAttrs),
    "gelu": TermRow(("approximate",), lambda a: (int(a.approximate),), lambda s, t: at.GeluAttrs(bool(s[0]))),
}
