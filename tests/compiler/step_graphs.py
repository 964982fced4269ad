"""Whole training steps, lowered and ready for the planner: what the tests of plan/ and render/ share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from native import lower

import wholestep as ws
from wholestep.compiler.ir.graph import Graph
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.dead_code import drop_dead_code
from wholestep.optim.build import train_graph

Array = np.ndarray[Any, Any]


def lowered(graph: Graph) -> Graph:
    """What the pipeline does before planning."""
    return drop_dead_code(lower(expand_gradients(graph)))


def classifier(*widths: int) -> ws.Graph:
    """An MLP; its outputs are the loss and the logits."""
    g = ws.Graph()
    h = g.input("x", ("batch", widths[0]))
    labels = g.input("labels", ("batch",), dtype="int32")
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        h = (ws.relu(h) if i else h) @ g.parameter(f"w{i}", (fan_in, fan_out)) + g.parameter(f"b{i}", (fan_out,))
    g.set_outputs({"loss": ws.losses.cross_entropy(h, labels), "logits": h})
    return g


def mlp_step(*widths: int, optimizer: Any = None) -> Graph:
    """Forward, backward and update of an MLP."""
    return lowered(train_graph(classifier(*widths), optimizer or ws.Adam(lr=1e-3)))


def clipped_step(*widths: int, max_norm: float = 0.5) -> Graph:
    """Descent with global-norm clipping, written by hand: every gradient is needed before the first update."""
    g = classifier(*widths)
    loss = g.outputs["loss"]
    params = list(g.parameters.values())
    grads = ws.gradients(loss, params)
    norm = ws.sqrt(sum((grad * grad).sum() for grad in grads[1:]) + (grads[0] * grads[0]).sum())
    scale = max_norm / ws.maximum(norm, max_norm)
    for p, grad in zip(params, grads, strict=True):
        g.update(p, p - 0.1 * scale * grad)
    g.keep(norm, "norm")
    return lowered(g.to_ir())


def example(rows: int, inputs: int, classes: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, inputs)).astype(np.float32),
        "labels": rng.integers(0, classes, rows).astype(np.int32),
    }
