"""The table of ONNX operators: one row each, a function of tensors and of the operator's attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Dim, Extent
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph
    from wholestep.interop.onnx.read.network import OnnxGraph

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
STANDARD = ("", "ai.onnx")
FILES = (
    *("pointwise", "shapes", "reductions", "indexing", "windows", "pools", "resize", "norms", "sequences"),
    *("attention", "recurrent", "random", "spectra", "sampled", "own"),
)


class Items(tuple[Any, ...]):
    """A sequence of tensors, which is one value of a network."""


@dataclass(frozen=True)
class ExportedBatch:
    """The batch size for which a file was exported, and the different batch size of the current call."""

    fixed: int
    actual: Extent

    def is_in(self, shape: Sequence[Extent]) -> bool:
        """Does a shape depend on the batch size?"""
        if isinstance(self.actual, int):
            return self.actual in shape[:1]
        return any(isinstance(e, Dim) and self.actual.symbols & e.symbols for e in shape)


@dataclass(frozen=True)
class NodeContext:
    """The context that a row of the table can read in addition to its node's inputs and attributes."""

    op: str
    name: str
    opset: int
    outputs: int  # number of results, up to the last used result
    batch: ExportedBatch | None
    ours: bool  # was the file written by `ws.export_onnx`?
    graph: Graph | None  # the graph being recorded, for random numbers; None while constants are folded
    run: Callable[[OnnxGraph, Sequence[Any]], list[Any]]  # records a subgraph (an attribute) on values


# Attributes that are accepted and change nothing here: the session has the seed, sums accumulate in float32, and sizes
# follow from the weights.
IGNORED = frozenset({"chunk_size", "hidden_size", "round_mode", "saturate", "seed", "stash_type"})


@dataclass(frozen=True)
class OnnxRow:
    """A row: how to record one operator, with its inputs as positional and its attributes as keyword arguments."""

    function: Function
    inputs: tuple[str, ...]
    variadic: bool
    required: int
    attributes: frozenset[str]
    needed: tuple[str, ...]  # attributes without a default
    takes_node: bool
    static: frozenset[str]  # inputs that must be constant arrays when the network is recorded
    raw: frozenset[str]  # inputs that may be arrays if constant, tensors otherwise


ROWS: dict[tuple[str, str], OnnxRow] = {}


def onnx_op(
    *names: str, domain: str = "", static: Sequence[str] = (), raw: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Register a function that records an ONNX operator, so that `ws.from_onnx` accepts files that use it.

    Args:
        names: the names of the operator, as in the file's `op_type`.
        domain: the operator's domain; "" is ONNX's own.
        static: inputs that say shapes or options: they come as arrays, and must not depend on data.
        raw: inputs that are passed as arrays if they are constant, otherwise as tensors.

    The function takes the inputs as tensors (None for an omitted input) and the attributes as keywords with the
    defaults of the operator; it returns a tensor, or a tuple with one tensor for each output.

    Example::

        @ws.onnx_op("Scaled", domain="com.example")
        def scaled(x, *, factor=1.0):
            return x * factor
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        fail(UsageError, f'onnx_op takes the names of operators, @ws.onnx_op("Foo"); received {names!r}.')

    def register(function: Function) -> Function:
        row = _row(function, frozenset(static), frozenset(raw))
        for name in names:
            ROWS[("" if domain in STANDARD else domain, name)] = row
        return function

    return register


def _row(function: Function, static: frozenset[str], raw: frozenset[str]) -> OnnxRow:
    parameters = inspect.signature(function).parameters.values()
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    unknown = (static | raw) - {p.name for p in parameters}
    if unknown:
        fail(UsageError, f"onnx_op: {', '.join(sorted(unknown))} is no argument of {function.__name__}.")
    return OnnxRow(
        function,
        tuple(p.name for p in inputs),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
        sum(p.default is p.empty for p in inputs),
        keywords - {"node"},
        tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name != "node"),
        "node" in keywords,
        static,
        raw,
    )


def row_of(domain: str, op: str) -> OnnxRow | None:
    """The row of an operator; None if there is none."""
    _load()
    return ROWS.get(("" if domain in STANDARD else domain, op))


_LOADED: set[str] = set()


def _load() -> None:
    """Load the rows of this package on first use; rows registered by users take precedence."""
    if _LOADED:
        return
    _LOADED.update(FILES)
    registered = dict(ROWS)
    for name in FILES:
        import_module(f"wholestep.interop.onnx.ops.{name}")
    ROWS.update(registered)
