"""Lists the ops of an exported program, and the ops without a row in the table."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from wholestep.errors import UnsupportedOpError
from wholestep.interop.torch.aten.export import Exported
from wholestep.interop.torch.aten.nodes import (
    describe_op,
    draws,
    inner_programs,
    is_check,
    is_size,
    layer_of,
    place_of,
    row_name,
)
from wholestep.interop.torch.aten.table import find_row, load_table, why_missing
from wholestep.records import dataclass


@dataclass(frozen=True)
class MissingOp:
    """An op without a row: its name, number of occurrences, and first line."""

    name: str
    count: int
    module: str
    line: str

    def __str__(self) -> str:
        within = f" in {self.module!r}" if self.module else ""
        return f"{self.name} ({self.count}x){within} at {self.line}"


@dataclass(frozen=True)
class Coverage:
    """The ops of a module with their counts, and the ops that `ws.from_torch` does not support."""

    ops: dict[str, int]
    missing: tuple[MissingOp, ...]

    def __bool__(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        covered = len(self.ops) - len(self.missing)
        head = f"{covered} of {len(self.ops)} kinds of ops have a row here, {sum(self.ops.values())} ops in all"
        return "\n".join([head, *(f"  missing: {op}" for op in self.missing)])


def live_nodes(exported: Exported) -> list[Any]:
    """The nodes to record: every node that depends on inputs, parameters, states or random numbers."""
    from wholestep.interop.torch.aten.assemble import is_leaf

    live = {node for node, kind, name in exported.placeholders() if is_leaf(exported, kind, name)}
    needed = exported.nodes_of_results()
    for node in needed:
        if node.op == "call_function" and (draws(node.target) or any(i in live for i in node.all_input_nodes)):
            live.add(node)
    return [
        n
        for n in _with_held([n for n in needed if n in live and n.op == "call_function"])
        if n.target is not operator.getitem
    ]


def _with_held(nodes: list[Any]) -> list[Any]:
    """The ops, each followed by the ops of its inner programs."""
    all_nodes: list[Any] = []
    for node in nodes:
        inner = [n for module in inner_programs(node) for n in module.graph.nodes if n.op == "call_function"]
        all_nodes += [node, *_with_held(inner)]
    return all_nodes


def coverage_of(exported: Exported) -> Coverage:
    """The coverage of a program, counted over recorded nodes; constants are computed by torch and need no row."""
    load_table()
    nodes = [n for n in live_nodes(exported) if not is_size(n) and not is_check(n)]
    counts = Counter(str(n.target) for n in nodes)
    missing = []
    for name, count in counts.items():
        node = next(n for n in nodes if str(n.target) == name)
        if find_row(row_name(node)) is None:
            missing.append(MissingOp(name, count, layer_of(node), str(place_of(node))))
    return Coverage(dict(counts), tuple(missing))


def need_covered(exported: Exported) -> None:
    """Raise an error that names every op without a row."""
    coverage = coverage_of(exported)
    if not coverage.missing:
        return
    first = next(
        n for n in live_nodes(exported) if find_row(row_name(n)) is None and not is_size(n) and not is_check(n)
    )
    others = "".join(f"\n  {op}" for op in coverage.missing[1:])
    more = f"\nOther ops without a row:{others}" if others else ""
    raise UnsupportedOpError(describe_op(first, why_missing(row_name(first))) + more)
