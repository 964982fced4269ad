"""Rules about the model: what its traced graph computes between inputs, parameters, outputs and loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.ir.graph import IRGraph, Node, Output, below, leaf_name, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.nn.module.module import Module
from wholestep.steps.states import preview_numbers
from wholestep.train.lint.rules import LintedRun, rule

SAME_VALUES = ops_with(Trait.VIEW) | {"cast"}
SAMPLE_ROWS = 256  # rows of the training data on which activations are computed
DEAD_SHARE = 0.5  # fewer dead units than this are usual for ReLU under random weights


def _place(node: Node) -> str:
    layer = node.line.layer if node.line else ""
    return f"layer {layer!r}" if layer and not layer.startswith("(") else f"{node.line}"


@rule(
    "WS105",
    "a parameter without a path to the loss",
    reason="its gradient is always 0, so it is never trained.",
    fix="use it in forward, freeze it (model.freeze(name)), or remove it.",
    on_request=True,
)
def unreachable_parameters(run: LintedRun) -> Iterator[str]:
    model = run.experiment.model
    assert isinstance(model, Module)
    reachable = {leaf_name(n) for n in toposort([run.graph.outputs[0].node]) if n.op == "parameter"}
    for name, parameter in model.named_arrays().items():
        if parameter.trained and not parameter.frozen and name not in reachable:
            yield f"the loss does not depend on {name!r}."


@rule(
    "WS201",
    "dropout after the last layer",
    reason="it sets scores to zero at random, which the loss sees as confident errors.",
    fix="place the dropout before the last layer.",
)
def dropout_of_outputs(run: LintedRun) -> Iterator[str]:
    for output in run.graph.outputs[1:]:
        node = below(output.node, SAME_VALUES)
        if node.op == "dropout":
            yield f"the output {output.name!r} is the result of a dropout ({_place(node)})."


@rule(
    "WS202",
    "batch norm with batches of one row",
    reason="the variance of one row is 0 (of an image: that of its pixels alone), so evaluation differs from training.",
    fix="use a larger batch_size, or ws.nn.GroupNorm or ws.nn.LayerNorm.",
)
def batch_norm_of_one_row(run: LintedRun) -> Iterator[str]:
    norms = [n for n in run.graph.nodes if n.op == "batch_norm"]
    if norms and run.loader.batch_size == 1:
        yield f"batch_size is 1, and the model has {len(norms)} batch norms, the first at {_place(norms[0])}."


@rule(
    "WS203",
    "ReLU units that are dead at the start",
    reason="a unit that is 0 for every row has no gradient, so it may never recover.",
    fix="normalise the inputs, lower the scale of the initial weights or biases, or use LeakyReLU or GELU.",
    on_request=True,
)
def dead_relus(run: LintedRun) -> Iterator[str]:
    relus = [n for n in toposort([o.node for o in run.graph.outputs[1:]]) if n.op == "relu"]
    if run.table is None or not relus:
        return
    for node, values in zip(relus, _values(run, relus), strict=True):
        channel = 1 if values.ndim == 4 else values.ndim - 1
        units = np.moveaxis(values, channel, -1).reshape(-1, values.shape[channel])
        dead = int((units <= 0).all(0).sum())
        if dead > DEAD_SHARE * units.shape[1]:
            yield f"{dead} of {units.shape[1]} units are 0 for all of {len(values)} rows ({_place(node)})."


def _values(run: LintedRun, nodes: list[Node]) -> list[np.ndarray]:
    """The values of nodes for the first training rows under the initial weights, computed by the interpreter."""
    table, model = run.table, run.experiment.model
    assert table is not None
    assert isinstance(model, Module)
    rows = table.select(np.arange(min(SAMPLE_ROWS, len(table))))
    graph = IRGraph(tuple(Output(str(i), node) for i, node in enumerate(nodes)))
    graph = strip_stop_gradients(inline_calls(evaluation_graph(graph)))
    weights = preview_numbers(model, run.experiment.seed)
    result = interpret(
        graph,
        inputs={name: rows.columns[name] for name in graph.leaves("input")},
        state={name: weights[name] for name in graph.states()},
    )
    return list(result.outputs.values())
