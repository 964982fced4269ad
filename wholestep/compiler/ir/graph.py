"""Nodes and graphs of the IR: a pure dataflow graph.  Both are immutable; passes build new nodes and graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TypeVar

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.ops import LEAVES, OPS, Attrs, Family, Trait, ops_with
from wholestep.compiler.ir.types import TensorType, Type, symbols_of
from wholestep.records import dataclass

A = TypeVar("A", bound=Attrs)

STATES, ELEMENTWISE = ops_with(Trait.STATE), ops_with(Trait.ELEMENTWISE)


@dataclass(frozen=True)
class SourceLine:
    """The line of user code that created a node."""

    file: str
    line: int
    layer: str = field(default="", compare=False)  # path of the module that created it, for profiles

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def error_note(self) -> str:
        """The text for an error message: the location and the source line."""
        import linecache  # imported lazily: needed for errors only

        source = linecache.getline(self.file, self.line).strip()
        return f"\n  at {self}" + (f": {source}" if source else "")


class Node:
    """One operation: op, inputs, attributes and result type.  Compared by identity."""

    __slots__ = ("attrs", "host", "inputs", "line", "name", "op", "result")

    def __init__(
        self, op: str, inputs: Sequence[Node], attrs: Attrs, name: str = "", line: SourceLine | None = None
    ) -> None:
        self.op, self.inputs, self.attrs, self.name, self.line = op, tuple(inputs), attrs, name, line
        self.result: Type = OPS[op].infer(tuple(i.result for i in self.inputs), attrs)
        # Depends on runtime scalars, sizes and constants only?  Then the scalar prologue evaluates it in float64.
        self.host = _is_host(self)

    @property
    def type(self) -> TensorType:
        assert isinstance(self.result, TensorType), f"{self.op} has several results; read them through item nodes"
        return self.result

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of all results; most ops have one."""
        return (self.result,) if isinstance(self.result, TensorType) else self.result.items

    @property
    def shape(self) -> tuple[object, ...]:
        return self.type.shape

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        """The same operation with other inputs; the node itself if nothing changed."""
        inputs = tuple(inputs)
        assert len(inputs) == len(self.inputs), f"{self.op} has {len(self.inputs)} inputs, not {len(inputs)}"
        if inputs == self.inputs:  # compares by identity
            return self
        return self.copy(inputs, self.attrs)

    def copy(self, inputs: Sequence[Node], attrs: Attrs) -> Node:
        """The same op with other inputs and attributes."""
        if attrs is self.attrs and _have_equal_types(inputs, self.inputs):
            return self._copy_of_equal_type(tuple(inputs))
        return Node(self.op, inputs, attrs, self.name, self.line)

    def _copy_of_equal_type(self, inputs: tuple[Node, ...]) -> Node:
        """The same op on inputs of the same types: its own type is the same, and is not inferred again."""
        copy = object.__new__(Node)
        copy.op, copy.inputs, copy.attrs, copy.name, copy.line = self.op, inputs, self.attrs, self.name, self.line
        copy.result, copy.host = self.result, self.host
        return copy

    @property
    def is_state(self) -> bool:
        """Is the node a leaf whose values persist across steps?"""
        return self.op in STATES

    @property
    def is_elementwise(self) -> bool:
        """Is each element of the result a function of the operands' elements at the same index?"""
        return self.op in ELEMENTWISE

    def __repr__(self) -> str:
        return f"<{self.op}{' ' + repr(self.name) if self.name else ''}: {self.result}>"


def attrs_of(node: Node, kind: type[A]) -> A:
    """A node's attributes, narrowed to their type."""
    assert isinstance(node.attrs, kind), f"{node!r} has {type(node.attrs).__name__}, expected {kind.__name__}"
    return node.attrs


def leaf_name(node: Node) -> str:
    """The name of an input, a parameter, another state or a runtime scalar."""
    return attrs_of(node, at.NamedAttrs).name


def below(node: Node, ops: Collection[str]) -> Node:
    """The node below a chain of some ops, through their first operands."""
    while node.op in ops:
        node = node.inputs[0]
    return node


def _have_equal_types(inputs: Sequence[Node], others: Sequence[Node]) -> bool:
    """Do two lists of operands have the same types?  Types of equal nodes are one object."""
    return len(inputs) == len(others) and all(
        new.result is old.result and new.host == old.host for new, old in zip(inputs, others)
    )


def _is_host(node: Node) -> bool:
    if node.op in ("scalar", "size"):
        return True
    if node.op == "constant":
        return node.type.rank == 0
    pointwise = OPS[node.op].family in (Family.POINTWISE, Family.COMPOSITE, Family.RATIO)
    return pointwise and bool(node.inputs) and all(i.host for i in node.inputs)


def toposort(roots: Iterable[Node]) -> list[Node]:
    """Topological order (iterative depth-first search) of all nodes reachable from the roots; deterministic."""
    done: dict[Node, None] = {}
    for root in roots:
        stack: list[tuple[Node, int]] = [(root, 0)]
        while stack:
            node, next_input = stack.pop()
            if node in done:
                continue
            if next_input < len(node.inputs):
                stack.append((node, next_input + 1))
                if node.inputs[next_input] not in done:
                    stack.append((node.inputs[next_input], 0))
            else:
                done[node] = None
    return list(done)


