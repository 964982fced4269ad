"""The input of a planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.plan.model.kernel import Bound, Least
from wholestep.compiler.target import Target


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
    bounds: tuple[Bound, ...] = ()  # of inputs that are indices
    least: tuple[Least, ...] = ()  # minimum extents of a step
    frugal: bool = False  # prefer fewer bytes over less time: set under a memory limit
    halvings: int = 0  # additional halvings of the largest value (chunked computation) to save memory, if supported
    label: Callable[[Node], str] = origin_of  # the text for a node in a kernel's origin
