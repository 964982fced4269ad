"""Buffer assignment: which values are stored, in which memory space, and where each op stores its result.

A value is stored if the caller reads it, if it updates a state, or if another kernel than its own reads it; all others
stay in registers or in a thread's workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.ir.attrs import StateAttrs
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.types import DType, Extent, TensorType
from wholestep.compiler.plan.fusion.clusters import Cluster, accesses
from wholestep.compiler.plan.lower.materialize import half_copy_under, is_state
from wholestep.compiler.plan.lower.routine_ops import compose_indices
from wholestep.compiler.plan.lower.scan import ExpandedLoops
from wholestep.compiler.plan.model.access import identity
from wholestep.compiler.plan.model.kernel import Buffer, HostValue, Index, Layout, Load, Scalar, Space
from wholestep.compiler.plan.model.layout import layout_bytes


class ScalarPrologue:
    """Expressions of runtime scalars, sizes and constants, evaluated in float64 once per step.

    Kernels read the results (a learning rate, a bias correction) from numbered slots instead of memory.
    """

    def __init__(self) -> None:
        self.values: list[HostValue] = []
        self.ids: dict[Node, int] = {}
        self.scalars: dict[str, Scalar] = {}
        self.slots = 0

    def slot(self, node: Node) -> int:
        """The slot from which kernels read the value of a host node."""
        at = self.value(node)
        slot = self.values[at].slot
        if slot is None:
            self.values[at] = replace(self.values[at], slot=self.slots)
            self.slots += 1
            return self.slots - 1
        return slot

    def value(self, node: Node) -> int:
        """The id of the prologue's instruction that computes a node; its operands come first."""
        if node not in self.ids:
            args = tuple(self.value(i) for i in node.inputs)
            value = self._make(node, args)
            self.ids[node] = value.id
            self.values.append(value)
        return self.ids[node]

    def _make(self, node: Node, args: tuple[int, ...]) -> HostValue:
        id, dtype, attrs = len(self.values), node.type.dtype, node.attrs
        if node.op == "constant":
            return HostValue(id, "const", const=float(attrs.array.value), dtype=dtype)  # type: ignore[attr-defined]
        if node.op == "scalar":
            scalar = self.scalars.setdefault(attrs.name, Scalar(attrs.name, attrs.default))  # type: ignore[attr-defined]
            return HostValue(id, "scalar", index=list(self.scalars).index(scalar.name), dtype=dtype)
        if node.op == "size":
            return HostValue(id, "size", extent=attrs.extent, dtype=dtype)  # type: ignore[attr-defined]
        return HostValue(id, node.op, args, dtype=dtype)


