"""Assembles the exported programs of training and evaluation into one graph over the same inputs and arrays."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from wholestep.compiler.frontend.functions.primitives import iota, stop_gradient, where
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import by_mode
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.attrs import MatmulAttrs
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import Dim, Extent
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.errors import TrainingWarning, UnsupportedOpError, UsageError, WholestepError
from wholestep.interop.torch.aten.coverage import need_covered
from wholestep.interop.torch.aten.examples import input_name
from wholestep.interop.torch.aten.export import (
    BUFFER,
    CHANGES,
    INPUT,
    PARAMETER,
    RESULT,
    TOKEN,
    ExampleCall,
    Exported,
    export,
    warn_fixed,
)
from wholestep.interop.torch.aten.record import AtenRecorder, Pair
from wholestep.interop.torch.aten.repeated_calls import check_repeated_calls
from wholestep.interop.torch.aten.weights import Held, state_arrays
from wholestep.nn.module.graph_module import Holding, RecordedProgram

Array = np.ndarray[Any, Any]


def assemble_program(
    module: Any, call: ExampleCall, modes: tuple[str, ...]
) -> tuple[RecordedProgram, dict[str, Holding], dict[str, Array]]:
    """The program of a module, the arrays that it holds, and their values.

    Where an op needs a number for what is a symbol, the sizes of the example are taken, and a warning says so.
    """
    programs = _programs(module, call, modes)
    check_repeated_calls(module, call, programs)
    try:
        return _joint(module, call, programs)
    except UnsupportedOpError as error:
        if not call.symbols:
            raise
        first = error
    fixed = ExampleCall(call.args, call.named, {}, call.shared)
    try:
        assembled = _joint(module, fixed, _programs(module, fixed, modes))
    except WholestepError:
        raise first from None
    warn_fixed(f"the network needs the sizes of the example: {str(first).split('. Say what it is')[0]}")
    return assembled


def _programs(module: Any, call: ExampleCall, modes: tuple[str, ...]) -> list[Exported]:
    programs = [export(module, call, modes[0]), *_export_evaluation(module, call, modes[1:])]
    for exported in programs:
        need_covered(exported)
    return programs


def _joint(
    module: Any, call: ExampleCall, programs: list[Exported]
) -> tuple[RecordedProgram, dict[str, Holding], dict[str, Array]]:
    held = state_arrays(module, programs)
    graph = Graph()
    symbols = _symbols(programs, call)
    inputs = _declare_inputs(graph, programs[0], symbols, call.shared)
    leaves = {name: _declare_state(graph, name, one) for name, one in held.items() if one.live and not one.same_as}
    results: list[list[Tensor]] = []
    form: Any = None
    for exported in programs:
        outputs, changes = _record_program(exported, graph, symbols, inputs, held, leaves)
        form = form or _form(exported)
        results.append(outputs)
        if exported.mode == "train" or len(programs) == 1:
            for name, value in changes.items():
                leaf = leaves[held[name].same_as or name]
                graph.update(leaf, _read(leaf, _match_leaf(value, leaf)))
    if not results[0]:
        fail(UsageError, f"{type(module).__name__} gives no tensor: its forward returns what it is trained on.")
    graph.set_outputs({f"out{i}": value for i, value in enumerate(_by_mode(module, results))})
    whole = share_common_nodes(graph.to_ir())
    program = RecordedProgram(
        _merge_equal_modes(whole), form, type(module).__name__, f"from torch {torch.__version__.split('+')[0]}"
    )
    return program, *_holdings(program.graph, held)


def _export_evaluation(module: Any, call: ExampleCall, modes: tuple[str, ...]) -> list[Exported]:
    """The program of the second mode; if there is none, the training program also predicts, and a warning says so."""
    try:
        return [export(module, call, mode) for mode in modes]
    except UsageError as error:
        reason = str(error).split("\n")[0]
        warnings.warn(f"{reason} Predicting and evaluating compute what training does.", TrainingWarning, stacklevel=2)
        return []


def is_leaf(exported: Exported, kind: Any, name: str | None) -> bool:
    """Is a placeholder a leaf of the graph, because it is an input, changes, or may be loaded?"""
    if kind in (INPUT, PARAMETER):
        return True
    if kind is not BUFFER or name is None:
        return False
    if name in exported.mutations:
        return True
    tensor = exported.number(name)
    return bool(name in exported.program.state_dict and (tensor.is_floating_point() or tensor.is_complex()))


# -- leaves ------------------------------------------------------------------------------------------------------


def _symbols(programs: list[Exported], call: ExampleCall) -> dict[str, Extent]:
    """A map from torch's symbols to the user's names."""
    extents: dict[str, Extent] = {}
    fixed: dict[str, None] = {}
    tensors = torch.utils._pytree.tree_leaves([*call.args, *call.named.values()])
    for exported in programs:
        nodes = [node for node, kind, _ in exported.placeholders() if kind is INPUT]
        for node, tensor in zip(nodes, tensors, strict=True):
            for axis, name in call.symbols.get(id(tensor), {}).items():
                size = node.meta["val"].shape[axis]
                expression = size.node.expr if isinstance(size, torch.SymInt) else None
                if expression is not None and expression.is_Symbol:
                    extents.setdefault(str(expression), Dim.symbol(name))
                else:
                    fixed[f"axis {axis} of {node.name!r} is {size}"] = None
    if fixed:
        warn_fixed(f"the network needs the sizes of the example: {', '.join(fixed)}")
    return extents


def _declare_inputs(graph: Graph, exported: Exported, symbols: dict[str, Extent], shared: str) -> dict[str, Tensor]:
    """Declare the inputs under the names of torch's placeholders."""
    recorder, inputs = AtenRecorder(graph, symbols), {}
    for node, kind, _ in exported.placeholders():
        meta = node.meta.get("val")
        if kind is not INPUT or not isinstance(meta, torch.Tensor):
            continue
        recorder.node = node
        shape = tuple(map(recorder.extent, meta.shape))
        inputs[node.name] = graph.input(input_name(node.name, shared), shape, recorder.name_of(meta.dtype))
    return inputs


