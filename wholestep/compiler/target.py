"""What a plan is made for: a record of plain data, importable without the device, part of every plan and cache key.

A target says what a device computes with, which composites it has kernels for, which passes it wants of its own, what
may share a kernel, how large its memories are, and what things cost there.  The compiler reads these fields and nothing
else about a device: what is no field of a target is the business of its backend.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from wholestep.errors import OptionError
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.ir.types import DType


@dataclass(frozen=True)
class CostTable:
    """Nanoseconds on one target: what the e-graph chooses by."""

    origin: str  # where the numbers are from: measured, or estimated from what
    operation: float  # an addition, per element, vectorised
    byte: float  # to or from memory
    product: float  # one multiply-add of a contraction
    pass_over: float  # starting a reduction, a contraction or a lookup
    scalar: float  # an operation of the scalar prologue
    view: float  # a movement: nothing is done, but one less is easier to read

    weights: Mapping[str, float] = field(hash=False)  # of ops dearer than an addition, in additions
    half_product: float = 0.0  # one multiply-add of half operands; 0: as of others
    tf32_product: float = 0.0  # one of float32 operands that are rounded to tf32; 0: as of others

    def product_of(self, dtype: DType) -> float:
        """One multiply-add of a contraction whose operands are of a dtype."""
        return (self.half_product if dtype.is_half else 0.0) or self.product

    def in_tf32(self) -> CostTable:
        """The table where products of float32 operands are made in tf32."""
        return replace(self, product=self.tf32_product or self.product)


def read_costs(path: Path) -> CostTable:
    """The table in a file; a target without one cannot be planned for."""
    if not path.is_file():
        raise OptionError(
            f"there is no cost table {path}, and without prices nothing can be chosen for its target. Measure one "
            "(python -m benchmarks.calibrate) or give the target another's: costs=read_costs(...)."
        )
    values = json.loads(path.read_text())
    return CostTable(**{**values, "weights": MappingProxyType(values["weights"])})


@dataclass(frozen=True)
class OwnPass:
    """A pass of a target by where it is imported from, "package.module:function"; the record stays plain data."""

    path: str
    takes_target: bool = False  # is it called as (graph, target), not as (graph)?
    needed: bool = False  # does the planner count on what it leaves?  Another one is left out where it fails


@dataclass(frozen=True)
class Lowering:
    """The target's own passes, by where in the common ones they stand."""

    windows: tuple[OwnPass, ...] = ()  # over convolutions and pools, before reductions have one axis
    primitives: tuple[OwnPass, ...] = ()  # at the end, over primitives


@dataclass(frozen=True)
class Fusion:
    """What may share a kernel on a target."""

    dot_epilogues: bool = True  # what follows a contraction element by element is computed in it,
    plain_products: tuple[tuple[str, int], ...] = ()  # but from so many flops on, by dtype of the operands
    sums_in_dots: bool = True  # sums over columns of a contraction's result are made in it
    # May a pool follow a convolution in one kernel?  A text is whom to ask of both nodes: "package.module:function"
    pools_in_convolutions: bool | str = True
    # And what follows one element by element?
    convolution_epilogues: bool | str = True
    partial_sums: bool = False  # kernels over rows leave parts of sums over columns, which small ones add
    most_buffers: int = 16  # that one loop reads and writes
    most_operands: int | None = None  # of a kernel over rows, whatever its ops have in common; None: any number
    most_sums: int = 8  # that one loop makes
    least_columns: int = 64  # of a contraction that makes sums: it is partitioned along them


@dataclass(frozen=True)
class Limits:
    """Sizes of a target that stages before its backend read, or its planner; bytes unless a field says otherwise."""

    threads: int = 1  # that plans are priced for; a plan runs on any number
    batch_parts: int = 1  # of a weight's gradient that are added up apart: part of what the bits are
    nearest_cache: int = 32 << 10  # what one core (or block) has for itself, reached without waiting
    cache: int = 1 << 20  # the next larger one
    caches: int = 4 << 20  # what a step may pass over and still find it in caches: over more, it waits for memory
    widest_head: int | None = None  # of attention, as it accumulates, that its routine takes; None: any
    largest_buffer: int | None = None  # that a kernel may be given; None: as much as there is


@dataclass(frozen=True)
class Target:
    """What plans are made for.  Two targets that differ in anything have different keys."""

    name: str  # family/kind: "cpu/portable", "cuda/sm_90"
    dtypes: Mapping[str, str] = field(hash=False)  # what it computes with -> what it accumulates in
    composites: frozenset[str]  # it has kernels for these; all others are decomposed
    costs: CostTable
    stored: frozenset[str] = (
        frozenset()
    )  # dtypes that may also lie in its memory: its passes widen what computes with them
    planner: str = "wholestep.compiler.plan.memory.sequential_schedule:make_plan"  # "package.module:function"
    blocks_columns: bool = False  # do products and matrices among the states lie in blocks of columns, not in rows?
    lowering: Lowering = Lowering()
    fusion: Fusion = Fusion()
    limits: Limits = Limits()

    @cached_property
    def key(self) -> str:
        """The name and a digest of every field: what stands for the target in caches."""
        return f"{self.name} {hashlib.sha256(_text(self).encode()).hexdigest()[:16]}"

    @property
    def family(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    def __str__(self) -> str:
        return self.name


def _text(value: object) -> str:
    """A text of plain data that is the same in every process."""
    if is_dataclass(value):
        return (
            f"{type(value).__name__}({', '.join(f'{f.name}={_text(getattr(value, f.name))}' for f in fields(value))})"
        )
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: {_text(value[k])}' for k in sorted(value))}}}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    assert value is None or isinstance(value, str | int | float | bool), f"{value!r} is no plain data"
    return repr(value)
