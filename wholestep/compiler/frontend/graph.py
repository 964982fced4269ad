"""`Graph`: the builder of one entry point: declares inputs, parameters and states, and sets outputs and updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from wholestep.compiler.frontend import graph_outputs, initializers
from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.precision import half_parameter_error
from wholestep.compiler.frontend.tensor import Operand, Tensor
from wholestep.compiler.frontend.trace import fail, located, record
from wholestep.compiler.frontend.type_promotion import constant, natural_dtype
from wholestep.compiler.frontend.update_counters import START, UpdateCounters
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import Shape, TensorType, as_dtype, as_shape, shape_text, symbols_of
from wholestep.errors import DTypeError, GraphError, ShapeError, UsageError
from wholestep.lazy import interop

_RECORDED: ContextVar[Graph | None] = ContextVar("recorded", default=None)


def current_graph() -> Graph | None:
    """The graph that is currently being recorded into, if any."""
    return _RECORDED.get()


def is_by_columns(node: Node) -> bool:
    """Is the node a state that was declared with `by_columns`?"""
    return isinstance(node.attrs, at.StateAttrs) and node.attrs.by_columns


@contextmanager
def record_into(graph: Graph) -> Iterator[Graph]:
    """Makes a graph the current one: inside, parameters of modules resolve to its tensors."""
    token = _RECORDED.set(graph)
    try:
        yield graph
    finally:
        _RECORDED.reset(token)


class Graph:
    """A program being recorded.

    Example::

        g = ws.Graph()
        x = g.input("x", ("batch", 4))
        w = g.parameter("w", (4, 1))
        g.set_outputs([ws.losses.mse_loss(x @ w, g.input("y", ("batch", 1)))])
    """

    def __init__(self) -> None:
        self._leaves: dict[str, dict[str, Node]] = {"input": {}, "state": {}, "scalar": {}}
        self._outputs: dict[str, Node] = {}
        self._updates: dict[str, Node] = {}
        self._kept: dict[str, Node] = {}
        self._owners: dict[str, object] = {}
        self._scope: tuple[str, ...] = ()
        self._random_calls: dict[tuple[str, ...], int] = {}
        self._update_numbers: dict[str, Node] = {}
        self.sessions: WeakSet[Any] = WeakSet()  # sessions that run this graph: setting a scalar reaches all of them
        self.clocks = UpdateCounters()
        self.modules: Any = None  # modules that were called in this graph: see nn/module/trace.py
        self.owners: dict[str, Any] = {}  # state name -> the parameter of a module that it stores
        self.recorded_by: Any = None  # the function that a @ws.step decorates
        self.meanings: dict[Node, Any] = {}  # how losses interpret scores (logits, ...), for metrics of the same
        self.penalties: dict[str, Tensor] = {}  # penalty terms of modules, by name: see nn/module/regularizers.py
        self.penalties_read = False
        self.loss_parts: dict[str, Node] = {}  # the unweighted terms of the loss, by name

    # -- leaves --------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: object, dtype: object = "float32") -> Tensor:
        """An array passed to every step; strings in the shape name symbolic dimensions."""
        with located():
            kind = TensorType(as_shape(shape), as_dtype(dtype))
        return self._declare("input", "input", name, at.InputAttrs(name, kind))

    def parameter(
        self, name: str, shape: object, init: object = None, dtype: object = "float32", *, by_columns: bool = False
    ) -> Tensor:
        """A state that the optimizer trains; without `init`, Kaiming-uniform for two or more axes, else zeros.

        `by_columns`: matmuls read it transposed, `x @ w.T`, so it is stored transposed; this is not visible to you.
        """
        return self._state("parameter", name, shape, init, dtype, by_columns)

    def state(
        self, name: str, shape: object, init: object = 0.0, dtype: object = "float32", *, by_columns: bool = False
    ) -> Tensor:
        """A value that persists across steps and changes by `update`."""
        return self._state("state", name, shape, init, dtype, by_columns)

    def state_like(self, w: Tensor, name: str, init: object = 0.0) -> Tensor:
        """A state with a parameter's shape, dtype and memory layout, so that one pass over memory updates both."""
        return self.state(name, w.shape, init, w.dtype, by_columns=is_by_columns(w.node))

    def _state(self, op: str, name: str, shape: object, init: object, dtype: object, by_columns: bool) -> Tensor:
        full = ".".join((*self._scope, name)) if isinstance(name, str) and name else name
        with located():
            kind = TensorType(as_shape(shape), as_dtype(dtype))
        if symbols_of(kind.shape):
            fail(
                ShapeError,
                f"the {op} {full!r} has shape {shape_text(kind.shape)}; a state needs a fixed size.",
            )
        if op == "parameter" and not kind.dtype.is_float:
            fail(DTypeError, f"the parameter {full!r} is {kind}, not a float. Use g.state for other values.")
        if op == "parameter" and kind.dtype.is_half:
            fail(DTypeError, half_parameter_error(f"the parameter {full!r} is {kind}"))
        initializer = initializers.default(kind.shape) if init is None else initializers.as_initializer(init)
        initializers.check_fits(initializer, _static(kind.shape), full)
        return self._declare(op, "state", full, at.StateAttrs(full, kind, initializer, by_columns))

    def scalar(self, name: str, default: float) -> Tensor:
        """A runtime scalar: a float64 number that can change between steps without recompilation."""
        return self._declare("scalar", "scalar", name, at.ScalarAttrs(name, float(default)))

    @property
    def step(self) -> Tensor:
        """The index of the step, from 0: the runtime scalar that the session itself advances."""
        return self._counter("step")

    @property
    def epoch(self) -> Tensor:
        """The number of completed epochs, from 0: advanced by `session.run` and `session.end_epoch`."""
        return self._counter("epoch")

    def update_number(self, key: str) -> Tensor:
        """1, 2, ...: the number of the current update of `key`; see `Optimizer.update_number`."""
        start = self.clocks.start_of(key)
        if start not in self._update_numbers:
            self._update_numbers[start] = (self.step - self._counter(start) + 1.0).node
        return Tensor(self._update_numbers[start], self)

    @property
    def session_step(self) -> Tensor:
        """The number of updates of this session so far, from 0: the argument of schedules."""
        return self.step - self._counter(START)

    def _counter(self, name: str) -> Tensor:
        existing = self._leaves["scalar"].get(name)
        return Tensor(existing, self) if existing else self.scalar(name, 0.0)

    def _declare(self, op: str, kind: str, name: str, attrs: at.Attrs) -> Tensor:
        if not isinstance(name, str) or not name:
            fail(GraphError, f"every {op} needs a name, a non-empty string; received {name!r}.")
        if name in self._leaves[kind]:
            existing = self._leaves[kind][name]
            fix = "choose another"
            if name in self.owners:
                fix = "choose another, or use a prefix for all names here: with g.scope('other'): ..."
            fail(GraphError, f"the name {name!r} is already used by the {existing.op} at {existing.line}; {fix}.")
        node = record(op, (), attrs, name)
        self._leaves[kind][name] = node
        return Tensor(node, self)

    def constant(self, value: object, dtype: object = None) -> Tensor:
        """A constant of the program; a single number adopts the dtype of the other operand."""
        with located():
            kind = natural_dtype(value) if dtype is None else as_dtype(dtype)
        return Tensor(constant(value, kind), self)

    def named_tensor(self, name: str, value_or_shape: object, dtype: object = "float32") -> Tensor:
        """A named leaf: an *input* if given a shape, a *state* that starts with the values if given values.

        An int or a tuple is a shape; a float, a list or an array is a value: `g.named_tensor("a", 2)` is an input of
        shape (2,), `g.named_tensor("a", [2.0, 3.0])` a state of two numbers.
        """
        if isinstance(value_or_shape, int | str | tuple):
            return self.input(name, value_or_shape, dtype)
        array = np.asarray(value_or_shape)
        return self.state(name, array.shape, initializers.values(array), dtype)

    def tensor(self, value_or_shape: object, dtype: object = "float32") -> Tensor:
        """`named_tensor` with a generated name: tensor0, tensor1, ..."""
        taken = self._leaves["input"].keys() | self._leaves["state"].keys()
        return self.named_tensor(graph_outputs.free_name("tensor", taken), value_or_shape, dtype)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Parameters, states and random keys declared inside are named `name.…`."""
        with self.at_scope((*self._scope, name)):
            yield

    @contextmanager
    def at_scope(self, names: tuple[str, ...]) -> Iterator[None]:
        """`scope` by its absolute path, independent of the current scope."""
        outer, self._scope = self._scope, names
        try:
            yield
        finally:
            self._scope = outer

    @property
    def open_scope(self) -> tuple[str, ...]:
        """The current scope, outermost name first."""
        return self._scope

    def next_random_key(self) -> str:
        """A key that every pass preserves: the scope and the ordinal of the draw in it."""
        ordinal = self._random_calls.get(self._scope, 0)
        self._random_calls[self._scope] = ordinal + 1
        return "/".join((*self._scope, f"random{ordinal}"))

    def random_uniform(
        self, shape: object, low: Operand = 0.0, high: Operand = 1.0, dtype: object = "float32"
    ) -> Tensor:
        """`ws.random_uniform`"""
        return fn.random_uniform(self, shape, low, high, dtype)

    def random_normal(
        self, shape: object, mean: Operand = 0.0, std: Operand = 1.0, dtype: object = "float32"
    ) -> Tensor:
        """`ws.random_normal`"""
        return fn.random_normal(self, shape, mean, std, dtype)

    if not TYPE_CHECKING:  # type checkers would accept every name as an attribute

        def __getattr__(self, name: str) -> Any:
            return interop.foreign_attribute("a graph", self, name, "'Graph' object")

    # -- ops under the names of a graph builder ------------------------------------------------------------------

    def matmul(self, a: Operand, b: Operand) -> Tensor:
        """a @ b"""
        return fn.matmul(a, b)

    def bias_add(self, x: Tensor, bias: Tensor) -> Tensor:
        """x + bias along the last axis."""
        if bias.shape != x.shape[-1:]:
            expected, received = shape_text(x.shape[-1:]), shape_text(bias.shape)
            fail(ShapeError, f"bias_add: {shape_text(x.shape)} needs a bias of shape {expected}; received {received}.")
        return x + bias

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)"""
        return fn.relu(x)

    def cross_entropy_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`ws.losses.cross_entropy`"""
        from wholestep.losses import cross_entropy

        return cross_entropy(logits, labels)

    def mean_all(self, x: Tensor) -> Tensor:
        """The mean over all elements."""
        return x.mean()

    # -- outputs and updates: graph_outputs.py -------------------------------------------------------------------

    set_outputs = graph_outputs.set_outputs
    update = graph_outputs.update
    advance = graph_outputs.advance
    latest = graph_outputs.latest

    def need_penalties(self) -> None:
        """UsageError if a training step does not read the penalty terms of its modules."""
        if self.penalties and not self.penalties_read:
            fail(
                UsageError,
                f"modules of this step add the penalties {', '.join(self.penalties)}, but it does not read them. "
                "Write loss = loss + sum(ws.penalties(g).values()) before the gradients are taken, or call "
                "ws.penalties(g) and ignore the result.",
            )

    keep = graph_outputs.keep

    def claim(self, name: str, owner: object) -> bool:
        """Reserves a prefix of runtime scalars for an optimizer; True the first time, an error for a second owner."""
        current_owner = self._owners.setdefault(name, owner)
        if current_owner is not owner:
            fail(GraphError, f"two optimizers of one step are named {name!r}; rename one: name='generator'.")
        return f"{name}.lr" not in self._leaves["scalar"]

    # -- reading -------------------------------------------------------------------------------------------------

    def _tensors(self, nodes: Mapping[str, Node]) -> dict[str, Tensor]:
        return {name: Tensor(node, self) for name, node in nodes.items()}

    @property
    def inputs(self) -> dict[str, Tensor]:
        return self._tensors(self._leaves["input"])

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self._tensors({k: n for k, n in self._leaves["state"].items() if n.op == "parameter"})

    @property
    def states(self) -> dict[str, Tensor]:
        """Parameters and other states."""
        return self._tensors(self._leaves["state"])

    @property
    def scalars(self) -> dict[str, Tensor]:
        return self._tensors(self._leaves["scalar"])

    @property
    def outputs(self) -> dict[str, Tensor]:
        return self._tensors(self._outputs)

    @property
    def kept(self) -> dict[str, Tensor]:
        return self._tensors(self._kept)

    @property
    def updates(self) -> dict[str, Tensor]:
        """The new value of each updated state."""
        return self._tensors(self._updates)

    def copy(self, *, updates: bool = True) -> Graph:
        """An independent graph over the same nodes: additions to it do not affect this one."""
        out = Graph()
        out._leaves = {kind: dict(leaves) for kind, leaves in self._leaves.items()}
        out._outputs, out._kept = dict(self._outputs), dict(self._kept)
        out._updates = dict(self._updates) if updates else {}
        out._owners, out._random_calls = dict(self._owners), dict(self._random_calls)
        out.modules, out.owners, out.recorded_by = self.modules, self.owners, self.recorded_by
        out.clocks, out._update_numbers = self.clocks, dict(self._update_numbers)
        out.meanings, out.loss_parts = dict(self.meanings), self.loss_parts
        return out

    def adopt(self, tensor: Tensor) -> Tensor:
        """A tensor of the graph that this one was copied from, as a tensor of this graph."""
        return Tensor(tensor.node, self)

    def toposort(self) -> list[Node]:
        """All nodes that outputs, updates and kept tensors depend on, in topological order."""
        parts = (self._leaves["input"], self._outputs, self._updates, self._kept)
        return toposort([node for part in parts for node in part.values()])

    to_ir = graph_outputs.to_ir

    def __str__(self) -> str:
        from wholestep.compiler.ir.printer import print_graph

        return print_graph(self.to_ir())


def _static(shape: Shape) -> tuple[int, ...]:
    return tuple(int(e) for e in shape)
