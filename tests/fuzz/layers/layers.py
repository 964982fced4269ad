"""Layers as people write them, one after the other and inside of one another, in our words and in torch's.

A layer is fitted to what stands before it, so that others may be changed or left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch

import wholestep as ws
from tests.fuzz.layers import kinds, kinds_of_axes, kinds_of_blocks, kinds_of_images, twins
from tests.fuzz.layers.layer import Layer, Made, Row, Shape, elements, fixed

LARGEST = 6000  # elements of a tensor, with 8 for each symbolic dimension
ROWS: dict[str, Row] = kinds.ROWS | kinds_of_axes.ROWS | kinds_of_images.ROWS | kinds_of_blocks.ROWS


def make(layer: Layer, shape: Shape) -> Made | None:
    """The layer over this shape, or None where it does not fit or gets too large."""
    if layer.bodies:
        made = CONTAINERS[layer.kind](layer, shape)
    else:
        made = ROWS[layer.kind].make(shape, **layer.options)
    return made if made is not None and elements(made.shape) <= LARGEST else None


def sequence(layers: tuple[Layer, ...], shape: Shape) -> Made:
    """Layers one after the other; those that do not fit are left out."""
    ours: list[ws.nn.Module] = []
    theirs: list[torch.nn.Module] = []
    for layer in layers:
        made = make(layer, shape)
        if made is not None:
            ours.append(made.ours)
            theirs.append(made.theirs)
            shape = made.shape
    return Made(ws.nn.Sequential(*ours), torch.nn.Sequential(*theirs), shape)


def fitting(layers: tuple[Layer, ...], shape: Shape) -> tuple[Layer, ...]:
    """The layers that `sequence` keeps, those inside of containers too."""
    kept = []
    for layer in layers:
        made = make(layer, shape)
        if made is not None:
            inside, allowed = (shape, None) if layer.kind != "folded" else (("folded", *shape[2:]), ROW_WISE)
            bodies = tuple(tuple(b for b in body if allowed is None or b.kind in allowed) for body in layer.bodies)
            kept.append(replace(layer, bodies=tuple(fitting(body, inside) for body in bodies)))
            shape = made.shape
    return tuple(kept)


# -- containers --------------------------------------------------------------------------------------------------


def residual(layer: Layer, shape: Shape) -> Made:
    """x + body(x); where the body ends in another width, a linear shortcut; else the body alone."""
    body = sequence(layer.bodies[0], shape)
    if body.shape == shape:
        return Made(ws.nn.Residual(body.ours), twins.TorchResidual(body.theirs), shape)
    shortcut = kinds.linear(shape, body.shape[-1]) if body.shape[:-1] == shape[:-1] and fixed(body.shape, -1) else None
    if shortcut is None:
        return body
    return Made(ws.nn.Residual(body.ours, shortcut.ours), twins.TorchResidual(body.theirs, shortcut.theirs), body.shape)


def branches(layer: Layer, shape: Shape) -> Made:
    """Bodies side by side on the last axis; the first alone where their shapes do not allow it."""
    made = [sequence(body, shape) for body in layer.bodies]
    alike = all(m.shape[:-1] == made[0].shape[:-1] and fixed(m.shape, -1) for m in made)
    if not alike or len(made[0].shape) < 2:
        return made[0]
    ours, theirs = twins.Branches([m.ours for m in made]), twins.TorchBranches([m.theirs for m in made])
    return Made(ours, theirs, (*made[0].shape[:-1], sum(m.shape[-1] for m in made)))


def folded(layer: Layer, shape: Shape) -> Made | None:
    """A body over the first two axes as one, as people apply a layer to every step of a series."""
    if len(shape) < 3:
        return None
    inside = tuple(layer for layer in layer.bodies[0] if layer.kind in ROW_WISE)
    body = sequence(inside, ("folded", *shape[2:]))
    if body.shape[0] != "folded":
        return None
    return Made(twins.Folded(body.ours), twins.TorchFolded(body.theirs), (*shape[:2], *body.shape[1:]))


# What keeps the first axis as it is.
ROW_WISE = frozenset(
    {
        "linear",
        "linears",
        "conv",
        "depthwise",
        "pool",
        "global pool",
        "layer norm",
        "rms norm",
        "group norm",
        "activation",
        "flatten",
    }
    | {"split", "merge", "tied"}
)
CONTAINERS: dict[str, Callable[[Layer, Shape], Made | None]] = {
    "residual": residual,
    "branches": branches,
    "folded": folded,
}


# -- drawing -----------------------------------------------------------------------------------------------------


def draw_layer(rng: Random, shape: Shape, depth: int = 0) -> Layer | None:
    """A layer that fits the shape; None where the draw did not fit."""
    if depth < 2 and rng.random() < 0.12:
        kind = rng.choice(list(CONTAINERS))
        inner = ("folded", *shape[2:]) if kind == "folded" else shape
        count = 2 if kind == "branches" else 1
        bodies = tuple(draw_layers(rng, inner, rng.randint(1, 3), depth + 1)[0] for _ in range(count))
        fitted = fitting((Layer(kind, {}, bodies),), shape)
        return fitted[0] if fitted and all(fitted[0].bodies) else None
    kind = rng.choices(list(ROWS), [row.share for row in ROWS.values()])[0]
    options = ROWS[kind].draw(rng, shape)
    if options is None:
        return None
    layer = Layer(kind, options)
    return layer if make(layer, shape) is not None else None


def draw_layers(rng: Random, shape: Shape, count: int, depth: int = 0) -> tuple[tuple[Layer, ...], Shape]:
    """`count` layers that fit one after the other, and the shape behind them."""
    layers: list[Layer] = []
    for _ in range(40):
        if len(layers) == count:
            break
        layer = draw_layer(rng, shape, depth)
        if layer is not None:
            made = make(layer, shape)
            assert made is not None
            layers.append(layer)
            shape = made.shape
    return tuple(layers), shape
