"""What the definitions of composites may be applied to in a program: ranks, axes, widths, dtypes, numbers."""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.compiler.ir.graph import Graph, Node
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.passes.egraph.encode import full_value


@dataclass(frozen=True)
class Profile:
    """Read from the reductions, the named ops and the constants of a graph."""

    dtypes: tuple[DType, ...]
    labels: tuple[DType, ...]  # of integers
    reduced: tuple[tuple[int, int], ...]  # (rank, axis) of sums and maxima over one axis
    rows: tuple[tuple[int, int], ...]  # (rank, width) of those over a last axis of known width
    numbers: tuple[float, ...]  # the constants, as a user would write them


def profile(graph: Graph) -> Profile:
    """The profile of a graph; equal graphs have equal ones."""
    dtypes: set[DType] = set()
    reduced: set[tuple[int, int]] = set()
    rows: set[tuple[int, int]] = set()
    numbers: set[float] = set()
    for n in graph.nodes:
        dtypes |= {i.result.dtype for i in n.inputs if isinstance(i.result, TensorType)}
        for rank, axis in _reductions(n):
            reduced.add((rank, axis))
            width = n.inputs[0].type.shape[axis]
            if axis == rank - 1 and isinstance(width, int):
                rows.add((rank, width))
        if (value := full_value(n)) is not None:
            numbers.add(_as_written(value, n.type.dtype))
    by_name = sorted(dtypes, key=lambda d: d.name)
    return Profile(
        tuple(d for d in by_name if d.is_float),
        tuple(d for d in by_name if d.is_integer),
        tuple(sorted(reduced)),
        tuple(sorted(rows)),
        tuple(sorted(numbers)),
    )


def _reductions(n: Node) -> list[tuple[int, int]]:
    if n.op in ("sum", "max") and len(n.attrs.axes) == 1:  # type: ignore[attr-defined]
        return [(n.inputs[0].type.rank, n.attrs.axes[0])]  # type: ignore[attr-defined]
    if n.op in ("softmax", "log_softmax"):
        return [(n.type.rank, n.attrs.axis)]  # type: ignore[attr-defined]
    return [(n.inputs[0].type.rank, n.type.rank)] if n.op == "cross_entropy" else []


def _as_written(value: float, dtype: DType) -> float:
    """1e-5, not the float32 nearest to it: attributes hold what the user wrote."""
    return float(str(dtype.numpy.type(value))) if dtype.is_float else value
