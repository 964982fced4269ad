"""An optimizer that only stores the gradients; the cost of an update is the time relative to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import wholestep as ws


@dataclass(frozen=True)
class KeepGradients(ws.Optimizer):
    """Stores every gradient in a state with the layout of its parameter, and does not change the parameters.

    One element of each state is an output, because a state that nothing reads is removed from a step.
    """

    slot: ClassVar[str] = "kept"

    def descend(self, graph: ws.Graph, params: Sequence[ws.Tensor], grads: Sequence[ws.Tensor]) -> list[ws.Tensor]:
        for w, d in zip(params, grads, strict=True):
            stored = self.state(graph, w, "gradient")
            graph.update(stored, d)
            graph.keep(stored[(0,) * len(w.shape)], f"{w.name}.shown")
        return list(params)
