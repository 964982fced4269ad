"""What an exported step consists of, in terms of plans: the input of `block.py` and `tables.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wholestep.compiler.ir.types import Dim, TensorType
from wholestep.compiler.plan.model.kernel import Bound, Buffer, Plan, Space

ENTRIES = ("train", "evaluate", "evaluate_all", "predict")  # the order of `entries` in tables.h
BATCH_DIMS = ("batch_dim", "first_dim", "rows_dim", "parts_dim", "own_dim", "whole_dim")


@dataclass(frozen=True)
class ExportedEntry:
    """An entry point: its plans run in order for each part of the rows; if there are several, the last runs once."""

    plans: tuple[Plan, ...]
    dims: Mapping[str, str]  # the symbol of each of BATCH_DIMS
    batch: int  # the largest number of rows of a call; "evaluate_all" accepts any number
    part: int  # the largest number of rows that one program processes
    refused: str | None = None  # the output that is nonzero if an update was refused
    stops: bool = False  # does a refused update end a run?

    @property
    def is_fixed(self) -> bool:
        """Is the number of rows a constant?"""
        return self.dims["batch_dim"] not in self.plans[0].symbols

    @property
    def least(self) -> int:
        """The smallest number of rows that a program accepts; a batch norm may need more than one."""
        symbol = self.dims["batch_dim"]
        bounds = [least for plan in self.plans for least in plan.least if symbol in plan.symbols]
        fits = (
            rows
            for rows in range(1, self.part + 1)
            if all(least.value({**self.plans[0].sizes, symbol: rows}) >= least.size for least in bounds)
        )
        return next(fits, self.part)


@dataclass(frozen=True)
class ExportedMetric:
    """A metric: the two states whose quotient (or its square root) it is, or None if C cannot compute it."""

    name: str
    kind: str
    higher_is_better: bool | None
    ratio: tuple[str, str] | None
    root: bool = False

    @property
    def formula(self) -> str | None:
        """The formula that step.c evaluates, as manifest.json names it; None if C cannot compute the metric."""
        if self.ratio is None:
            return None
        return "root of ratio" if self.root else "ratio"


@dataclass(frozen=True)
class ExportedStep:
    """The entry points over one state, and the scalars, counters, states and metrics that users may read or set."""

    target: str
    seed: int
    entries: Mapping[str, ExportedEntry]  # by the names in ENTRIES
    scalars: Mapping[str, float]  # runtime scalars and their values
    counts: Mapping[str, str]  # update counters by key -> the runtime scalar with the start of the count
    saved: tuple[str, ...]  # states that a checkpoint contains
    parameters: tuple[str, ...]
    metrics: tuple[tuple[ExportedMetric, ...], tuple[ExportedMetric, ...]]  # while training, of an evaluation
    fills: tuple[Mapping[str, float], Mapping[str, float]]  # their states and first values

    def prefixes(self, entry: str) -> list[str]:
        """The prefixes of the C functions of an entry point's programs, in order."""
        count = len(self.entries[entry].plans)
        return [f"ws_{entry}" + (str(i) if count > 1 else "") for i in range(count)]

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """All plans by the prefix of their C functions."""
        return {
            prefix: plan
            for name, entry in self.entries.items()
            for prefix, plan in zip(self.prefixes(name), entry.plans, strict=True)
        }

    @cached_property
    def states(self) -> dict[str, Buffer]:
        """The buffers of all states by name."""
        return {b.name: b for plan in self.plans.values() for b in plan.buffers if b.space is Space.STATE}

    @cached_property
    def inputs(self) -> dict[str, Buffer]:
        """The inputs of all programs by name, with the largest shape of each."""
        largest: dict[str, Buffer] = {}
        for plan in self.plans.values():
            for name, id in plan.inputs:
                largest.setdefault(name, plan.buffers[id])
        return largest

    @cached_property
    def rows(self) -> frozenset[str]:
        """The inputs that are read row by row."""
        batch = next(iter(self.inputs.values())).type.shape[0]
        return frozenset(name for name, b in self.inputs.items() if b.type.rank and b.type.shape[0] == batch)

    @property
    def outputs(self) -> dict[str, Buffer]:
        """The outputs of `predict`."""
        if "predict" not in self.entries:
            return {}
        (plan,) = self.entries["predict"].plans
        return {name: plan.buffers[id] for name, id in plan.outputs}

    def bounds(self, name: str) -> list[Bound]:
        """The bounds on all values of an index input."""
        each = (b for plan in self.plans.values() for b in plan.bounds if b.input == name and not b.part)
        return list(dict.fromkeys(each))

    def row_shape(self, type: TensorType) -> tuple[int | str, ...]:
        """A shape with its symbolic axis as "batch"."""
        return tuple("batch" if isinstance(e, Dim) else int(e) for e in type.shape)
