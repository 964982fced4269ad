"""An exported program of torch, recorded op by op in a `ws.Graph`.

A value is a tensor of the graph, or one of torch's where it depends on no input, parameter or state: such values are
computed by torch while recording, and become constants when they are combined with a tensor of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from wholestep.compiler.frontend.functions.primitives import size as size_of
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import record_at_line, record_for_layer
from wholestep.compiler.ir.types import Dim, Extent, Shape
from wholestep.errors import UnsupportedOpError, WholestepError
from wholestep.interop.torch.aten.nodes import (
    attribute_of,
    describe_op,
    draws,
    extent_of,
    is_check,
    is_size,
    layer_of,
    place_of,
    row_name,
)
from wholestep.interop.torch.aten.table import INTERRUPTED, REFUSED, find_row, load_table, why_missing

DTYPES = {
    getattr(torch, name): name
    for name in ("float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8", "bool")
}
SMALL_INTEGERS = {torch.int8: "int32", torch.int16: "int32", torch.uint16: "int32", torch.uint32: "int64"}


class Pair:
    """A complex tensor as its real and its imaginary part."""

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        self.real, self.imag = real, imag

    @property
    def shape(self) -> Shape:
        return self.real.shape

    @property
    def ndim(self) -> int:
        return self.real.ndim


class AtenRecorder:
    """What rows of the table use: the op that is being recorded, and the conversion of its operands to tensors."""

    def __init__(self, graph: Graph, symbols: dict[str, Extent], mode: str = "train") -> None:
        self.graph, self.symbols, self.mode = graph, symbols, mode
        self.node: Any = None  # the current node of torch's graph
        self.meta: Any = None  # torch's metadata of the result
        self._constants: dict[tuple[int, str | None], tuple[Tensor, Any]] = {}
        self._values: dict[Any, Any] = {}
        load_table()

    # -- walking the program -----------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Any], values: dict[Any, Any]) -> dict[Any, Any]:
        """Record a program from the values of its placeholders; return the value of each node."""
        self._values = values
        for node in nodes:
            if node.op == "call_function":
                values[node] = self._call(node)
                self._learn(node.meta.get("val"), values[node])
        return values

    def _learn(self, meta: Any, value: Any) -> None:
        """Replace data-dependent sizes that are known by now, such as the sizes that a constant mask determines."""
        if not isinstance(meta, torch.Tensor) or not isinstance(value, torch.Tensor | Tensor):
            return
        for size, actual in zip(meta.shape, value.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and str(size.node.expr).startswith("u"):
                self.symbols.setdefault(str(size.node.expr), actual)

    def _call(self, node: Any) -> Any:
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]
        meta = node.meta.get("val")
        if is_size(node) or is_check(node):
            return None  # sizes are evaluated where they are used
        args = self.value(tuple(node.args))
        named = {key: self.value(value) for key, value in node.kwargs.items()}
        if not is_live([args, list(named.values())]) and not draws(node.target):
            return self._compute_now(node, args, named)
        self.node, self.meta = node, meta
        place, layer = place_of(node), layer_of(node)
        with record_at_line(place), record_for_layer(layer), self.graph.at_scope(tuple(filter(None, (layer,)))):
            return self._record_node(args, named)

    def _record_node(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        row = find_row(row_name(self.node))
        if row is None:
            self.refuse(why_missing(row_name(self.node)))
        try:
            return self._check_shape(row.record(self, *args, **named))
        except WholestepError as error:
            if isinstance(error, UnsupportedOpError):
                raise
            reason = str(error).split("\n  at ")[0].rstrip(".")
            self.refuse(f"cannot be recorded: {reason}", error)
        except INTERRUPTED:
            raise
        except Exception as error:  # an unexpected error of a row
            self.refuse(f"has arguments that its row does not take ({type(error).__name__}: {error})", error)

    def _check_shape(self, value: Any) -> Any:
        """Check that the result of a row has torch's shape, which finds rows that misread their arguments.

        Of several results the first: torch 2.11 says a wrong shape of an LSTM's last states.
        """
        first = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(self.result, torch.Tensor) and isinstance(first, Tensor | Pair):
            sizes = [self._size_or_none(size) for size in self.result.shape]
            if len(sizes) != first.ndim or any(s is not None and s != e for s, e in zip(sizes, first.shape)):
                self.refuse(f"was recorded with the shape {first.shape}, and torch's is {tuple(self.result.shape)}")
        return value

    def _size_or_none(self, size: Any) -> Extent | None:
        """A size; None if it depends on the data."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        named = all(str(symbol) in self.symbols for symbol in size.node.expr.free_symbols)
        return extent_of(size.node.expr, self.symbols) if named else None

    def _compute_now(self, node: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Compute a constant immediately with torch."""
        try:
            with torch.no_grad():
                return node.target(*args, **named)
        except INTERRUPTED:
            raise
        except Exception as error:
            self.node = node
            self.refuse(f"cannot be computed while importing ({type(error).__name__}: {error})", error)

    def value(self, arg: Any) -> Any:
        """The value of an op's argument."""
        if isinstance(arg, torch.fx.Node):
            if arg.op == "get_attr":
                return attribute_of(arg)
            meta = arg.meta.get("val")
            if isinstance(meta, torch.SymInt):
                return self.extent(meta)
            if isinstance(meta, int | float | bool):
                return meta
            if isinstance(meta, torch.SymFloat | torch.SymBool):
                self.node = arg
                reason = why_missing(row_name(arg))
                default = "is a number that is computed from sizes and is not an integer"
                self.refuse(reason if reason in REFUSED.values() else default)
            return self._values[arg]
        if isinstance(arg, torch.SymInt):
            return self.extent(arg)
        if isinstance(arg, list | tuple):
            return type(arg)(self.value(a) for a in arg) if type(arg) in (list, tuple) else [self.value(a) for a in arg]
        return arg

    def inside(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """The result of an op's inner program for given operands."""
        nodes = list(module.graph.nodes)
        leaves = [n for n in nodes if n.op == "placeholder"]
        outer = self._values, self.node, self.meta
        self.run(nodes, dict(zip(leaves, operands, strict=True)))
        results = self.value(nodes[-1].args[0])
        self._values, self.node, self.meta = outer
        return list(results) if isinstance(results, list | tuple) else [results]

    def extent(self, size: Any) -> Extent:
        """An extent, which may be an expression of symbols."""
        if isinstance(size, torch.SymInt):
            extent = extent_of(size.node.expr, self.symbols)
            if extent is None:
                self.refuse(f"has the size {size}, which is no sum of products of the symbolic dimensions")
            return extent
        return int(size)

    def refuse(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """The error for an unsupported op, with its module and the user's line."""
        raise UnsupportedOpError(describe_op(self.node, what)) from cause

    # -- what rows ask -----------------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """torch's metadata of the (first) result."""
        return self.meta[0] if isinstance(self.meta, tuple | list) else self.meta

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self.name_of(self.result.dtype)

    @property
    def is_float(self) -> bool:
        return bool(self.result.dtype.is_floating_point)

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return tuple(self.extent(e) for e in self.result.shape)

    def name_of(self, dtype: Any) -> str:
        """Our name of a torch dtype."""
        if dtype in SMALL_INTEGERS:
            return SMALL_INTEGERS[dtype]
        if dtype not in DTYPES:
            self.refuse(f"has the dtype {dtype}, which is not computed with here")
        return DTYPES[dtype]

    def tensor(self, x: Any, dtype: str | None = None) -> Tensor:
        """An operand as a tensor of the graph."""
        if isinstance(x, Pair):
            self.refuse("takes complex numbers, and its row does not")
        if isinstance(x, Tensor):
            return x if dtype is None else x.astype(dtype)
        if isinstance(x, torch.Tensor):
            return self._constant(x, dtype)
        if isinstance(x, Dim):
            return size_of(x).astype(dtype or "int64")
        if x is None:
            self.refuse("has no value for one of its operands")
        return self.graph.constant(np.asarray(x, dtype), dtype)

    def _constant(self, x: Any, dtype: str | None) -> Tensor:
        key = (id(x), dtype)
        if key not in self._constants:
            name = dtype or self.name_of(x.dtype)
            array = x.detach().resolve_conj().resolve_neg().contiguous()
            array = array.float().numpy() if x.dtype in (torch.bfloat16, torch.float16) else array.numpy()
            array = array.astype(SMALL_INTEGERS[x.dtype]) if x.dtype in SMALL_INTEGERS else array
            with np.errstate(all="ignore"):
                constant = self.graph.constant(np.array(array), array.dtype.name if array.dtype.kind == "f" else None)
                self._constants[key] = (constant.astype(name), x) if constant.ndim else (self._number(array, name), x)
        return self._constants[key][0]

    def _number(self, array: Any, dtype: str) -> Tensor:
        return self.graph.constant(np.asarray(array).astype("float32" if dtype == "bfloat16" else dtype)).astype(dtype)

    def operand(self, x: Any, dtype: str | None = None) -> Any:
        """An operand, which may stay a scalar, in the dtype of the result or in the given one."""
        kind = dtype or self.dtype
        if isinstance(x, bool | int | float):
            if kind == "bool":
                return self.graph.constant(bool(x), "bool")
            return float(x) if kind.startswith(("float", "bfloat")) else int(x)
        return self.tensor(x, kind)

    def common(self, *operands: Any) -> str:
        """The dtype to which torch promotes the operands of the op."""
        metas = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in operands]
        metas = [int(m) if isinstance(m, torch.SymInt) else m for m in metas]
        if len(metas) == 1:
            return self.name_of(metas[0].dtype)
        return self.name_of(torch.result_type(metas[0], metas[1]))

    def optional(self, x: Any, dtype: str | None = None) -> Tensor | None:
        return None if x is None else self.tensor(x, dtype)

    def fixed(self, x: Any, what: str) -> int:
        """An integer that must be constant."""
        if not isinstance(x, int):
            self.refuse(f"has {what} = {x}, which depends on a symbolic dimension; give it a fixed number")
        return x

    def apply(self, function: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a user's function with tensors of the graph."""

        def ours(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return self.tensor(x)
            if isinstance(x, torch.dtype):
                return DTYPES.get(x, str(x))
            return type(x)(map(ours, x)) if isinstance(x, list | tuple) else x

        skipped = ("device", "layout", "pin_memory", "memory_format")
        results = function(*map(ours, args), **{k: ours(v) for k, v in named.items() if k not in skipped})
        return tuple(map(as_tensor, results)) if isinstance(results, tuple | list) else as_tensor(results)


def is_live(x: Any) -> bool:
    """Does a value depend on inputs, parameters or states?"""
    if isinstance(x, list | tuple):
        return any(map(is_live, x))
    return isinstance(x, Tensor | Dim | Pair)
