"""Manual steps: the graphs of forward, backward, clip and apply.

Gradients are outputs and inputs called `gradients.<parameter>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.errors import GraphError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.gradient_transforms import clip_by_global_norm
from wholestep.steps.definition import LOSS_AND_GRADIENTS
from wholestep.steps.evaluate import loss_of

PREFIX = "gradients."
UPSTREAM = "grad_output"  # the input of `backward`
LOSS = "loss"  # the first output of `loss_and_gradients`
MAX_NORM, NORM = "stages.max_norm", "norm"


def prediction_of(graph: Graph) -> Tensor:
    """The first result of `forward`: the output after the loss, or the only one."""
    outputs = list(graph.outputs.values())
    if not outputs:
        fail(GraphError, "the graph has no outputs; declare them: g.set_outputs([loss, logits]).")
    return outputs[1] if len(outputs) > 1 else outputs[0]


def backward_graph(graph: Graph) -> ir.IRGraph:
    """The gradients of Σ output·grad_output."""
    step = graph.copy()
    out = step.adopt(prediction_of(graph))
    upstream = step.input(UPSTREAM, out.shape, out.dtype)
    return _gradients(step, (out * upstream).sum())


def gradient_graph(graph: Graph) -> ir.IRGraph:
    """The gradients of the loss."""
    step = graph.copy()
    return _gradients(step, loss_of(step))


def loss_and_gradients(graph: Graph, optimizer: Optimizer) -> ir.IRGraph:
    """The loss, and its gradients for the parameters that are trained."""
    step = graph.copy()
    loss = loss_of(step)
    slopes = _gradients(step, loss)
    trained = {PREFIX + p.name for p in optimizer.trainable(list(step.parameters.values()))}
    gradients = [o for o in slopes.outputs if o.name in trained]
    return ir.IRGraph((ir.Output(LOSS, loss.node), *gradients), (), slopes.inputs)


def _gradients(step: Graph, scalar: Tensor) -> ir.IRGraph:
    needed = set(toposort([scalar.node]))
    params = [p for p in step.parameters.values() if p.node in needed]
    pairs = zip(params, gradients(scalar, params), strict=True)
    inputs = tuple(t.node for t in step.inputs.values() if t.node in needed)
    return ir.IRGraph(tuple(ir.Output(PREFIX + p.name, g.node) for p, g in pairs), (), inputs)


def _gradient_inputs(step: Graph, params: Sequence[Tensor]) -> list[Tensor]:
    return [step.input(PREFIX + p.name, p.shape, p.dtype) for p in params]


def clip_graph(graph: Graph) -> ir.IRGraph:
    """Gradients clipped by their global norm, and the norm before."""
    step = Graph()
    grads = _gradient_inputs(step, list(graph.parameters.values()))
    clipped, norm = clip_by_global_norm(grads, step.scalar(MAX_NORM, 1.0))
    outputs = [ir.Output(t.name, g.node) for t, g in zip(grads, clipped, strict=True)]
    return ir.IRGraph((ir.Output(NORM, norm.node), *outputs), (), tuple(t.node for t in grads))


def apply_graph(graph: Graph, optimizer: Optimizer) -> ir.IRGraph:
    """The optimizer's update along given gradients."""
    step = graph.copy()
    model_updates = set(step.updates)
    params = optimizer.trainable(list(step.parameters.values()))
    grads = _gradient_inputs(step, params)
    optimizer.update(step, params, grads)
    whole = step.to_ir()
    return ir.IRGraph((), tuple(u for u in whole.updates if u.name not in model_updates), tuple(t.node for t in grads))


def observe_graph(graph: Graph) -> ir.IRGraph:
    """The output of every layer: of each called module, or without modules of each op that is a layer."""
    roots = [prediction_of(graph).node]
    seen = {} if graph.modules is None else graph.modules.outputs
    layers = {path: t.node for path, t in seen.items() if path}
    outputs = layers or {f"{i}.{n.op}": n for i, n in enumerate(n for n in toposort(roots) if _is_layer(n))}
    needed = set(toposort(outputs.values()))
    inputs = tuple(t.node for t in graph.inputs.values() if t.node in needed)
    return evaluation_graph(ir.IRGraph(tuple(ir.Output(name, node) for name, node in outputs.items()), (), inputs))


def _is_layer(node: ir.Node) -> bool:
    return node.op in ops_with(Trait.LAYER) and node.type.dtype.is_float


GRAPHS: dict[str, Callable[[Graph, Optimizer], ir.IRGraph]] = {  # the function that records each entry point
    "backward": lambda graph, optimizer: backward_graph(graph),
    "gradients": lambda graph, optimizer: gradient_graph(graph),
    "clip": lambda graph, optimizer: clip_graph(graph),
    "apply": apply_graph,
    "observe": lambda graph, optimizer: observe_graph(graph),
    LOSS_AND_GRADIENTS: loss_and_gradients,  # the interpreter runs it to locate the first non-finite value
}
