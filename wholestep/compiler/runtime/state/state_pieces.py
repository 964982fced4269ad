"""What a rank has of a state that ranks have divided, and where in the whole it lies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.ir.state_partition import Cut
from wholestep.compiler.runtime.arrays import AnyArray


@dataclass(frozen=True)
class StatePiece:
    """Some rows of a state: those from `first` on, as many as `array` has, of `part.transpose(axes).reshape(form)`.

    The part is the whole state; or, if ranks have cut it (`ir/state_partition.py: Cut`), one rank's cut.
    """

    array: AnyArray
    shape: tuple[int, ...]  # of the part
    axes: tuple[int, ...]
    form: tuple[int, ...]
    first: int
    cut: tuple[int, ...] = ()
    model: int = 0

    @property
    def is_part_of_a_layer(self) -> bool:
        """Is it all that its place along the model axis has?"""
        return bool(self.cut) and len(self.array) == self.form[0]

    def place(self) -> dict[str, Any]:
        """Where it lies, as JSON values."""
        lists = {"shape": list(self.shape), "axes": list(self.axes), "form": list(self.form), "cut": list(self.cut)}
        return {**lists, "first": self.first, "model": self.model}

    @staticmethod
    def at(array: AnyArray, place: object) -> StatePiece:
        """An array where `place` says; ValueError where that is no place for it."""
        if not isinstance(place, Mapping) or place.keys() != {"shape", "axes", "form", "first", "cut", "model"}:
            raise ValueError(f"{place!r} is no place of a part")
        shape, axes, form, cut = (_counts(place[name]) for name in ("shape", "axes", "form", "cut"))
        first, model = _counts([place["first"], place["model"]])
        fits = sorted(axes) == list(range(len(shape))) and form and math.prod(form) == math.prod(shape)
        if not fits or array.shape[1:] != form[1:] or array.ndim != len(form) or first + len(array) > form[0]:
            raise ValueError(f"a part of shape {array.shape} does not lie at {place!r}")
        if cut and not (len(cut) >= 3 and cut[0] < len(shape) and model < cut[2] and _divides(Cut.of(cut), shape)):
            raise ValueError(f"nobody has cut like that: {place!r} is no place of a part")
        return StatePiece(array, shape, axes, form, first, cut, model)


def _divides(cut: Cut, shape: tuple[int, ...]) -> bool:
    return cut.fits((*shape[: cut.axis], shape[cut.axis] * cut.ranks, *shape[cut.axis + 1 :]))


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{values!r} are no whole numbers")
    return tuple(values)


def put_together(pieces: Sequence[StatePiece]) -> AnyArray:
    """The whole of which these are all pieces, some of them twice; ValueError where they are not."""
    if len({(p.shape, p.axes, p.form, p.cut, p.array.dtype) for p in pieces}) != 1:
        raise ValueError("they are not parts of one array")
    cut = pieces[0].cut
    if not cut:
        return _part(pieces)
    return Cut.of(cut).join([_part([p for p in pieces if p.model == model]) for model in range(cut[2])])


def _part(pieces: Sequence[StatePiece]) -> AnyArray:
    places = {p.first: p for p in pieces if len(p.array)}
    order = [places[first] for first in sorted(places)]
    ends = [0, *(p.first + len(p.array) for p in order)]
    if not order or [p.first for p in order] != ends[:-1] or ends[-1] != order[0].form[0]:
        raise ValueError(f"rows {[p.first for p in order]} and those after them are not all that there are")
    shape, axes = order[0].shape, order[0].axes
    turned = np.concatenate([p.array for p in order]).reshape([shape[axis] for axis in axes])
    return np.ascontiguousarray(turned.transpose(np.argsort(axes)))
