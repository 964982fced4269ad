"""The outer plan of a step over micro-batches: one program with the batch of all of them."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backend import MicroBatchShape
from wholestep.compiler.ir.type_rules.collectives import BATCH, FIRST, OWN, ROWS
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.steps.capacity import MICRO_BATCH_DIMS, PARTS
from wholestep.steps.definition import TRAIN, Definition


def shape_of(definition: Definition, kind: str) -> MicroBatchShape:
    """The dimensions of a split batch."""
    batch = definition.micro_batches(kind).batch
    dims = {"batch_dim": batch, "first_dim": FIRST, "rows_dim": ROWS, "parts_dim": PARTS, "own_dim": OWN}
    dims["whole_dim"] = BATCH
    return MicroBatchShape(batch, definition.capacity[batch], dims)


def outer_plan(definition: Definition, kind: str, part: Plan, update: Plan) -> Plan:
    """The plan of a micro-batch with the inputs of the whole step and the states that the update changes."""
    parts = definition.step_options.accumulate if kind == TRAIN else 1
    batch = definition.micro_batches(kind).batch
    sizes = {s: n for s, n in part.sizes.items() if s not in MICRO_BATCH_DIMS}
    rows = definition.capacity[batch] if definition.ranks else sizes[batch]
    sizes[batch] = rows * parts
    notes = (
        f"accumulate={parts}: these kernels run for each of up to {parts} batches of {rows}; the update, "
        f"{len(update.kernels)} kernels that move {update.bytes_moved:,} bytes, runs once",
    )
    return replace(
        part,
        symbols=tuple(sizes),
        capacity=tuple(sizes.values()),
        updated=update.updated,
        least=tuple(replace(least, batch=batch, part=rows) for least in part.least),
        notes=(*part.notes, *(notes if kind == TRAIN else ())),
    )
