"""Windows that slide over 1, 2 or 3 spatial axes: shared code of convolutions, pools, `unfold` and the importers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.type_rules.convolution import window_count
from wholestep.compiler.ir.types import Extent, shape_text
from wholestep.errors import OptionError, ShapeError

Sizes = int | Sequence[int]  # one integer for all spatial axes, or one for each
Padding = int | str | Sequence[int]
Integers = tuple[int, ...]

SPATIAL = {1: "L", 2: "H, W", 3: "D, H, W"}  # names of the spatial axes, by their number
_KERNEL = {1: "K", 2: "KH, KW", 3: "KD, KH, KW"}
_IMAGES = {1: "signals", 2: "images", 3: "volumes"}
_PER_AXIS = {
    1: "an integer",
    2: "an integer or a pair (vertical, horizontal) of integers",
    3: "an integer or three integers (depth, vertical, horizontal)",
}


@dataclass(frozen=True)
class SlidingWindow:
    """How a window slides over an image; every field has one integer for each spatial axis."""

    size: Integers
    stride: Integers
    dilation: Integers  # distance between neighbouring elements of the window
    low: Integers  # padding before the image
    high: Integers  # padding after the image

    @property
    def extent(self) -> Integers:
        """The elements from the first of the window to its last."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def counts(self, image: Sequence[int], ceil_mode: bool = False) -> Integers:
        """The number of windows along each axis of an image.

        With `ceil_mode` the last one may reach beyond the padding, but begins in the image or the padding before it.
        """
        if not ceil_mode:
            fields = (self.size, self.stride, self.low, self.high, self.dilation)
            return tuple(window_count(*axis) for axis in zip(image, *fields, strict=True))
        counts = []
        for n, extent, s, low, high in zip(image, self.extent, self.stride, self.low, self.high, strict=True):
            count = -(-(n + low + high - extent) // s) + 1
            counts.append(count - 1 if (count - 1) * s >= n + low else count)
        return tuple(counts)

    def span(self, counts: Sequence[int]) -> Integers:
        """The elements along each axis from the start of the first window to the end of the last."""
        return tuple((c - 1) * s + e for c, s, e in zip(counts, self.stride, self.extent, strict=True))

    def taps(self, padded: Tensor, counts: Sequence[int]) -> Iterator[tuple[Integers, Tensor]]:
        """For each position in the window, the elements of (N, C, ...) at it in all windows, as (N, C, *counts)."""
        for position in itertools.product(*map(range, self.size)):
            axes = zip(position, self.dilation, self.stride, counts, strict=True)
            slices = [slice(p * d, p * d + (c - 1) * s + 1, s) for p, d, s, c in axes]
            yield position, padded[(slice(None), slice(None), *slices)]


def per_axis(op: str, name: str, value: Sizes, axes: int) -> Integers:
    """An integer for all axes, or one for each, as a tuple."""
    sizes = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(sizes) != axes or not all(isinstance(n, int) for n in sizes):
        fail(OptionError, f"{op}: {name} must be {_PER_AXIS[axes]}; received {value!r}.")
    return sizes


def sliding_window(
    op: str,
    x: Tensor,
    size: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> SlidingWindow:
    """The window that the arguments of a convolution or a pool describe; the stride is the size unless given."""
    image = x.shape[2:]
    axes = len(image)
    sizes = per_axis(op, "window", size, axes)
    strides = sizes if stride is None else per_axis(op, "stride", stride, axes)
    dilations = per_axis(op, "dilation", dilation, axes)
    window = SlidingWindow(sizes, strides, dilations, *margins(op, padding, image, sizes, strides, dilations))
    if not ceil_mode:
        return window
    sizes_of_image = integers(op, x, image, "with ceil_mode the sizes of images")
    covered = window.span(window.counts(sizes_of_image, ceil_mode))
    high = (max(h, c - n - low) for h, c, n, low in zip(window.high, covered, sizes_of_image, window.low, strict=True))
    return SlidingWindow(sizes, strides, dilations, window.low, tuple(high))


def margins(
    op: str,
    padding: Padding,
    image: Sequence[Extent],
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Integers, Integers]:
    """Padding before and after the image.  "same": one window for each `stride` elements; of an odd number the larger
    half is after the image, as in Keras; for stride 1 this equals torch's "same"."""
    if not isinstance(padding, str):
        around = per_axis(op, "padding", padding, len(image))
        return around, around
    if padding == "valid":
        return (0,) * len(image), (0,) * len(image)
    if padding != "same":
        several = "three integers" if len(image) == 3 else "a pair"
        fail(OptionError, f'{op}: padding must be a number, {several}, "same" or "valid"; received {padding!r}.')
    totals = [same_padding(op, *axis) for axis in zip(image, size, stride, dilation, strict=True)]
    return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)


def same_padding(op: str, image: Extent, size: int, stride: int, dilation: int) -> int:
    """The total padding of one axis for "same"."""
    extent = dilation * (size - 1) + 1
    if stride == 1:
        return extent - 1
    if not isinstance(image, int):
        fail(ShapeError, f'{op}: padding="same" with stride {stride} needs a fixed image size; received {image}.')
    return max((-(-image // stride) - 1) * stride + extent - image, 0)


# -- shapes ------------------------------------------------------------------------------------------------------


def need_axes(op: str, what: str, x: Tensor, text: str) -> None:
    rank = text.count(",") + 1
    if x.ndim != rank:
        fail(ShapeError, f"{op} needs {what} of shape {text}; received {shape_text(x.shape)}.")


def need_images(op: str, x: Tensor, axes: int) -> None:
    """ShapeError unless x is (N, C, ...) with this number of spatial axes."""
    need_axes(op, _IMAGES[axes], x, f"(N, C, {SPATIAL[axes]})")


def need_weight(op: str, weight: Tensor, axes: int, channels: str = "O, C") -> None:
    """ShapeError unless the weight of a convolution has one axis for each spatial axis of the image."""
    need_axes(op, "a weight", weight, f"({channels} / groups, {_KERNEL[axes]})")


def integers(op: str, x: Tensor, extents: Sequence[Extent], what: str = "all sizes but the batch") -> Integers:
    """Extents of a tensor that must be integers, not symbols."""
    fixed = tuple(e for e in extents if isinstance(e, int))
    if len(fixed) != len(extents):
        fail(ShapeError, f"{op}: {what} must be integers; received {shape_text(x.shape)}.")
    return fixed


def signal_as_image(x: Tensor) -> Tensor:
    """Reshape signals (N, C, L) to images (N, C, 1, L)."""
    return x.reshape((*x.shape[:2], 1, x.shape[2]))


def image_as_signal(x: Tensor) -> Tensor:
    """Reshape images (N, C, 1, L) to signals (N, C, L)."""
    return x.reshape((*x.shape[:2], x.shape[3]))


def signal_padding(padding: int | str) -> Padding:
    """The padding of a signal, as the padding of an image with one row."""
    return padding if isinstance(padding, str) else (0, padding)