def _declare_state(graph: Graph, name: str, one: Held) -> Tensor:
    declare = graph.parameter if one.trained else graph.state
    return declare(name, one.shape, 0.0, one.dtype)


def _record_program(
    exported: Exported,
    graph: Graph,
    symbols: dict[str, Extent],
    inputs: dict[str, Tensor],
    held: dict[str, Held],
    leaves: dict[str, Tensor],
) -> tuple[list[Tensor], dict[str, Any]]:
    """Record a program: return its outputs, and the next value of each buffer that it changes."""
    values: dict[Any, Any] = {}
    for node, kind, name in exported.placeholders():
        if kind is INPUT:
            values[node] = inputs.get(node.name, node.meta.get("val"))
        elif name in held and held[name].live:
            leaf = leaves[held[name].same_as or name]
            values[node] = Pair(leaf[..., 0], leaf[..., 1]) if held[name].is_complex else leaf
        elif name is not None:
            values[node] = exported.number(name).detach()
        else:
            values[node] = None
    recorder = AtenRecorder(graph, symbols, exported.mode)
    recorder.run(exported.nodes_of_results(), values)
    outputs, changes = [], {}
    for value, kind, name in exported.outputs():
        if kind is TOKEN:
            continue
        result = values[value] if isinstance(value, torch.fx.Node) else value
        if kind is RESULT and isinstance(result, Tensor | torch.Tensor | Pair):
            outputs.append(_output(recorder, value, result))
        elif kind in CHANGES:
            changes[str(name)] = recorder.tensor(result)
    return outputs, changes


def _output(recorder: AtenRecorder, node: Any, value: Any) -> Tensor:
    recorder.node = node
    if isinstance(value, Pair):
        recorder.refuse("is a result of the network, and complex: return its real and imaginary parts")
    return recorder.tensor(value)


def _match_leaf(value: Tensor, leaf: Tensor) -> Tensor:
    return stop_gradient(value.astype(leaf.dtype)) if value.shape == leaf.shape else value


