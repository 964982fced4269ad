"""`StepEstimate`: what a step will take, before it runs: seconds, bytes by purpose and layer, and what would change.

The time comes from the target's cost table: each kernel takes the longer of its operations and its bytes, divided among
the threads, and each barrier a fixed time.  The table prices products at one shape, for comparisons; on a CPU, the
operations of products and convolutions are scaled to the times that kernels of networks take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.charts import Chart, draw
from wholestep.compiler.plan.io.report import PlanReport
from wholestep.compiler.plan.io.traffic import loads, price_kernel, stores
from wholestep.compiler.plan.model.kernel import Kind, Plan, Space
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.target import Target
from wholestep.errors import OptionError, WholestepError
from wholestep.session.building.plans import Plans
from wholestep.steps.definition import TRAIN
from wholestep.steps.options import as_memory_limit

BARRIER = 1.5e-6  # seconds of a barrier of the threads of a CPU; estimated, not measured
# The time of a kernel's operations as a multiple of their price, on one thread: rounded means over the kernels of the
# nine steps of `python -m benchmarks estimate`.
OF_PRICE = {Kind.DOT: 0.8, Kind.WINDOW: 1.25}
CALL = 2.0e-6  # seconds of a step outside of its kernels: the scalar prologue, the native call; estimated


def step_seconds(plan: Plan, target: Target, threads: int) -> float:
    """The time of a step: of its kernels by the target's cost table, and of barriers on a CPU."""
    prices = [(kernel.kind, *price_kernel(kernel, plan.buffers, target.costs)) for kernel in plan.kernels]
    if target.family != "cpu":
        return 1e-9 * sum(max(operations, moved) for _, operations, moved in prices)
    total = 1e-9 * sum(max(OF_PRICE.get(kind, 1.0) * operations, moved) for kind, operations, moved in prices)
    return total / threads + CALL + (plan.regions * BARRIER if threads > 1 else 0.0)


def memory_by_purpose(plan: Plan, report: PlanReport) -> dict[str, int]:
    """The peak bytes by purpose; they add up to `peak_bytes`."""
    parameters = {plan.buffers[id].name for id in plan.param_buffers}
    states = [plan.buffers[id] for _, id in plan.states]
    own = sum(b.bytes for b in states if b.name in parameters)
    optimizer = sum(b.bytes for b in states if _parameter_of(b.name, parameters))
    gradients = min(_gradient_bytes(plan), report.footprint.arena)
    parts = {
        "parameters": own,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": report.footprint.arena - gradients,
        "workspace": report.footprint.workspace,
        "copies": report.footprint.copies,
    }
    return {**parts, "other": report.peak_bytes - sum(parts.values())}


def _parameter_of(state: str, parameters: set[str]) -> str | None:
    """The parameter that an optimizer's state belongs to: `0.weight` of `0.weight.adam.m`."""
    if state in parameters:
        return None
    owners = [name for name in parameters if state.startswith(f"{name}.")]
    return max(owners, key=len, default=None)


def _gradient_bytes(plan: Plan) -> int:
    """The bytes of the arena in which gradients are stored at some time; a fused update stores none."""
    parameters, spans = set(plan.param_buffers), list[tuple[int, int]]()
    for kernel in plan.kernels:
        updated = [s for s in stores(kernel) if s.buffer in parameters]
        shapes = {tuple(s.shape) for s in updated}
        read = (plan.buffers[load.buffer] for load in loads(kernel) if updated and tuple(load.shape) in shapes)
        spans += [(b.offset, b.offset + b.bytes) for b in read if b.space is Space.ARENA]
    total, end = 0, 0
    for low, high in sorted(spans):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def memory_by_layer(plan: Plan) -> dict[str, int]:
    """The bytes of the parameters of each layer and of what the optimizer stores for them."""
    parameters = {plan.buffers[id].name for id in plan.param_buffers}
    layers: dict[str, int] = {}
    for _, id in plan.states:
        buffer = plan.buffers[id]
        owner = buffer.name if buffer.name in parameters else _parameter_of(buffer.name, parameters)
        if owner is not None:
            layer = owner.rpartition(".")[0] or owner
            layers[layer] = layers.get(layer, 0) + buffer.bytes
    return layers


