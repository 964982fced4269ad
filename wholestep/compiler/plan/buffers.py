"""Which values are in memory, where, and in which layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Graph, Node, Output, Update
from wholestep.compiler.ir.types import DType, Extent, TensorType
from wholestep.compiler.plan.access import Access, identity, resolve
from wholestep.compiler.plan.call import Assembled, composed, is_call, keeps_panels
from wholestep.compiler.plan.fuse import REDUCTIONS, Cluster, accesses
from wholestep.compiler.plan.host import HostProgram
from wholestep.compiler.plan.kernel import Buffer, Index, Kind, Layout, Load, Space
from wholestep.compiler.plan.layout import layout_bytes, state_layout
from wholestep.compiler.plan.loops import Opened
from wholestep.compiler.plan.prepare import STORED_LEAVES, is_state
from wholestep.compiler.plan.window_ops import WINDOWS

# Bytes of a row from which on a product down the columns is faster over panels (512 columns: 4.9 -> 3.3 ms).
LONG_ROW = 2048


class Buffers:
    """The buffers of a plan while it is built; ids are positions in `all`."""

    def __init__(
        self,
        graph: Graph,
        clusters: Sequence[Cluster],
        updates: Sequence[Update],
        sizes: Mapping[str, int],
        outputs: Sequence[Output],
        loops: Opened | None = None,
    ) -> None:
        self.sizes = sizes
        self.loops = loops or Opened()
        self.output_types = {o.name: o.node.type for o in outputs}  # as they are seen: perhaps in another shape
        self.all: list[Buffer] = []
        self.stored: dict[Node, int] = {}
        self.host = HostProgram()
        self.copies: dict[tuple[int, DType, bool], int] = {}  # (state, dtype, is it the transpose?) -> its copy
        self.work_used = 0
        self.work_bytes = 0
        self.slots: dict[int, Extent] = {}  # stack -> where in it a step reads what it has just computed
        self.states: dict[str, int] = {}
        self.updates: dict[Node, list[str]] = {}
        self.outputs: dict[str, int] = {}
        self.output_of: dict[Node, list[int]] = {}
        for u in updates:
            self.updates.setdefault(u.node, []).append(u.name)
        self._leaves(graph)
        self._values(graph, [*clusters, *self.loops.closed])
        self._stacks()
        self._copies(clusters)

    # -- making them -----------------------------------------------------------------------------------------------
    def new(
        self,
        name: str,
        type: TensorType,
        space: Space,
        layout: Layout = Layout.ROWS,
        source: int | None = None,
        turned: bool = True,
    ) -> int:
        bytes = layout_bytes(type, layout, self.sizes)
        self.all.append(Buffer(len(self.all), name, type, space, layout, bytes, source=source, turned=turned))
        return len(self.all) - 1

    def _leaves(self, graph: Graph) -> None:
        for node in graph.nodes:
            if is_state(node):
                name = node.attrs.name  # type: ignore[attr-defined]
                if name not in self.states:
                    self.states[name] = self.new(name, node.type, Space.STATE, state_layout(node.type))
                self.stored[node] = self.states[name]
            elif node.op == "input":
                self.stored[node] = self.new(node.attrs.name, node.type, Space.INPUT)  # type: ignore[attr-defined]
            elif node.op == "constant" and node.type.rank:
                self.stored[node] = self.new("", node.type, Space.CONSTANT)

    def _values(self, graph: Graph, clusters: Sequence[Cluster]) -> None:
        """Outputs, and what a kernel reads that another one computed."""
        for o in graph.outputs:
            self.outputs[o.name] = self.new(o.name, self.output_types[o.name], Space.OUTPUT)
            self.output_of.setdefault(o.node, []).append(self.outputs[o.name])
        of = {n: c for c in clusters for n in c.results}
        panels = self._right_operands([n for c in clusters for n in c.members])
        read = [(self._outside(a.base), c) for c in clusters for n in c.members for a in accesses(n)]
        crossing = dict.fromkeys(base for base, c in read if base in of and of[base] is not c)
        panels |= self._between_products(crossing, of, clusters)
        for node in crossing:
            wants_panels = node in panels
            if node in self.loops.places and not wants_panels:
                continue  # in its stack
            if node in self.output_of and not wants_panels:
                self.stored[node] = self.output_of[node][0]
            else:
                layout = Layout.PANELS if wants_panels else Layout.ROWS
                self.stored[node] = self.new(node.name, node.type, Space.ARENA, layout)
        for c in clusters:  # a scatter accumulates in memory, whoever reads it
            for n in c.results:
                in_a_stack = n in self.loops.places
                if n.op == "scatter_add" and n not in self.stored and n not in self.output_of and not in_a_stack:
                    self.stored[n] = self.new(n.name, n.type, Space.ARENA)

    def _outside(self, node: Node) -> Node:
        """What a leaf of a loop's body is; any other node is itself."""
        return self.loops.outside.get(node, node)

    def _stacks(self) -> None:
        """A loop keeps all values of its carries and of what it gives, whoever reads them."""
        for stack in self.loops.stacks:
            if stack not in self.stored:
                self.stored[stack] = self.new(stack.name, stack.type, Space.ARENA)
        for node, places in self.loops.places.items():
            stack, slot = places[0]
            if node not in self.stored and self.all[self.stored[stack]].layout is Layout.ROWS:
                self.stored[node] = self.stored[stack]
                self.slots[self.stored[stack]] = slot
            elif node not in self.stored:
                self.stored[node] = self.new(node.name, node.type, Space.ARENA)
        for leaf, node in self.loops.outside.items():
            self.stored[leaf] = self.stored[node]

    def _right_operands(self, ops: Sequence[Node]) -> set[Node]:
        """Values that contractions read by columns, and that nobody reads under another shape."""
        wanted: set[Node] = set()
        refused: set[Node] = set()
        for n in ops:
            for position, a in enumerate(accesses(n)):
                if a.shape != a.base.type.shape or n.op == "scatter_add" or (n.op == "gather" and position == 0):
                    refused.add(a.base)
                if is_call(n) and not keeps_panels(a.index, n.inputs[position].type.rank):
                    refused.add(a.base)
                if n.op in WINDOWS:
                    refused.add(a.base)
                if n.op == "matmul" and not (a.index and a.index[-1].plain is not None):
                    refused.add(a.base)  # a part of a panel has no stride
                if n.op == "matmul" and position == 1 and self._is_paneled_read(n, a):
                    wanted.add(a.base)
                if n.op == "matmul" and position == 0 and self._is_long_transpose(n, a):
                    wanted.add(a.base)
        refused |= {n for n in ops if isinstance(n, Assembled) and not n.keeps_panels}
        wanted, refused = ({self._outside(n) for n in found} for found in (wanted, refused))
        return {n for n in wanted - refused if n.op not in STORED_LEAVES and n.op != "scatter_add"}

    def _between_products(
        self, crossing: Iterable[Node], of: Mapping[Node, Cluster], clusters: Sequence[Cluster]
    ) -> set[Node]:
        """Matrices that a product writes and others' epilogues, column sums or updates read, each in panels."""
        refused: set[Node] = set()
        for c in clusters:
            by_panels = self._walks_panels(c)
            for n in c.members:
                for a in accesses(n):
                    in_place = a.shape == a.base.type.shape and a.index == identity(a.base.type.rank)
                    if not by_panels or n.op == "matmul" or not in_place:
                        refused.add(self._outside(a.base))
        return {
            n
            for n in crossing
            if n not in refused
            and of[n].nodes[0].op == "matmul"
            and n not in self.output_of
            and state_layout(n.type) is Layout.PANELS
            and layout_bytes(n.type, Layout.PANELS, self.sizes) <= layout_bytes(n.type, Layout.ROWS, self.sizes)
        }

    def _walks_panels(self, cluster: Cluster) -> bool:
        """A product in blocks, a sum in columns, or an update of states that lie in panels."""
        if cluster.nodes[0].op == "matmul" or cluster.kind is Kind.COLUMNS:
            return True
        of_matrices = [n for n in cluster.nodes if n in self.updates and n.type.shape == cluster.shape]
        reduces = any(n.op in REDUCTIONS for n in cluster.nodes)
        return cluster.kind is Kind.NEST and len(cluster.shape) == 2 and bool(of_matrices) and not reduces

    def _is_paneled_read(self, matmul: Node, access: Access) -> bool:
        assert isinstance(matmul.attrs, at.MatmulAttrs)
        rank = matmul.type.rank
        column, row = (rank - 2, rank - 1) if matmul.attrs.transpose_b else (rank - 1, rank - 2)
        if len(access.index) < 2 or not isinstance(access.base.type.shape[-1], int):
            return False
        return access.index[-1].plain == column and access.index[-2].plain == row

    def _is_long_transpose(self, matmul: Node, access: Access) -> bool:
        """A left operand that is read down its columns, where each step is nearly a page."""
        assert isinstance(matmul.attrs, at.MatmulAttrs)
        rank, type = matmul.type.rank, access.base.type
        columns = type.shape[-1] if type.rank >= 2 else 0
        if not (matmul.attrs.transpose_a and isinstance(columns, int) and columns * type.dtype.size >= LONG_ROW):
            return False
        return [i.plain for i in access.index[-2:]] == [rank - 2, rank - 1]

    def _copies(self, clusters: Sequence[Cluster]) -> None:
        """A state whose transpose or half form is a right operand has that stored too; its update writes all."""
        for c in clusters:
            head = c.nodes[0]
            if head.op != "matmul":
                continue
            assert isinstance(head.attrs, at.MatmulAttrs)
            access, dtype = resolve(head.inputs[1], identity(head.type.rank)), head.inputs[1].type.dtype
            column = head.type.rank - (2 if head.attrs.transpose_b else 1)
            turned = access.index[-1].plain != column
            if not turned and dtype == access.base.type.dtype:
                continue
            state = self.stored[access.base]
            if (state, dtype, turned) not in self.copies:
                shape = self.all[state].type.shape
                type = TensorType(tuple(reversed(shape)) if turned else shape, dtype)
                layout = Layout.PAIRS if dtype.is_half else Layout.PANELS
                copy = self.new(self.all[state].name, type, Space.COPY, layout, state, turned)
                self.copies[state, dtype, turned] = copy

    # -- asking for them -------------------------------------------------------------------------------------------
    def of(self, node: Node) -> int:
        return self.stored[node]

    def space(self, node: Node) -> Space:
        return self.all[self.stored[node]].space

    def copy(self, state: Node, dtype: DType, turned: bool) -> int:
        return self.copies[self.stored[state], dtype, turned]

    def slot(self, node: Node) -> int:
        return self.host.slot(node)

    def targets(self, node: Node) -> list[Load]:
        """Everywhere the value of an op is stored."""
        axes = identity(node.type.rank)
        own = self.stored.get(node)
        in_a_stack = own is None or (node in self.loops.places and own in self.slots)
        found = dict.fromkeys([*([] if own is None or in_a_stack else [own]), *self.output_of.get(node, [])])
        loads = [Load(b, node.type.shape, axes) for b in found]
        for stack, slot in self.loops.places.get(node, []):
            loads.append(Load(self.stored[stack], stack.type.shape, (Index(offset=slot), *axes)))
        if node in self.loops.parts:
            whole, index = self.loops.parts[node]
            loads += [Load(t.buffer, t.shape, composed(t.index, index)) for t in self.targets(whole)]
        for name in self.updates.get(node, []):
            state = self.states[name]
            loads.append(Load(state, node.type.shape, axes))
            loads += self.copy_targets(state, axes)
        return loads

    def copy_targets(self, state: int, axes: tuple[Index, ...]) -> list[Load]:
        """Where else the new value of a state is stored."""
        copies = [(copy, turned) for (of, _, turned), copy in self.copies.items() if of == state]
        turns = tuple(reversed(axes))
        return [Load(copy, self.all[copy].type.shape, turns if turned else axes) for copy, turned in copies]

    def start_kernel(self) -> None:
        self.work_used = 0

    def work(self, type: TensorType, layout: Layout = Layout.ROWS) -> int:
        """A piece of the thread's workspace for the kernel being emitted."""
        id = self.new("", type, Space.WORK, layout)
        self.all[id] = replace(self.all[id], offset=self.work_used)
        self.work_used += self.all[id].bytes
        self.work_bytes = max(self.work_bytes, self.work_used)
        return id
