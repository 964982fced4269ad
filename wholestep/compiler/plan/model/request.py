"""What a planner is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.plan.model.kernel import Bound, Least
from wholestep.compiler.target import Target


def origin_of(node: Node) -> str:
    """A node in a kernel's origin: its name, which says whose gradient it is, or its op."""
    return node.name or node.op


@dataclass(frozen=True)
class PlanRequest:
    """One entry point: a graph of primitives (composites only where they have kernels, no control nodes), its sizes."""

    graph: IRGraph
    capacity: Mapping[str, int]  # the largest size of every symbol
    target: Target
    fused: bool = True  # may ops share kernels?
    bounds: tuple[Bound, ...] = ()  # of inputs that are indices
    least: tuple[Least, ...] = ()  # sizes that a step may not be smaller than
    frugal: bool = False  # do fewer bytes matter more than time?
    halvings: int = 0  # of the largest value, beyond what a backend does anyway: to save memory, where it can
    label: Callable[[Node], str] = origin_of  # what a kernel's origin says of a node
