"""Programs that compute chosen tensors of a training step, and gradients of its loss for them, and nothing else.

An entry point is a string, so the names of the tensors are part of it: `tensors 0,attention.grad`, quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from urllib.parse import quote, unquote

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import toposort
from wholestep.errors import UnknownNameError
from wholestep.steps.definition import TENSORS
from wholestep.steps.evaluate import loss_of

GRADIENT = ".grad"  # suffix of the name of the loss's gradient for a tensor


def tensors_entry(names: Iterable[str]) -> str:
    """The entry point that computes these tensors."""
    return TENSORS + ",".join(quote(name, safe="").replace(".", "%2E") for name in names)


def tensor_graph(graph: Graph, entry: str) -> ir.IRGraph:
    """The tensors that an entry point names, as in training: outputs of layers, kept tensors, inputs, parameters."""
    step, names = graph.copy(), [unquote(name) for name in entry.removeprefix(TENSORS).split(",")]
    named = {name: step.adopt(tensor) for name, tensor in _named_tensors(graph).items()}
    owners = [name.removesuffix(GRADIENT) for name in names if name not in named and name.endswith(GRADIENT)]
    for name in (*owners, *(n for n in names if n not in named and not n.endswith(GRADIENT))):
        _need_name(name, list(named))
    tensors = {name: named[name].node for name in names if name in named}
    if owners:
        tensors |= _gradients(loss_of(step), {name: named[name] for name in owners})
    needed = set(toposort(tensors.values()))
    inputs = tuple(t.node for t in graph.inputs.values() if t.node in needed)
    return ir.IRGraph(tuple(ir.Output(name, tensors[name]) for name in names), (), inputs)


def _named_tensors(graph: Graph) -> dict[str, Tensor]:
    layers = {} if graph.modules is None else {path: t for path, t in graph.modules.outputs.items() if path}
    return {**graph.inputs, **graph.parameters, **layers, **graph.outputs, **graph.kept}


def _gradients(loss: Tensor, tensors: dict[str, Tensor]) -> dict[str, ir.Node]:
    reached = set(toposort([loss.node]))
    for name, tensor in tensors.items():
        if tensor.node not in reached or not tensor.node.type.dtype.is_float:
            raise UnknownNameError(f"the loss has no gradient for {name!r}: it does not depend on it, or is no float.")
    slopes: Sequence[Tensor] = gradients(loss, list(tensors.values()))
    return {f"{name}{GRADIENT}": slope.node for name, slope in zip(tensors, slopes, strict=True)}


def _need_name(name: str, names: Sequence[str]) -> None:
    if name not in names:
        close = get_close_matches(name, names, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"the step has no tensor {name!r}.{hint} It has: {', '.join(names)}, and gradients: <name>{GRADIENT}. "
            "Name others: tensor.keep('name') in forward."
        )
