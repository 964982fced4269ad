"""The norm of gradients as a metric: its mean over the steps of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.metrics.base import Array
from wholestep.metrics.means import Mean
from wholestep.steps.options import GRAD_NORM


@dataclass(eq=False)
class GradientNorm(Mean):
    """The mean gradient norm, in which every step counts once, whatever its number of rows."""

    kind: ClassVar[str] = GRAD_NORM

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        return {"sum": prediction.astype("float64"), "weight": as_tensor(np.ones(()))}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        return {"sum": np.asarray(float(prediction)), "weight": np.asarray(1.0)}
