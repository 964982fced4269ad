"""Which dtypes a graph may have on a target."""

from __future__ import annotations

from collections.abc import Iterator

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.target import Target
from wholestep.errors import DTypeError


def need_dtypes(graph: IRGraph, target: Target) -> None:
    """Refuse a dtype that the target does not have, at the line that made the first tensor of it.

    Expressions of scalars alone are the host's: they are computed in float64 everywhere.
    """
    known = {*target.dtypes, *target.stored}
    for node in _nodes(graph):
        for type in () if node.host else node.results:
            if type.dtype.name not in known:
                what = f"{node.op} {node.name!r}" if node.name else node.op
                has = ", ".join(sorted(known))
                raise DTypeError(
                    f"{what} is {type}, and {target} has no {type.dtype}: it has {has}. Use one of these, e.g. "
                    f"ws.cast(x, 'float32'), or another device.{node.line.shown if node.line else ''}"
                )


def _nodes(graph: IRGraph) -> Iterator[Node]:
    """Those of a graph, and of the functions and loops in it."""
    for node in graph.nodes:
        yield node
        if isinstance(held := getattr(node.attrs, "graph", None), IRGraph):
            yield from _nodes(held)
