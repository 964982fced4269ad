"""The sizes of a step: the capacity of its symbolic dimensions, and the dimensions of micro-batch programs."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.type_rules.collectives import BATCH, FIRST, MODEL_RANK, OWN, RANK, ROWS
from wholestep.compiler.ir.types import Dim, shape_text, symbols_of
from wholestep.errors import GraphError, OptionError

PARTS = "micro_batch.count"  # symbol: micro-batches per step
MICRO_BATCH_DIMS = (FIRST, BATCH, ROWS, PARTS, OWN, RANK, MODEL_RANK)
PREFIX = "accumulate/"  # prefix of states that accumulate over micro-batches; they are not kept between steps


def batch_symbol(graph: Graph, what: str = "accumulate") -> str:
    """The symbolic dimension that is split: the first axis of the first input, and of every input that has it."""
    first = next(iter(graph.inputs.values()), None)
    extent = first.shape[0] if first is not None and first.shape else None
    symbol = str(extent)
    if not isinstance(extent, Dim) or extent != Dim.symbol(symbol):
        shown = "no input" if first is None else f"{first.name!r} of shape {shape_text(first.shape)}"
        fail(
            GraphError,
            f"{what} needs a first input whose first axis is the batch, e.g. g.input('x', ('batch', 4)); received "
            f"{shown}.",
        )
    for name, tensor in graph.inputs.items():
        if symbol in symbols_of(tensor.shape) and (tensor.shape[0] != extent or symbol in symbols_of(tensor.shape[1:])):
            shape = shape_text(tensor.shape)
            fail(GraphError, f"{what} splits inputs along {symbol!r}, their first axis; {name!r} has shape {shape}.")
    return symbol


def capacity_of(graph: ir.IRGraph, capacity: Mapping[str, int]) -> dict[str, int]:
    """The capacity of every symbol of a graph; OptionError for a symbol without one."""
    for symbol in graph.symbols:
        if symbol not in capacity:
            fix = "batch_size=32" if symbol == "batch" else f"capacity={{{symbol!r}: 64}}"
            raise OptionError(
                f"the dimension {symbol!r} has no capacity: give the largest size that it may have at run time, "
                f"e.g. {fix}."
            )
    return {s: capacity[s] for s in graph.symbols}


def merge_capacity(graph: ir.IRGraph, batch_size: int | None, capacity: Mapping[str, int] | None) -> dict[str, int]:
    """`batch_size=n` is `capacity={"batch": n}`; both are checked against the graph's own dimensions."""
    out = dict(capacity or {})
    if batch_size is not None:
        if out.get("batch", batch_size) != batch_size:
            raise OptionError(f"batch_size={batch_size} and capacity={capacity} disagree; give one of them.")
        out["batch"] = batch_size
    symbols = [s for s in graph.symbols if s not in MICRO_BATCH_DIMS]
    names = ", ".join(map(repr, symbols)) or "none"
    for symbol, size in out.items():
        if not symbols:
            what = (
                f"batch_size={size}"
                if symbol == "batch" and batch_size is not None
                else f"capacity={{{symbol!r}: {size}}}"
            )
            raise OptionError(
                f"{what}: all sizes of this program are fixed, so that it takes batches of one size. Leave it out, or "
                "give the axis a name where its inputs are declared: ws.Spec(('batch', 4))."
            )
        if symbol not in symbols:
            raise OptionError(f"the graph has no symbolic dimension {symbol!r}; it has: {names}. Leave its size out.")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"the capacity of {symbol!r} must be an integer of at least 1; received {size!r}.")
    return out
