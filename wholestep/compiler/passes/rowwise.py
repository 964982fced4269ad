"""How each node of a graph depends on the rows of the batch.

A data-flow analysis with five answers: a node is *free* of the batch, has *rows* that each depend on the same row of
the inputs, is *additive* (a sum over the rows, so that the values of the parts of a batch add up to the value of the
whole), is *whole* (a weighted sum of means over the batch: what a loss may be, and nothing inside it), or is *mixed*:
anything else, with the node and the reason that made it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.ops import OPS, Family, Trait, having
from wholestep.compiler.ir.types import Dim, Extent, Shape, TensorType, divide, product
from wholestep.compiler.passes.decompose import decomposition_over_leaves


@dataclass(frozen=True)
class Free:
    """The same whatever the batch holds."""


@dataclass(frozen=True)
class Rows:
    """Row-wise along `axis`, whose extent is `before` times the batch times anything, in this order from outside.

    `before` is 1 but where axes in front of the batch were merged with it: a sequence with its time first.  None: the
    same for every row, so that any order is right.
    """

    axis: int
    before: Extent | None = 1

    def at(self, axis: int) -> Rows:
        """The same rows along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class Additive:
    """A sum over the rows of something row-wise."""


@dataclass(frozen=True)
class Whole:
    """A weighted sum of quotients of additive things, of additive and of free things."""


@dataclass(frozen=True)
class Mixed:
    """Depends on the rows in another way, since `blame` did what `reason` says."""

    blame: Node
    reason: str


@dataclass(frozen=True)
class Several:
    """Of a node with several results: the kind of each."""

    kinds: tuple[Kind, ...]


Kind = Free | Rows | Additive | Whole | Mixed | Several
Flow = Callable[[Node, Sequence[Kind], str], Kind]


def kinds_of(roots: Iterable[Node], batch: str, known: Mapping[Node, Kind] | None = None) -> dict[Node, Kind]:
    """The kind of every node behind the roots; `known` ones are taken as given."""
    kinds: dict[Node, Kind] = dict(known or {})
    for node in toposort(roots):
        if node not in kinds:
            kinds[node] = _kind(node, [kinds[i] for i in node.inputs], batch)
    return kinds


