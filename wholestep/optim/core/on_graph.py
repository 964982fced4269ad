"""Optimizers as nodes of a user's own graph: `sgd`, `sgd_on_graph` and `AdamOptimizer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import attrs as at
from wholestep.errors import OptionError, UsageError
from wholestep.optim.algorithms.sgd import SGD
from wholestep.optim.core.options import Range

DEFAULT_LR = 3e-4


class SGDUpdate(NamedTuple):
    """The result of `sgd_on_graph`: new values of the weights, and the learning rate."""

    new_weights: list[Tensor]
    lr: Tensor


class SGDGraph(NamedTuple):
    """The result of `sgd`: a graph that contains only the update."""

    old_weights: list[Tensor]
    gradients: list[Tensor]
    new_weights: list[Tensor]
    graph: Graph
    lr: Tensor


def sgd_on_graph(graph: Graph, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> SGDUpdate:
    """Add the update w - lr·g of each weight to a graph; lr is a runtime scalar that starts as 3e-4.

    A weight that lives in the graph (a parameter or state) takes its new value at the end of the step.  One that is
    an input is the caller's to carry on: its new value is in `new_weights`.

    Example::

        new_weights, lr = ws.sgd_on_graph(g, [w], [slope])
        session.scalars[lr.name] = 0.1
    """
    _check_pairs("sgd_on_graph", weights, grads)
    rule = SGD(lr=DEFAULT_LR, name=_free_name(graph, "sgd"))
    new = rule.apply(graph, list(weights), list(grads))
    for w, value in zip(weights, new, strict=True):
        if w.node.is_state:
            graph.update(w, value)
    return SGDUpdate(new, graph.scalars[rule.lr_name])


def sgd(grads: Sequence[Tensor]) -> SGDGraph:
    """A graph that contains only the update: inputs `weight0`, `gradient0`, ..., outputs `new_weight0`, ...

    Args:
        grads: tensors whose shapes and dtypes the gradients have; they may belong to another graph.

    Example: `old, slopes, new, graph, lr = ws.sgd(ws.gradients(loss, [w]))`.
    """
    graph = Graph()
    for g in grads:
        if not isinstance(g, Tensor):
            fail(UsageError, f"sgd takes gradients as tensors; received {g!r}.")
    weights = [graph.input(f"weight{i}", g.shape, g.dtype) for i, g in enumerate(grads)]
    slopes = [graph.input(f"gradient{i}", g.shape, g.dtype) for i, g in enumerate(grads)]
    new, lr = sgd_on_graph(graph, weights, slopes)
    graph.set_outputs({f"new_weight{i}": w for i, w in enumerate(new)})
    return SGDGraph(weights, slopes, new, graph, lr)


class AdamOptimizer:
    """Adam added to a user's graph: moments and weights are states that the compiled step advances itself.

    Args:
        graph: the graph that the weights and gradients belong to.
        weights: parameters or states.
        grads: one gradient each, from `ws.gradients` or written by hand.

    Example::

        adam = ws.AdamOptimizer(g, [x], [2.0 * (x - 3.0)])
        adam.set_learning_rate(1e-2)
    """

    def __init__(self, graph: Graph, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        _check_pairs("AdamOptimizer", weights, grads)
        self._graph, self._weights = graph, list(weights)
        # imported here because `sgd`, which is loaded with the package, does not need it
        from wholestep.optim.algorithms.adam import Adam

        self._rule = Adam(name=_free_name(graph, "adam"))
        self._rule.update(graph, self._weights, list(grads))

    def set_learning_rate(self, lr: float, graph: Graph | None = None) -> None:
        """Set the learning rate from the next step on; nothing is compiled."""
        self._set("lr", lr, graph)

    def set_beta1(self, beta1: float, graph: Graph | None = None) -> None:
        """Set the decay rate of the first moment from the next step on."""
        self._set("beta1", beta1, graph, below=1.0)

    def set_beta2(self, beta2: float, graph: Graph | None = None) -> None:
        """Set the decay rate of the second moment from the next step on."""
        self._set("beta2", beta2, graph, below=1.0)

    def set_epsilon(self, epsilon: float, graph: Graph | None = None) -> None:
        """Set the term that keeps the quotient finite, from the next step on."""
        self._set("eps", epsilon, graph)

    def new_weights(self) -> list[Tensor]:
        """The new value of each weight, as a tensor of the graph."""
        return [self._graph.updates[w.name] for w in self._weights]

    def new_weight_datas(self, graph: Graph | None = None) -> list[Any]:
        """The new value of each weight after the last step, as an array."""
        self._need_own(graph)
        session = next(iter(self._graph.sessions), None)  # any session: all sessions over a graph share its states
        if session is None:
            raise UsageError("there are no new weights yet: build a session over the graph and call session.step().")
        return [session.get(w.name) for w in self._weights]

    def step_after_execution(self, graph: Graph | None = None) -> None:
        """Does nothing: the compiled step updates time, moments and weights.  For programs that call it."""
        self._need_own(graph)

    def _need_own(self, graph: Graph | None) -> None:
        """Raise UsageError for a different graph from the one of this optimizer; programs for Luminal pass it."""
        if graph is not None and graph is not self._graph:
            raise UsageError(
                f"AdamOptimizer: this optimizer was added to another graph than {graph!r}; leave the graph out, or "
                "pass the one that it was made with."
            )

    def _set(self, key: str, value: float, graph: Graph | None, below: float = float("inf")) -> None:
        """Set a scalar in every session over the graph, and in later ones."""
        self._need_own(graph)
        Range(below=below).check("AdamOptimizer", key, value)
        name = f"{self._rule.name}.{key}"
        self._graph.scalars[name].node.attrs = at.ScalarAttrs(name, float(value))
        for session in self._graph.sessions:
            session.scalars[name] = value


def _check_pairs(what: str, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    if len(weights) != len(grads) or not weights:
        fail(UsageError, f"{what}: each weight needs one gradient; received {len(weights)} and {len(grads)}.")
    for w, g in zip(weights, grads, strict=True):
        if not isinstance(w, Tensor) or not isinstance(g, Tensor):
            fail(UsageError, f"{what} takes tensors; received {w!r} and {g!r}.")
        if w.shape != g.shape or w.dtype != g.dtype:
            fail(OptionError, f"{what}: the gradient of {w!r} must be {w.node.type}; received {g.node.type}.")


def _free_name(graph: Graph, prefix: str) -> str:
    """A free prefix: `optimizer` for the first one of a graph, then names with a number."""
    names = ["optimizer", *(f"{prefix}{i}" for i in range(2, len(graph.scalars) + 3))]
    return next(n for n in names if f"{n}.lr" not in graph.scalars)
