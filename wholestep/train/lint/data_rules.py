"""Rules about the rows: their scale, their labels, and rows that occur twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from wholestep.compiler.ir.graph import leaf_name
from wholestep.compiler.ir.types import letter_of
from wholestep.data.table import Table
from wholestep.train.lint.rules import LintedRun, rule

Array = np.ndarray[Any, Any]

LARGE = 20.0  # inputs of this size saturate layers with usual initial weights
NORMS = ("batch_norm", "layer_norm", "rms_norm", "group_norm")
MOST_BYTES = 1 << 30  # limit for the rows that are compared; of larger data only the first rows are
SAMPLE_ROWS = 1000  # rows on which the values of a column are counted
RESOLUTION = 0.02  # rows are near-duplicates if they agree to this fraction of each column's standard deviation
FEWEST_COLUMNS = 8  # rows with fewer columns of many values agree by chance
MANY_VALUES = 10  # distinct values of a column; a column with fewer may be a category
DUPLICATE_SHARE = 0.01


@rule(
    "WS401",
    "inputs that are not normalised",
    reason="the initial weights and the learning rates of optimizers are made for inputs around -1 .. 1.",
    fix="scale them: x / 255 for pixels, ws.data.Encoder for tables, or a ws.nn.BatchNorm1d as first layer.",
    on_request=True,
)
def large_inputs(run: LintedRun) -> Iterator[str]:
    if run.table is None:
        return
    users = run.graph.consumers()
    multiplied = {leaf_name(n): users[n] for n in run.graph.inputs if n in users}
    for name, array in run.table.inputs.items():
        direct = {node.op for node in multiplied.get(name, ())}
        if letter_of(array.dtype) != "f" or direct & {*NORMS, "gather"}:
            continue
        largest = float(np.abs(array).max())
        if largest > LARGE:
            whole = " and all integers" if bool((array == np.floor(array)).all()) else ""
            yield f"the values of {name!r} go up to {largest:g}{whole}; their standard deviation is {array.std():.3g}."


@rule(
    "WS402",
    "validation rows that occur in the training data",
    reason="the validation metrics then measure memorisation.",
    fix="remove the repeated rows before the split, or keep groups together: ws.data.Holdout(0.1, groups=...).",
    on_request=True,
)
def leaked_rows(run: LintedRun) -> Iterator[str]:
    if run.experiment.overfit_batches is not None:  # `overfit_batches` validates on its training rows, on purpose
        return
    if run.table is None or run.held is None or run.table.inputs.keys() != run.held.inputs.keys():
        return
    seen = set(_digests(run.table))
    leaked = sum(digest in seen for digest in _digests(run.held))
    if leaked:
        yield f"{leaked} of {len(run.held)} validation rows are equal to a training row."


@rule(
    "WS403",
    "near-duplicate training rows",
    reason="repeated rows count several times in the loss, and a random split puts copies on both sides.",
    fix="remove the copies, or weigh the rows (sample_weight).",
    on_request=True,
)
def duplicate_rows(run: LintedRun) -> Iterator[str]:
    if run.table is None:
        return
    if sum(_columns_of_many_values(a) for a in run.table.inputs.values()) < FEWEST_COLUMNS:
        return
    digests = _digests(run.table, resolution=RESOLUTION)
    copies = len(digests) - len(set(digests))
    if copies > DUPLICATE_SHARE * len(digests):
        yield f"{copies} of {len(digests)} rows agree with an earlier one to {RESOLUTION:.0%} of the deviation."


def _columns_of_many_values(array: Array) -> int:
    """The number of columns with more than a few different values, up to the number that is needed."""
    rows = array[:SAMPLE_ROWS].reshape(min(len(array), SAMPLE_ROWS), -1)
    count = 0
    for column in rows.T:
        count += len(np.unique(column)) > MANY_VALUES
        if count == FEWEST_COLUMNS:
            break
    return count


def _digests(table: Table, resolution: float = 0.0) -> list[bytes]:
    """The bytes of each row's inputs; rounded to a fraction of the column's deviation if a resolution is given."""
    bytes_per_row = sum(a[:1].nbytes for a in table.inputs.values())
    rows = min(len(table), max(1, MOST_BYTES // max(1, bytes_per_row)))
    flat = [_quantize(a[:rows].reshape(rows, -1), resolution) for a in table.inputs.values()]
    return [b"".join(part[i].tobytes() for part in flat) for i in range(rows)]


def _quantize(columns: Array, resolution: float) -> Array:
    if not resolution or letter_of(columns.dtype) != "f":
        return np.ascontiguousarray(columns)
    deviation = columns.std(axis=0)
    steps = np.where(deviation > 0, deviation * resolution, 1.0)
    return np.asarray(np.rint((columns - columns.mean(axis=0)) / steps), np.int32)
