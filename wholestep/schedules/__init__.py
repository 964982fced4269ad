"""Schedules: hyper-parameters as functions of the step, evaluated inside the compiled step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.lazy import postponed

if TYPE_CHECKING:
    from wholestep.schedules.base import Schedule
    from wholestep.schedules.compose import Sequence, Warmup
    from wholestep.schedules.curves import (
        Constant,
        Cosine,
        Exponential,
        InverseSqrt,
        Linear,
        MultiStep,
        Polynomial,
        StepDecay,
    )
    from wholestep.schedules.cycles import OneCycle, WarmRestarts, WarmupStableDecay
    from wholestep.schedules.planned import Planned, constant, cosine, linear, one_cycle, polynomial
    from wholestep.schedules.plateau import ReduceOnPlateau
    from wholestep.schedules.torch_names import (
        ConstantLR,
        CosineAnnealingLR,
        CosineAnnealingWarmRestarts,
        ExponentialLR,
        LinearLR,
        MultiStepLR,
        OneCycleLR,
        PolynomialLR,
        ReduceLROnPlateau,
        SequentialLR,
        StepLR,
        TorchSchedule,
    )

    SGDR = WarmRestarts

_HOMES = {
    "base": ["Schedule"],
    "compose": ["Sequence", "Warmup"],
    "curves": ["Constant", "Cosine", "Exponential", "InverseSqrt", "Linear", "MultiStep", "Polynomial", "StepDecay"],
    "cycles": ["OneCycle", "WarmRestarts", "WarmupStableDecay"],
    "planned": ["Planned", "constant", "cosine", "linear", "one_cycle", "polynomial"],
    "plateau": ["ReduceOnPlateau"],
    "torch_names": [
        "ConstantLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "ExponentialLR",
        "LinearLR",
        "MultiStepLR",
        "OneCycleLR",
        "PolynomialLR",
        "ReduceLROnPlateau",
        "SequentialLR",
        "StepLR",
        "TorchSchedule",
    ],
}

if not TYPE_CHECKING:  # a checker sees the imports above
    __getattr__ = postponed(__name__, _HOMES, {"SGDR": "WarmRestarts"})

# fmt: off
__all__ = [
    "Schedule", "Constant", "Linear", "Polynomial", "Cosine", "Exponential", "StepDecay", "MultiStep", "InverseSqrt",
    "OneCycle", "WarmRestarts", "SGDR", "Warmup", "WarmupStableDecay", "Sequence", "ReduceOnPlateau",
    # over a whole run
    "Planned", "constant", "cosine", "linear", "one_cycle", "polynomial",
    # under torch's names
    "TorchSchedule", "ConstantLR", "LinearLR", "PolynomialLR", "CosineAnnealingLR", "ExponentialLR", "StepLR",
    "MultiStepLR", "OneCycleLR", "CosineAnnealingWarmRestarts", "SequentialLR", "ReduceLROnPlateau",
]
