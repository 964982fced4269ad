"""Functionalizes an exported program node by node: writes in place become new values, composite ops become primitives.

`ExportedProgram.run_decompositions` traces the whole program again, twice, through torch's dispatcher; that was more
than half of an import.  Here one pass over the nodes does the same for programs whose ops have rows in our table; what
writes do to views is in `memory_cells.py`.  `functionalize` returns None for any other program, which torch decomposes.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from wholestep.interop.torch.aten.memory_cells import (
    CannotFunctionalizeError,
    Cell,
    Memory,
    arguments_of,
    overloads,
    packet,
)
from wholestep.interop.torch.aten.nodes import is_check, is_size
from wholestep.interop.torch.aten.table import find_row

log = logging.getLogger("wholestep")

# Ops whose rows record another overload, or a second result that torch computes with it.
DECOMPOSED = frozenset({"adaptive_max_pool1d", "softshrink"})


@dataclass(frozen=True)
class MutatedBuffer:
    """The output of a functional program that is the next value of a buffer; torch's record for it has more fields."""

    target: str
    kind: Any = OutputKind.BUFFER_MUTATION


@dataclass(frozen=True)
class Signature:
    """The kinds of the inputs and outputs of a functional program, in order."""

    input_specs: list[Any]
    output_specs: list[Any]


@dataclass(frozen=True)
class FunctionalProgram:
    """A program without in-place writes, with the attributes of an `ExportedProgram` that the import reads."""

    graph: Any
    graph_signature: Signature
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]
    call_spec: Any


def functionalize(program: Any) -> FunctionalProgram | None:
    """The functional form of a program; None if it contains what only torch can decompose."""
    try:
        return _Functionalizer(program).run()
    except CannotFunctionalizeError as reason:
        log.debug("torch decomposes the program: %s", reason)
        return None


class _Functionalizer(Memory):
    """One pass over the nodes of a program."""

    def __init__(self, program: Any) -> None:
        self.program, self.nodes = program, list(program.graph_module.graph.nodes)
        super().__init__(self.nodes)
        self.buffers: list[Cell] = []

    def run(self) -> FunctionalProgram:
        signature = self.program.graph_signature
        specs = iter(signature.input_specs)
        for node in self.nodes:
            if node.op == "placeholder":
                self._declare(node, next(specs))
            elif node.op == "call_function":
                self._call(node)
            elif node.op != "output":
                raise CannotFunctionalizeError(f"it refers to {node.target}")
        (last,) = (node for node in self.nodes if node.op == "output")
        results = [self.read(value) for value in last.args[0]]
        changed = [cell for cell in self.buffers if cell.version]
        self.graph.output((*(cell.value for cell in changed), *results))
        self.graph.eliminate_dead_code()  # rows ask which results of an op are used
        outputs = [*(MutatedBuffer(cell.buffer) for cell in changed), *signature.output_specs]
        if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
            raise CannotFunctionalizeError("it has other outputs than results")
        program = self.program
        return FunctionalProgram(
            self.graph,
            Signature(signature.input_specs, outputs),
            program.state_dict,
            program.constants,
            program.call_spec,
        )

    def _declare(self, node: Any, spec: Any) -> None:
        is_buffer = spec.kind is InputKind.BUFFER
        cell = Cell(self.graph.node_copy(node), buffer=spec.target if is_buffer else "", is_writable=is_buffer)
        self.name(node, cell)
        if is_buffer:
            self.buffers.append(cell)

    # -- ops ---------------------------------------------------------------------------------------------------------

    def _call(self, node: Any) -> None:
        if is_check(node):
            return
        if is_size(node):
            self.name(node, Cell(self.copy(node)))
        elif node.target is operator.getitem:
            self.view(node, node.args[0]) if self.cells[node.args[0]].view is not None else self._compute(node)
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise CannotFunctionalizeError(f"{node.target} holds a program")
        elif any(operand.name in node.kwargs for operand in node.target._schema.arguments[:1]):
            raise CannotFunctionalizeError(f"{node.target} takes its operand by name")
        elif _is_complex(node):
            raise CannotFunctionalizeError(f"{node.target} computes complex numbers")
        elif (rule := RULES.get(str(node.target).removeprefix("aten."))) is not None:
            rule(self, node, arguments_of(node))
        elif node.target._schema.is_mutable:
            self._write_in_place(node)
        else:
            _need_row(node.target)
            is_view = any(a.alias_info is not None for a in node.target._schema.arguments)
            self.view(node, node.args[0]) if is_view else self._compute(node)

    def _compute(self, node: Any) -> None:
        self.name(node, Cell(self.copy(node)))

    def _write_in_place(self, node: Any) -> None:
        """`x.relu_()`: x gets the value of the functional op, and the result is an alias of x."""
        schema, name = node.target._schema, packet(node)
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        functional = overloads(name[:-1]).get(node.target._overloadname) if name.endswith("_") else None
        if functional is None or len(written) != 1 or written[0] is not schema.arguments[0]:
            raise CannotFunctionalizeError(f"{node.target} writes in place")
        _need_row(functional)
        if functional._schema.is_mutable or node.meta["val"].dtype != node.args[0].meta["val"].dtype:
            raise CannotFunctionalizeError(f"{node.target} has no functional form")
        if name == "copy_" and node.args[0].meta["val"].shape != node.args[1].meta["val"].shape:
            raise CannotFunctionalizeError(f"{node.target} copies another shape")
        value = self.copy(node)
        value.target = functional
        cell = self.cells[node.args[0]]
        self.write(cell, value, node)
        self.name(node, cell)


