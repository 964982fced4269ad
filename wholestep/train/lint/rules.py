"""The table of the linter's rules, what a rule sees of a run, and what it reports.

A rule is a generator over a `LintedRun`: it yields one text per observation.  Its code, reason and fix are the
arguments of `@rule`, so a rule is one row of the table and one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wholestep.compiler.ir.graph import IRGraph
from wholestep.data.loader import DataLoader
from wholestep.data.table import Table
from wholestep.losses.table import Loss

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment


@dataclass(frozen=True)
class LintedRun:
    """A run before its first step: its settings, its data, and the traced graph of its loss and outputs."""

    experiment: Experiment
    loader: DataLoader
    held: Table | None
    graph: IRGraph
    losses: Mapping[str, Loss]  # by target; without functions of the user

    @property
    def table(self) -> Table | None:
        """The training rows, if they are arrays in memory."""
        source = self.loader.source
        return source if isinstance(source, Table) and not self.loader.transforms else None


Check = Callable[[LintedRun], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """One row of the table of rules."""

    code: str
    title: str
    reason: str
    fix: str
    on_request: bool = False  # only in `ws.lint`: the rule reads rows, or the run itself gives the same warning
    check: Check | None = None  # None: tracing itself reports it, as a warning or an error


@dataclass(frozen=True)
class Finding:
    """One observation of a rule."""

    rule: Rule
    text: str

    @property
    def code(self) -> str:
        return self.rule.code

    def __str__(self) -> str:
        return f"{self.code} {self.rule.title}: {self.text}\n  why: {self.rule.reason}\n  fix: {self.rule.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data, for `--json`."""
        return {
            "code": self.code,
            "title": self.rule.title,
            "text": self.text,
            "reason": self.rule.reason,
            "fix": self.rule.fix,
        }


RULES: dict[str, Rule] = {}


def rule(code: str, title: str, *, reason: str, fix: str, on_request: bool = False) -> Callable[[Check], Check]:
    """Add a row to the table."""

    def register(check: Check) -> Check:
        RULES[code] = Rule(code, title, reason, fix, on_request, check)
        return check

    return register


def _row(code: str, title: str, *, reason: str, fix: str) -> None:
    RULES[code] = Rule(code, title, reason, fix)


REFUSED = "WS100"
_row(
    REFUSED,
    "the run is refused",
    reason="the checks before the first step raise this error.",
    fix="the error says what to change.",
)
_row(
    "WS101",
    "probabilities where cross entropy takes raw scores",
    reason="the loss applies softmax itself; a second softmax flattens the scores, and gradients become small.",
    fix="remove the softmax from the model.",
)
_row(
    "WS102",
    "probabilities where binary cross entropy takes raw scores",
    reason="the loss applies the sigmoid itself; a second sigmoid limits every probability to 0.5 .. 0.73.",
    fix="remove the sigmoid from the model.",
)
SHAPES = "WS103"
_row(
    SHAPES,
    "shapes that do not match",
    reason="broadcasting (rows, 1) against (rows,) would compare every prediction with every target.",
    fix="give prediction and target one shape, e.g. y.reshape(-1, 1) of a vector.",
)
CLASSES = "WS104"
_row(
    CLASSES,
    "labels outside the classes",
    reason="a class index without a score has no loss.",
    fix="enlarge the last layer, or number the classes from 0.",
)
WARNED = "WS106"
_row(
    WARNED,
    "a warning while the step is traced",
    reason="the step trains, but probably not as intended.",
    fix="the warning says what to write.",
)
