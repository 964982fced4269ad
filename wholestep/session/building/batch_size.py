"""The largest batch whose step fits into a memory limit, from plans: nothing is compiled, mapped or run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wholestep.compiler.backend import Placement
from wholestep.compiler.frontend.graph import Graph as UserGraph
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.plan.memory.peak_memory import page_rounded
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.layout import align_up
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.memory import free_bytes, largest_tensors
from wholestep.errors import OutOfMemoryError, UsageError, WholestepError
from wholestep.steps.capacity import batch_symbol
from wholestep.steps.definition import TRAIN, Definition, Model, as_graph
from wholestep.steps.options import bytes_of

MOST = 1 << 24  # the largest batch size to try


def largest_batch(definition: Definition, where: Placement, memory: object, most: int) -> int:
    """The largest batch of a definition, at most `most`, whose step needs no more than `memory`."""
    if memory is None and not where.device.runs:
        raise UsageError(f"device {where.device.name!r} runs nothing, so its memory is not known; give memory='16GB'.")
    limit = _free_bytes(where) if memory is None else bytes_of(memory)
    steps = LoweredStep(definition, where)
    bytes_by_batch: dict[int, int] = {}

    def needed(batch: int) -> int:
        if batch not in bytes_by_batch:
            bytes_by_batch[batch] = steps.needed_bytes(batch)
        return bytes_by_batch[batch]

    if needed(1) > limit:
        plan = max(steps.plans(1), key=lambda p: footprint(p, where.threads).peak_bytes)
        raise OutOfMemoryError(
            f"a step of one row needs {needed(1):,} bytes, and the limit is {limit:,}. Its largest tensors: "
            f"{largest_tensors(plan)}. Raise memory=, or make the model smaller.",
            needed(1),
        )
    return _largest(needed, limit, most)


def _free_bytes(where: Placement) -> int:
    """Free bytes of the device's memory, else of the host's."""
    device_bytes: int | None = getattr(where.device.memory, "free_bytes", None)
    return free_bytes() if device_bytes is None else device_bytes


def with_solution(error: OutOfMemoryError, definition: Definition, where: Placement) -> OutOfMemoryError:
    """The error with the largest batch that fits; unchanged if none does."""
    if where.device.target.family not in ("cpu", "cuda", "reference") or definition.has_fixed_batch:
        return error
    try:
        symbol = batch_symbol(definition.graph)
        asked = definition.capacity[symbol]
        fits = largest_batch(definition, where, None, min(asked, MOST))
    except WholestepError:
        return error
    advice = (
        f"{symbol}={fits:,} is the largest that fits; received {symbol}={asked:,}. accumulate= splits larger batches."
    )
    return OutOfMemoryError(error.what, error.bytes, advice)


def _largest(needed: Callable[[int], int], limit: int, most: int) -> int:
    """The largest batch within the limit, by interpolation: bytes are nearly linear in the batch."""
    low, high = 1, min(most, 64)
    while needed(high) <= limit:
        if high == most:
            return most
        low, high = high, min(most, 8 * high)
    halve = False
    while high - low > 1:
        between = (limit - needed(low)) * (high - low) // max(1, needed(high) - needed(low))
        guess = (low + high) // 2 if halve else min(max(low + between, low + 1), high - 1)
        before = high - low
        low, high = (guess, high) if needed(guess) <= limit else (low, guess)
        halve = 2 * (high - low) > before  # interpolation converges slowly: bisect next
    return low


@dataclass
class LoweredStep:
    """The lowered graphs of a step, from which plans for any batch are made."""

    definition: Definition
    where: Placement

    def __post_init__(self) -> None:
        from wholestep.compiler.pipeline import Compiler

        definition, target = self.definition, self.where.device.target
        entries = [definition.main]
        if definition.has_micro_batches:
            entries = [f"{TRAIN}.{phase}" for phase in definition.micro_batches(TRAIN).phases]
        self.traced = [definition.trace(entry) for entry in entries]
        compiler = Compiler(self.where.options)
        self.lowered: list[IRGraph] = [compiler.run_stages(graph, target) for graph in self.traced]
        self.symbol = batch_symbol(definition.graph)

    def plans(self, batch: int) -> list[Plan]:
        """The plans for a capacity of this number of rows."""
        from wholestep.compiler.pipeline import planner_of
        from wholestep.compiler.plan.model.request import PlanRequest

        target, fused = self.where.device.target, self.where.options.fuse
        sized = replace(self.definition, capacity={**self.definition.capacity, self.symbol: batch})
        pairs = zip(self.traced, self.lowered, strict=True)
        return [planner_of(target)(PlanRequest(low, sized.sizes_of(graph), target, fused)) for graph, low in pairs]

    def needed_bytes(self, batch: int) -> int:
        """The bytes that a session maps: each state once, one scratch memory for all plans."""
        plans, threads = self.plans(batch), self.where.threads
        seen: set[str] = set()
        arena, workspace, total = 0, 0, 0
        for plan in plans:
            names = {name for name, _ in plan.states} - seen
            seen |= names
            parts = footprint(plan, threads, names)
            arena, workspace = max(arena, parts.arena), max(workspace, parts.workspace)
            total += parts.round_to_pages(parts.state) + parts.private_mapped
        return total + parts.round_to_pages(arena + workspace) + self._staging_bytes(plans, batch)

    def _staging_bytes(self, plans: Sequence[Plan], batch: int) -> int:
        """Bytes of the inputs of all micro-batches."""
        if len(plans) == 1:
            return 0
        part = max(plans, key=lambda p: len(p.inputs))
        sizes = {**part.sizes, self.symbol: batch * self.definition.step_options.accumulate}
        return page_rounded(sum(align_up(part.buffers[id].type.bytes(sizes)) for _, id in part.inputs))


def with_one_row(model: Model, arguments: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """A model as a graph, and the arguments of a definition with a batch of one row."""
    if "batch_size" in arguments:
        raise UsageError("find_batch_size finds the batch_size; leave it out, and give memory='2GB'.")
    rest = dict(arguments)
    described = [rest.pop(name, None) for name in ("inputs", "targets", "loss", "loss_weights", "augment")]
    graph, symbol = as_graph(model, *described), "batch"
    if isinstance(graph, UserGraph):
        first = next(iter(graph.inputs.values()), None)
        if first is None or not first.shape or isinstance(first.shape[0], int):
            raise UsageError(
                "the first axis of the first input is a number, so there is no batch size to find. Declare it as a "
                "symbol: ws.Spec(('batch', 784))."
            )
        symbol = batch_symbol(graph)
    return graph, {**rest, "capacity": {symbol: 1, **(rest.get("capacity") or {})}}
