"""Layers that resize images or pad them."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.layers import resize
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module


class Upsample(FunctionModule, function=resize.interpolate):
    """Resizes signals, images or volumes (`ws.interpolate`).

    Args:
        size: the size of the result; or
        scale: the factor by which the size grows.
        mode: "nearest", "linear" ("bilinear", "trilinear"), "cubic" ("bicubic") or "area".

    Example: `ws.nn.Upsample(scale=2, mode="bilinear")`.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        self.size, self.scale, self.mode, self.align_corners = size, scale, mode, align_corners

    def options(self) -> str:
        target = f"size={self.size}" if self.scale is None else f"scale={self.scale}"
        return f"{target}, mode={self.mode!r}" + (", align_corners=True" if self.align_corners else "")


class PixelShuffle(FunctionModule, function=resize.pixel_shuffle):
    """Channels become pixels: (N, C·r², H, W) -> (N, C, H·r, W·r).  Example: `ws.nn.PixelShuffle(2)`."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def options(self) -> str:
        return f"{self.factor}"


class PixelUnshuffle(FunctionModule, function=resize.pixel_unshuffle):
    """Pixels become channels: (N, C, H·r, W·r) -> (N, C·r², H, W).  Example: `ws.nn.PixelUnshuffle(2)`."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def options(self) -> str:
        return f"{self.factor}"


class _Pad(Module):
    """The base class of padding layers; `padding` is one number, (left, right) or (left, right, top, bottom)."""

    mode = "constant"
    sides: int  # how many of the last axes are padded

    def __init__(self, padding: int | Sequence[int], value: float = 0.0) -> None:
        each = (padding,) * (2 * self.sides) if isinstance(padding, int) else tuple(padding)
        if len(each) != 2 * self.sides or not all(isinstance(e, int) for e in each):
            fail(
                OptionError,
                f"{type(self).__name__}: padding must be a number or {2 * self.sides} of them, "
                f"{('left', 'right', 'top', 'bottom')[: 2 * self.sides]}; received {padding!r}.",
            )
        self.padding, self.value = each, value

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != self.sides + 2:
            axes = "(N, C, H, W)" if self.sides == 2 else "(N, C, L)"
            fail(ShapeError, f"{type(self).__name__} takes {axes}; received {shape_text(x.shape)}.")
        pairs = [self.padding[2 * i : 2 * i + 2] for i in reversed(range(self.sides))]
        return pad(x, [(0, 0), (0, 0), *((a, b) for a, b in pairs)], self.value, self.mode)

    def options(self) -> str:
        same = len(set(self.padding)) == 1
        return f"{self.padding[0] if same else self.padding}"


class ZeroPad1d(_Pad):
    """Pads signals (N, C, L) with zeros or `value`.  Example: `ws.nn.ZeroPad1d((2, 0))`."""

    sides = 1


class ZeroPad2d(_Pad):
    """Pads images (N, C, H, W) with zeros or `value`.  Example: `ws.nn.ZeroPad2d(1)`."""

    sides = 2


class ReflectionPad1d(_Pad):
    """Pads signals by reflection at their ends (`ws.pad`).  Example: `ws.nn.ReflectionPad1d(2)`."""

    mode, sides = "reflect", 1


class ReflectionPad2d(_Pad):
    """Pads images by reflection at their edges (`ws.pad`).  Example: `ws.nn.ReflectionPad2d(1)`."""

    mode, sides = "reflect", 2


class ReplicationPad1d(_Pad):
    """Pads signals by repeating the first and the last element (`ws.pad`).  Example: `ws.nn.ReplicationPad1d(2)`."""

    mode, sides = "replicate", 1


class ReplicationPad2d(_Pad):
    """Pads images by repeating the outermost pixels (`ws.pad`).  Example: `ws.nn.ReplicationPad2d(1)`."""

    mode, sides = "replicate", 2


class CircularPad1d(_Pad):
    """Pads signals with elements from their other end (`ws.pad`).  Example: `ws.nn.CircularPad1d(2)`."""

    mode, sides = "circular", 1


class CircularPad2d(_Pad):
    """Pads images with pixels from their opposite side (`ws.pad`).  Example: `ws.nn.CircularPad2d(1)`."""

    mode, sides = "circular", 2
