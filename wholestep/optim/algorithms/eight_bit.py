"""Adam8bit, AdamW8bit: Adam whose averages are stored in one byte per element, with a float per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.algorithms.adam import ALIASES, Adam
from wholestep.optim.core.base import Scalars
from wholestep.optim.core.options import Number, number, with_aliases

GOLDEN = 0.6180339887498949  # the fraction of the golden ratio
LEAST = 1e-30  # the smallest scale


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class Adam8bit(Adam):
    """Adam with 8-bit states (after arXiv:2110.02861): M and V are the largest |m| and v of a row, a slice along the
    first axis (a vector is one row), and θₜ = t·0.618… mod 1:

        m is stored as ⌊127·sign(m)·√(|m|/M) + 128 + θₜ⌋        v as ⌊255·(v/V)^¼ + θₜ⌋, at least 1

    States take a quarter of the bytes of Adam's.  It departs from the paper: values are stored by a root instead of a
    table, blocks are rows, and θₜ replaces rounding to the nearest, which would stop an average that changes by less
    than half a step.  Roots keep small elements: the smallest v is V/255⁴.  An update also needs the averages of one
    weight in full: networks of several layers save memory, a single large matrix does not.

    Arguments are those of `ws.Adam`.

    Example: `ws.Adam8bit(lr=1e-3)`.
    """

    slot: ClassVar[str] = "adam8bit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.amsgrad:
            fail(OptionError, f"{type(self).__name__} stores no largest v; use ws.Adam(amsgrad=True).")

    def _moments(self, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        theta = fn.mod(self.update_number(graph, w) * GOLDEN, 1.0).astype(w.dtype)
        axes = tuple(range(1, w.ndim)) if w.ndim > 1 else tuple(range(w.ndim))
        scales = [n if w.ndim > 1 and d == 0 else 1 for d, n in enumerate(w.shape)]
        m8, v8 = (graph.state(f"{w.name}.{self.slot}.{what}", w.shape, 0.0, dtype="uint8") for what in ("m", "v"))
        m_scale, v_scale = (self.state(graph, w, f"{what}_scale", scales) for what in ("m", "v"))
        root = (m8.astype(w.dtype) - 128.0) * (1.0 / 127.0)
        fourth = v8.astype(w.dtype) * (1.0 / 255.0)
        m = s["beta1"] * (root * root.abs() * m_scale) + (1.0 - s["beta1"]) * g
        v = s["beta2"] * (fourth * fourth * (fourth * fourth) * v_scale) + (1.0 - s["beta2"]) * g * g
        new_m_scale = fn.maximum(m.abs().max(axes, keepdims=True), LEAST) if axes else fn.maximum(m.abs(), LEAST)
        new_v_scale = fn.maximum(v.max(axes, keepdims=True), LEAST) if axes else fn.maximum(v, LEAST)
        signed = fn.sign(m) * (m.abs() / new_m_scale).sqrt()
        positive = (v / new_v_scale).sqrt().sqrt()
        graph.update(m8, fn.floor(127.0 * signed + 128.0 + theta).astype("uint8"))
        graph.update(v8, fn.maximum(fn.minimum(fn.floor(255.0 * positive + theta), 255.0), 1.0).astype("uint8"))
        graph.update(m_scale, new_m_scale)
        graph.update(v_scale, new_v_scale)
        return m, v


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class AdamW8bit(Adam8bit):
    """`ws.Adam8bit` with the decoupled weight decay of `ws.AdamW`.

    Example: `ws.AdamW8bit(lr=1e-3, weight_decay=0.01)`.
    """

    weight_decay: Number = number(0.01, optional=True, trial=0.1)

    _decoupled: ClassVar[bool] = True
