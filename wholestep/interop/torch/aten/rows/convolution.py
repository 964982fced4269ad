"""Convolutions."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

_PLAIN: dict[int, Any] = {1: ws.conv1d, 2: ws.conv2d, 3: ws.conv3d}
_TRANSPOSED: dict[int, Any] = {1: ws.conv_transpose1d, 2: ws.conv_transpose2d, 3: ws.conv_transpose3d}


def axis_values(value: Any, axes: int) -> tuple[int, ...]:
    """One integer for each axis; ATen passes a single one, or a list of one, for all axes."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * axes if len(values) == 1 else values)


@row("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", refuses="more than three axes")
def _convolution(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_: Any,
) -> Tensor:  # fmt: skip
    t, w, b = r.tensor(x), r.tensor(weight), r.optional(bias)
    axes = w.ndim - 2
    if axes not in _PLAIN:
        r.refuse(f"convolves over {axes} axes; 1, 2 and 3 are possible")
    unbatched = t.ndim == axes + 1
    t = t.reshape((1, *t.shape)) if unbatched else t
    arguments = (stride, padding, output_padding, dilation) if transposed else (stride, padding, dilation)
    by_axis: list[Any] = [axis_values(value, axes) for value in arguments]
    options = [values[0] for values in by_axis] if axes == 1 else by_axis
    out = (_TRANSPOSED if transposed else _PLAIN)[axes](t, w, b, *options, groups)
    return out.reshape(out.shape[1:]) if unbatched else out
