"""Outputs, state updates and kept tensors of a step: methods of `Graph`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.errors import GraphError, ShapeError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph


def set_outputs(self: Graph, outputs: Sequence[Tensor] | Mapping[str, Tensor] | Tensor) -> None:
    """Sets what a step returns; the first output is the loss.

    In a sequence, a tensor that was named by `keep` has that name; others are named `loss` (the first, if it is a float
    scalar; else `output`) and `output1`, `output2`, ...  A mapping names them.
    """
    if isinstance(outputs, Tensor) or not outputs:
        fail(GraphError, "set_outputs needs a list of tensors, the loss first: g.set_outputs([loss, logits]).")
    pairs = (
        outputs.items() if isinstance(outputs, Mapping) else [(_output_name(i, t), t) for i, t in enumerate(outputs)]
    )
    named: dict[str, Node] = {}
    for name, tensor in pairs:
        _check_owner(self, "set_outputs", tensor)
        if name in self._leaves["state"] or name in named or not name:
            fail(
                GraphError,
                f"an output cannot be named {name!r}: the name is empty, a state's, or another output's.",
            )
        named[name] = tensor.node
    self._outputs = named


def _output_name(position: int, tensor: Tensor) -> str:
    if isinstance(tensor, Tensor) and tensor.name and not tensor.node.is_state:
        return tensor.name
    if position:
        return f"output{position}"
    is_loss = isinstance(tensor, Tensor) and tensor.shape == () and tensor.dtype.is_float
    return "loss" if is_loss else "output"


def update(self: Graph, state: Tensor, value: Tensor) -> None:
    """Assigns the value to `state` (a state or parameter) at the end of the step; all updates are simultaneous."""
    _check_owner(self, "update", state)
    _check_owner(self, "update", value)
    if not state.node.is_state:
        fail(GraphError, f"only states and parameters can be updated; received {state!r}.")
    if state.node.result != value.node.result:
        fail(ShapeError, f"the new value of {state.name!r} must be {state.node.type}; received {value.node.type}.")
    if state.name in self._updates:
        fail(GraphError, f"{state.name!r} is updated twice in one step; combine the two values into one.")
    self._updates[state.name] = value.node


def advance(self: Graph, state: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """`update` relative to the pending value of the state: of several changes, each applies to the result of the last.

    Example: `g.advance(count, lambda now: now + 1.0)`.
    """
    _check_owner(self, "advance", state)
    before = self._updates.pop(state.name, state.node)
    self.update(state, change(Tensor(before, self)))


def latest(self: Graph, state: Tensor) -> Tensor:
    """The pending value of a state in this step: the state itself, unless it was updated."""
    _check_owner(self, "latest", state)
    return Tensor(self._updates.get(state.name, state.node), self)


def keep(self: Graph, tensor: Tensor, name: str | None = None) -> None:
    """Makes a tensor readable by name after a step: see `Tensor.keep`."""
    _check_owner(self, "keep", tensor)
    if name == "":
        fail(GraphError, "keep: a kept tensor's name cannot be empty.")
    key = name or tensor.name or free_name("kept", self._kept)
    current = self._kept.get(key, self._leaves["state"].get(key, tensor.node))
    if current is not tensor.node:
        fail(GraphError, f"keep: the name {key!r} belongs to {current!r}; choose another.")
    if not tensor.name:
        tensor.node.name = key
    self._kept[key] = tensor.node


def to_ir(self: Graph, *, updates: bool = True) -> ir.IRGraph:
    """The entry point as an IR graph: outputs and kept tensors, updates, inputs."""
    states = self._leaves["state"]
    outputs = {**self._outputs, **{n: k for n, k in self._kept.items() if n not in states}}
    graph = ir.IRGraph(
        tuple(ir.Output(name, node) for name, node in outputs.items()),
        tuple(ir.Update(name, node) for name, node in self._updates.items()) if updates else (),
        tuple(self._leaves["input"].values()),
    )
    _refuse_escaped(graph)
    return graph


def _refuse_escaped(graph: ir.IRGraph) -> None:
    """An error if a program uses a value that exists only inside a nested function (an escaped tracer)."""
    declared = set(graph.inputs)
    roots: list[ir.Output | ir.Update] = [*graph.outputs, *graph.updates]
    for leaf in graph.nodes:
        if leaf.op == "input" and leaf not in declared:
            name = next(root.name for root in roots if leaf in toposort([root.node]))
            fail(
                GraphError,
                f"{name!r} is computed inside the body of a scan or a custom gradient, in the call at {leaf.line}; it "
                f"has no value outside. Return it from the function, and use "
                "the result of the call.",
            )


def _check_owner(graph: Graph, what: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        fail(GraphError, f"{what} needs tensors; received {tensor!r}.")
    if tensor.graph is not graph and tensor.graph is not None:
        fail(GraphError, f"{what}: {tensor!r} belongs to another graph; record it in this one.")


def free_name(prefix: str, taken: Container[str]) -> str:
    """The first of prefix0, prefix1, ... that is not taken."""
    ordinal = 0
    while f"{prefix}{ordinal}" in taken:
        ordinal += 1
    return f"{prefix}{ordinal}"
