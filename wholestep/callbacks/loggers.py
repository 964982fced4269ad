"""Callbacks that write numbers to files: CSV, JSON lines, TensorBoard."""

from __future__ import annotations

import csv
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.event_records import START, event, frame_record
from wholestep.callbacks.run import Logs, Run, StepMetrics
from wholestep.callbacks.weights import Histogram, WeightStatistics
from wholestep.nn.layers.table_encoding import HEADER as ENCODING


class CSVLogger(Callback):
    """Writes one header and one row per epoch.  A resumed run continues after the rows of its checkpoint.

    Example: `ws.CSVLogger("runs/log.csv")`.
    """

    tolerant = True  # a full disk does not end a run
    writes = True

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._columns: list[str] = []
        self._known = 0  # bytes

    def on_train_begin(self) -> None:
        if not _cut(self.path, self._known):
            self._columns = []

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not self._columns:
                # the columns include numbers that the first epoch may lack
                expected = self.run.names if self.run is not None else ()
                self._columns = list(dict.fromkeys(["epoch", *logs, *expected]))
                writer.writerow(self._columns)
            row: dict[str, Any] = {"epoch": epoch, **logs}
            writer.writerow([cell(row.get(name, "")) for name in self._columns])

    def state_dict(self) -> dict[str, Any]:
        return {"columns": self._columns, "bytes": _size(self.path)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._columns, self._known = list(state["columns"]), state["bytes"]


def cell(value: Any) -> Any:
    """A value in a table of text: lists as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


class JSONLinesLogger(Callback):
    """Writes one JSON object per epoch, per validation inside one, and per step with `steps=True`; NaN and infinity are
    null.

    Example: `ws.JSONLinesLogger("log.jsonl")`.
    """

    tolerant = True  # a full disk does not end a run
    writes = True

    def __init__(self, path: str | PathLike[str], steps: bool = False) -> None:
        self.path, self.steps = Path(path), steps
        self._known = 0  # bytes

    def on_train_begin(self) -> None:
        _cut(self.path, self._known)

    def on_step(self, metrics: StepMetrics) -> None:
        if self.steps:
            self._write({"epoch": metrics.epoch, "step": metrics.step, "loss": metrics.loss})

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        self._write({"epoch": epoch, "step": step, **logs})

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._write({"epoch": epoch, **logs})

    def _write(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite_values(record), allow_nan=False) + "\n")

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": _size(self.path)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._known = state["bytes"]


def finite_values(value: Any) -> Any:
    """A value for JSON, with null in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: finite_values(v) for name, v in value.items()}
    if isinstance(value, list):
        return [finite_values(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _cut(path: Path, size: int) -> bool:
    """Truncate a file to the size in the checkpoint, so that no row is written twice; False if it is empty then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        left = min(size, file.tell())
        file.truncate(left)
    return left > 0


class TensorBoardLogger(Callback):
    """Scalars for TensorBoard: losses of steps, numbers of epochs, each over the steps done so far.

    With a `ws.WeightStatistics` in the same run its histograms as well.

    The configuration of the run (arguments of `fit`, `optimizer.lr`) is written as TensorBoard's hyper-parameters; the
    environment with the git revision, and digests of plan and data, as a text.

    Each run writes a new file that starts with the step of its resume: TensorBoard drops later steps of earlier files
    in the folder, so that a resumed run shows nothing twice.

    Example: `ws.TensorBoardLogger("runs/tb")`.
    """

    tolerant = True  # a full disk does not end a run
    writes = True

    def __init__(self, folder: str | PathLike[str], steps: bool = True) -> None:
        self.folder, self.steps = Path(folder), steps
        self._file: IO[bytes] | None = None
        self._count = 0  # steps over all epochs

    def on_train_begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)  # TensorBoard reads files in the order of their names
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (self.folder / name).open("xb")
        self._write(event(file_version="brain.Event:2"))
        self._write(event(self._count, session=START))
        config = dict(flat_settings(self.run.config)) if self.run is not None else {}
        if config:
            self._write(event(self._count, hparams=config))
        if facts := run_facts(self.run):
            rows = (f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in facts.items())
            self._write(event(self._count, texts={"run": "\n".join(["| name | value |", "|---|---|", *rows])}))

    def on_step(self, metrics: StepMetrics) -> None:
        if self.steps:
            self._write(event(self._count, {"step/loss": metrics.loss}))
        self._count += 1

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        validated = {name: value for name, value in logs.items() if name.startswith("val_")}
        self._write(event(self._count - 1, dict(_scalars("epoch", validated))))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        at = self._count - 1 if self._count else epoch  # in a user-defined loop without `on_step`
        self._write(event(at, dict(_scalars("epoch", logs)), self._histograms(epoch)))
        if self._file is not None:
            self._file.flush()

    def _histograms(self, epoch: int) -> dict[str, Histogram]:
        """The histograms of this epoch that other callbacks have computed."""
        callbacks = self.run.callbacks if self.run is not None and self.run.callbacks is not None else ()
        histograms = [c.histograms_of(epoch) for c in callbacks if isinstance(c, WeightStatistics)]
        return {f"weights/{name}": h for each in histograms for name, h in each.items()}

    def on_train_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: bytes) -> None:
        assert self._file is not None, "on_train_begin opens the file"
        self._file.write(frame_record(record))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count = state["count"]


def _scalars(tag: str, values: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """Scalars by tag: `epoch/loss`; for lists every number: `epoch/f1/0`, `epoch/confusion_matrix/0/1`."""
    for name, value in values.items():
        if isinstance(value, list):
            yield from _scalars(f"{tag}/{name}", dict(enumerate(value)))
        else:
            yield f"{tag}/{name}", value


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """The configuration of a run by dotted names, lists as text, without the encoding of tables."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{name}.")
        elif name != ENCODING:
            plain = isinstance(value, bool | int | float | str)
            yield prefix + name, value if plain else json.dumps(value, default=str)


def run_facts(run: Run | None) -> dict[str, bool | float | str]:
    """The environment of a run with its git revision, and the identity of its plan and data, by dotted names."""
    if run is None or run.session is None:
        return {}
    from wholestep.train.checkpoint.environment import run_environment
    from wholestep.train.checkpoint.identity import identity_of

    identity = identity_of(run.session, run.loader)
    shown = {name: identity[name] for name in ("target", "seed", "plan", "data") if identity.get(name) is not None}
    return dict(flat_settings({"environment": run_environment(run.session), "identity": shown}))