def _kind(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    for kind in inputs:
        if isinstance(kind, Mixed):
            return kind
    family = OPS[node.op].family
    flow = FLOWS.get(node.op) or _BY_FAMILY.get(family)
    assert flow is not None, f"{node.op} must be gone before the batch is analysed"
    return flow(node, inputs, batch)


def _mentions(extent: Extent, batch: str) -> bool:
    return isinstance(extent, Dim) and batch in extent.symbols


def _is_multiple(extent: Extent, batch: str) -> bool:
    rest = divide(extent, Dim.symbol(batch)) if _mentions(extent, batch) else None
    return rest is not None and not _mentions(rest, batch)


def _by_shape(node: Node, shape: Shape, batch: str) -> Kind:
    """Fresh rows: of inputs, random numbers, and what is repeated for every row."""
    axes = [d for d, e in enumerate(shape) if _mentions(e, batch)]
    if not axes:
        return Free()
    if len(axes) == 1 and _is_multiple(shape[axes[0]], batch):
        return Rows(axes[0])
    return Mixed(node, f"has a shape, {node.type}, that is not one row per element of {batch!r}")


def _same_rows(kinds: Sequence[Kind]) -> Rows | None:
    """What several are together, if all of them are the same rows of the batch along the same axis."""
    rows = [k for k in kinds if isinstance(k, Rows)]
    orders = {r.before for r in rows} - {None}
    if len(rows) < len(kinds) or len({r.axis for r in rows}) != 1 or len(orders) > 1:
        return None
    return Rows(rows[0].axis, next(iter(orders), None))


def _agree(one: Kind, other: Kind) -> bool:
    return one == other or _same_rows([one, other]) is not None


# -- leaves ------------------------------------------------------------------------------------------------------


def _rows_of_shape(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    return _by_shape(node, node.type.shape, batch)


def _free(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    return Free()


def _iota(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if _mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis], batch):
        return Mixed(node, "numbers the rows of the batch, and a part of a batch has other numbers")
    return _rows_of_shape(node, inputs, batch)


def _size(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    extent = attrs_of(node, at.SizeAttrs).extent
    if not _mentions(extent, batch):
        return Free()
    if _is_multiple(extent, batch):
        return Additive()
    return Mixed(node, f"is the size {extent}, which is not a multiple of {batch!r}")


# -- pointwise ---------------------------------------------------------------------------------------------------


def _pointwise(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    distinct = set(inputs)
    if distinct <= {Free()}:
        return Free()
    if (rows := _same_rows(inputs)) is not None:
        return rows
    if Whole() in distinct:
        return Mixed(node, "is not linear in a mean over the batch")
    if Additive() in distinct:
        return Mixed(node, "is not linear in a sum over the batch")
    return Mixed(node, "combines rows of the batch with other rows")


def _linear(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """add, sub, neg, stop_gradient: sums of additive things are additive."""
    distinct = set(inputs)
    if distinct == {Additive()}:
        return Additive()
    if distinct & {Additive(), Whole()} and distinct <= {Free(), Additive(), Whole()}:
        return Whole()
    return _pointwise(node, inputs, batch)


def _scaled(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """mul: by something free it is linear."""
    kind, other = inputs if inputs[1] == Free() else inputs[::-1]
    return kind if other == Free() and kind in (Additive(), Whole()) else _pointwise(node, inputs, batch)


def _divided(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if list(inputs) == [Additive(), Additive()]:
        return Whole()
    return _scaled(node, inputs, batch) if inputs[1] == Free() else _pointwise(node, inputs, batch)


def _where(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A choice that does not depend on the batch, between sums over it and zeros."""
    zero = [kind == Free() and constant_value(x) == 0 for kind, x in zip(inputs[1:], node.inputs[1:], strict=True)]
    sums = {kind for kind, is_zero in zip(inputs[1:], zero, strict=True) if not is_zero}
    return Additive() if inputs[0] == Free() and sums == {Additive()} else _pointwise(node, inputs, batch)


def _cast(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    exact = node.type.dtype.is_float or not node.inputs[0].type.dtype.is_float
    return inputs[0] if exact else _pointwise(node, inputs, batch)


# -- reduce and softmax ------------------------------------------------------------------------------------------


def _without(axis: int, gone: Sequence[int]) -> int:
    return axis - sum(d < axis for d in gone)


def _sum(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), axes = inputs, attrs_of(node, at.SumAttrs).axes
    if not isinstance(kind, Rows):
        return kind
    return Additive() if kind.axis in axes else kind.at(_without(kind.axis, axes))


def _over(axes_of: Callable[[Node], Sequence[int]], keeps_shape: bool) -> Flow:
    """A function along some axes that is not linear: max, argmax, softmax."""

    def flow(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
        kind, axes = inputs[0], axes_of(node)
        if not isinstance(kind, Rows):
            return _pointwise(node, inputs[:1], batch)
        if kind.axis in axes:
            return Mixed(node, "runs along the batch")
        return kind if keeps_shape else kind.at(_without(kind.axis, axes))

    return flow


def _cross_entropy(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if isinstance(inputs[0], Rows) and inputs[0].axis == node.inputs[0].type.rank - 1:
        return Mixed(node, "has its classes along the batch")
    return _pointwise(node, inputs, batch)


# -- layers ------------------------------------------------------------------------------------------------------


def _like_its_decomposition(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """What its primitives do, over leaves of the same types; it is to blame for all of them."""
    leaves, parts = decomposition_over_leaves(node)
    known = kinds_of(parts, batch, dict(zip(leaves, inputs, strict=True)))
    kinds = tuple(_blame(node, known[p]) for p in parts)
    return kinds[0] if isinstance(node.result, TensorType) else Several(kinds)


def _blame(node: Node, kind: Kind) -> Kind:
    return Mixed(node, f"{kind.reason} inside (`{kind.blame.op}`)") if isinstance(kind, Mixed) else kind


def _item(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (several,) = inputs
    assert isinstance(several, Several), f"{node.inputs[0]!r} must be gone before the batch is analysed"
    return several.kinds[attrs_of(node, at.ItemAttrs).index]


# -- movement ----------------------------------------------------------------------------------------------------


def _reshape(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), old, new = inputs, node.inputs[0].type.shape, node.type.shape
    if not isinstance(kind, Rows):
        return kind
    outside = product(old[: kind.axis])
    before = outside * (1 if kind.before is None else kind.before)
    for axis, extent in enumerate(new):
        inside = divide(before, product(new[:axis]))  # of all that is before the batch, what this axis holds
        if inside is not None and _is_multiple(divide(extent, inside) or 1, batch):
            whole = kind.before is None and extent == old[kind.axis] and inside == 1
            return Rows(axis, None if whole else inside)
    return Mixed(node, "tears the rows of the batch apart")


def _permute(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,) = inputs
    return kind.at(attrs_of(node, at.PermuteAttrs).order.index(kind.axis)) if isinstance(kind, Rows) else kind


def _expand(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a = inputs, attrs_of(node, at.ExpandAttrs)
    new = any(_mentions(e, batch) for d, e in enumerate(a.shape) if d not in a.axes)
    if isinstance(kind, Free):
        fresh = _by_shape(node, a.shape, batch)
        return Rows(fresh.axis, None) if isinstance(fresh, Rows) else fresh
    if new and isinstance(kind, Rows):
        return Mixed(node, "pairs the rows of the batch with each other")
    if new:
        return Mixed(node, "gives each row a value of the whole batch")
    return kind.at(a.axes[kind.axis]) if isinstance(kind, Rows) else kind


def _slice(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a, shape = inputs, attrs_of(node, at.SliceAttrs), node.inputs[0].type.shape
    if isinstance(kind, Rows):
        d = kind.axis
        if (a.starts[d], a.stops[d], a.steps[d]) != (0, shape[d], 1):
            return Mixed(node, "picks rows by their place in the batch")
    return kind


def _pad(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a = inputs, attrs_of(node, at.PadAttrs)
    if isinstance(kind, Rows) and (a.low[kind.axis] or a.high[kind.axis]):
        return Mixed(node, "adds rows to the batch")
    if kind == Additive() and a.value != 0:
        return Mixed(node, "adds a constant to a sum over the batch")
    return kind


def _concat(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if any(isinstance(k, Rows) and k.axis == attrs_of(node, at.ConcatAttrs).axis for k in inputs):
        return Mixed(node, "joins batches")
    return _linear(node, inputs, batch)


# -- indexing and contraction ------------------------------------------------------------------------------------


def _gather(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (data, index), axis, rank = inputs, attrs_of(node, at.GatherAttrs).axis, node.inputs[1].type.rank
    if isinstance(index, Rows) and isinstance(data, Free):
        return index.at(axis + index.axis)
    if isinstance(index, Free) and isinstance(data, Rows) and data.axis != axis:
        return data.at(data.axis if data.axis < axis else data.axis + rank - 1)
    if isinstance(index, Free) and not isinstance(data, Rows):
        return data
    return Mixed(node, "picks rows of the batch by index")


def _scatter_add(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (updates, index), axis, rank = inputs, attrs_of(node, at.ScatterAddAttrs).axis, node.inputs[1].type.rank
    inside = isinstance(updates, Rows) and axis <= updates.axis < axis + rank
    if _mentions(attrs_of(node, at.ScatterAddAttrs).size, batch):
        return Mixed(node, "writes rows of the batch by index")
    if isinstance(updates, Rows) and inside:
        if index == Free() or _same_rows([index, updates.at(updates.axis - axis)]) is not None:
            return Additive()
    elif isinstance(updates, Rows) and isinstance(index, Free):
        return updates.at(updates.axis if updates.axis < axis else updates.axis - rank + 1)
    if isinstance(index, Free) and not isinstance(updates, Rows):
        return updates
    return Mixed(node, "adds up rows of the batch by index")


def _write_rows(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if all(isinstance(k, Free) for k in inputs):
        return Free()
    return Mixed(node, "writes rows of the batch one behind the other")


def _matmul(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (a, c), flags, rank = inputs, attrs_of(node, at.MatmulAttrs), node.type.rank
    # The role of the batch axis in each operand: "m" or "n", "k", or a leading axis by its number.
    role_a = _role(a, rank, flags.transpose_a, ("m", "k"))
    role_c = _role(c, rank, flags.transpose_b, ("k", "n"))
    if isinstance(a, Rows) and isinstance(c, Rows) and role_a == role_c:
        same = _same_rows([a.at(0), c.at(0)])
        if same is not None:
            return Additive() if role_a == "k" else same.at(a.axis)
    if isinstance(c, Free) and isinstance(a, Rows) and role_a == "m":
        return a.at(rank - 2)
    if isinstance(a, Free) and isinstance(c, Rows) and role_c == "n":
        return c.at(rank - 1)
    if isinstance(a, Rows) and isinstance(c, Rows):
        return Mixed(node, "multiplies rows of the batch with other rows")
    return _scaled(node, inputs, batch)


def _role(kind: Kind, rank: int, transposed: bool, names: tuple[str, str]) -> str | int | None:
    if not isinstance(kind, Rows):
        return None
    if kind.axis < rank - 2:
        return kind.axis
    return (names[::-1] if transposed else names)[kind.axis - (rank - 2)]


# -- windows: every image for itself, but for what is summed over them -------------------------------------------------


def _by_image(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if all(isinstance(k, Free) for k in inputs):
        return Free()
    if all(isinstance(k, Free) or _agree(k, Rows(0)) for k in inputs):
        return Rows(0)
    return Mixed(node, "slides windows over images that are not rows of the batch")


def _filtered(weight: int) -> Flow:
    """Images under a weight that does not depend on the batch."""

    def flow(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
        if not isinstance(inputs[weight], Free):
            return Mixed(node, "filters images with a weight that depends on the batch")
        return _by_image(node, inputs, batch)

    return flow


def _correlated(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A sum over the images."""
    kind = _by_image(node, inputs, batch)
    return Additive() if kind == Rows(0) else kind


def _correlated_in_parts(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """Sums over some of the images each: which image goes to which sum depends on its place in the batch."""
    kind = _by_image(node, inputs, batch)
    return Mixed(node, "adds up images by their place in the batch") if kind == Rows(0) else kind


def _scan(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A loop over rows is row-wise if each of its steps is, and leaves its carries the rows that they were."""
    attrs = attrs_of(node, at.ScanAttrs)
    first, last = attrs.carries, attrs.carries + attrs.sequences
    cuts = [_of_a_step(node, kind) for kind in inputs[first:last]]
    carried = list(inputs[:first])
    for _ in range(first + 1):  # a carry that begins free may become rows: until nothing changes
        known = dict(zip(attrs.graph.inputs, (*carried, *cuts, *inputs[last:]), strict=True))
        for kind in known.values():
            if isinstance(kind, Mixed | Additive | Whole):
                return kind if isinstance(kind, Mixed) else Mixed(node, "loops over a sum over the batch")
        kinds = kinds_of([o.node for o in attrs.graph.outputs], batch, known)
        after = [kinds[o.node] for o in attrs.graph.outputs]
        for kind in after:
            if isinstance(kind, Mixed):
                return kind
        if after[:first] == carried:
            break
        fresh = [_by_shape(node.inputs[i], node.inputs[i].type.shape, batch) for i in range(first)]
        carried = [new if old == Free() or _agree(old, new) else old for old, new in zip(carried, fresh, strict=True)]
    if not all(map(_agree, after[:first], carried)) or any(isinstance(k, Additive | Whole) for k in after):
        return Mixed(node, "carries something from step to step that is not the same rows of the batch")
    return Several(tuple(k.at(k.axis + 1) if isinstance(k, Rows) else k for k in after))


def _of_a_step(node: Node, kind: Kind) -> Kind:
    if isinstance(kind, Rows):
        return kind.at(kind.axis - 1) if kind.axis else Mixed(node, "takes the rows of the batch as its steps")
    return kind


# -- gradients of a user's own -----------------------------------------------------------------------------------------


def _custom_gradient(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """Its results are what they were, if its gradient does to a part of a batch what it does to the whole."""
    attrs = attrs_of(node, at.CustomGradientAttrs)
    results, arguments = inputs[: attrs.results], [inputs[i] for i in attrs.arguments]
    if Whole() in {*results, *arguments}:
        return Mixed(node, "has a gradient of its own for a mean over the batch; give it the sum, and divide behind it")
    for draw in attrs.graph.nodes:
        if draw.op in having(Trait.DRAWS) and any(_mentions(e, batch) for e in draw.type.shape[1:]):
            return Mixed(node, "draws random numbers in its gradient whose first axis is not the batch")
    known = dict(zip(attrs.graph.inputs, (*map(_arriving, results), *inputs[attrs.results :]), strict=True))
    kinds = kinds_of([o.node for o in attrs.graph.outputs], batch, known)
    for output, argument in zip(attrs.graph.outputs, arguments, strict=True):
        kind = kinds[output.node]
        if isinstance(kind, Mixed):
            return Mixed(node, f"has a gradient of its own in which `{kind.blame.op}` {kind.reason}")
        if not _agree(kind, _arriving(argument)):
            return Mixed(node, "has a gradient of its own that does not add up over the parts of a batch")
    return Several(tuple(results))


def _arriving(kind: Kind) -> Kind:
    """The kind of a gradient: rows have rows, what all rows share has a sum over them, and a sum has one for all."""
    return Additive() if kind == Free() else Free() if kind == Additive() else kind


_BY_FAMILY: dict[Family, Flow] = {Family.POINTWISE: _pointwise, Family.LEAF: _free}

FLOWS: dict[str, Flow] = {
    "input": _rows_of_shape,
    "random": _rows_of_shape,
    "iota": _iota,
    "size": _size,
    "add": _linear,
    "sub": _linear,
    "neg": _linear,
    "stop_gradient": _linear,
    "by_mode": lambda node, inputs, batch: inputs[0],
    "mul": _scaled,
    "div": _divided,
    "ratio": _divided,
    "where": _where,
    "cast": _cast,
    "sum": _sum,
    "max": _over(lambda n: attrs_of(n, at.MaxAttrs).axes, keeps_shape=False),
    "argmax": _over(lambda n: (attrs_of(n, at.ArgmaxAttrs).axis,), keeps_shape=False),
    "softmax": _over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "log_softmax": _over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "logsumexp": _over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=False),
    "relu": _pointwise,
    "sigmoid": _pointwise,
    "tanh": _pointwise,
    "silu": _pointwise,
    "softplus": _pointwise,
    "gelu": _pointwise,
    "bce_with_logits": _pointwise,
    "cross_entropy": _cross_entropy,
    "layer_norm": _like_its_decomposition,
    "layer_norm_grad": _like_its_decomposition,
    "rms_norm": _like_its_decomposition,
    "rms_norm_grad": _like_its_decomposition,
    "group_norm": _like_its_decomposition,
    "group_norm_grad": _like_its_decomposition,
    "batch_norm": _like_its_decomposition,
    "batch_norm_grad": _like_its_decomposition,
    "dropout": _like_its_decomposition,
    "attention": _like_its_decomposition,
    "attention_lse": _like_its_decomposition,
    "attention_grad": _like_its_decomposition,
    "scan": _scan,
    "custom_gradient": _custom_gradient,
    "item": _item,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "write_rows": _write_rows,
    "matmul": _matmul,
    "conv2d": _filtered(weight=1),
    "conv2d_grad_input": _filtered(weight=1),
    "conv2d_grad_weight": _correlated,
    "max_pool2d": _by_image,
    "max_pool2d_index": _by_image,
    "max_pool2d_grad": _by_image,
    "max_pool2d_pick": _by_image,
    "pooled_grad_weight": _correlated_in_parts,
    "pooled_grad_input": _filtered(weight=2),
}
