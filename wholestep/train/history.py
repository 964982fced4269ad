"""`TrainHistory`: losses, metrics and learning rates of every epoch."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.callbacks.loggers import cell
from wholestep.callbacks.progress import short
from wholestep.callbacks.run import EpochStats, is_count, is_detail, is_measure, is_number
from wholestep.charts import Chart, Curve, draw, plot_text, svg
from wholestep.errors import InputError, UnknownNameError, UsageError
from wholestep.notebook import table_html, text_html
from wholestep.schedules.monitor_modes import canonical
from wholestep.train.row_history import RowHistory, Suspect


@dataclass
class TrainHistory:
    """The epochs of a run, in order; `history["val_loss"]` is a list with one value per epoch.

    A metric with several values, such as a confusion matrix, is an array per epoch: `history["confusion_matrix"][-1]`.
    A metric that was not measured in an epoch (`validate_every=`) is NaN; measurements inside epochs
    (`validate_every_steps=`) are in `validations`, each with its epoch and step.
    """

    epochs: list[EpochStats] = field(default_factory=list)
    stopped_by: str = ""  # why the run ended before its last epoch; "" if it ran to the end
    validations: list[EpochStats] = field(default_factory=list)  # validations inside epochs
    per_row: RowHistory = field(default_factory=RowHistory, compare=False)  # values of rows, recorded with `per_row=`

    def final_loss(self) -> float | None:
        """The mean loss of the last epoch, a partial one too, or None before the first step."""
        return self.epochs[-1].avg_loss if self.epochs else None

    def suspects(self, count: int) -> list[Suspect]:
        """The rows of the training data with the most influence on the weights (`per_row=`), such as wrong labels.

        Example: `ws.fit(..., per_row=["loss", "gradient_norm"]).suspects(20)`.
        """
        return self.per_row.suspects(count)

    @property
    def names(self) -> list[str]:
        """The numbers that were recorded."""
        return list(dict.fromkeys(name for e in self.epochs for name in ("loss", *e.logs)))

    @property
    def history(self) -> dict[str, list[Any]]:
        """The numbers of every epoch by name, as Keras' `History` has them."""
        return {name: self[name] for name in self.names}

    @property
    def scalars(self) -> list[str]:
        """The names of metrics that are a single number in every epoch."""
        return [n for n in self.names if not any(isinstance(e.logs.get(n), list) for e in self.epochs)]

    @property
    def _text(self) -> list[str]:
        return [name for name in self.scalars if not is_detail(name)]

    def __getitem__(self, name: str) -> list[Any]:
        wanted = canonical(name)
        if wanted not in self.names:
            raise UnknownNameError(f"the history has no {name!r}; it has: {', '.join(self.names) or 'no epochs'}.")
        values = (e.logs.get(wanted, e.avg_loss if wanted == "loss" else float("nan")) for e in self.epochs)
        return [np.asarray(v) if isinstance(v, list) else float(v) for v in values]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "epochs" not in self.__dict__:  # `copy` reads attributes of an empty object
            raise AttributeError(name)
        example = f"history[{self.names[0]!r}]" if self.names else "history['loss']"
        raise AttributeError(
            f"a history has no attribute {name!r}; read metrics as {example}. It has: {', '.join(self.names)}."
        )

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def last(self) -> dict[str, Any]:
        """The numbers of the last epoch."""
        return {name: self[name][-1] for name in self.names} if self.epochs else {}

    def rows(self) -> list[dict[str, Any]]:
        """One dict per epoch."""
        return [{"epoch": e.epoch, "loss": e.avg_loss, **e.logs} for e in self.epochs]

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write one row per epoch."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["epoch", *self.names])
            writer.writeheader()
            writer.writerows({name: cell(value) for name, value in row.items()} for row in self.rows())

    def to_json(self, *, speeds: bool = False) -> str:
        """The history as text; `from_json` reads it.

        Args:
            speeds: also store the steps per second of each epoch, which differ between runs of equal numbers.
        """
        stored = {"stopped_by": self.stopped_by, "epochs": [_plain(e, speeds) for e in self.epochs]}
        inside = {"validations": [_plain(e, speeds) for e in self.validations]} if self.validations else {}
        return json.dumps({**stored, **inside})

    @staticmethod
    def from_json(text: str) -> TrainHistory:
        """Read a history that `to_json` wrote; InputError for any other text."""
        try:
            stored: Any = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"this is not a history: it is not JSON ({error}). Give what `to_json` wrote.") from None
        whole = type(stored) is dict and {"stopped_by", "epochs"} <= stored.keys() <= _KEYS
        lists = [stored["epochs"], stored.get("validations", [])] if whole else []
        if not whole or type(stored["stopped_by"]) is not str or any(type(each) is not list for each in lists):
            raise InputError("this is not a history: expected 'stopped_by' and 'epochs'. Give what `to_json` wrote.")
        epochs, inside = ([_epoch(e) for e in each] for each in lists)
        return TrainHistory(epochs, stored["stopped_by"], inside)

    def plot(self, path: str | PathLike[str] | None = None, names: Sequence[str] | None = None) -> str:
        """Draw the curves over the epochs into a file, e.g. "run.svg"; without a file, return a drawing in text.

        In text, curves of up to ten epochs are one line each.  Files in other formats than SVG need matplotlib.

        Args:
            names: the numbers to draw, e.g. `["loss", "val_loss"]`; all of them when None, but for arrays and for
                what every parameter has (`norm/...`).
        """
        if not self.epochs:
            raise UsageError("there is nothing to plot: the history has no epochs.")
        chosen = self._text if names is None else [canonical(name) for name in names]
        for name in set(chosen) & set(self.names) - set(self.scalars):
            raise UsageError(f"{name!r} is an array in every epoch and not a curve; plot history[{name!r}] yourself.")
        curves = {name: self[name] for name in chosen}
        if path is None:
            return text_plots(curves)
        draw(charts_of([e.epoch + 1 for e in self.epochs], curves), Path(path))
        return str(path)

    def _repr_html_(self) -> str:
        """The curves and the last epoch's numbers, for notebooks."""
        if not self.epochs:
            return text_html("history", "no epochs")
        names, step = self._text, -(-len(self.epochs) // MOST_POINTS)
        at = [*range(0, len(self.epochs) - 1, step), len(self.epochs) - 1]
        curves = {name: [values[i] for i in at] for name in names for values in [self[name]]}
        drawn = svg(charts_of([self.epochs[i].epoch + 1 for i in at], curves))
        rows = [(name, values[-1]) for name, values in curves.items()]
        table = table_html(("number", "last"), rows, f"epoch {self.epochs[-1].epoch + 1}")
        return f'<div style="overflow-x:auto">{drawn}</div>{table}'

    def __str__(self) -> str:
        names = self._text
        head = ["epoch", *names]
        body = [
            [f"{e.epoch}{' (part)' if e.partial else ''}", *(short(name, self[name][i]) for name in names)]
            for i, e in enumerate(self.epochs)
        ]
        return align_right([head, *body])


MOST_POINTS = 200  # the most points of a curve in a notebook
_KEYS = {"stopped_by", "epochs", "validations"}


def _plain(stats: EpochStats, speeds: bool) -> dict[str, Any]:
    stored = {**vars(stats), "logs": dict(stats.logs)}
    if not (speeds and stats.steps_per_second):
        del stored["steps_per_second"]
    return stored


# Checks of the fields of a stored epoch, by annotation.
_FITS: Mapping[str, Callable[[Any], bool]] = {
    "int": is_count,
    "float": is_number,
    "bool": lambda value: type(value) is bool,
    "Mapping[str, Value]": lambda value: type(value) is dict and all(is_measure(v) for v in value.values()),
}


def _epoch(stored: Any) -> EpochStats:
    epoch_fields = {f.name: f for f in fields(EpochStats)}
    needed = {name for name, f in epoch_fields.items() if f.default is MISSING and f.default_factory is MISSING}
    whole = type(stored) is dict and needed <= stored.keys() <= epoch_fields.keys()
    if not whole or not all(_FITS[str(epoch_fields[name].type)](value) for name, value in stored.items()):
        raise InputError(f"this is not an epoch of a history: {str(stored)[:80]}. Give what `to_json` wrote.")
    return EpochStats(**stored)


FEW = 10  # the most values of a curve that is printed as one line of bars and numbers
BARS = "▁▂▃▄▅▆▇█"


def text_plots(curves: Mapping[str, list[float]]) -> str:
    """The curves as text, one below the other; a curve of few epochs takes one line."""
    if any(len(values) > FEW for values in curves.values()):
        return "\n\n".join(text_plot(name, values) for name, values in curves.items())
    width = max(map(len, curves), default=0)
    return "\n".join(f"{name:<{width}}  {_bars(values)}" for name, values in curves.items())


def _bars(values: list[float]) -> str:
    """A bar for each value between the smallest and the largest, then the values."""
    finite = [v for v in values if isfinite(v)]
    low, span = min(finite, default=0.0), (max(finite, default=0.0) - min(finite, default=0.0)) or 1.0
    bars = "".join(BARS[round((v - low) / span * (len(BARS) - 1))] if isfinite(v) else "?" for v in values)
    return f"{bars}  {'  '.join(f'{v:.4g}' for v in values)}"


def text_plot(name: str, values: list[float], width: int = 60, height: int = 10) -> str:
    """A curve drawn with dots, `height` lines high."""
    if not any(map(isfinite, values)):
        return f"{name}: no finite values"
    lines = plot_text(values, width, height)
    edge = max(len(label) for label, _ in lines)
    return "\n".join([name, *(f"{label.rjust(edge)} │{row}" for label, row in lines)])


def align_right(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns of equal width, right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def charts_of(
    epochs: Sequence[int], curves: Mapping[str, list[float]], bands: Mapping[str, list[float]] | None = None
) -> list[Chart]:
    """One chart for each number, together with its validation values."""
    groups: dict[str, dict[str, Curve]] = {}
    for name, values in curves.items():
        points = list(zip(map(float, epochs), values, strict=True))
        groups.setdefault(name.removeprefix("val_"), {})[name] = points
    return [
        Chart(title, "epoch", group, bands={name: half for name, half in (bands or {}).items() if name in group})
        for title, group in groups.items()
    ]
