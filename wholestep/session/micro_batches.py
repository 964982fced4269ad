"""A window as the callers of a session see it: one program whose batch is as large as all its parts together."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backend import WindowShape
from wholestep.compiler.plan.kernel import Plan
from wholestep.session.source import TRAIN, Source
from wholestep.steps.micro_batch_names import FIRST, PARTS, ROWS, WINDOW_DIMS


def window_shape(source: Source, kind: str) -> WindowShape:
    """How a window is cut."""
    batch = source.window(kind).batch
    dims = {"batch_dim": batch, "first_dim": FIRST, "rows_dim": ROWS, "parts_dim": PARTS}
    return WindowShape(batch, source.capacity[batch], dims)


def seen_from_outside(source: Source, kind: str, part: Plan, update: Plan) -> Plan:
    """The plan of a part with the inputs of a whole window and the states that the update changes."""
    batch, parts = source.window(kind).batch, source.recipe.accumulate if kind == TRAIN else 1
    sizes = {s: n for s, n in part.sizes.items() if s not in WINDOW_DIMS}
    rows = sizes[batch]
    sizes[batch] = rows * parts
    notes = (
        ()
        if kind != TRAIN
        else (
            f"accumulate={parts}: these kernels run for each of up to {parts} batches of {rows}; the update, "
            f"{len(update.kernels)} kernels that move {update.bytes_moved:,} bytes, runs once",
        )
    )
    return replace(
        part,
        symbols=tuple(sizes),
        capacity=tuple(sizes.values()),
        updated=update.updated,
        least=tuple(replace(least, batch=batch, part=rows) for least in part.least),
        notes=(*part.notes, *notes),
    )
