"""Nodes of an exported program: the row that records one, its line and module, and sizes as extents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from wholestep.compiler.ir.graph import SourceLine
from wholestep.compiler.ir.types import Dim, Extent, divide, product

_CHECKS = re.compile(r"_assert|sym_constrain|_check|_guard")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def attribute_of(node: Any) -> Any:
    """The object of its module that a node refers to: a program, or a tensor."""
    value = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def inner_programs(node: Any) -> list[Any]:
    """The inner programs of an op: the branches of a condition, the body of a loop."""
    held = [attribute_of(n) for n in node.all_input_nodes if n.op == "get_attr"]
    return [module for module in held if isinstance(module, torch.fx.GraphModule)]


def row_name(node: Any) -> str:
    """The name under which an op's row is looked up: complex ops have rows of their own."""
    result = node.meta.get("val")
    metas = [
        *(result if isinstance(result, tuple | list) else [result]),
        *(i.meta.get("val") for i in node.all_input_nodes),
    ]
    is_complex = any(isinstance(m, torch.Tensor) and m.dtype.is_complex for m in metas)
    name = str(node.target)
    return f"complex.{name.removeprefix('aten.')}" if is_complex else name


def is_size(node: Any) -> bool:
    """Is a node a number that is computed from sizes?"""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | torch.SymFloat | int | float | bool)


def is_check(node: Any) -> bool:
    """Is a node only a run-time check, without a result?"""
    return _CHECKS.search(str(node.target)) is not None


def draws(target: Any) -> bool:
    """Does an op draw random numbers?"""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


# -- where an op comes from --------------------------------------------------------------------------------------

_TORCH = str(Path(torch.__file__).parent)


def place_of(node: Any) -> SourceLine:
    """The innermost line of the user's code, or of the network's author, that created an op."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    theirs = [f for f in frames if not f[0].startswith((_TORCH, "torch/", "<"))] or frames
    file, line = theirs[-1] if theirs else ("<torch>", "0")
    return SourceLine(file, int(line), layer_of(node))


def layer_of(node: Any) -> str:
    """The path of the module that created an op."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if not str(path).startswith("_empty")]
    return re.sub(r"^L\['[^']*'\]\.?", "", paths[-1]) if paths else ""


def describe_op(node: Any, what: str) -> str:
    """The error text for an op that cannot be recorded: the op, its line, and what to do."""
    name, layer = str(node.target), layer_of(node)
    within = f" in the module {layer!r}" if layer else ""
    short = ".".join(name.split(".")[:2])
    return (
        f"{name}{within} {what}. Say what it is, @ws.torch_op({short!r}) before a function of its arguments, or write "
        f"the module without it.{place_of(node).error_note}"
    )


# -- sizes: sums of products with integer coefficients -----------------------------------------------------------------


def extent_of(expression: Any, symbols: Mapping[str, Extent]) -> Extent | None:
    """A SymPy expression as an extent; None if it cannot be expressed."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return symbols.get(str(expression), Dim.symbol(str(expression)))
    kind = type(expression).__name__
    parts = [extent_of(a, symbols) for a in expression.args]
    extents = [p for p in parts if p is not None]
    if len(extents) < len(parts):
        return _cancel_fraction(expression, symbols) if kind == "Mul" else None
    if kind == "Add":
        total: Extent = 0
        for part in extents:
            total = total + part
        return total
    if kind == "Mul":
        return product(extents)
    if kind == "Pow":
        return product([extents[0]] * extents[1]) if isinstance(extents[1], int) and extents[1] >= 0 else None
    if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv", "CeilDiv"):
        return divide(extents[0], extents[1])
    if kind in ("Mod", "PythonMod") and divide(extents[0], extents[1]) is not None:
        return 0
    return None


def _cancel_fraction(expression: Any, symbols: Mapping[str, Extent]) -> Extent | None:
    """Simplify a product with a fraction, such as 1/2 of 2·n."""
    numerator, denominator = expression.as_numer_denom()
    above, below = extent_of(numerator, symbols), extent_of(denominator, symbols)
    return None if above is None or below is None or numerator == expression else divide(above, below)
