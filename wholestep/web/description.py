"""The description of an experiment that a page contains: task, classes, images, schedules, facts about the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wholestep import losses
from wholestep.compiler.ir.types import letter_of
from wholestep.data.table import TARGET, Table
from wholestep.data.tables.encoding import Encoding
from wholestep.errors import OptionError
from wholestep.schedules.bind import scalar_name
from wholestep.schedules.run_length import Planned
from wholestep.steps.options import RATE
from wholestep.train.data.frames import ANSWERS

Array = np.ndarray[Any, Any]
Manifest = Mapping[str, Any]
INK = 0.25  # pixels above this fraction of the range of values belong to the drawing
SAMPLE = 500  # number of images that are examined


def task_of(loss: Any, targets: Mapping[str, Array], outputs: list[Mapping[str, Any]]) -> str:
    """The kind of predictions: "classes", "answers" (yes or no), "numbers", or "other", which the page omits."""
    function = loss if callable(loss) else losses.get(loss) if not isinstance(loss, Mapping) else None
    labels = targets.get(TARGET)
    if labels is None or len(targets) > 1 or len(outputs) != 1:
        return "other"
    scores = outputs[0]["shape"][1:]
    kind = function.kind if isinstance(function, losses.Loss) else ""
    if kind in ANSWERS and scores in ([], [1]) and labels.size == len(labels):
        return "answers"
    if isinstance(function, losses.Loss) and function.takes_classes and labels.ndim == 1:
        return "classes" if letter_of(labels.dtype) in "iu" and len(scores) == 1 else "other"
    return (
        "numbers" if labels.size == len(labels) and scores in ([], [1]) and letter_of(labels.dtype) == "f" else "other"
    )


def classes_of(task: str, encoding: Encoding | None, outputs: list[Mapping[str, Any]]) -> list[Any] | None:
    """The names of the classes; numbers if the labels have no names."""
    if task == "classes":
        return list(encoding.classes) if encoding and encoding.classes else list(range(outputs[0]["shape"][1]))
    if task == "answers":
        return list(encoding.classes) if encoding and encoding.classes else ["no", "yes"]
    return None


def image_shape(shape: tuple[int, ...], asked: str | None) -> list[int] | None:
    """Channels, height and width if rows are images: as asked, else if their shape is (1 or 3, height, width)."""
    if asked is None:
        return list(shape) if len(shape) == 3 and shape[0] in (1, 3) else None
    try:
        sizes = [int(part) for part in asked.lower().split("x")]
    except ValueError:
        sizes = []
    sizes = [1, *sizes] if len(sizes) == 2 else sizes
    if len(sizes) != 3 or sizes[0] not in (1, 3) or min(sizes) < 1 or np.prod(sizes) != np.prod(shape):
        raise OptionError(
            f"image={asked!r}: a row of the data has the shape {shape}; expected height x width, or channels x height "
            "x width (1 or 3 channels), with the same number of pixels, e.g. '28x28'."
        )
    return sizes


def pixels_of(x: Array, shape: list[int]) -> dict[str, Any]:
    """How the page prepares images: their shape, the values of black and white, and the size of a typical drawing."""
    low, high = float(x.min()), float(x.max())
    ink = x[:SAMPLE].reshape(-1, *shape).max(axis=1) > low + INK * (high - low)
    spans = [np.ptp(np.flatnonzero(one.any(axis=axis))) + 1 for one in ink for axis in (0, 1) if one.any()]
    sizes = [max(pair) / min(shape[1:]) for pair in zip(spans[::2], spans[1::2])]
    return {"shape": shape, "low": low, "high": high, "extent": float(np.median(sizes)) if sizes else 1.0}


def rows_within(table: Table, limit: int) -> int:
    """The number of rows of a table that fit into `limit` bytes, at least one."""
    row = sum(array[:1].nbytes for array in table.columns.values())
    return max(1, min(len(table), limit // max(row, 1)))


def rate_of(manifest: Manifest) -> str | None:
    """The name of the runtime scalar that is the learning rate: the optimizer's, or that of its schedule."""
    names = [scalar["name"] for scalar in manifest["scalars"]]
    scheduled = [name for name in names if name.startswith(scalar_name(RATE, "")) and name.endswith(".lr")]
    return RATE if RATE in names else scheduled[0] if len(scheduled) == 1 else None


def run_lengths(schedule: Any, manifest: Manifest) -> dict[str, int]:
    """The runtime scalars that are lengths of schedules over the whole run -> updates of the schedule's warm-up."""
    planned = schedule if isinstance(schedule, Mapping) else {RATE: schedule}
    used = [scalar["name"] for scalar in manifest["scalars"]]
    lengths = {
        scalar_name(target, f"after.{one.length}" if one.warmup else one.length): one.warmup
        for target, one in planned.items()
        if isinstance(one, Planned)
    }
    return {name: warmup for name, warmup in lengths.items() if name in used}


def facts(manifest: Manifest, inputs: Mapping[str, Array], loss: Any, optimizer: Any) -> list[str]:
    """Facts about the model, shown below the title."""
    parameters = sum(int(np.prod(s["shape"])) for s in manifest["states"] if s["parameter"])
    outputs = manifest["outputs"][0]["shape"][1:]
    shown = " × ".join(map(str, next(iter(inputs.values())).shape[1:])) or "1"
    name = loss if isinstance(loss, str) else getattr(loss, "kind", getattr(loss, "__name__", "its own loss"))
    return [
        f"{parameters:,} parameters",
        f"{_with_plural(shown, 'input')}, {_with_plural(' × '.join(map(str, outputs)) or '1', 'output')}",
        str(name).replace("_", " "),
        type(optimizer).__name__,
        f"{manifest['bytes'] / 1024:,.0f} KiB of memory for a step",
    ]


def _with_plural(sizes: str, noun: str) -> str:
    return f"{sizes} {noun}" if sizes == "1" else f"{sizes} {noun}s"


def python_text(script: str, name: str, epochs: int) -> str:
    """The Python code that continues from a checkpoint of the page."""
    return (
        "import wholestep as ws\n"
        f"from {Path(script).stem} import build\n\n"
        "run = build()\n"
        f'run.fit(resume="{name}.safetensors", epochs={2 * epochs})  # continues\n'
        f'run.model.load("{name}.safetensors", strict=False)  # or the weights alone\n'
    )
