"""SAM: the gradient at the point near the weights where the loss is largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.errors import GraphError
from wholestep.optim.core.options import Number, number
from wholestep.optim.wrappers.weight_averaging import Wrapper


@dataclass(frozen=True)
class SAM(Wrapper):
    """Sharpness-aware minimisation (arXiv:2010.01412): the optimizer follows the gradient at w + e,

        e = rho·g/‖g‖, ‖g‖ over all parameters together        adaptive (arXiv:2102.11600): e = rho·w²·g/‖w·g‖

    Both gradients are in one program: the loss is recorded a second time with w + e in place of w, on the same batch
    and with the same random numbers (the paper's code draws dropout anew).  In a `@ws.step` of your own, take the
    gradients from it: `grads = sam.gradients(loss, params)`, then `sam.update(g, params, grads)`.

    Args:
        optimizer: the optimizer that gets the gradients.
        rho: the distance of w + e from w.
        adaptive: measure that distance relative to the weights.

    Example: `ws.optim.SAM(ws.SGD(lr=0.1, momentum=0.9), rho=0.05)`.
    """

    rho: Number = number(0.05, trial=0.05)
    adaptive: bool = False
    name: str = field(default="sam", kw_only=True)

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self.adaptive)

    def gradients(self, loss: Tensor, params: Any) -> Any:
        if isinstance(params, Mapping):
            slopes = self._perturbed_gradients(loss, list(params.values()))
            return dict(zip(params, slopes, strict=True))
        return self._perturbed_gradients(loss, [params] if isinstance(params, Tensor) else list(params))

    def _perturbed_gradients(self, loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
        if not params:
            return []
        graph = common_graph(loss, *params)
        assert graph is not None, "parameters belong to a graph"
        rho = self.scalars(graph)["rho"]
        grads: list[Tensor] = self.optimizer.gradients(loss, list(params))
        lengths = [w.abs() * g if self.adaptive else g for w, g in zip(params, grads, strict=True)]
        norm = _root_of_sum([(x * x).sum() for x in lengths])
        moved = []
        for w, g in zip(params, grads, strict=True):
            direction = w * w * g if self.adaptive else g
            moved.append(w + rho * direction / fn.maximum(norm, 1e-12).astype(w.dtype))
        there = substitute_tensors(loss, dict(zip(params, moved, strict=True)))
        slopes: list[Tensor] = gradients(there, moved)
        return slopes

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        if f"{self.name}.rho" not in graph.scalars:
            fail(
                GraphError,
                "SAM needs the gradients at w + e, which come from it: grads = sam.gradients(loss, params), then "
                "sam.update(g, params, grads). On arrays there is no loss to evaluate at w + e.",
            )
        return self.optimizer.apply(graph, params, grads)


def _root_of_sum(squares: Sequence[Tensor]) -> Tensor:
    """The root of the sum, in float64 if the parameters have different dtypes."""
    kinds = {x.dtype for x in squares}
    terms = [x.astype("float64") for x in squares] if len(kinds) > 1 else list(squares)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total.sqrt()


def substitute_tensors(value: Tensor, replacements: Mapping[Tensor, Tensor]) -> Tensor:
    """Record `value` again with some of its inputs replaced.

    Example: `substitute_tensors(loss, {w: w + e})` is the loss at w + e.
    """
    new: dict[Node, Node] = {old.node: tensor.node for old, tensor in replacements.items()}
    for node in toposort([value.node]):
        if node not in new:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return Tensor(new[value.node], value.graph)
