"""Window kernels -> C loops around the tile functions of conv.h; every extent and stride is a literal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.backends.cpu.render.convolution.backward import (
    render_conv2d_grad_weight,
    render_pooled_grad_input,
    render_pooled_grad_weight,
)
from wholestep.compiler.backends.cpu.render.convolution.forward import render_conv2d, render_conv2d_grad_input
from wholestep.compiler.backends.cpu.render.convolution.pooling import (
    render_max_pool2d,
    render_max_pool2d_grad,
    render_max_pool2d_pick,
)
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.plan.model.bodies import Window

_RENDER: Mapping[str, Callable[[CWriter], None]] = {
    "conv2d": render_conv2d,
    "conv2d_grad_input": render_conv2d_grad_input,
    "conv2d_grad_weight": render_conv2d_grad_weight,
    "pooled_grad_weight": render_pooled_grad_weight,
    "pooled_grad_input": render_pooled_grad_input,
    "max_pool2d": render_max_pool2d,
    "max_pool2d_index": render_max_pool2d,
    "max_pool2d_grad": render_max_pool2d_grad,
    "max_pool2d_pick": render_max_pool2d_pick,
}


def render_window(w: CWriter) -> None:
    """Emit the loops of a window kernel."""
    assert isinstance(w.kernel.body, Window)
    _RENDER[w.kernel.body.op](w)
