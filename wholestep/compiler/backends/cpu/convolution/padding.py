"""Geometry of convolutions and their gradients: zero margins, taps, and panels of channels.

An image is read from a frame, a zero-padded copy in the workspace, so that every window is inside it and tiles need no
bounds checks.  The gradient of a strided convolution in its image is one ordinary convolution per phase: the pixels
whose windows contain them at the same taps of the kernel.
"""

from __future__ import annotations

from math import gcd

from wholestep.compiler.backends.cpu.kernel_schedule import Runs, Taps
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES

NARROW = 8  # up to this many channels are computed in vectors half as wide, instead of mostly padding
TILE_OUTPUTS = 4  # outputs of a weight's gradient that are computed together in registers
SLACK = 16  # elements after a frame that full vectors may read; results computed from them are not used


def columns_of(channels: int) -> int:
    """The number of output channels in a panel."""
    return NARROW if channels <= NARROW else LANES


def is_depthwise(groups: int, outputs: int, inner: int) -> bool:
    """Does every channel have its own kernel?  Panels then extend across groups."""
    return groups > 1 and outputs == groups and inner == 1


def depth_columns(outputs: int) -> int:
    """Channels of a depthwise weight's gradient that are computed together."""
    return LANES if outputs % LANES == 0 or outputs > 2 * LANES else NARROW


def panel_columns(groups: int, outputs: int, inner: int) -> int:
    """The width of the panels of a result of `outputs` channels, each a sum over `inner`."""
    return columns_of(outputs if is_depthwise(groups, outputs, inner) else outputs // groups)


def reads_past(channels: int, groups: int, outputs: int, inner: int, by_tiles: bool) -> bool:
    """Do full vectors of channels read past the end of an image?  Then it needs a frame, which has slack after it."""
    if by_tiles:
        return channels % LANES > 0
    return is_depthwise(groups, outputs, inner) and channels % panel_columns(groups, outputs, inner) > 0


def round_up(length: int, unit: int = LANES) -> int:
    return -(-length // unit) * unit


def forward_margin(size: int, windows: int, window: int, stride: int, low: int, dilation: int) -> int:
    """Rows (or columns) after an image that its windows read."""
    return max(0, (windows - 1) * stride + dilation * (window - 1) + 1 - low - size)


def backward_taps(
    size: int, windows: int, window: int, stride: int, low: int, dilation: int
) -> tuple[list[Taps], int, int]:
    """The phases of a gradient along one dimension, and the margins of its frame.

    Pixel i receives g[(i + low - tap·dilation) / stride] for every tap for which that is an integer.
    """
    phases: list[tuple[int, int, list[tuple[int, int]]]] = []
    for phase in range(min(stride, size)):
        pixels = -(-(size - phase) // stride)
        taps = [k for k in reversed(range(window)) if (phase + low - k * dilation) % stride == 0]
        phases.append((phase, pixels, [(k, (phase + low - k * dilation) // stride) for k in taps]))
    before = max([-position for _, _, taps in phases for _, position in taps], default=0)
    after = max([pixels + position for _, pixels, taps in phases for _, position in taps], default=0) - windows
    before, after = max(0, before), max(0, after)
    step = dilation // gcd(stride, dilation)
    return (
        [
            Taps(phase, pixels, tuple(k for k, _ in taps), taps[0][1] + before if taps else 0, step)
            for phase, pixels, taps in phases
        ],
        before,
        after,
    )


def runs(taps: int, step: int, channels: int, group: int) -> Runs:
    """`taps` taps that are `step` pixels of `channels` channels apart, of which `group` channels are read."""
    if step == 1 and group == channels:
        return Runs(1, 0, taps * channels)
    return Runs(taps, step * channels, group)
