"""Running what was recorded through the interpreter: no compiler, no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.initializers import materialize
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import Result, interpret
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.passes.autodiff.reverse import expand_gradients

Array = np.ndarray[Any, Any]


def initial_state(graph: IRGraph, seed: int = 0) -> dict[str, Array]:
    """The first value of every state of a graph."""
    return {
        name: materialize(n.attrs.init, n.type.shape, n.type.dtype, seed, name) for name, n in graph.states().items()
    }


def run(graph: IRGraph, inputs: dict[str, Any] | None = None, **options: Any) -> Result:
    """One step of a graph that may hold gradient nodes, verified first."""
    expanded = expand_gradients(graph)
    verify(expanded)
    state = options.pop("state", None) or initial_state(expanded)
    return interpret(expanded, inputs=inputs or {}, state={k: state[k] for k in expanded.states()}, **options)


def value(function: Callable[..., ws.Tensor], *arrays: Any, dims: tuple[Any, ...] | None = None) -> Array:
    """What a function of tensors gives on arrays: each becomes an input of its dtype (and of the shape in `dims`)."""
    g = ws.Graph()
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    shapes = dims or tuple(a.shape for a in given.values())
    tensors = [g.input(n, shape, a.dtype) for (n, a), shape in zip(given.items(), shapes, strict=True)]
    g.set_outputs({"out": function(*tensors)})
    return run(g.to_ir(), given).outputs["out"]


def value_and_gradients(function: Callable[..., ws.Tensor], *arrays: Any) -> tuple[Array, list[Array]]:
    """The loss that a function of tensors gives on arrays, and its gradient with respect to each float array."""
    g = ws.Graph()
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    tensors = [g.input(n, a.shape, a.dtype) for n, a in given.items()]
    loss = function(*tensors)
    floats = [t for t in tensors if t.dtype.is_float]
    grads = ws.gradients(loss, floats)
    g.set_outputs({"loss": loss, **{f"grad{i}": t for i, t in enumerate(grads)}})
    out = run(g.to_ir(), given).outputs
    return out["loss"], [out[f"grad{i}"] for i in range(len(grads))]
