"""Pieces of partitioned states, as ranks write them to checkpoints: values and their position in the complete state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.ir.state_partition import AxisSplit
from wholestep.compiler.runtime.arrays import AnyArray


@dataclass(frozen=True)
class StatePiece:
    """Rows of a state: those from `first` on, as many as `array` has, of `part.transpose(axes).reshape(form)`.

    The part is the complete state, or, if tensor-parallel ranks split it (`ir/state_partition.py: Cut`), the part of
    the rank with coordinate `model`.
    """

    array: AnyArray
    shape: tuple[int, ...]  # shape of the part
    axes: tuple[int, ...]
    form: tuple[int, ...]
    first: int
    cut: tuple[int, ...] = ()
    model: int = 0

    @property
    def is_part_of_a_layer(self) -> bool:
        """Is the piece the complete part of its rank along the model axis?"""
        return bool(self.cut) and len(self.array) == self.form[0]

    def place(self) -> dict[str, Any]:
        """The position of the piece, as JSON values."""
        lists = {"shape": list(self.shape), "axes": list(self.axes), "form": list(self.form), "cut": list(self.cut)}
        return {**lists, "first": self.first, "model": self.model}

    @staticmethod
    def at(array: AnyArray, place: object) -> StatePiece:
        """The piece of an array at a position; ValueError if the position is invalid for it."""
        if not isinstance(place, Mapping) or place.keys() != {"shape", "axes", "form", "first", "cut", "model"}:
            raise ValueError(f"{place!r} is not the position of a part")
        shape, axes, form, cut = (_counts(place[name]) for name in ("shape", "axes", "form", "cut"))
        first, model = _counts([place["first"], place["model"]])
        fits = sorted(axes) == list(range(len(shape))) and form and math.prod(form) == math.prod(shape)
        if not fits or array.shape[1:] != form[1:] or array.ndim != len(form) or first + len(array) > form[0]:
            raise ValueError(f"a part of shape {array.shape} does not fit at {place!r}")
        if cut and not (
            len(cut) >= 3 and cut[0] < len(shape) and model < cut[2] and _divides(AxisSplit.of(cut), shape)
        ):
            raise ValueError(f"{place!r} has an invalid split")
        return StatePiece(array, shape, axes, form, first, cut, model)


def _divides(cut: AxisSplit, shape: tuple[int, ...]) -> bool:
    return cut.fits((*shape[: cut.axis], shape[cut.axis] * cut.ranks, *shape[cut.axis + 1 :]))


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"expected a list of integers of at least 0; received {values!r}")
    return tuple(values)


def join_pieces(pieces: Sequence[StatePiece]) -> AnyArray:
    """The complete state from its pieces, of which some may be duplicates; ValueError if pieces are missing."""
    if len({(p.shape, p.axes, p.form, p.cut, p.array.dtype) for p in pieces}) != 1:
        raise ValueError("the pieces do not belong to one array")
    cut = pieces[0].cut
    if not cut:
        return _part(pieces)
    return AxisSplit.of(cut).join([_part([p for p in pieces if p.model == model]) for model in range(cut[2])])


def _part(pieces: Sequence[StatePiece]) -> AnyArray:
    by_first_row = {p.first: p for p in pieces if len(p.array)}
    order = [by_first_row[first] for first in sorted(by_first_row)]
    ends = [0, *(p.first + len(p.array) for p in order)]
    if not order or [p.first for p in order] != ends[:-1] or ends[-1] != order[0].form[0]:
        raise ValueError(f"the pieces that begin at rows {[p.first for p in order]} do not cover all rows")
    shape, axes = order[0].shape, order[0].axes
    joined = np.concatenate([p.array for p in order]).reshape([shape[axis] for axis in axes])
    return np.ascontiguousarray(joined.transpose(np.argsort(axes)))