def _need_row(op: Any) -> None:
    row = find_row(str(op))
    if row is None or not row.whole or op._schema.name.removeprefix("aten::") in DECOMPOSED:
        raise CannotFunctionalizeError(f"{op} has no row")


def _is_complex(node: Any) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.is_complex()
        for n in (node, *node.all_input_nodes)
        for value in torch.utils._pytree.tree_leaves(n.meta.get("val"))
    )


# -- composite ops: the primitives that torch decomposes them into -----------------------------------------------------

Rule = Callable[[_Functionalizer, Any, list[Any]], None]


def _convolution(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, weight, bias, stride, padding, dilation, groups = arguments
    axes = len(stride)
    if x.meta["val"].ndim != axes + 2:
        raise CannotFunctionalizeError("an image without a batch")
    rest = (stride, padding, dilation, False, [0] * axes, groups)
    f.name_result(node, f.emit(torch.ops.aten.convolution.default, (*map(f.read, (x, weight, bias)), *rest), node))


def _batch_norm(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, weight, bias, mean, variance, training, momentum, eps, _ = arguments
    tensors = (x, weight, bias, mean, variance)
    dtypes = {t.meta["val"].dtype for t in tensors if isinstance(t, torch.fx.Node)}
    if len(dtypes) > 1 or mean is None or variance is None:
        raise CannotFunctionalizeError("a batch norm of several dtypes or without statistics")
    out, running = node.meta["val"], mean.meta["val"]
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    if not training:
        op = torch.ops.aten._native_batch_norm_legit_no_training.default
    more = (True, momentum, eps) if training else (momentum, eps)
    results = (out, *[running] * (4 if training else 2))
    whole = f.emit(op, (*map(f.read, tensors), *more), node, results)
    f.name_result(node, f.emit(operator.getitem, (whole, 0), node))
    for buffer, place in ((mean, 3), (variance, 4)) if training else ():
        f.write(f.cells[buffer], f.emit(operator.getitem, (whole, place), node, running), node)


def _dropout(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, p, training = arguments
    if not training or p == 0:
        f.name_result(node, f.read(x))
        return
    value = node.meta["val"]
    mask = torch.empty_like(value, dtype=torch.bool)
    both = f.emit(torch.ops.aten.native_dropout.default, (f.read(x), p, True), node, (value, mask))
    f.name_result(node, f.emit(operator.getitem, (both, 0), node))


def _dropout_in_place(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, p, training = arguments
    cell = f.cells[x]
    if training and p == 1:
        raise CannotFunctionalizeError("a dropout of everything")
    if training and p != 0:
        drawn = f.emit(torch.ops.aten.bernoulli.p, (f.read(x), 1.0 - p), node)
        scaled = f.emit(torch.ops.aten.div.Scalar, (drawn, 1.0 - p), node)
        f.write(cell, f.emit(torch.ops.aten.mul.Tensor, (f.read(x), scaled), node), node)
    f.name(node, cell)


def _draw_in_place(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, p, *_ = arguments
    cell = f.cells[x]
    f.write(cell, f.emit(torch.ops.aten.bernoulli.p, (f.read(x), p), node), node)
    f.name(node, cell)


def _pad(f: _Functionalizer, node: Any, arguments: list[Any]) -> None:
    x, widths, mode, value = arguments
    if mode != "constant":
        raise CannotFunctionalizeError(f"padding of mode {mode}")
    filled = 0.0 if value is None else value
    f.name_result(node, f.emit(torch.ops.aten.constant_pad_nd.default, (f.read(x), widths, filled), node))


RULES: Mapping[str, Rule] = {
    "pad.default": _pad,
    **dict.fromkeys(("conv1d.default", "conv2d.default", "conv3d.default"), _convolution),
    "batch_norm.default": _batch_norm,
    "dropout.default": _dropout,
    "dropout_.default": _dropout_in_place,
    "bernoulli_.float": _draw_in_place,
}
