"""A step that ends with its gradients: what an update costs is the difference to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import wholestep as ws


@dataclass(frozen=True)
class KeepGradients(ws.Optimizer):
    """Stores every gradient in a state, laid out as its parameter is, and leaves the parameters alone.

    Of each state one element is shown: one that nobody reads is not part of a step.
    """

    slot: ClassVar[str] = "kept"

    def descend(self, graph: ws.Graph, params: Sequence[ws.Tensor], grads: Sequence[ws.Tensor]) -> list[ws.Tensor]:
        for w, d in zip(params, grads, strict=True):
            kept = self.state(graph, w, "gradient")
            graph.update(kept, d)
            graph.keep(kept[(0,) * len(w.shape)], f"{w.name}.shown")
        return list(params)
