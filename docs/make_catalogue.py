"""Writes docs/catalogue.md, each loss, metric, optimizer and schedule with its oracle: `python docs/make_catalogue.py`.

The rows are those of the library's tables, the oracles those of the cases in the tests.  A row without a case, or a
case without an oracle, is an error, and a test renders the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy import stats  # noqa: E402
from sklearn import metrics as sk  # noqa: E402

import wholestep as ws  # noqa: E402
from tests.losses.cases import CASES as LOSS_CASES  # noqa: E402
from tests.metrics.cases import CASES as METRIC_CASES  # noqa: E402
from tests.optim.table import ROWS as OPTIMIZERS  # noqa: E402
from tests.optim.table import Torch  # noqa: E402
from tests.schedules.cases import CASES as SCHEDULE_CASES  # noqa: E402

PAGE = Path(__file__).with_name("catalogue.md")
LIBRARIES: dict[str, ModuleType] = {
    "torch.nn.functional": torch.nn.functional,
    "torch.optim": torch.optim,
    "torch.optim.lr_scheduler": torch.optim.lr_scheduler,
    "sklearn.metrics": sk,
    "scipy.stats": stats,
}
EVERYWHERE = "cpu, cuda, reference"
ARRAYS = "arrays"
# What has no row in a table of cases: its test, and what that compares with.
OTHERS = {
    "ws.losses.triplet_margin_loss": ("`torch.nn.functional.triplet_margin_loss`", "tests/ops/cases/catalogue.py"),
    "ws.losses.margin_ranking_loss": ("`torch.nn.functional.margin_ranking_loss`", "tests/interop/names/cases.py"),
    "ws.losses.constraint_loss": ("its definition", "tests/train/test_task_weights.py"),
    "ws.nn.UncertaintyWeights": ("its definition, differentiated by torch", "tests/train/test_task_weights.py"),
    "ws.nn.GradNorm": ("its definition, differentiated by torch", "tests/train/test_task_weights.py"),
    "ws.optim.project_conflicts": ("its definition", "tests/train/test_task_weights.py"),
    "ws.metrics.LossTracker": ("its definition", "tests/metrics/test_contract.py"),
    "ws.metrics.MeanAveragePrecision": ("numbers of pycocotools", "tests/metrics/test_detection.py"),
    "ws.metrics.WER": ("its definition", "tests/metrics/test_text.py"),
    "ws.metrics.BLEU": ("its definition, and numbers of torchmetrics", "tests/metrics/test_text.py"),
    "ws.schedules.ReduceOnPlateau": (
        "`torch.optim.lr_scheduler.ReduceLROnPlateau`",
        "tests/schedules/test_contract.py",
    ),
    "ws.optim.LBFGS": ("`torch.optim.LBFGS`", "tests/optim/test_lbfgs.py"),
    "ws.optim.SophiaG": ("the authors' update in torch", "tests/optim/test_sophia.py"),
    "ws.optim.EMA": ("`torch.optim.swa_utils`", "tests/optim/test_averages.py"),
    "ws.optim.SWA": ("its definition", "tests/optim/test_catalogue.py"),
    "ws.optim.Lookahead": ("its definition", "tests/optim/test_wrappers.py"),
    "ws.optim.SAM": ("its definition", "tests/optim/test_wrappers.py"),
    "ws.optim.AGC": ("its definition", "tests/optim/test_catalogue.py"),
    "ws.optim.CautiousWeightDecay": ("its definition", "tests/optim/test_wrappers.py"),
    "ws.optim.GradientCentralization": ("its definition", "tests/optim/test_wrappers.py"),
    "ws.optim.Pruned": ("masks of `torch.nn.utils.prune`", "tests/optim/test_pruning.py"),
}
INTRODUCTION = """\
# Catalogue
Losses, metrics, optimizers and schedules: what each computes, the oracle that its values are compared with, the devices
that run it, and the test. `python docs/make_catalogue.py` writes this page from the tables of the library and of its
tests; a row without an oracle is an error. Losses, metrics and optimizers are expressions of the ops of
[which op runs where](ops.md); `arrays` marks what counts outside of a step. Every table also runs through `fit`, resume
and the command line in `tests/train/test_every_family.py`.
"""


@dataclass(frozen=True)
class Row:
    name: str
    formula: str
    oracle: str
    devices: str
    test: str


def render() -> str:
    """The text of docs/catalogue.md."""
    parts = [INTRODUCTION]
    families = {"Losses": losses, "Metrics": metrics, "Optimizers": optimizers, "Schedules": schedules}
    for title, rows in families.items():
        parts += [f"## {title}", "| name | computes | oracle | devices | test |", "|---|---|---|---|---|"]
        for row in rows():
            cells = (f"`{row.name}`", row.formula.replace("|", "\\|"), row.oracle, row.devices, f"`{row.test}`")
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def losses() -> Iterator[Row]:
    for name, entry in ws.losses.LOSSES.items():
        oracles = [case.theirs for case in LOSS_CASES.values() if case.loss == name]
        yield _row(f"ws.losses.{name}", entry.function, oracles, "tests/losses/test_contract.py")
    yield from _others("ws.losses", "ws.nn")


def metrics() -> Iterator[Row]:
    for name, cls in ws.metrics.METRICS.items():
        oracles = [case.expected for case in METRIC_CASES.values() if case.make().kind == name]
        full = f"ws.metrics.{cls.__name__}"
        if full not in OTHERS:
            yield _row(full, cls, oracles, "tests/metrics/test_contract.py")
    yield from _others("ws.metrics")


def optimizers() -> Iterator[Row]:
    exported = {name: getattr(ws.optim, name) for name in ws.optim.__all__}
    for name, cls in exported.items():
        if not isinstance(cls, type) or not issubclass(cls, ws.Optimizer) or cls is ws.Optimizer:
            continue
        if f"ws.optim.{name}" not in OTHERS:
            oracles = [_rule(row) for row in OPTIMIZERS.values() if type(row.ours) is cls]
            yield _row(f"ws.optim.{name}", cls, oracles, "tests/optim/test_contract.py")
    yield from _others("ws.optim")


def schedules() -> Iterator[Row]:
    for kind in dict.fromkeys(type(case.schedule) for case in SCHEDULE_CASES.values()):
        oracles = [c.oracle for c in SCHEDULE_CASES.values() if type(c.schedule) is kind and c.oracle is not None]
        if f"ws.schedules.{kind.__name__}" not in OTHERS:
            yield _row(f"ws.schedules.{kind.__name__}", kind, oracles, "tests/schedules/test_contract.py")
    yield from _others("ws.schedules")


def _others(*places: str) -> Iterator[Row]:
    for name, (oracle, test) in OTHERS.items():
        if name.rpartition(".")[0] in places:
            value = getattr(getattr(ws, name.split(".")[1]), name.split(".")[2])
            if name.split(".")[2] not in (ROOT / test).read_text(encoding="utf-8"):
                raise LookupError(f"{test} does not test {name}; correct OTHERS of {__file__}.")
            on_arrays = places == ("ws.metrics",) and not issubclass(value, ws.metrics.Metric)
            yield Row(name, _first_sentence(value), oracle, ARRAYS if on_arrays else EVERYWHERE, test)


def _row(name: str, value: object, oracles: Iterable[Any], test: str) -> Row:
    """A row of the page; LookupError if nothing is compared with."""
    found = dict.fromkeys(text for oracle in oracles for text in _oracle(oracle))
    if not found:
        raise LookupError(
            f"{name} has no oracle: add a case to the table of {test}, or a line to OTHERS of {__file__}."
        )
    return Row(name, _first_sentence(value), ", ".join(found), EVERYWHERE, test)


def _rule(row: Any) -> Any:
    """torch's class, or the rule that is written out."""
    twin = row.theirs({"w": np.ones((2, 2))})
    return type(twin.optimizer) if isinstance(twin, Torch) else twin.rule


