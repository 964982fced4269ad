"""The graphs of `evaluate` and `predict`: loss, outputs and metrics, without an update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import METRICS, fail, record_for_layer
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, GraphError, ShapeError
from wholestep.steps.options import PLAIN, Measure, StepOptions

EVALUATE = "evaluate"
VALIDATE = "validate"  # `evaluate` by all ranks, each over its own rows; it shares the states of `evaluate`
WEIGHT = "sample_weight"  # the input with the row weights
WEIGHTED = "weighted"  # the scope of metrics with row weights, whose states have other dtypes
TARGETS = ("labels", "targets", "target", "y")


def has_own_updates_only(graph: Graph) -> bool:
    """Does the graph have no loss, and updates recorded by the user, such as those of `ws.AdamOptimizer`?"""
    return not graph.outputs and bool(graph.updates)


def loss_of(graph: Graph) -> Tensor:
    """The first output, which must be a float scalar."""
    outputs = list(graph.outputs.values())
    if not outputs:
        fail(GraphError, "the graph has no outputs; declare them, the loss first: g.set_outputs([loss]).")
    if outputs[0].shape != () or not outputs[0].dtype.is_float:
        text = shape_text(outputs[0].shape)
        fail(
            ShapeError,
            f"the first output is the loss, a float scalar; received {outputs[0].dtype}{text}. Reduce it: loss.mean().",
        )
    if outputs[0].dtype.is_half:
        fail(
            DTypeError,
            f"the loss is {outputs[0].dtype}, and a loss is computed in float32 or float64, since sums in a half type "
            "lose digits. Cast its operands first: logits.astype('float32').",
        )
    return outputs[0]


def evaluate_graph(graph: Graph, options: StepOptions = PLAIN) -> ir.IRGraph:
    """Outputs, kept tensors and metrics, which have separate states; no other update, no dropout."""
    loss_of(graph)
    if not options.measures:
        return evaluation_graph(graph.to_ir(updates=False))
    counting = graph.copy()
    with counting.scope(EVALUATE):
        record_metrics(counting, options.measures)
    whole, model_updates = counting.to_ir(), graph.updates
    return evaluation_graph(
        ir.IRGraph(whole.outputs, tuple(u for u in whole.updates if u.name not in model_updates), whole.inputs)
    )


def predict_graph(graph: Graph) -> ir.IRGraph:
    """The outputs after the loss, with only the inputs that they need."""
    outputs = list(graph.outputs.items())[1:]
    if not outputs:
        fail(
            GraphError,
            "there is nothing to predict: the loss is the only output. Add one: g.set_outputs([loss, logits]), or "
            "return it from the step.",
        )
    needed = set(toposort([t.node for _, t in outputs]))
    inputs = tuple(t.node for t in graph.inputs.values() if t.node in needed)
    return evaluation_graph(ir.IRGraph(tuple(ir.Output(name, t.node) for name, t in outputs), (), inputs))


def forward_only(graph: Graph) -> ir.IRGraph:
    """The graph that computes the outputs and kept tensors only: without updates and inputs that they do not need."""
    whole = evaluation_graph(graph.to_ir(updates=False))
    if not graph.outputs:
        raise GraphError("the graph has no outputs; say what it returns: g.set_outputs([logits]).")
    needed = set(toposort([o.node for o in whole.outputs]))
    return ir.IRGraph(whole.outputs, (), tuple(i for i in whole.inputs if i in needed))


# -- metrics -----------------------------------------------------------------------------------------------------


def record_metrics(step: Graph, measures: Sequence[Measure]) -> None:
    """Record the updates of every metric."""
    if not measures:
        return
    weight = step.inputs.get(WEIGHT)
    with step.scope(WEIGHTED) if weight is not None else nullcontext(), record_for_layer(METRICS):
        for measure in measures:
            metric, target = measure.metric, _target(step, measure)
            prediction = _loss(step, measure) if metric.takes_loss else _prediction(step, measure)
            metric.record(step, prediction, target, weight)


def _loss(step: Graph, measure: Measure) -> Tensor:
    """The loss, or the part of the loss that a measure names."""
    if measure.prediction is None or measure.prediction not in step.loss_parts:
        return loss_of(step)
    return Tensor(step.loss_parts[measure.prediction], step)


def _prediction(step: Graph, measure: Measure) -> Tensor:
    outputs = step.outputs
    if measure.prediction is not None:
        return _tensor_of_name("output", measure.prediction, outputs, measure)
    if len(outputs) < 2:
        fail(
            GraphError,
            f"the metric {measure.metric.name!r} needs a prediction, and the loss is the only output. Add one: "
            "g.set_outputs([loss, logits]).",
        )
    return list(outputs.values())[1]


def _target(step: Graph, measure: Measure) -> Tensor:
    inputs = step.inputs
    if measure.target is not None:
        return _tensor_of_name("input", measure.target, inputs, measure)
    name = next((name for name in TARGETS if name in inputs), None)
    if name is None:
        fail(
            GraphError,
            f"the metric {measure.metric.name!r} needs a target, and no input is called "
            f"{' or '.join(map(repr, TARGETS))}. Name it: metrics=[(metric, output, input)]; inputs: {list(inputs)}.",
        )
    return inputs[name]


def _tensor_of_name(kind: str, name: str, tensors: dict[str, Tensor], measure: Measure) -> Tensor:
    if name not in tensors:
        fail(
            GraphError, f"the metric {measure.metric.name!r} is about the {kind} {name!r}; there are: {list(tensors)}."
        )
    return tensors[name]
