"""Convolutions."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

_PLAIN: dict[int, Any] = {1: ws.conv1d, 2: ws.conv2d, 3: ws.conv3d}
_TRANSPOSED: dict[int, Any] = {1: ws.conv_transpose1d, 2: ws.conv_transpose2d, 3: ws.conv_transpose3d}


def numbers(given: Any, count: int) -> tuple[int, ...]:
    """One number for each axis; a single one is for all."""
    listed = [given] if isinstance(given, int) else list(given)
    return tuple(listed * count if len(listed) == 1 else listed)


@row("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", refuses="more than three axes")
def _convolution(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_: Any,
) -> Tensor:  # fmt: skip
    t, w, b = r.tensor(x), r.tensor(weight), r.optional(bias)
    axes = w.ndim - 2
    if axes not in _PLAIN:
        r.refuse(f"convolves over {axes} axes; 1, 2 and 3 are possible")
    alone = t.ndim == axes + 1
    t = t.reshape((1, *t.shape)) if alone else t
    steps, around, apart = (numbers(v, axes) for v in (stride, padding, dilation))
    if transposed:
        extra = numbers(output_padding, axes)
        parts: list[Any] = [steps, around, extra, apart]
    else:
        parts = [steps, around, apart]
    parts = [p[0] for p in parts] if axes == 1 else parts
    out = (_TRANSPOSED if transposed else _PLAIN)[axes](t, w, b, *parts, groups)
    return out.reshape(out.shape[1:]) if alone else out
