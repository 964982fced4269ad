"""What a planner is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.ir.graph import Graph
from wholestep.compiler.plan.kernel import Bound, Least
from wholestep.compiler.target import Target


@dataclass(frozen=True)
class PlanRequest:
    """One entry point: a graph of primitives (composites only where they have kernels, no control nodes), its sizes."""

    graph: Graph
    capacity: Mapping[str, int]  # the largest size of every symbol
    target: Target
    fused: bool = True  # may ops share kernels?
    bounds: tuple[Bound, ...] = ()  # of inputs that are indices
    least: tuple[Least, ...] = ()  # sizes that a step may not be smaller than
