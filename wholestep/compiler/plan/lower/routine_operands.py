"""Memory accesses of the operands and results of a routine, and the check that their last axis is contiguous."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.lower.routine_ops import STEPPED, Assembled, compose_indices, has_contiguous_columns
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import Indices, resolve
from wholestep.compiler.plan.model.kernel import Load, Operand


def operand(name: str, node: Node, index: Indices, axes: Sequence[int], buffers: Buffers) -> Operand:
    """The access of an operand at `index`; `axes` are the loops inside the routine."""
    access = resolve(node, index)
    return _operand(name, Load(buffers.of(access.base), access.shape, access.index), axes)


def result(name: str, node: Node, index: Indices, axes: Sequence[int], cluster: Cluster, buffers: Buffers) -> Operand:
    """The access of a result at `index`: inside the assembled value that it is a part of, or in its own buffer."""
    for assembled in cluster.nodes:
        if isinstance(assembled, Assembled) and node in assembled.inputs:
            part_index = assembled.places[assembled.inputs.index(node)]
            index, node = compose_indices(part_index, index), assembled
            break
    (target,) = buffers.targets(node)
    return _operand(name, Load(target.buffer, target.shape, compose_indices(target.index, index)), axes)


def _operand(name: str, load: Load, axes: Sequence[int]) -> Operand:
    in_rows = name in STEPPED or has_contiguous_columns(load.index, axes[-1])
    assert in_rows, f"the last axis of {name!r} must be contiguous for a routine"
    return Operand(name, load, tuple(axes))