class Buffers:
    """The buffers of a plan while it is built; ids are positions in `all`."""

    def __init__(
        self,
        graph: IRGraph,
        clusters: Sequence[Cluster],
        updates: Sequence[Update],
        sizes: Mapping[str, int],
        outputs: Sequence[Output],
        loops: ExpandedLoops | None = None,
    ) -> None:
        self.sizes = sizes
        self.loops = loops or ExpandedLoops()
        self.output_types = {o.name: o.node.type for o in outputs}  # as the caller sees them, perhaps reshaped
        self.all: list[Buffer] = []
        self.stored: dict[Node, int] = {}
        self.host = ScalarPrologue()
        self.copies: dict[tuple[int, DType], int] = {}  # (state, half type) -> its copy
        self.slots: dict[int, Extent] = {}  # stack -> slot in which an iteration reads the value that it just computed
        self.states: dict[str, int] = {}
        self.updates: dict[Node, list[str]] = {}
        self.outputs: dict[str, int] = {}
        self.output_of: dict[Node, list[int]] = {}
        for u in updates:
            self.updates.setdefault(u.node, []).append(u.name)
        self._leaves(graph)
        self._values(graph, [*clusters, *self.loops.closed])
        self._stacks()
        self._half_copies(clusters)

    # -- construction ----------------------------------------------------------------------------------------------
    def new(self, name: str, type: TensorType, space: Space) -> int:
        bytes = layout_bytes(type, Layout.ROWS, self.sizes)
        self.all.append(Buffer(len(self.all), name, type, space, Layout.ROWS, bytes))
        return len(self.all) - 1

    def _leaves(self, graph: IRGraph) -> None:
        for node in graph.nodes:
            if is_state(node):
                name = node.attrs.name  # type: ignore[attr-defined]
                if name not in self.states:
                    self.states[name] = self.new(name, node.type, Space.STATE)
                    a = attrs_of(node, StateAttrs)
                    partitioned = replace(
                        self.all[-1], by_columns=a.by_columns, parts=a.parts, whole=a.whole, split=a.split
                    )
                    self.all[-1] = partitioned
                self.stored[node] = self.states[name]
            elif node.op == "input":
                self.stored[node] = self.new(node.attrs.name, node.type, Space.INPUT)  # type: ignore[attr-defined]
            elif node.op == "constant" and node.type.rank:
                self.stored[node] = self.new("", node.type, Space.CONSTANT)

    def _values(self, graph: IRGraph, clusters: Sequence[Cluster]) -> None:
        """Buffers of outputs, and of values that one kernel computes and another reads."""
        for o in graph.outputs:
            self.outputs[o.name] = self.new(o.name, self.output_types[o.name], Space.OUTPUT)
            self.output_of.setdefault(o.node, []).append(self.outputs[o.name])
        of = {n: c for c in clusters for n in c.results}
        reads = [(self._outside(a.base), c) for c in clusters for n in c.members for a in accesses(n)]
        intermediates = dict.fromkeys(base for base, c in reads if base in of and of[base] is not c)
        for node in intermediates:
            if node in self.loops.places:
                continue  # the value is stored in its stack
            if node in self.output_of:
                self.stored[node] = self.output_of[node][0]
            else:
                self.stored[node] = self.new(node.name, node.type, Space.ARENA)
        for c in clusters:  # a scatter accumulates in memory, even if only its own kernel reads the result
            for n in c.results:
                in_a_stack = n in self.loops.places
                if n.op == "scatter_add" and n not in self.stored and n not in self.output_of and not in_a_stack:
                    self.stored[n] = self.new(n.name, n.type, Space.ARENA)

    def _outside(self, node: Node) -> Node:
        """The outer value that a leaf of a loop's body represents; any other node is returned unchanged."""
        return self.loops.outside.get(node, node)

    def _stacks(self) -> None:
        """Stacks of a loop: all values of its carries and results are stored, even if nothing outside reads them."""
        for stack in self.loops.stacks:
            if stack not in self.stored:
                self.stored[stack] = self.new(stack.name, stack.type, Space.ARENA)
        for node, places in self.loops.places.items():
            stack, slot = places[0]
            if node not in self.stored:
                self.stored[node] = self.stored[stack]
                self.slots[self.stored[stack]] = slot
        for leaf, node in self.loops.outside.items():
            self.stored[leaf] = self.stored[node]

    def _half_copies(self, clusters: Sequence[Cluster]) -> None:
        """Half-precision copies of states that products read as a right operand or bias; an update writes both."""
        for half in (half_copy_under(i) for c in clusters for n in c.members for i in n.inputs):
            if half is None:
                continue
            state, dtype = self.all[self.stored[half.inputs[0]]], half.type.dtype
            if (state.id, dtype) not in self.copies:
                copy = self.new(state.name, TensorType(state.type.shape, dtype), Space.COPY)
                self.all[copy] = replace(self.all[copy], source=state.id)
                self.copies[state.id, dtype] = copy

    # -- queries ---------------------------------------------------------------------------------------------------
    def of(self, node: Node) -> int:
        return self.stored[node]

    def space(self, node: Node) -> Space:
        return self.all[self.stored[node]].space

    def half(self, state: Node, dtype: DType) -> int:
        """The copy of a state in a half type."""
        return self.copies[self.stored[state], dtype]

    def slot(self, node: Node) -> int:
        return self.host.slot(node)

    def targets(self, node: Node) -> list[Load]:
        """All accesses to which the value of an op is stored."""
        axes = identity(node.type.rank)
        buffer = self.stored.get(node)
        in_a_stack = buffer is None or (node in self.loops.places and buffer in self.slots)
        plain = dict.fromkeys([*([] if buffer is None or in_a_stack else [buffer]), *self.output_of.get(node, [])])
        loads = [Load(b, node.type.shape, axes) for b in plain]
        for stack, slot in self.loops.places.get(node, []):
            loads.append(Load(self.stored[stack], stack.type.shape, (Index(offset=slot), *axes)))
        if node in self.loops.parts:
            concat, index = self.loops.parts[node]
            loads += [Load(t.buffer, t.shape, compose_indices(t.index, index)) for t in self.targets(concat)]
        for name in self.updates.get(node, []):
            state = self.states[name]
            copies = [copy for (of, _), copy in self.copies.items() if of == state]
            loads += [Load(b, node.type.shape, axes) for b in (state, *copies)]
        return loads

    def work(self, type: TensorType) -> int:
        """A new workspace buffer for the kernel under construction."""
        return self.new("", type, Space.WORK)
