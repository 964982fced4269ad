"""`ReduceOnPlateau`: the schedule that depends on a monitored number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.schedules.base import FormulaNumbers, Limits, Schedule
from wholestep.schedules.maths import Value
from wholestep.schedules.monitor_modes import mode_of


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """lr, multiplied by `factor` whenever the monitored number has not improved for more than `patience` observations.

    `ws.fit`, `ws.Trainer` and `ws.BasicTrainingLoop` pass it one observation after every epoch; other loops call
    `session.schedule.observe(value)`.  Its history is a few runtime scalars of the session, saved with it; a reduction
    does not recompile.

    Args:
        monitor: the number that those loops pass, e.g. "val_accuracy"; "" is val_loss, or loss without validation.
        mode: "min" where smaller is better, "max" where larger is; "" infers it from the metric or the monitor's name.
        threshold, threshold_mode: the least improvement: relative to the best ("rel") or absolute ("abs").
        cooldown: observations after a reduction that are not counted.
        min_lr: lr never falls below it.
        eps: reductions by less than this are not made.

    Example: `ws.schedules.ReduceOnPlateau(0.1, patience=3)`.
    """

    lr: float | None
    factor: float = 0.1
    patience: float = 10
    threshold: float = 1e-4
    cooldown: float = 0
    min_lr: float = 0.0
    eps: float = 1e-8
    mode: str = ""
    threshold_mode: str = "rel"
    monitor: str = ""
    unit: str = field(default="epoch", kw_only=True)

    _limits: ClassVar[Limits] = {
        "factor": {"above": 0, "most": 1},
        **{name: {"least": 0} for name in ("patience", "threshold", "cooldown", "min_lr", "eps")},
    }
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"mode": ("", "min", "max"), "threshold_mode": ("rel", "abs")}

    def check(self) -> None:
        super().check()
        if self.factor == 1:
            self.need("factor", above=0, most=1 - 1e-9)
        if not isinstance(self.monitor, str):
            fail(OptionError, f"ReduceOnPlateau: monitor is the name of a number; received {self.monitor!r}.")

    def numbers(self) -> dict[str, float | None]:
        """The options, and the history: the current rate, the best value, counts."""
        options = {k: v for k, v in super().numbers().items() if k != "lr"}
        return {"lr": self.lr, **options, "best": 0.0, "seen": 0.0, "bad": 0.0, "resting": 0.0}

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr

    def observed(self, numbers: Mapping[str, float], value: float) -> dict[str, float]:
        """The numbers after another observation; NaN counts as no improvement."""
        out = dict(numbers)
        out["seen"] += 1
        out["bad"] += 1
        if out["seen"] == 1 or self._is_better(value, out):
            out["bad"] = 0.0
            out["best"] = value if math.isfinite(value) else math.copysign(1e308, 1 if self.way == "min" else -1)
        if out["resting"] > 0:
            out["resting"] -= 1
            out["bad"] = 0.0
        if out["bad"] > out["patience"]:
            lower = max(out["lr"] * out["factor"], out["min_lr"])
            out["lr"] = lower if out["lr"] - lower > out["eps"] else out["lr"]
            out["resting"], out["bad"] = out["cooldown"], 0.0
        return out

    def _is_better(self, value: float, v: Mapping[str, float]) -> bool:
        best, margin = v["best"], v["threshold"]
        if self.threshold_mode == "rel":
            margin = margin * best
        return value < best - margin if self.way == "min" else value > best + margin

    @property
    def way(self) -> str:
        """The better direction: `mode`, or else by the name of the monitor."""
        return self.mode or mode_of("ReduceOnPlateau", self.monitor or "loss")

    def observe(self, value: float) -> None:
        """Raises UsageError: observations belong to the session that the schedule is bound to."""
        fail(
            UsageError,
            "ReduceOnPlateau is a description; its history belongs to a session: session.schedule.observe(value). "
            "Without a session use ws.schedules.ReduceLROnPlateau(optimizer).step(value).",
        )


def plateaus(schedule: Schedule, path: str = "") -> dict[str, ReduceOnPlateau]:
    """The plateaus in a schedule, itself or nested, by the prefix of the names of their numbers."""
    if isinstance(schedule, ReduceOnPlateau):
        return {path: schedule}
    plateau_paths: dict[str, ReduceOnPlateau] = {}
    for f in fields(schedule):
        value = getattr(schedule, f.name)
        named = {f.name: value} if isinstance(value, Schedule) else {}
        if isinstance(value, tuple):
            named = {f"{f.name}.{i}": x for i, x in enumerate(value) if isinstance(x, Schedule)}
        for name, inner in named.items():
            plateau_paths |= plateaus(inner, f"{path}{name}.")
    return plateau_paths