@dataclass(frozen=True, kw_only=True)
class StepEstimate(PlanReport):
    """The report of a step that was only planned, with times and memory; `str()` is the table."""

    target: Target
    rows: int  # rows of a step, 0 if it has no batch axis
    micro_batches: int = 1  # micro-batches per step; the plan computes one
    other_seconds: float = 0.0  # seconds of a step outside of its micro-batches
    other_bytes: int = 0  # bytes of the session in addition to the plan
    by_layer: Callable[[], dict[str, int]] = field(default=dict, repr=False)
    variants: Mapping[str, Callable[[], PlanReport]] = field(default_factory=dict, repr=False)

    @property
    def step_seconds(self) -> float:
        """The time of a step by the prices of its target."""
        return self.micro_batches * step_seconds(self.plan, self.target, self.threads) + self.other_seconds

    @property
    def peak_bytes(self) -> int:
        """The bytes that a session maps, exactly."""
        return super().peak_bytes + self.other_bytes

    def epoch_seconds(self, rows: int) -> float:
        """The time of an epoch over this many rows."""
        if not self.rows or rows < 1:
            raise OptionError(f"epoch_seconds({rows}): expected at least one row, and a step with a batch axis.")
        return -(-rows // self.rows) * self.step_seconds

    def run_seconds(self, rows: int, epochs: int) -> float:
        """The time of a run without validation."""
        return epochs * self.epoch_seconds(rows)

    @property
    def memory(self) -> dict[str, int]:
        """The peak bytes by purpose: parameters, gradients, optimizer, activations, workspace, copies, other."""
        return memory_by_purpose(self.plan, self)

    @property
    def layers(self) -> dict[str, int]:
        """The bytes of parameters and optimizer states by layer."""
        return memory_by_layer(self.plan)

    @property
    def activations(self) -> dict[str, int]:
        """The bytes within the step by the layer that computes them, where most of them are in use; plans once more."""
        return self.by_layer()

    def fits(self, memory: int | str) -> bool:
        """Does the step fit into this number of bytes?  Example: `estimate.fits("8GB")`."""
        limit = as_memory_limit(memory)
        if not isinstance(limit, int):
            raise OptionError(f"fits({memory!r}): expected bytes, as a number or a text such as '8GB'.")
        return self.peak_bytes <= limit

    def changes(self) -> dict[str, dict[str, float]]:
        """Step time and peak bytes with other settings: bfloat16, two workers, other batches, accumulation."""
        numbers = {"now": {"step_seconds": self.step_seconds, "peak_bytes": float(self.peak_bytes)}}
        for name, plan in self.variants.items():
            try:
                other: Any = plan()
            except WholestepError:  # a setting does not apply to this network
                continue
            numbers[name] = {"step_seconds": float(other.step_seconds), "peak_bytes": float(other.peak_bytes)}
        return numbers

    def to_json(self) -> str:
        """Times, memory and layers as JSON."""
        numbers = {"step_seconds": self.step_seconds, "peak_bytes": self.peak_bytes, "flops": self.flops}
        sizes = {"memory": self.memory, "layers": self.layers, "activations": self.activations}
        return json.dumps({**numbers, **sizes})

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """Draw memory by purpose and by layer into a file, e.g. "memory.svg"; without a file, as text."""
        groups = {"memory": self.memory, "layers": self.layers, "activations": self.activations}
        if path is None:
            return "\n\n".join(_bars(name, sizes) for name, sizes in groups.items() if sizes)
        bars = {
            name: {part: [(float(i), 0.0), (float(i), float(size))] for i, (part, size) in enumerate(sizes.items())}
            for name, sizes in groups.items()
        }
        draw([Chart(f"{name} (bytes)", "part", curves) for name, curves in bars.items() if curves], Path(path))
        return str(path)

    def __str__(self) -> str:
        memory = [f"  {name:<16}{size:>14,}" for name, size in self.memory.items()]
        states, activations = self.layers, self.activations
        names = dict.fromkeys((*states, *activations))
        layers = [f"  {n:<16}{states.get(n, 0):>14,}{activations.get(n, 0):>14,}" for n in names]
        return "\n".join(
            [
                super().__str__(),
                "",
                f"step {1e3 * self.step_seconds:,.3f} ms by the prices of {self.plan.target}",
                "memory by purpose (bytes)",
                *memory,
                f"  {'bytes by layer':<16}{'states':>14}{'activations':>14}",
                *layers,
            ]
        )


def _bars(title: str, sizes: Mapping[str, int], width: int = 40) -> str:
    """A bar for each part, with a length in proportion to its bytes."""
    most, edge = max(*sizes.values(), 1), max(map(len, sizes))
    lines = [f"  {name:<{edge}}  {'█' * round(width * size / most):<{width}}  {size:,}" for name, size in sizes.items()]
    return "\n".join([f"{title} (bytes)", *lines])


def step_estimate(compiled: Plans, batch: int, variants: Mapping[str, Callable[[], PlanReport]]) -> StepEstimate:
    """The estimate of a step, which runs one plan or the plans of its micro-batches."""
    from wholestep.session.building.memory_budget import bytes_of_other_programs

    definition, threads, target = compiled.definition, compiled.thread_count, compiled.target
    entries, parts, other_bytes = [definition.main], 1, 0
    if definition.has_micro_batches:
        entries = [f"{TRAIN}.{phase}" for phase in definition.micro_batches(TRAIN).phases]
        parts, other_bytes = definition.step_options.accumulate, bytes_of_other_programs(compiled)
    plans = [compiled.plan_with_report(entry)[0] for entry in entries]
    main = entries.index(definition.main)
    return StepEstimate(
        plans[main],
        threads,
        footprint(plans[main], threads),
        "estimate",
        target=target,
        rows=batch * parts,
        micro_batches=parts,
        other_seconds=sum(step_seconds(p, target, threads) for p in plans if p is not plans[main]),
        other_bytes=other_bytes,
        by_layer=partial(_activations, compiled, plans, main),
        variants=variants,
    )


def _activations(compiled: Plans, plans: Sequence[Plan], program: int) -> dict[str, int]:
    from wholestep.session.inspect.layers import activations_by_layer  # imported here because it plans again

    return activations_by_layer(compiled, plans, program)