def _oracle(oracle: Any) -> list[str]:
    """The functions of other libraries that an oracle calls; without one, the file that writes it out."""
    called = dict.fromkeys(_called(oracle, set()))
    if called:
        return [f"`{name}`" for name in called]
    module = (oracle.func if isinstance(oracle, partial) else oracle).__module__
    return [f"its definition, in `{module.replace('.', '/')}.py`"]


def _called(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    for library, module in LIBRARIES.items():
        name = getattr(value, "__name__", "")
        if name and getattr(module, name, None) is value and not isinstance(value, ModuleType):
            yield f"{library}.{name}"
            return
    if isinstance(value, partial):
        yield from _called(value.func, seen)
    elif isinstance(value, FunctionType) and value.__module__.startswith("tests."):
        yield from _of_function(value, seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """What a function of the tests calls: by its names, and by what it has closed over."""
    names = [*_names(function.__code__)]
    modules = {n: function.__globals__[n] for n in names if isinstance(function.__globals__.get(n), ModuleType)}
    for library, module in LIBRARIES.items():
        if module in modules.values():
            yield from (f"{library}.{n}" for n in names if callable(getattr(module, n, None)) and n not in ROUTINE)
    inside: list[Any] = [cell.cell_contents for cell in function.__closure__ or ()]
    inside += [function.__globals__[n] for n in names if n not in modules and n in function.__globals__]
    for value in inside:
        if isinstance(value, FunctionType | partial):
            yield from _called(value, seen)


ROUTINE = ("relu", "normalize", "one_hot", "softmax", "log_softmax")  # with which a definition is written out


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _first_sentence(value: Any) -> str:
    """The docstring up to its first full stop or colon at the end of a line, on one line."""
    text = " ".join((value.__doc__ or "").strip().split("\n\n")[0].split())
    head, stop, _ = text.partition(". ")
    return (head + stop).strip().rstrip(".:,") + "."


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
