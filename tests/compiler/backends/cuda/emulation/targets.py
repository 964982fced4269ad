"""GPU targets with other sizes or another cost model, for the length of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.target import FAMILIES, targets_of


def change_targets(patch: pytest.MonkeyPatch, change: Callable[[GpuTarget], GpuTarget]) -> None:
    """Plans of every CUDA target are scheduled for a changed one."""
    current = targets_of("cuda")
    patch.setitem(FAMILIES, "cuda", {name: change(current[name]) for name in TARGETS})  # type: ignore[arg-type]


def set_limits(patch: pytest.MonkeyPatch, **limits: Any) -> None:
    change_targets(patch, lambda target: replace(target, limits=replace(target.limits, **limits)))


def set_costs(patch: pytest.MonkeyPatch, group: str, **costs: Any) -> None:
    """Changes fields of one record of the cost model, such as "gemm"."""

    def change(target: GpuTarget) -> GpuTarget:
        model = target.cost_model
        return replace(target, cost_model=replace(model, **{group: replace(getattr(model, group), **costs)}))

    change_targets(patch, change)
