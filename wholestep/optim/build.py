"""From a forward graph to the entry points of a session: train, evaluate, predict."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers import evaluated
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import GradientError, GraphError, OptionError, ShapeError
from wholestep.optim.base import Optimizer


def train_graph(
    graph: Graph, optimizer: Optimizer, trainable: Sequence[str] | None = None, unused: Sequence[str] = ()
) -> ir.Graph:
    """The user's graph with gradients of its first output and the optimizer's update; `graph` itself is unchanged.

    Args:
        trainable: name patterns of the parameters to train (all of them when None); the others are frozen.
        unused: name patterns of parameters that may lack a path to the loss.
    """
    step = graph.copy()
    loss = _loss(step)
    params = _reached(loss, optimizer.trainable(_trainable(step, trainable)), unused)
    grads = optimizer.gradients(loss, params)
    optimizer.update(step, params, grads)
    for p, g in zip(params, grads, strict=True):
        if p.name in graph.kept:
            step.keep(g, f"{p.name}.grad")
    return step.to_ir()


def evaluate_graph(graph: Graph) -> ir.Graph:
    """The outputs and kept tensors, without any update; nothing is dropped."""
    _loss(graph)
    return evaluated(graph.to_ir(updates=False))


def predict_graph(graph: Graph) -> ir.Graph:
    """The outputs after the loss, with only the inputs that they need."""
    outputs = list(graph.outputs.items())[1:]
    if not outputs:
        fail(
            GraphError,
            "there is nothing to predict: the loss is the only output. Add one: g.set_outputs([loss, logits]).",
        )
    needed = set(toposort([t.node for _, t in outputs]))
    inputs = tuple(t.node for t in graph.inputs.values() if t.node in needed)
    return evaluated(ir.Graph(tuple(ir.Output(name, t.node) for name, t in outputs), (), inputs))


def _loss(graph: Graph) -> Tensor:
    outputs = list(graph.outputs.values())
    if not outputs:
        fail(GraphError, "the graph has no outputs; say what a step returns, the loss first: g.set_outputs([loss]).")
    if outputs[0].shape != () or not outputs[0].dtype.is_float:
        text = shape_text(outputs[0].shape)
        fail(
            ShapeError,
            f"the first output is the loss, a float scalar; received {outputs[0].dtype}{text}. Reduce it: loss.mean().",
        )
    return outputs[0]


def _trainable(graph: Graph, patterns: Sequence[str] | None) -> list[Tensor]:
    params = graph.parameters
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in params):
            fail(OptionError, f"trainable={pattern!r} matches none of the parameters {list(params)}.")
    free = {name: p for name, p in params.items() if name not in graph.updates}  # the user updates the others
    return [p for name, p in free.items() if patterns is None or _matches(name, patterns)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _reached(loss: Tensor, params: list[Tensor], unused: Sequence[str]) -> list[Tensor]:
    """The parameters that the loss depends on; one that it does not must be named in `unused`."""
    needed: set[Node] = set(toposort([loss.node]))
    missing = [p for p in params if p.node not in needed and not _matches(p.name, unused)]
    if missing:
        names = ", ".join(f"{p.name!r} (made at {p.node.line})" for p in missing)
        fail(
            GradientError,
            f"the loss does not depend on {names}. Use it, freeze it (leave it out of trainable=), or accept it: "
            f"unused=[{missing[0].name!r}].",
        )
    return [p for p in params if p.node in needed]
