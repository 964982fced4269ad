"""Where the operands and results of a routine are."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.lower.routine_ops import STEPPED, Assembled, compose_indices, has_contiguous_columns
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import Indices, resolve
from wholestep.compiler.plan.model.kernel import Load, Operand


def operand(name: str, node: Node, index: Indices, axes: Sequence[int], buffers: Buffers) -> Operand:
    """Element `index` of what a routine reads; `axes` are those that the routine runs over."""
    access = resolve(node, index)
    return _operand(name, Load(buffers.of(access.base), access.shape, access.index), axes)


def result(name: str, node: Node, index: Indices, axes: Sequence[int], cluster: Cluster, buffers: Buffers) -> Operand:
    """Element `index` of what a routine writes: in the value it is a part of, or in a buffer of its own."""
    for whole in cluster.nodes:
        if isinstance(whole, Assembled) and node in whole.inputs:
            place = whole.places[whole.inputs.index(node)]
            index, node = compose_indices(place, index), whole
            break
    (target,) = buffers.targets(node)
    return _operand(name, Load(target.buffer, target.shape, compose_indices(target.index, index)), axes)


def _operand(name: str, load: Load, axes: Sequence[int]) -> Operand:
    in_rows = name in STEPPED or has_contiguous_columns(load.index, axes[-1])
    assert in_rows, f"a routine walks consecutive elements along the last axis of {name!r}"
    return Operand(name, load, tuple(axes))
