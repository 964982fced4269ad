"""The input of a planner, and the check that its target supports every dtype of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.plan.model.kernel import Bound, Least
from wholestep.compiler.target import Target
from wholestep.errors import DTypeError


def origin_of(node: Node) -> str:
    """The label of a node in a kernel's origin: its name (a gradient's names its value), or its op."""
    return node.name or node.op


@dataclass(frozen=True)
class PlanRequest:
    """One entry point: a graph of primitives (composites only if the target has kernels for them) and its sizes."""

    graph: IRGraph
    capacity: Mapping[str, int]  # the largest size of every symbol
    target: Target
    fused: bool = True  # may ops share kernels?
    bounds: tuple[Bound, ...] = ()  # bounds of the inputs that are indices
    least: tuple[Least, ...] = ()  # minimum extents of a step
    frugal: bool = False  # prefer fewer bytes over less time: set under a memory limit
    halvings: int = 0  # additional halvings of the largest value (chunked computation) to save memory, if supported
    label: Callable[[Node], str] = origin_of  # the text for a node in a kernel's origin


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
                    f"ws.cast(x, 'float32'), or another device.{node.line.error_note if node.line else ''}"
                )


def _nodes(graph: IRGraph) -> Iterator[Node]:
    """The nodes of a graph and of the functions and loops in it."""
    for node in graph.nodes:
        yield node
        if isinstance(body := getattr(node.attrs, "graph", None), IRGraph):
            yield from _nodes(body)
