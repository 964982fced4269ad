"""Memory of tensors while a program is functionalized: cells, views of cells, and writes to both.

A tensor is a cell, a view is a cell that is derived from another one.  A write gives a cell, and the cells that it is a
view of, new values; other views of a written cell are derived again when they are read (as torch's functionalization).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Views that copy for some strides: what a write does to them is known only at run time.
COPIES_SOMETIMES = frozenset({"reshape", "contiguous", "flatten", "to", "reshape_as", "ravel", "unflatten", "type_as"})
SCATTERS: Mapping[str, str] = {"slice": "slice_scatter", "select": "select_scatter"}  # view -> the op that writes it


class CannotFunctionalizeError(Exception):
    """The program needs torch's decomposition; the text says why."""


@dataclass(eq=False)
class Cell:
    """The memory of a tensor: its current value, and how that follows from the cell that it is a view of."""

    value: Any  # a node of the new graph
    parent: Cell | None = None
    view: Any = None  # the node of the old graph that created the view
    seen: int = 0  # the parent's version from which `value` was derived
    version: int = 0  # the number of values so far
    buffer: str = ""  # the name of a buffer of the module, whose writes are outputs
    is_writable: bool = True
    names: list[Any] = field(default_factory=list)  # nodes of the old graph that have this value
    views: list[Cell] = field(default_factory=list)

    @property
    def root(self) -> Cell:
        return self if self.parent is None else self.parent.root

    def family(self) -> list[Cell]:
        """The cell and all views of it, directly or not."""
        return [self, *(cell for view in self.views for cell in view.family())]


class Memory:
    """The cells of a program, and the functional graph that computes their values."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.graph = torch.fx.Graph()
        self.cells: dict[Any, Cell] = {}
        self.position = {node: i for i, node in enumerate(nodes)}
        self.last_use = {n: max((self.position[u] for u in n.users), default=-1) for n in nodes}

    def name(self, node: Any, cell: Cell) -> None:
        """Let an old node be a name of a cell."""
        self.cells[node] = cell
        cell.names.append(node)

    def view(self, node: Any, source: Any) -> None:
        """Let an old node be a view of another one."""
        parent = self.cells[source]
        cell = Cell(self.copy(node), parent, node, parent.version)
        parent.views.append(cell)
        self.name(node, cell)

    def copy(self, node: Any) -> Any:
        """An old node over the current values of its operands."""
        return self.graph.node_copy(node, self.read)

    def emit(self, op: Any, args: tuple[Any, ...], origin: Any, value: Any = None) -> Any:
        """A new node over new nodes, with the place of an old one; `value` describes its result if it is another."""
        node = self.graph.call_function(op, args)
        node.meta = {**origin.meta, "val": origin.meta["val"] if value is None else value}
        return node

    def name_result(self, node: Any, value: Any) -> None:
        """Let an old node be computed by a new one."""
        self.name(node, Cell(value))

    def read(self, node: Any) -> Any:
        """The new node with the current value of an old one; anything but a node itself."""
        return self._current(self.cells[node]) if isinstance(node, torch.fx.Node) else node

    def _current(self, cell: Cell) -> Any:
        if cell.parent is not None:
            source = self._current(cell.parent)
            if cell.seen != cell.parent.version:
                cell.value = self.graph.node_copy(
                    cell.view, lambda n: source if n is cell.view.args[0] else self.read(n)
                )
                cell.seen, cell.version = cell.parent.version, cell.version + 1
        return cell.value

    def write(self, cell: Cell, value: Any, at: Any) -> None:
        """Assign a new value to the memory of a cell, at the position of an old node."""
        now, root = self.position[at], cell.root
        inside = cell.family()
        if any(_copies_sometimes(view) and self._is_read_later(view, now) for view in inside[1:]):
            raise CannotFunctionalizeError(f"{at.target} writes to what may have been copied")
        around = [other for other in root.family() if other not in inside]
        if cell.parent is not None:
            if root.buffer or not root.is_writable or any(self._is_read_later(other, now) for other in around):
                self._write_view(cell, value, at)
            else:
                cell.parent.views.remove(cell)
                cell.parent = None
        elif not cell.is_writable:
            raise CannotFunctionalizeError(f"{at.target} writes to {cell.names[0].name}")
        cell.value, cell.version = value, cell.version + 1
        if cell.parent is not None:
            cell.seen = cell.parent.version

    def _write_view(self, cell: Cell, value: Any, at: Any) -> None:
        parent, view = cell.parent, cell.view
        scatter = SCATTERS.get(packet(view))
        if parent is None or scatter is None:
            raise CannotFunctionalizeError(f"{at.target} writes through {view.target}")
        _, *place = arguments_of(view)
        op = next(iter(overloads(scatter).values()))
        source = view.args[0]
        written = self.emit(op, (self._current(parent), value, *map(self.read, place)), at, source.meta["val"])
        self.write(parent, written, at)

    def _is_read_later(self, cell: Cell, now: int) -> bool:
        return any(self.last_use[name] > now for name in cell.names)


def packet(node: Any) -> str:
    """`add_` of `aten.add_.Tensor`."""
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def overloads(name: str) -> dict[str, Any]:
    """The overloads of an ATen op; empty if there is none of this name."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    return {} if packet is None else {overload: getattr(packet, overload) for overload in packet.overloads()}


def _copies_sometimes(cell: Cell) -> bool:
    return packet(cell.view) in COPIES_SOMETIMES


def arguments_of(node: Any) -> list[Any]:
    """All arguments of an op in the order of its schema, with their defaults."""
    schema = node.target._schema.arguments
    by_name = dict(zip((a.name for a in schema), node.args)) | dict(node.kwargs)
    return [by_name.get(a.name, a.default_value) for a in schema]
