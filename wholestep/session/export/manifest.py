"""manifest.json: what programs that load an exported step need to know of it, by number and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.compiler.backends.cpu.export.block import Block
from wholestep.compiler.backends.cpu.export.spec import ExportedEntry, ExportedStep
from wholestep.compiler.backends.cpu.export.tables import checkpoint_bytes, row_elements
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Buffer

FORMAT, VERSION = "wholestep step", 1


def manifest(step: ExportedStep, block: Block, experiment: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of manifest.json."""
    from wholestep import __version__

    entries = {name: entry for name, entry in step.entries.items() if name != "evaluate_all"}
    return {
        "format": FORMAT,
        "version": VERSION,
        "wholestep": __version__,
        "target": step.target,
        "seed": step.seed,
        "bytes": block.bytes,
        "checkpoint_bytes": checkpoint_bytes(step),
        "batch": max(entry.batch for entry in entries.values()),
        "inputs": [_input(step, name) for name in step.inputs],
        "outputs": [_tensor(step, name, buffer) for name, buffer in step.outputs.items()],
        "scalars": [{"name": name, "value": value} for name, value in step.scalars.items()],
        "states": [
            {**_tensor(step, name, buffer), "parameter": name in step.parameters, "saved": name in step.saved}
            for name, buffer in step.states.items()
        ],
        "metrics": [
            {"name": m.name, "kind": m.kind, "higher_is_better": m.higher_is_better, "formula": m.formula}
            for m in max(step.metrics, key=len)
        ],
        "programs": {name: _program(entry) for name, entry in entries.items()},
        "has": list(entries),
        "experiment": None if experiment is None else dict(experiment),
    }


def _tensor(step: ExportedStep, name: str, buffer: Buffer) -> dict[str, Any]:
    type = buffer.user_type if name in step.states else buffer.type
    return {"name": name, "dtype": type.dtype.name, "shape": step.row_shape(type)}


def _input(step: ExportedStep, name: str) -> dict[str, Any]:
    buffer, bounds = step.inputs[name], step.bounds(name)
    rows = name in step.rows
    return {
        **_tensor(step, name, buffer),
        "rows": rows,
        "row_bytes": row_elements(step, name) * buffer.type.dtype.size,
        "below": min((evaluate(bound.size, {}) for bound in bounds), default=None),
    }


def _program(entry: ExportedEntry) -> dict[str, Any]:
    plans = entry.plans
    return {
        "batch": entry.batch,
        "least": entry.least,
        "inputs": list(dict.fromkeys(name for plan in plans for name, _ in plan.inputs)),
        "flops": sum(plan.flops for plan in plans),
    }
