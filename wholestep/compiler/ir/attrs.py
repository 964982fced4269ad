"""The named attributes of each op: immutable, hashable, compared by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.ir.graph import IRGraph

DATA, MODEL = AXES = ("data", "model")  # the axes of the mesh of ranks: see mesh.py


@dataclass(frozen=True)
class Attrs:
    """Base class of all attributes; used directly by ops that have none."""


NONE = Attrs()


@dataclass(frozen=True)
class NamedAttrs(Attrs):
    """The attributes of leaves that have a name."""

    name: str


@dataclass(frozen=True)
class AxisAttrs(Attrs):
    """The attributes of ops along one axis."""

    axis: int


@dataclass(frozen=True)
class GraphAttrs(Attrs):
    """The attributes of ops that contain a graph."""

    graph: IRGraph


@dataclass(frozen=True)
class ReduceAttrs(Attrs):
    """The attributes of reductions over some axes."""

    axes: tuple[int, ...]


@dataclass(frozen=True)
class Initializer:
    """The initializer of a state: a kind (see frontend/initializers.py) and its arguments."""

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
class InputAttrs(NamedAttrs):
    type: TensorType
    divided: bool = False  # is the first axis sharded, so that each rank has its own rows?


@dataclass(frozen=True)
class StateAttrs(NamedAttrs):
    """The attributes of `parameter` (a state with a gradient) and `state` (one without)."""

    type: TensorType
    init: Initializer
    by_columns: bool = False  # do matmuls read the state transposed (`x @ w.T`)?  Then a backend may store it so
    parts: int = 0  # ranks of the data axis that may each store a shard; once `whole` is set, `type` is a shard's
    whole: Shape = ()  # a shard only: the shape of the full state, as the user sees it
    split: tuple[int, ...] = ()  # a `state_partition.Cut` along the model axis


@dataclass(frozen=True)
class ConstantAttrs(Attrs):
    array: Array


@dataclass(frozen=True)
class ScalarAttrs(NamedAttrs):
    """A runtime scalar: float64, may change between steps without recompilation.  `step` is the index of the step."""

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

    `first` is the index of the first element: nonzero for a later part of a batch that is computed in parts.
    """

    key: str
    type: TensorType
    first: Extent = 0


@dataclass(frozen=True)
class CastAttrs(Attrs):
    dtype: DType


@dataclass(frozen=True)
class SumAttrs(ReduceAttrs):
    """`accumulate` is the dtype of the accumulator and of the result."""

    accumulate: DType


@dataclass(frozen=True)
class MaxAttrs(ReduceAttrs):
    pass


@dataclass(frozen=True)
class ArgmaxAttrs(AxisAttrs):
    pass


@dataclass(frozen=True)
class ReshapeAttrs(Attrs):
    shape: Shape


@dataclass(frozen=True)
class PermuteAttrs(Attrs):
    order: tuple[int, ...]


@dataclass(frozen=True)
class ExpandAttrs(Attrs):
    """Explicit broadcasting: dimension d of the input becomes dimension axes[d] of the output, the others are new."""

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
class ConcatAttrs(AxisAttrs):
    pass


@dataclass(frozen=True)
class GatherAttrs(AxisAttrs):
    """data, index -> data.shape[:axis] + index.shape + data.shape[axis+1:]; indices are clamped into the axis."""


@dataclass(frozen=True)
class ScatterAddAttrs(AxisAttrs):
    """updates, index -> zeros with `size` along `axis`, each update added at its index, in order: gather's adjoint."""

    size: Extent


@dataclass(frozen=True)
class MatmulAttrs(Attrs):
    """(..., m, k) x (..., k, n) -> (..., m, n); a flag marks an operand whose last two axes are swapped.

    `accumulate` is the dtype of the sums along k, and of the result.
    """

    transpose_a: bool
    transpose_b: bool
    accumulate: DType


@dataclass(frozen=True)
class ItemAttrs(Attrs):
    index: int


@dataclass(frozen=True)
class CallAttrs(GraphAttrs):
    """A function applied to the inputs: its parameters are graph.inputs, its results graph.outputs."""


