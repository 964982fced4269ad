"""Whole training steps, lowered and ready for the planner: what the tests of plan/ and render/ share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import wholestep as ws
from tests.compiler.native import lower
from wholestep.compiler.ir.graph import IRGraph
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]


def classifier(*widths: int) -> ws.Graph:
    """An MLP; its outputs are the loss and the logits."""
    g = ws.Graph()
    h = g.input("x", ("batch", widths[0]))
    labels = g.input("labels", ("batch",), dtype="int32")
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        h = (ws.relu(h) if i else h) @ g.parameter(f"w{i}", (fan_in, fan_out)) + g.parameter(f"b{i}", (fan_out,))
    g.set_outputs({"loss": ws.losses.cross_entropy(h, labels), "logits": h})
    return g


def kept_scores_step(*widths: int, room: int = 60) -> IRGraph:
    """A step that writes its scores behind those of the steps before it."""
    g = classifier(*widths)
    labels = g.input("classes", ("batch",), dtype="int32")
    ws.metrics.RocAuc(capacity=room).record(g, g.outputs["logits"], labels)
    return lower(train_graph(g, ws.Adam(lr=1e-3)))


def mlp_step(*widths: int, optimizer: Any = None) -> IRGraph:
    """Forward, backward and update of an MLP."""
    return lower(train_graph(classifier(*widths), optimizer or ws.Adam(lr=1e-3)))


def clipped_step(*widths: int, max_norm: float = 0.5) -> IRGraph:
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
    return lower(g.to_ir())


def attention_step(heads: int = 2, shared: int = 1, time: int = 20, width: int = 16) -> IRGraph:
    """One projection to grouped heads, attention, a projection back, and the update of both."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", time * width)), g.input("labels", ("batch",), dtype="int32")
    columns = (heads + 2 * shared) * width
    together = x.reshape(x.shape[0], time, width) @ g.parameter("w0", (width, columns))
    cuts = (0, heads * width, (heads + shared) * width, columns)
    q, k, v = (together[..., lo:hi].reshape(x.shape[0], time, -1, width).transpose(1, 2) for lo, hi in pairwise(cuts))
    mixed = ws.attention(q, k, v, causal=True).transpose(1, 2).reshape(x.shape[0], time, heads * width)
    logits = (mixed @ g.parameter("w1", (heads * width, 10))).sum(1)
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels)})
    return lower(train_graph(g, ws.Adam(lr=1e-3)))


def example(rows: int, inputs: int, classes: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, inputs)).astype(np.float32),
        "labels": rng.integers(0, classes, rows).astype(np.int32),
    }


def tiles_step() -> IRGraph:
    """Two convolutions of 3 x 3 over more than 16 channels, a dense layer, and the update of all."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 16 * 7 * 6)), g.input("labels", ("batch",), dtype="int32")
    h = ws.relu(ws.conv2d(x.reshape(x.shape[0], 16, 7, 6), g.parameter("w0", (20, 16, 3, 3)), padding=1))
    h = ws.relu(ws.conv2d(h, g.parameter("w1", (17, 20, 3, 3)), padding=1))
    logits = h.reshape(-1, 17 * 7 * 6) @ g.parameter("w2", (17 * 7 * 6, 10))
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels)})
    return lower(train_graph(g, ws.Adam(lr=1e-3)))


def convolution_step() -> IRGraph:
    """Two convolutions with their pools and one without, a residual, a dense layer, and the update of all."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 2 * 11 * 10)), g.input("labels", ("batch",), dtype="int32")
    h = x.reshape(x.shape[0], 2, 11, 10)
    h = ws.max_pool2d(ws.relu(ws.conv2d(h, g.parameter("w0", (5, 2, 3, 3)), g.parameter("b0", (5,)), padding=1)), 2)
    h = ws.relu(ws.conv2d(h, g.parameter("w1", (5, 5, 3, 3)), padding=1) + h)
    h = ws.max_pool2d(ws.relu(ws.conv2d(h, g.parameter("w2", (18, 5, 2, 2)))), 2)  # (batch, 18, 2, 2)
    logits = h.reshape(-1, 72) @ g.parameter("w3", (72, 5))
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels), "logits": logits})
    return lower(train_graph(g, ws.Adam(lr=1e-3)))
