"""The named attributes of each op: frozen, hashable, comparable by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.ir.graph import IRGraph

DATA, MODEL = AXES = ("data", "model")  # of the grid in which ranks stand: see mesh.py


@dataclass(frozen=True)
class Attrs:
    """Base of all attributes; ops without any use it as it is."""


NONE = Attrs()


@dataclass(frozen=True)
class Initializer:
    """How a state gets its first value: a kind (see frontend/initializers.py) and its numbers."""

    kind: str
    args: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Array:
    """An array constant, compared by dtype, shape and bits."""

    value: np.ndarray[Any, Any]

    def key(self) -> tuple[str, tuple[int, ...], bytes]:
        return str(self.value.dtype), self.value.shape, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())


@dataclass(frozen=True)
class InputAttrs(Attrs):
    name: str
    type: TensorType
    divided: bool = False  # does each of several ranks have rows of its own along the first axis?


@dataclass(frozen=True)
class StateAttrs(Attrs):
    """Of `parameter` (has a gradient) and `state` (has none)."""

    name: str
    type: TensorType
    init: Initializer
    by_columns: bool = False  # products read it transposed, as `x @ w.T` does: a backend may store it so
    parts: int = 0  # may so many ranks each hold a part of it?  Then `type` is that of a part, once `whole` is said
    whole: Shape = ()  # of a part: the shape of what the user sees
    split: tuple[int, ...] = ()  # a `parts.Cut`, by which ranks of the model axis divide it


@dataclass(frozen=True)
class ConstantAttrs(Attrs):
    array: Array


@dataclass(frozen=True)
class ScalarAttrs(Attrs):
    """A runtime scalar: float64, changed between steps without a recompile.  `step` is the index of the step."""

    name: str
    default: float


@dataclass(frozen=True)
class SizeAttrs(Attrs):
    extent: Extent


@dataclass(frozen=True)
class IotaAttrs(Attrs):
    """The index along `axis`, broadcast over `type.shape`; an integer dtype."""

    type: TensorType
    axis: int


@dataclass(frozen=True)
class RandomAttrs(Attrs):
    """Uniform numbers in [0, 1), a function of (seed, key, step, element).

    `first` is the number of the first element: not 0 for a part of a batch that is computed in parts.
    """

    key: str
    type: TensorType
    first: Extent = 0


@dataclass(frozen=True)
class CastAttrs(Attrs):
    dtype: DType


@dataclass(frozen=True)
class SumAttrs(Attrs):
    """`accumulate` is the dtype of the sum while it is added up, and of the result."""

    axes: tuple[int, ...]
    accumulate: DType


@dataclass(frozen=True)
class MaxAttrs(Attrs):
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ArgmaxAttrs(Attrs):
    axis: int


@dataclass(frozen=True)
class ReshapeAttrs(Attrs):
    shape: Shape


@dataclass(frozen=True)
class PermuteAttrs(Attrs):
    order: tuple[int, ...]


@dataclass(frozen=True)
class ExpandAttrs(Attrs):
    """Explicit broadcasting: dimension d of the input becomes dimension axes[d] of the output; the others are new."""

    shape: Shape
    axes: tuple[int, ...]


@dataclass(frozen=True)
class SliceAttrs(Attrs):
    """start:stop:step along every axis; steps are positive."""

    starts: Shape
    stops: Shape
    steps: tuple[int, ...]


@dataclass(frozen=True)
class PadAttrs(Attrs):
    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class ConcatAttrs(Attrs):
    axis: int


@dataclass(frozen=True)
class GatherAttrs(Attrs):
    """data, index -> data.shape[:axis] + index.shape + data.shape[axis+1:]; indices are clamped into the axis."""

    axis: int


@dataclass(frozen=True)
class ScatterAddAttrs(Attrs):
    """updates, index -> zeros with `size` along `axis`, each update added at its index, in order: gather's adjoint."""

    axis: int
    size: Extent


@dataclass(frozen=True)
class MatmulAttrs(Attrs):
    """(..., m, k) x (..., k, n) -> (..., m, n); a flag says that an operand is stored with its last two swapped.

    `accumulate` is the dtype of the sums along k, and of the result.
    """

    transpose_a: bool
    transpose_b: bool
    accumulate: DType


@dataclass(frozen=True)
class ItemAttrs(Attrs):
    index: int


@dataclass(frozen=True)
class CallAttrs(Attrs):
    """A function applied to the inputs: its parameters are graph.inputs, its results graph.outputs."""

    graph: IRGraph


