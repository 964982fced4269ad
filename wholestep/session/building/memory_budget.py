"""Sessions with `memory=`: if rematerialization is not enough, batches are split into micro-batches.

The number of micro-batches is doubled until a plan keeps the limit, and stored in the cache for later processes.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from wholestep.compiler.frontend.step import Step
from wholestep.compiler.plan.memory.peak_memory import ADVICE, page_rounded
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.layout import align_up
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.compiler.spans import OptimizeReport
from wholestep.errors import GraphError, LimitError
from wholestep.session.building.plans import Plans
from wholestep.steps.capacity import batch_symbol
from wholestep.steps.definition import PART, TRAIN, Definition

SUFFIX = ".parts"  # file suffix of a cache entry that stores the number of micro-batches and the limit in bytes


def plan_within_budget(compiled: Plans) -> tuple[Plans, Plan, OptimizeReport]:
    """The plans of a session that keeps its limit, and the main one with its report."""
    cached = _cached_choice(compiled)
    if cached is not None:
        parts, limit = cached
        cut = compiled.of(_in_parts(compiled.definition, parts, limit), compiled.spans)
        return (cut, *cut.plan_with_report(cut.definition.main))
    try:
        return (compiled, *compiled.plan_with_report(compiled.definition.main))
    except LimitError as error:
        return _cut(compiled, error)


def _cut(compiled: Plans, error: LimitError) -> tuple[Plans, Plan, OptimizeReport]:
    """The plans with the smallest power of two of micro-batches that keep the limit."""
    definition = compiled.definition
    has_one_batch = isinstance(definition.model, Step) or definition.optimizer is None or definition.has_fixed_batch
    if has_one_batch or definition.ranks:  # with workers, the batch is already divided
        raise error
    rows, parts, least = definition.capacity[batch_symbol(definition.graph)], 2, error
    while parts <= rows:
        cut = compiled.of(_in_parts(definition, parts, error.limit), compiled.spans)
        try:
            planned = cut.plan_with_report(cut.definition.main)
        except LimitError as other:
            least = min(least, other, key=lambda e: e.bytes)
        except GraphError as why:
            advice = f"{ADVICE} Its batch cannot be split: {why}"
            raise LimitError(error.what, error.bytes, advice, limit=error.limit) from None
        else:
            _keep(compiled, parts, error.limit)
            return (cut, *planned)
        parts *= 2
    raise least from None


def _in_parts(definition: Definition, parts: int, limit: int) -> Definition:
    """The step over `parts` micro-batches for each batch."""
    symbol = batch_symbol(definition.graph)
    micro_batches = definition.step_options.accumulate * parts
    options = replace(definition.step_options, accumulate=micro_batches, parts_per_batch=parts, memory=limit)
    capacity = {**definition.capacity, symbol: -(-definition.capacity[symbol] // parts)}
    return replace(definition.with_step_options(options), capacity=capacity)


def bytes_of_other_programs(compiled: Plans) -> int:
    """The bytes of a session in addition to the plan of one micro-batch: the update, and all inputs."""
    definition = compiled.definition
    part = definition.trace(PART)
    seen, total = {*part.states()}, 0
    for phase in definition.micro_batches(TRAIN).phases:
        entry = f"{TRAIN}.{phase}"
        if entry == PART:
            continue
        plan = compiled.plan_with_report(entry)[0]
        names = {name for name, _ in plan.states} - seen
        seen |= names
        parts = footprint(plan, compiled.thread_count, names)
        total += parts.round_to_pages(parts.state) + parts.private_mapped
    sizes = {**definition.sizes_of(part)}
    sizes[definition.micro_batches(TRAIN).batch] *= definition.step_options.accumulate
    return total + page_rounded(sum(align_up(i.type.bytes(sizes)) for i in part.inputs))


def _cached_choice(compiled: Plans) -> tuple[int, int] | None:
    if not compiled.options.cache:
        return None
    path = open_cache(compiled.options).get(compiled.key(compiled.definition.main), SUFFIX)
    if path is None:
        return None
    try:
        parts, limit = path.read_text(encoding="utf-8").split()
        return int(parts), int(limit)
    except (OSError, ValueError):
        return None


def _keep(compiled: Plans, parts: int, limit: int) -> None:
    if compiled.options.cache:
        with contextlib.suppress(OSError):
            key = compiled.key(compiled.definition.main)
            open_cache(compiled.options).put(key, f"{parts} {limit}".encode(), SUFFIX)
