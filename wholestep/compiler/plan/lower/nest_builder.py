"""Builds the loop nest of one kernel: each op becomes an instruction at the first level where its inputs are available.

A level is one pass over a row: instructions once per row, a loop over its elements, then reductions of that loop.  An
op that reads the result of a reduction over the row therefore belongs to the next level.  Values are numbered within
the kernel and reused by key (local common subexpression elimination).  An element value that a later level reads is
recomputed if that is cheap, else spilled to a row of workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.semantics.random import key_hash
from wholestep.compiler.ir.types import DType, Extent, TensorType, int64
from wholestep.compiler.plan.fusion.clusters import PARTIAL_SUM, REDUCTIONS, Cluster
from wholestep.compiler.plan.lower.materialize import half_copy_under
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import Access, identity, linear, resolve
from wholestep.compiler.plan.model.kernel import Guard, Index, Instr, Kind, Level, Load, Reduce, Space, Store

CHEAP = frozenset(
    {"add", "sub", "mul", "neg", "maximum", "minimum", "cast", "where", "less", "less_equal", "equal", "relu"}
)
SOURCES = ("acc", "position")  # instructions whose value the surrounding loops provide: they have no operands
RECOMPUTE_OPS = 4  # up to this many cheap ops, a value is recomputed in a later pass over the row, not spilled


@dataclass
class LevelDraft:
    """A level under construction."""

    row: list[Instr] = field(default_factory=list)
    row_stores: list[Store] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    reduces: list[Reduce] = field(default_factory=list)
    sums: list[Store] = field(default_factory=list)

    def freeze(self) -> Level:
        row, body = tuple(self.row), tuple(self.body)
        return Level(row, tuple(self.row_stores), body, tuple(self.stores), tuple(self.reduces), tuple(self.sums))


class NestBuilder:
    """Builds the levels of one kernel.  Value ids are unique within the kernel."""

    def __init__(self, cluster: Cluster, buffers: Buffers, vector: int | None) -> None:
        self.cluster, self.buffers, self.vector = cluster, buffers, vector
        self.inside = set(cluster.nodes)
        self.drafts: list[LevelDraft] = [LevelDraft()]
        self.count = 0
        self.row_values: dict[object, int] = {}  # value ids by key, valid for the rest of the row
        self.row_levels: dict[object, int] = {}  # the level at which a value per row was computed
        self.body_values: list[dict[object, int]] = [{}]  # per level, value ids by key, valid inside its loop
        self.carried: dict[Node, int] = {}  # element value -> workspace buffer that holds it for later levels
        self.level_of: dict[Node, int] = {}

    # -- instructions ----------------------------------------------------------------------------------------------
    def add(self, level: int, in_row: bool, key: object, make: Callable[[int], Instr]) -> int:
        """Append an instruction, per row or per element of a level; an instruction with the same key is reused."""
        values = self.row_values if in_row else self.body_values[level]
        # A deferred op may belong to an earlier level than the instruction with this key: it then gets a new
        # instruction.
        if key not in values or (in_row and self.row_levels.get(key, 0) > level):
            if in_row:
                self.row_levels[key] = level
            instr = make(self.count)
            values[key] = self.count
            self.count += 1
            (self.drafts[level].row if in_row else self.drafts[level].body).append(instr)
        return values[key]

    def varies(self, index: Index) -> bool:
        """Does the index depend on the innermost loop?"""
        inner = {self.vector} if self.cluster.kind is not Kind.COLUMNS else {self.vector, len(self.cluster.shape)}
        return index.value is not None or any(a in inner for a, _ in index.terms)

    def load(
        self,
        level: int,
        in_row: bool,
        load: Load,
        dtype: DType,
        guards: tuple[Guard, ...] = (),
        fill: int | None = None,
    ) -> int:
        """Load an element; one whose index does not depend on the innermost loop is loaded once per row."""
        varying = any(self.varies(i) for i in (*load.index, *(g.index for g in guards))) or fill is not None
        in_row = in_row or (self.cluster.kind is Kind.NEST and not varying)
        return self.add(
            level, in_row, (load, guards, fill), lambda i: Instr(i, "load", dtype, load=load, guards=guards, fill=fill)
        )

    def const(self, level: int, in_row: bool, value: float, dtype: DType) -> int:
        return self.add(level, in_row, (repr(value), dtype), lambda i: Instr(i, "const", dtype, const=value))

    def read(self, level: int, in_row: bool, access: Access) -> int:
        """The value of an access at this level: computed in this kernel, generated on the fly, or loaded."""
        base = access.base
        if base in self.inside:
            return self.inner(level, in_row, base)
        if base.op == "constant" and base.type.rank == 0:
            constant = base.attrs.array.value.item()  # type: ignore[attr-defined]
            exact = abs(constant) > 2**53 and isinstance(constant, int)  # an int64 that float64 cannot represent
            return self.const(level, in_row, constant if exact else float(constant), base.type.dtype)
        if base.host:
            slot = self.buffers.slot(base)
            return self.add(level, in_row, ("slot", slot), lambda i: Instr(i, "scalar", base.type.dtype, slot=slot))
        if base.op == "iota":
            index = access.index[base.attrs.axis]  # type: ignore[attr-defined]
            return self.add(
                level,
                in_row,
                ("iota", index, base.type.dtype),
                lambda i: Instr(i, "index", base.type.dtype, index=index),
            )
        if base.op == "random":
            key, index = key_hash(base.attrs.key), linear(access.index, access.shape)  # type: ignore[attr-defined]
            index = replace(index, offset=index.offset + base.attrs.first)  # type: ignore[attr-defined]
            return self.add(
                level,
                in_row,
                ("random", key, index),
                lambda i: Instr(i, "random", base.type.dtype, index=index, key=key),
            )
        return self.load(level, in_row, Load(self.buffers.of(base), access.shape, access.index), base.type.dtype)

    def operand(self, level: int, in_row: bool, node: Node) -> int:
        """An input of an op at its own position; a state may be read from its half-precision copy."""
        access, half = resolve(node, identity(node.type.rank)), half_copy_under(node)
        if half is None:
            return self.read(level, in_row, access)
        buffer, dtype = self.buffers.half(access.base, half.type.dtype), half.type.dtype
        return self.load(level, in_row, Load(buffer, access.shape, access.index), dtype)

    def summand(self, access: Access) -> int:
        """The summand of a column sum: loaded, or computed on the fly by the prologue."""
        node = access.base
        if node not in self.cluster.prologue:
            return self.read(0, False, access)
        args = tuple(self.summand(resolve(i, access.index)) for i in node.inputs)
        return self.add(0, False, node, lambda i: Instr(i, node.op, node.type.dtype, args))

    def inner(self, level: int, in_row: bool, node: Node) -> int:
        """A value that this kernel computes: in a register, recomputed, or reloaded from an earlier level."""
        if node in self.row_values:
            return self.row_values[node]
        if node in self.body_values[level]:
            return self.body_values[level][node]
        if self.is_cheap(node, RECOMPUTE_OPS) is not None:
            return self.compute(level, in_row, node)
        return self.load(level, in_row, self.carry(node), node.type.dtype)

    def is_cheap(self, node: Node, budget: int) -> int | None:
        """The budget of ops left after recomputing an element value; None if the budget does not suffice."""
        if node in self.row_values or node not in self.inside:
            return budget
        if node.op not in CHEAP or budget == 0:
            return None
        remaining: int | None = budget - 1
        for i in node.inputs:
            if remaining is not None:
                remaining = self.is_cheap(resolve(i, identity(i.type.rank)).base, remaining)
        return remaining

    def carry(self, node: Node) -> Load:
        """Where later levels reload an element value: its own buffer if it has one, else a spilled row of workspace."""
        if node in self.buffers.stored and self.buffers.space(node) in (Space.ARENA, Space.OUTPUT):
            return Load(self.buffers.of(node), node.type.shape, identity(node.type.rank))
        if node not in self.carried:
            assert self.cluster.vector is not None
            assert self.vector is not None
            buffer = self.buffers.work(TensorType((self.cluster.vector,), node.type.dtype))
            self.carried[node] = buffer
            level = self.level_of[node]
            spill = Load(buffer, (self.cluster.vector,), (Index.axis(self.vector),))
            self.drafts[level].stores.append(Store(spill, self.body_values[level][node]))
        return Load(self.carried[node], (self.cluster.vector or 1,), (Index.axis(self.vector or 0),))

    def compute(self, level: int, in_row: bool, node: Node) -> int:
        """Append the op of a node and register its value under the node."""
        values = self.row_values if in_row else self.body_values[level]
        if node.op == "gather":
            values[node] = self.gather(level, in_row, node)
        elif node.op == "pad":
            values[node] = self.pad(level, in_row, node)
        elif node.op == "concat":
            values[node] = self.concat(level, in_row, node)
        elif node.op == "write_rows":
            values[node] = self.read(level, in_row, resolve(node.inputs[1], identity(node.type.rank)))
        else:
            args = tuple(self.operand(level, in_row, i) for i in node.inputs)
            self.add(level, in_row, node, lambda i: Instr(i, node.op, node.type.dtype, args))
        return values[node]

    def gather(self, level: int, in_row: bool, node: Node) -> int:
        data, index = node.inputs
        axis = node.attrs.axis  # type: ignore[attr-defined]
        axes = identity(node.type.rank)
        position = self.read(level, in_row, resolve(index, axes[axis : axis + index.type.rank]))
        at_data = (*axes[:axis], Index(value=position), *axes[axis + index.type.rank :])
        return self.load(level, in_row, Load(self.buffers.of(data), data.type.shape, at_data), node.type.dtype)

    def pad(self, level: int, in_row: bool, node: Node) -> int:
        attrs = node.attrs
        assert isinstance(attrs, at.PadAttrs)
        (source,) = node.inputs
        fill = self.const(level, in_row, attrs.value, node.type.dtype)
        axes = identity(node.type.rank)
        shifted = tuple(replace(a, offset=-low) for a, low in zip(axes, attrs.low, strict=True))
        guards = tuple(
            Guard(a, low, source.type.shape[d] + low)
            for d, (a, low, high) in enumerate(zip(axes, attrs.low, attrs.high, strict=True))
            if low or high
        )
        return self.guarded_load(level, in_row, resolve(source, shifted), guards, fill)

    def concat(self, level: int, in_row: bool, node: Node) -> int:
        axis = node.attrs.axis  # type: ignore[attr-defined]
        axes = identity(node.type.rank)
        start: Extent = 0
        value: int | None = None
        for part in node.inputs:
            end = start + part.type.shape[axis]
            shifted = (*axes[:axis], Index(axes[axis].terms, start * -1), *axes[axis + 1 :])
            value = self.guarded_load(level, in_row, resolve(part, shifted), (Guard(axes[axis], start, end),), value)
            start = end
        assert value is not None
        return value

    def guarded_load(
        self, level: int, in_row: bool, access: Access, guards: tuple[Guard, ...], fill: int | None
    ) -> int:
        """Load an element if all guards hold, else take `fill`."""
        if fill is None:  # the first part of a concatenation; the later parts replace this value elsewhere
            fill = self.const(level, in_row, 0.0, access.base.type.dtype)
        load = Load(self.buffers.of(access.base), access.shape, access.index)
        return self.load(level, in_row, load, access.base.type.dtype, guards, fill)

    # -- levels ----------------------------------------------------------------------------------------------------
    def grow(self, level: int) -> None:
        while len(self.drafts) <= level:
            self.drafts.append(LevelDraft())
            self.body_values.append({})

    def ready(self, node: Node) -> int:
        """The first level at which all inputs of a node are available."""
        level = 1 if self.cluster.kind is Kind.COLUMNS else 0  # level 0 of a column sum is the accumulation loop
        for i in node.inputs:
            base = resolve(i, identity(i.type.rank)).base
            if base in self.inside:
                level = max(level, self.level_of[base] + (base.op in REDUCTIONS))
        return level

    def place(self, node: Node) -> None:
        """Add an op, and the stores of its value, at the first possible level."""
        level = self.ready(node)
        self.level_of[node] = level
        self.grow(level)
        if node.op == PARTIAL_SUM:
            self.add_partial_sum(level, node)
            return
        if node.op in REDUCTIONS:
            (source,) = node.inputs
            value = self.read(level, False, resolve(source, identity(source.type.rank)))
            self.drafts[level].reduces.append(Reduce(self.count, node.op, value, node.type.dtype))
            self.row_values[node] = self.count
            self.count += 1
            self.grow(level + 1)
        else:
            self.compute(level, self.is_row(node), node)
        for load in self.buffers.targets(node):
            target = self.row_target(level, node, load) if node.op == "write_rows" else load
            self.store(level + (node.op in REDUCTIONS), node, target)

    def add_partial_sum(self, level: int, node: Node) -> None:
        """Accumulate a sum over rows; each part of the rows has its own row in the result."""
        (source,) = node.inputs
        assert self.vector is not None
        value = self.read(level, False, resolve(source, identity(source.type.rank)))
        target = Load(self.buffers.of(node), node.type.shape, (Index(), Index.axis(self.vector)))
        self.drafts[level].sums.append(Store(target, value))

    def row_target(self, level: int, node: Node, load: Load) -> Load:
        """The target of `write_rows`: row i is stored at row start + i of the state."""
        first = self.read(level, True, resolve(node.inputs[2], ()))
        start = self.add(level, True, ("start", first), lambda i: Instr(i, "cast", int64, (first,)))
        return replace(load, index=(replace(load.index[0], value=start), *load.index[1:]))

    def is_row(self, node: Node) -> bool:
        return self.cluster.kind is Kind.NEST and (self.cluster.vector is None or self.cluster.is_row(node))

    def store(self, level: int, node: Node, load: Load) -> None:
        """Store the value of a node: once per row, or once per element."""
        draft = self.drafts[level]
        if node in self.row_values:
            draft.row_stores.append(Store(load, self.row_values[node]))
        else:
            draft.stores.append(Store(load, self.body_values[level][node]))

    def levels(self) -> tuple[Level, ...]:
        self.drop_unused()
        return tuple(d.freeze() for d in self.drafts)

    def drop_unused(self) -> None:
        """Dead code elimination: a cheap value that only later levels read was recomputed there."""
        used = {s.value for d in self.drafts for s in (*d.row_stores, *d.stores, *d.sums)}
        used |= {r.value for d in self.drafts for r in d.reduces}
        indices = [i for d in self.drafts for s in (*d.row_stores, *d.stores) for i in s.load.index]
        used |= {i.value for i in indices if i.value is not None}
        for part in (part for d in reversed(self.drafts) for part in (d.body, d.row)):
            for instr in reversed(part):
                if instr.id in used or instr.op in SOURCES:
                    used.update(operands(instr))
            part[:] = [i for i in part if i.id in used or i.op in SOURCES]


def operands(instr: Instr) -> Iterator[int]:
    """The ids of the values that an instruction uses, including the values in its indices."""
    yield from instr.args
    if instr.fill is not None:
        yield instr.fill
    for index in instr.load.index if instr.load else ():
        if index.value is not None:
            yield index.value
