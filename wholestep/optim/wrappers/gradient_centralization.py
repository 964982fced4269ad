"""GradientCentralization: a wrapper that removes the mean of every unit's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.wrappers.weight_averaging import Wrapper


@dataclass(frozen=True)
class GradientCentralization(Wrapper):
    """Gradient centralisation (arXiv:2004.01461), for parameters with two or more axes:

        g ← g - mean(g over all axes except the first), whose rows are the units of a layer

    Embeddings, whose rows are not units, and scalar weights are better left to a plain optimizer.

    Args:
        optimizer: the optimizer that gets the centralised gradients.

    Example: `ws.optim.GradientCentralization(ws.SGD(lr=0.1, momentum=0.9))`.
    """

    name: str = field(default="centralization", kw_only=True)

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        return self.optimizer.apply(graph, params, [_center(g) for g in grads])


def _center(g: Tensor) -> Tensor:
    return g - g.mean(axis=tuple(range(1, g.ndim)), keepdims=True) if g.ndim >= 2 else g
