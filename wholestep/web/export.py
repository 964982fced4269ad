"""`export_page`: an experiment as one HTML file that trains in a browser."""

from __future__ import annotations

import json
import tempfile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.data.splits import Holdout
from wholestep.data.table import Table
from wholestep.data.tables.encoding import Encoding
from wholestep.data.tables.frame import as_frame
from wholestep.data.tables.frame_data import as_framed
from wholestep.errors import OptionError, UsageError
from wholestep.nn.layers.table_encoding import encoding_metadata, encoding_of
from wholestep.nn.module.module import Module
from wholestep.train import Experiment
from wholestep.train.checkpoint.identity import identity_of
from wholestep.web import description
from wholestep.web.bundle import html, write_page

if TYPE_CHECKING:
    from wholestep.data.loader import DataLoader
    from wholestep.train import Trainer

PORTABLE = "cpu/portable"  # the target whose bits the module computes
EXAMPLE_BYTES = 8 << 20  # limit for the example rows of a page, before compression
PREVIEW = 5  # number of rows of a table that the page shows


def export_page(
    experiment: Experiment,
    path: str | PathLike[str],
    *,
    image: str | None = None,
    rows: int | None = None,
    script: str = "experiment.py",
) -> Path:
    """Write one HTML file that trains an experiment in a browser, without a server.

    The file contains the step as WebAssembly, the weights, example rows, and an interface for training on files that
    are dropped on it.  `ws.fit(..., resume="digits.safetensors")` continues from its checkpoints.

    Args:
        image: the size of images in flat inputs, "28x28" or "3x32x32"; None: inputs of shape (1 or 3, height, width)
            are images.
        rows: the largest number of training rows, and of validation rows, to embed; None: as many as fit into 8 MB.
        script: the file that defines the experiment, named in the Python code that the page shows.

    Example: `export_page(ws.Experiment(model=net, data=(x, y), loss="cross_entropy"), "digits.html")`.
    """
    target = Path(path)
    if rows is not None and (not isinstance(rows, int) or rows < 1):
        raise OptionError(f"rows={rows!r}: expected an integer of at least 1, or None.")
    if not isinstance(experiment.model, Module):
        raise UsageError("a page trains a ws.nn.Module; received a @ws.step function. Export that with to='wasm'.")
    experiment = experiment.having({"device": PORTABLE})
    trainer, loader = experiment.trainer()
    with tempfile.TemporaryDirectory() as folder:
        step = Path(trainer.session.export(folder, to="wasm"))
        manifest = json.loads((step / "manifest.json").read_text(encoding="utf-8"))
        files = {"module": (step / "step.wasm").read_bytes(), "weights": (step / "weights.safetensors").read_bytes()}
        interface = (step / "step.mjs").read_text(encoding="utf-8")
    page = _description(experiment, trainer, loader, manifest, image, rows, target.stem, script)
    files["example"] = _example(trainer, loader, manifest, page["example"]["rows"])
    title = target.stem.replace("_", " ").capitalize()
    return write_page(target, html("page", page, title=title, files=files, step=interface))


def _description(
    experiment: Experiment,
    trainer: Trainer,
    loader: DataLoader,
    manifest: dict[str, Any],
    image: str | None,
    rows: int | None,
    name: str,
    script: str,
) -> dict[str, Any]:
    """The description of the experiment that the page contains, as JSON."""
    model = experiment.model
    assert isinstance(model, Module), "export_page has checked it"
    table = _table(loader)
    encoding = encoding_of(model)
    outputs = manifest["outputs"]
    task = description.task_of(experiment.loss, table.targets, outputs)
    first = next(iter(table.inputs.values()))
    pixels = None if encoding else description.image_shape(first.shape[1:], image)
    embedded = min(rows or len(table), len(table)) if rows else description.rows_within(table, EXAMPLE_BYTES)
    whole = embedded == len(table)
    identity = identity_of(trainer.session, loader)
    target = _target_name(experiment, encoding)
    return {
        "name": name,
        "manifest": manifest,
        "task": task,
        "classes": description.classes_of(task, encoding, outputs),
        "encoding": None if encoding is None else json.loads(encoding.to_json()),
        "target": target,
        "image": None if pixels is None else description.pixels_of(first, pixels),
        "preview": None if encoding is None else _preview(experiment.data, target or "target"),
        "rate": description.rate_of(manifest),
        "runLengths": description.run_lengths(experiment.schedule, manifest),
        "example": {"rows": embedded, "of": len(table)},
        "settings": {
            "epochs": experiment.epochs,
            "batch": loader.batch_size * experiment.accumulate,
            "shuffle": int(loader.shuffles),
            "validation": _fraction(experiment.validation),
            "seed": experiment.data_seed,
        },
        "facts": description.facts(manifest, table.inputs, experiment.loss, experiment.optimizer),
        "metadata": {"format": "pt", **encoding_metadata(model)},
        "identity": {**identity, "data": identity["data"] if whole else {}},
        "python": description.python_text(script, name, experiment.epochs),
    }


def _table(loader: DataLoader) -> Table:
    table = loader.every_row()
    if table is None:
        raise UsageError(
            "a page trains on arrays in memory, each row once per epoch; received a loader with transforms, another "
            "order or fewer rows, a data set or an iterable. Give data=(x, y), transformed before."
        )
    return table


def _fraction(validation: Any) -> float:
    """The default fraction of a user's rows that the page holds out for validation."""
    if isinstance(validation, Holdout):
        return validation.fraction
    return validation if isinstance(validation, float) else 0.2


def _target_name(experiment: Experiment, encoding: Encoding | None) -> str | None:
    """The name of the target column of a table; "target" if the labels were given as an array next to a frame."""
    data = experiment.data
    if isinstance(data, tuple) and len(data) > 1 and isinstance(data[1], str):
        return data[1]
    return None if encoding is None else "target"


def _preview(data: Any, target: str) -> dict[str, Any] | None:
    """The first rows of a table, before encoding."""
    framed = as_framed(data, dicts=True)
    if framed is None:
        return None
    columns = dict(framed.inputs.columns)
    if framed.target is not None and not isinstance(framed.target, np.ndarray):
        columns[target] = framed.target
    head = as_frame(columns).select(np.arange(min(PREVIEW, len(framed))))
    cells = [[None if gap else _plain(value) for value, gap in zip(c.values, c.missing)] for c in head.columns.values()]
    return {"names": list(columns), "rows": [list(row) for row in zip(*cells)]}


def _plain(value: Any) -> Any:
    """The value of a cell in JSON."""
    if isinstance(value, np.datetime64):
        return str(value).removesuffix(".000000").removesuffix("T00:00:00")
    return value.item() if isinstance(value, np.generic) else value


def _example(trainer: Trainer, loader: DataLoader, manifest: dict[str, Any], rows: int) -> bytes:
    from safetensors.numpy import save

    dtypes = {each["name"]: each["dtype"] for each in manifest["inputs"]}
    parts = {"train": _table(loader), "validation": trainer.validation}
    return save(
        {
            f"{part}/{name}": np.ascontiguousarray(array[:rows], dtypes[name])
            for part, table in parts.items()
            if table is not None
            for name, array in table.columns.items()
        }
    )