def _read(leaf: Tensor, value: Tensor) -> Tensor:
    """The value of a leaf; a state that is only written is read here, since a graph only holds what it reads."""
    if value.shape != leaf.shape or leaf.node in toposort([value.node]):
        return value
    flat = leaf.reshape(-1)
    return where(iota(flat.shape, 0) >= 0, value.reshape(-1), flat).reshape(leaf.shape)


# -- outputs -----------------------------------------------------------------------------------------------------


def _form(exported: Exported) -> Any:
    """The structure of a module's output: a tensor, a list, a dict; other values are omitted."""
    names: list[str | None] = []
    for value, kind, _ in exported.outputs():
        if kind is RESULT:
            is_tensor = isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
            names.append(f"out{sum(n is not None for n in names)}" if is_tensor else None)
    whole = torch.utils._pytree.tree_unflatten(names, exported.program.call_spec.out_spec)
    return _plain(whole)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if hasattr(value, "items"):
        entries = {str(k): _plain(v) for k, v in value.items()}
        return {k: v for k, v in entries.items() if v not in (None, [], {})}
    if isinstance(value, list | tuple):
        return [p for p in map(_plain, value) if p not in (None, [], {})]
    return None


def _by_mode(module: Any, results: list[list[Tensor]]) -> list[Tensor]:
    if len(results) == 1:
        return results[0]
    training, evaluating = results
    alike = [t.node.type for t in training] == [t.node.type for t in evaluating]
    if not alike:
        said = [", ".join(str(t.node.type) for t in part) for part in results]
        fail(
            UsageError,
            f"{type(module).__name__} gives {said[0]} in training and {said[1]} in evaluation. Wrap it in a module "
            "that gives the same in both, or import one mode: ws.from_torch(..., mode='train').",
        )
    return [by_mode(a, b) for a, b in zip(training, evaluating)]


def _merge_equal_modes(graph: ir.IRGraph) -> ir.IRGraph:
    """Replace choices between the modes by their value if both modes compute the same."""

    def rule(node: Node) -> Node:
        return node.inputs[0] if node.op == "by_mode" and node.inputs[0] is node.inputs[1] else node

    return ir.rewrite(graph, rule)


# -- what the network holds --------------------------------------------------------------------------------------


def _holdings(graph: ir.IRGraph, held: dict[str, Held]) -> tuple[dict[str, Holding], dict[str, Array]]:
    trained, transposed = _with_gradient(graph), _only_transposed(graph)
    holdings, numbers = {}, {}
    for name, one in held.items():
        first = one.same_as or name
        reached = one.trained and first in trained
        holdings[name] = Holding(
            reached or (one.trained and not one.requires_grad),
            one.shape,
            one.dtype,
            frozen=one.trained and not one.requires_grad,
            fixed=not one.live,
            by_columns=reached and first in transposed,
            same_as=one.same_as,
        )
        numbers[name] = one.array
    return holdings, numbers


def _with_gradient(graph: ir.IRGraph) -> set[str]:
    """The parameters for which a loss of the training outputs has a gradient."""
    names: set[str] = set()
    todo, seen = [o.node for o in graph.outputs], set()
    while todo:
        node = todo.pop()
        if node in seen or node.op == "stop_gradient" or not any(t.dtype.is_float for t in node.results):
            continue
        seen.add(node)
        if node.op == "parameter":
            names.add(node.attrs.name)  # type: ignore[attr-defined]
        todo += node.inputs[:1] if node.op == "by_mode" else node.inputs
    return names


def _only_transposed(graph: ir.IRGraph) -> set[str]:
    """The matrices that are read only as x @ w.T."""
    consumers = graph.consumers()
    return {
        name
        for name, node in graph.leaves("parameter").items()
        if node.type.rank == 2 and consumers[node] and all(_reads_transposed(n, node) for n in consumers[node])
    }


def _reads_transposed(node: Node, matrix: Node) -> bool:
    is_product = isinstance(node.attrs, MatmulAttrs) and node.attrs.transpose_b
    return is_product and node.inputs[1] is matrix and node.inputs[0] is not matrix
