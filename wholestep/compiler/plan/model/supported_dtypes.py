"""Checks that a target supports every dtype of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.target import Target
from wholestep.errors import DTypeError


def check_dtypes(graph: IRGraph, target: Target) -> None:
    """Raise a DTypeError, with the user's line, for the first tensor whose dtype the target does not support.

    Expressions of scalars alone are exempt: the host computes them in float64 on every target.
    """
    supported = {*target.dtypes, *target.stored}
    for node in _nodes(graph):
        for type in () if node.host else node.results:
            if type.dtype.name not in supported:
                subject = f"{node.op} {node.name!r}" if node.name else node.op
                listed = ", ".join(sorted(supported))
                raise DTypeError(
                    f"{subject} is {type}, and {target} has no {type.dtype}: it has {listed}. Use one of these, e.g. "
                    f"ws.cast(x, 'float32'), or another device.{node.line.shown if node.line else ''}"
                )


def _nodes(graph: IRGraph) -> Iterator[Node]:
    """The nodes of a graph and of the functions and loops in it."""
    for node in graph.nodes:
        yield node
        if isinstance(body := getattr(node.attrs, "graph", None), IRGraph):
            yield from _nodes(body)