@dataclass(frozen=True)
class Output:
    name: str
    node: Node


@dataclass(frozen=True)
class Update:
    """The state `name` is assigned the value of `node` at the end of the step; all updates happen simultaneously."""

    name: str
    node: Node


@dataclass(frozen=True, eq=False)
class IRGraph:
    """One entry point: its outputs and the updates of its states.

    `inputs` are the declared input leaves in order (an unused one is still an input of the entry point).
    For the body of a node (scan, call), `inputs` are the parameters of the function and `updates` is empty.
    """

    outputs: tuple[Output, ...]
    updates: tuple[Update, ...] = ()
    inputs: tuple[Node, ...] = ()

    @cached_property
    def roots(self) -> tuple[Node, ...]:
        """The nodes of the outputs, then the nodes of the updates, in order; a node may occur several times."""
        return (*(o.node for o in self.outputs), *(u.node for u in self.updates))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order."""
        return tuple(toposort([*self.inputs, *self.roots]))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions, sorted."""
        names: set[str] = set()
        for n in self.nodes:
            for t in n.results:
                names |= symbols_of(t.shape)
            if n.op == "size":
                names |= symbols_of([attrs_of(n, at.SizeAttrs).extent])
            if isinstance(n.attrs, at.RandomAttrs | at.DropoutAttrs):
                names |= symbols_of([n.attrs.first])
            if n.op == "slice":
                names |= symbols_of(attrs_of(n, at.SliceAttrs).starts)
        return tuple(sorted(names))

    def leaves(self, op: str) -> dict[str, Node]:
        """The leaves of one kind (input, parameter, state, scalar) by name."""
        assert op in LEAVES, op
        return {leaf_name(n): n for n in self.nodes if n.op == op}

    def states(self) -> dict[str, Node]:
        """Parameters and other states, by name."""
        return {leaf_name(n): n for n in self.nodes if n.is_state}

    def consumers(self) -> dict[Node, list[Node]]:
        """The users of each node (a node that uses it twice is listed once)."""
        out: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for i in dict.fromkeys(n.inputs):
                out[i].append(n)
        return out

    def single_use_nodes(self) -> set[Node]:
        """Nodes with exactly one user that are not roots: nothing else sees their value."""
        return {n for n, users in self.consumers().items() if len(users) == 1} - set(self.roots)

    def with_roots(self, roots: Iterable[Node], inputs: Iterable[Node] | None = None) -> IRGraph:
        """The graph with other nodes for the same outputs and updates; `inputs` default to this graph's."""
        node = iter(roots)
        return IRGraph(
            tuple(Output(o.name, next(node)) for o in self.outputs),
            tuple(Update(u.name, next(node)) for u in self.updates),
            self.inputs if inputs is None else tuple(inputs),
        )

    def with_nodes(self, new: Mapping[Node, Node]) -> IRGraph:
        """The graph after a rewrite: every root and input is replaced by its image.  The same graph if none changed."""
        if all(new[n] is n for n in (*self.roots, *self.inputs)):
            return self
        return self.with_roots([new[n] for n in self.roots], [new[n] for n in self.inputs])


HOLDERS = ops_with(Trait.HOLDS_GRAPH)


def body_of(node: Node) -> IRGraph | None:
    """The nested graph of a node, if it has one."""
    return attrs_of(node, at.GraphAttrs).graph if node.op in HOLDERS else None


def with_body(node: Node, graph: IRGraph) -> Node:
    """The same node with another body; the node itself if nothing changed."""
    if graph is body_of(node):
        return node
    return node.copy(node.inputs, replace(attrs_of(node, at.GraphAttrs), graph=graph))


def rewrite(graph: IRGraph, rule: Callable[[Node], Node | tuple[Node, ...]]) -> IRGraph:
    """Rebuild a graph bottom-up: `rule` gets each node with its inputs already rewritten and returns its replacement.

    A tuple replaces a node result by result.  Nested graphs are rewritten first, by the same rule.
    """
    new: dict[Node, Node] = {}
    results: dict[Node, tuple[Node, ...]] = {}  # replacements of the results that `item` nodes read
    for n in graph.nodes:
        if n.op == "item" and n.inputs[0] in results:
            new[n] = results[n.inputs[0]][attrs_of(n, at.ItemAttrs).index]
            continue
        rebuilt = n.with_inputs([new[i] for i in n.inputs])
        inner = body_of(n)
        if inner is not None:
            rebuilt = with_body(rebuilt, rewrite(inner, rule))
        replacement = rule(rebuilt)
        if isinstance(replacement, Node):
            new[n] = replacement
        elif isinstance(n.result, TensorType):
            (new[n],) = replacement
        else:
            new[n], results[n] = rebuilt, replacement
    return graph.with_nodes(new)
