"""A layer as plain data that does not mention what it is given, and what it becomes over a shape.

Extents are numbers, or names of symbolic dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

import wholestep as ws
from tests.fuzz.layers.twins import TorchOnly

Shape = tuple[int | str, ...]
Bodies = tuple[tuple["Layer", ...], ...]
SIZES = (1, 2, 3, 4, 5, 6, 8, 16, 17, 31, 33)


@dataclass(frozen=True)
class Layer:
    """What it is, its options, and for containers the layers inside."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    bodies: Bodies = ()


@dataclass(frozen=True)
class Made:
    """A layer that was fitted to what it is given: both modules, and the shape of what they give."""

    ours: ws.nn.Module
    theirs: torch.nn.Module
    shape: Shape


@dataclass(frozen=True)
class Row:
    """How a kind of layer is drawn for a shape and made; both give None where it does not fit."""

    draw: Callable[[Random, Shape], dict[str, Any] | None]
    make: Callable[..., Made | None]
    share: int = 2  # how often it is drawn


def elements(shape: Shape) -> int:
    return math.prod(e if isinstance(e, int) else 8 for e in shape)


def of_both(ours: Callable[..., Any], theirs: Callable[..., Any], shape: Shape) -> Made:
    return Made(ws.nn.Lambda(ours), TorchOnly(theirs), shape)


def fixed(shape: Shape, *axes: int) -> bool:
    return all(-len(shape) <= d < len(shape) and isinstance(shape[d], int) for d in axes)


def some_axis(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"axis": rng.randrange(len(shape))}


def nothing(rng: Random, shape: Shape) -> dict[str, Any]:
    return {}
