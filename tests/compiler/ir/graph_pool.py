"""The nodes of a random graph in the making, with bounds on their values: see random_graphs.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node, SourceLine
from wholestep.compiler.ir.types import Dim, DType, Extent, Shape, TensorType, evaluate, int32, int64, product

SYMBOLS = ("batch", "time")
LARGEST_SIZE = 6  # of a symbolic dimension
_LARGEST_TENSOR = 2000
LARGEST_VALUE = 30.0  # of a float: the `scale` for assert_close
_LARGEST_INTEGER = 1e5


@dataclass
class Pool:
    """What the makers draw from and add to."""

    draw: Any
    dtype: DType
    symbols: tuple[str, ...]
    bound: dict[Node, float] = field(default_factory=dict)  # of the magnitude, at the largest sizes
    exact: set[Node] = field(default_factory=set)  # floats that float32 holds exactly
    inputs: list[Node] = field(default_factory=list)
    states: list[Node] = field(default_factory=list)

    @property
    def largest(self) -> dict[str, int]:
        return dict.fromkeys(SYMBOLS, LARGEST_SIZE)

    def length(self, *extents: Extent) -> int:
        return evaluate(product(extents), self.largest)

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def node(self, op: str, *inputs: Node, attrs: at.Attrs = at.NONE) -> Node:
        """A node; some carry a name and a line, some of them hostile."""
        name = self.draw(st.sampled_from(["", "", "", "layer.0", 'quo"te\n', "βήτα \\ %3"]))
        line = SourceLine(self.pick(["model.py", 'odd "name".py', "C:\\x y.py"]), 7) if name else None
        return Node(op, inputs, attrs, name, line)

    def add(self, node: Node, bound: float, exact: bool = False) -> Node:
        """Keep a node, squashed where its values may be large, unless it is too big."""
        t = node.type
        if t.rank > 4 or self.length(*t.shape) > _LARGEST_TENSOR:
            return node
        if t.dtype.is_float and bound > LARGEST_VALUE:
            node, bound, exact = self.node("tanh", node), 1.0, False
        if t.dtype.is_integer and bound > _LARGEST_INTEGER:
            node, bound = self.node("mod", node, self.full(7, t)), 7.0
        self.bound[node] = bound
        if exact:
            self.exact.add(node)
        return node

    # leaves

    def new_input(self, shape: Shape, dtype: DType | None = None) -> Node:
        attrs = at.InputAttrs(f"x{len(self.inputs)}", TensorType(shape, dtype or self.dtype))
        self.inputs.append(self.node("input", attrs=attrs))
        return self.add(self.inputs[-1], 8.0, exact=True)

    def new_state(self, shape: Shape) -> Node:
        op, init = self.pick(["parameter", "state"]), at.Initializer("uniform", (-0.5, 0.5))
        attrs = at.StateAttrs(f"w{len(self.states)}", TensorType(shape, self.dtype), init)
        self.states.append(self.node(op, attrs=attrs))
        return self.add(self.states[-1], 2.0, exact=True)

    def constant(self, value: object, dtype: DType) -> Node:
        array = np.asarray(value, dtype.numpy)
        node = self.node("constant", attrs=at.ConstantAttrs(at.Array(array)))
        return self.add(node, float(np.abs(array.astype(np.float64)).max(initial=0.0)), exact=True)

    def full(self, value: object, t: TensorType) -> Node:
        return self.expand(self.constant(value, t.dtype), t.shape, ())

    # choosing

    def floats(self, *, rank: int = 0, exact: bool = False, bound: float = 1e9) -> list[Node]:
        return [
            n
            for n, b in self.bound.items()
            if n.type.dtype == self.dtype and n.type.rank >= rank and b <= bound and (not exact or n in self.exact)
        ]

    def any_float(self, rank: int = 0, bound: float = 1e9) -> Node:
        """A float tensor of at least this rank; squashed where its values are beyond `bound`."""
        x = self.pick(self.floats(rank=rank))
        return x if self.bound[x] <= bound else self.add(self.node("tanh", x), 1.0)

    def any_exact(self, rank: int = 0) -> Node:
        return self.pick(self.floats(rank=rank, exact=True))

    def of(self, dtype: DType) -> list[Node]:
        return [n for n in self.bound if n.type.dtype == dtype]

    def index(self, shape: Shape | None = None) -> Node:
        """An integer input that is used as an index, old or new."""
        old = [i for i in self.inputs if i.type.dtype.is_integer and shape in (None, i.type.shape)]
        if old and self.chance():
            return self.pick(old)
        return self.new_input(self.small_shape() if shape is None else shape, self.pick([int32, int64]))

    def small_shape(self) -> Shape:
        extents = [2, 3, *map(Dim.symbol, self.symbols)]
        return tuple(self.draw(st.lists(st.sampled_from(extents), max_size=2)))

    def fit(self, t: TensorType, exact: bool = False) -> Node:
        """A float tensor of this type: one of the pool, maybe broadcast, or a constant."""
        found = [(n, _placement(n.type.shape, t.shape)) for n in self.floats(exact=exact)]
        found = [(n, axes) for n, axes in found if axes is not None]
        if found and self.draw(st.integers(0, 4)):
            x, axes = self.pick(found)
            return self.expand(x, t.shape, axes)
        return self.full(self.pick([0.5, -1.25, 2.0]), t)

    def expand(self, x: Node, shape: Shape, axes: tuple[int, ...]) -> Node:
        if x.type.shape == shape:
            return x
        node = self.node("expand", x, attrs=at.ExpandAttrs(shape, axes))
        self.bound[node] = self.bound[x]
        if x in self.exact:
            self.exact.add(node)
        return node

    def at_least_one(self, x: Node) -> Node:
        """1 + x*x."""
        square = self.node("mul", x, x)
        return self.add(self.node("add", square, self.full(1.0, x.type)), 1.0 + self.bound[x] ** 2)


def _placement(inner: Shape, outer: Shape) -> tuple[int, ...] | None:
    """Where the axes of `inner` occur in order in `outer`; None where they do not."""
    axes: list[int] = []
    for extent in inner:
        start = axes[-1] + 1 if axes else 0
        found = [d for d in range(start, len(outer)) if outer[d] == extent]
        if not found:
            return None
        axes.append(found[0])
    return tuple(axes)
