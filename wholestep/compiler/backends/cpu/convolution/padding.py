"""How convolutions and their adjoints walk images: margins, taps, panels, and the workspace this takes.

An image is read from a frame, a copy in the workspace with zeros around it, so that every window lies inside.  The
adjoint of a strided convolution is one ordinary convolution for each phase: the pixels whose windows meet the same
taps of the kernel.
"""

from __future__ import annotations

from math import gcd

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.records import dataclass

NARROW = 8  # channels up to this many are computed in vectors half as wide
TILE_OUTPUTS = 4  # outputs of a weight that are computed together
SLACK = 16  # elements behind a frame that whole vectors may read: results there are not used


def columns_of(channels: int) -> int:
    """The width of a panel of output channels."""
    return NARROW if channels <= NARROW else LANES


def is_depthwise(groups: int, outputs: int, inner: int) -> bool:
    """Has every channel a kernel of its own?  Then panels go across groups."""
    return groups > 1 and outputs == groups and inner == 1


def depth_columns(outputs: int) -> int:
    """Channels of a depthwise weight's gradient that are computed together."""
    return LANES if outputs % LANES == 0 or outputs > 2 * LANES else NARROW


def panel_columns(groups: int, outputs: int, inner: int) -> int:
    """The width of the panels of a result of `outputs` channels, each a sum over `inner`."""
    return columns_of(outputs if is_depthwise(groups, outputs, inner) else outputs // groups)


def reads_past(channels: int, groups: int, outputs: int, inner: int, by_tiles: bool) -> bool:
    """Do whole vectors of channels reach over the end of an image?  A frame has room behind it."""
    if by_tiles:
        return channels % LANES > 0
    return is_depthwise(groups, outputs, inner) and channels % panel_columns(groups, outputs, inner) > 0


def round_up(length: int, unit: int = LANES) -> int:
    return -(-length // unit) * unit


@dataclass(frozen=True)
class Taps:
    """The taps of a kernel that one phase of an adjoint meets along one dimension, the last one first."""

    first: int  # the first pixel of the phase; others follow at the stride
    pixels: int
    taps: tuple[int, ...]
    start: int  # where the first pixel's first tap is in the frame
    step: int  # from one tap to the next


def forward_margin(size: int, windows: int, window: int, stride: int, low: int, dilation: int) -> int:
    """Rows behind an image that its windows see."""
    return max(0, (windows - 1) * stride + dilation * (window - 1) + 1 - low - size)


def backward_taps(
    size: int, windows: int, window: int, stride: int, low: int, dilation: int
) -> tuple[list[Taps], int, int]:
    """The phases of an adjoint along one dimension, and the margins of the gradient's frame.

    Pixel i gets g[(i + low - tap·dilation) / stride] where that is a whole number.
    """
    found: list[tuple[int, int, list[tuple[int, int]]]] = []
    for phase in range(min(stride, size)):
        pixels = -(-(size - phase) // stride)
        meets = [k for k in reversed(range(window)) if (phase + low - k * dilation) % stride == 0]
        found.append((phase, pixels, [(k, (phase + low - k * dilation) // stride) for k in meets]))
    before = max([-place for _, _, meets in found for _, place in meets], default=0)
    behind = max([pixels + place for _, pixels, meets in found for _, place in meets], default=0) - windows
    before, behind = max(0, before), max(0, behind)
    step = dilation // gcd(stride, dilation)
    return (
        [
            Taps(phase, pixels, tuple(k for k, _ in meets), meets[0][1] + before if meets else 0, step)
            for phase, pixels, meets in found
        ],
        before,
        behind,
    )


@dataclass(frozen=True)
class Runs:
    """A window's row as runs of consecutive elements: one where neighbouring taps are, else one for each tap."""

    count: int
    step: int
    length: int


def runs(taps: int, step: int, channels: int, group: int) -> Runs:
    """`taps` taps that lie `step` pixels of `channels` channels apart; `group` of them are read."""
    if step == 1 and group == channels:
        return Runs(1, 0, taps * channels)
    return Runs(taps, step * channels, group)