@dataclass(frozen=True)
class CustomGradientAttrs(GraphAttrs):
    """(results..., arguments..., other values) -> the results unchanged, with a gradient that the graph defines.

    The graph's parameters are the upstream gradients of the results, then the arguments and the other values; it
    returns the gradients of the arguments.  No other input gets a gradient.
    """

    results: int

    @property
    def arguments(self) -> range:
        """The positions of the inputs that get a gradient."""
        return range(self.results, self.results + len(self.graph.outputs))


@dataclass(frozen=True)
class ScanAttrs(GraphAttrs):
    """A loop over a sequence; see type_rules/scan.py for the parameters and results of its body."""

    carries: int
    sequences: int
    length: Extent
    reverse: bool


@dataclass(frozen=True)
class SoftmaxAttrs(AxisAttrs):
    """The attributes of `softmax`, `log_softmax` and `logsumexp`."""


@dataclass(frozen=True)
class GeluAttrs(Attrs):
    approximate: bool


@dataclass(frozen=True)
class NormAttrs(Attrs):
    """Attributes of `layer_norm` and `rms_norm` (over the last axis), `batch_norm` (over all axes but the second), and
    of their gradients."""

    eps: float
    per_worker: bool = False  # `batch_norm` only: statistics of each rank's own rows, not of the global batch


@dataclass(frozen=True)
class GroupNormAttrs(Attrs):
    """Axis 1 of (N, C, ...) is split into groups; each is normalised over its channels and all later axes."""

    groups: int
    eps: float


@dataclass(frozen=True)
class DropoutAttrs(Attrs):
    """The key of the random mask; the gradient applies the same mask.

    `first` is the index of the first element, as in `RandomAttrs`.
    """

    key: str
    first: Extent = 0


@dataclass(frozen=True)
class AttentionAttrs(Attrs):
    """softmax(scale·q·kᵀ + mask)·v with an optional mask; causal: query i attends to the keys 0 ... i.

    `rounded`: the result and the gradients of q, k and v are rounded to their dtype instead of keeping the accumulation
    dtype.
    """

    causal: bool
    scale: float
    rounded: bool = False


@dataclass(frozen=True)
class GroupAttrs(Attrs):
    """The attributes of a collective: the number of ranks if its type depends on it (otherwise 0: any number).

    `axis` is the mesh axis (mesh.py) of the participating ranks.
    """

    ranks: int = 0
    axis: str = DATA


@dataclass(frozen=True)
class ExchangeAttrs(Attrs):
    """The attributes of a bucket of collectives of one kind along one mesh axis."""

    kind: str
    ranks: int = 0
    axis: str = DATA


@dataclass(frozen=True)
class ConvAttrs(Attrs):
    """The attributes of `conv2d`: x (N, C, H, W), weight (O, C / groups, KH, KW); all pairs are (vertical, horizontal).

    `last` selects the channels-last layout of both: x (N, H, W, C) and weight (O, KH, KW, C / groups).
    """

    stride: tuple[int, ...]
    low: tuple[int, ...]  # zero padding: rows above and columns left of the image
    high: tuple[int, ...]  # zero padding: rows below and columns right of the image
    dilation: tuple[int, ...]
    groups: int
    last: bool


@dataclass(frozen=True)
class ConvGradAttrs(Attrs):
    """The attributes of the two adjoints of a convolution: its attributes, and the height and width of the result."""

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
    """The attributes of `max_pool2d` and of its index: padding is never the maximum."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class PoolGradAttrs(Attrs):
    """The attributes of the adjoint of max pooling: the pool's attributes, and the height and width of its input."""

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
    """The attributes of a convolution's adjoints, computed directly from the gradient of the pool that follows it.

    Requires stride and dilation 1, one group, pool windows that tile their input, and channels-last layout.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    window: tuple[int, ...]
    middle: tuple[int, ...]  # height and width between the convolution and the pool
    size: tuple[int, ...]  # height and width of the result
    # Slices of the batch with separate weight gradients: slice p of n images begins at ⌊p·n / parts⌋; the batch itself
    # for the gradient of every image.
    parts: Extent = 1