@dataclass(frozen=True)
class CustomGradientAttrs(Attrs):
    """results..., arguments..., other values -> the results as they are, whose gradient the graph computes.

    Its parameters are what arrives at each result, then the arguments and the other values; its results are the
    gradients of the arguments.  Nothing else gets a gradient.
    """

    graph: IRGraph
    results: int

    @property
    def arguments(self) -> range:
        """The positions of the inputs that get a gradient."""
        return range(self.results, self.results + len(self.graph.outputs))


@dataclass(frozen=True)
class ScanAttrs(Attrs):
    """A function applied once per step; see type_rules/scan.py for what it takes and gives."""

    graph: IRGraph
    carries: int
    sequences: int
    length: Extent
    reverse: bool


@dataclass(frozen=True)
class SoftmaxAttrs(Attrs):
    """Of `softmax`, `log_softmax` and `logsumexp`."""

    axis: int


@dataclass(frozen=True)
class GeluAttrs(Attrs):
    approximate: bool


@dataclass(frozen=True)
class NormAttrs(Attrs):
    """Of `layer_norm` and `rms_norm`, which normalise over the last axis, of `batch_norm`, which does over all axes
    but the second, and of their gradients."""

    eps: float
    per_worker: bool = False  # of `batch_norm`: over the rows of one rank, not over the batch of all


@dataclass(frozen=True)
class GroupNormAttrs(Attrs):
    """Axis 1 of (N, C, ...) is cut into groups, each normalised together with the axes behind it."""

    groups: int
    eps: float


@dataclass(frozen=True)
class DropoutAttrs(Attrs):
    """The key of the random numbers that say which elements are dropped: the gradient drops the same.

    `first` is the number of the first element, as in `RandomAttrs`.
    """

    key: str
    first: Extent = 0


@dataclass(frozen=True)
class AttentionAttrs(Attrs):
    """softmax(scale·q·kᵀ + mask)·v, where the mask may be left out; causal: query i sees the keys 0 ... i.

    `rounded`: what q, k and v make of themselves, and their gradients, have their dtype: a half one is rounded to.
    """

    causal: bool
    scale: float
    rounded: bool = False


@dataclass(frozen=True)
class GroupAttrs(Attrs):
    """Of a collective: among how many ranks, where its type depends on that; 0 among however many there are.

    `axis`: of the grid in which ranks stand (mesh.py), the axis along which those stand that it is among.
    """

    ranks: int = 0
    axis: str = DATA


@dataclass(frozen=True)
class ExchangeAttrs(Attrs):
    """Several collectives of one kind, along one axis, at once."""

    kind: str
    ranks: int = 0
    axis: str = DATA


@dataclass(frozen=True)
class ConvAttrs(Attrs):
    """Of `conv2d`: x (N, C, H, W), weight (O, C / groups, KH, KW); all pairs are (vertical, horizontal).

    `last`: channels are the last axis of both instead, x (N, H, W, C) and weight (O, KH, KW, C / groups).
    """

    stride: tuple[int, ...]
    low: tuple[int, ...]  # rows above and columns before the image that count as zero
    high: tuple[int, ...]  # and below and behind it
    dilation: tuple[int, ...]
    groups: int
    last: bool


@dataclass(frozen=True)
class ConvGradAttrs(Attrs):
    """Of the two adjoints of a convolution: its attributes, and the height and width of what they give."""

    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    last: bool
    size: tuple[int, ...]

    @property
    def forward(self) -> ConvAttrs:
        return ConvAttrs(self.stride, self.low, self.high, self.dilation, self.groups, self.last)


@dataclass(frozen=True)
class PoolAttrs(Attrs):
    """Of `max_pool2d` and its index: what lies outside the image is never the maximum."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class PoolGradAttrs(Attrs):
    """Of the adjoint of a maximum's choice: the pool's attributes, and the height and width of its input."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    last: bool
    size: tuple[int, ...]

    @property
    def forward(self) -> PoolAttrs:
        return PoolAttrs(self.window, self.stride, self.low, self.high, self.last)


@dataclass(frozen=True)
class PooledConvAttrs(Attrs):
    """Of a convolution's adjoints taken straight from the gradient of the pool behind it.

    Stride and dilation are 1, there is one group, the pool's windows tile its input; channels are the last axis.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    window: tuple[int, ...]
    middle: tuple[int, ...]  # height and width between the convolution and the pool
    size: tuple[int, ...]  # height and width of the result
    parts: int = (
        1  # of the batch, whose gradients of a weight are made apart: part p of n images begins at ⌊p·n / parts⌋
    )
