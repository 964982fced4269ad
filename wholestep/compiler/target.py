"""The target description that plans are compiled for: plain data, importable without the device, part of cache keys.

A target lists the dtypes of a device, the composites that it has kernels for, its additional passes, its fusion rules,
its memory sizes and its costs.  Invariant: the compiler reads nothing else about a device; everything that is not a
field of the target is internal to its backend.
"""

from __future__ import annotations

import hashlib
import importlib
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
    from wholestep.compiler.plan.model.kernel import Plan


@dataclass(frozen=True)
class CostTable:
    """Costs in nanoseconds on one target; the e-graph's extraction minimises them."""

    origin: str  # how the costs were obtained: measured, or estimated from which table
    operation: float  # one addition per element, vectorised
    byte: float  # one byte to or from memory
    product: float  # one multiply-add of a contraction
    pass_over: float  # starting a reduction, a contraction or a lookup
    scalar: float  # one operation of the scalar prologue
    view: float  # one view: it costs no time, but fewer views are easier to read

    weights: Mapping[str, float] = field(hash=False)  # op that costs more than an addition -> its cost in additions
    half_product: float = 0.0  # one multiply-add of half-precision operands; 0: the same as `product`
    tf32_product: float = 0.0  # one multiply-add of float32 operands rounded to tf32; 0: the same as `product`

    def product_of(self, dtype: DType) -> float:
        """The cost of one multiply-add of a contraction with operands of this dtype."""
        return (self.half_product if dtype.is_half else 0.0) or self.product

    def in_tf32(self) -> CostTable:
        """The table for products of float32 operands computed in tf32."""
        return replace(self, product=self.tf32_product or self.product)


def read_costs(path: Path) -> CostTable:
    """The cost table in a file; OptionError if there is none."""
    if not path.is_file():
        raise OptionError(
            f"there is no cost table {path}, which the compiler needs to plan for its target. Measure one "
            "(python -m benchmarks.calibrate) or use that of another target: costs=read_costs(...)."
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    return CostTable(**{**values, "weights": MappingProxyType(values["weights"])})


@dataclass(frozen=True)
class OwnPass:
    """A pass of a target, named by its import path "package.module:function" so that the record stays plain data."""

    path: str
    takes_target: bool = False  # is the pass called as (graph, target) instead of (graph)?
    needed: bool = False  # does the planner rely on its result?  A pass that it does not rely on is skipped if it fails


@dataclass(frozen=True)
class Lowering:
    """The target's own passes, by their position among the common passes."""

    windows: tuple[OwnPass, ...] = ()  # over convolutions and pools, before reductions are split into single axes
    primitives: tuple[OwnPass, ...] = ()  # last passes, over primitives


@dataclass(frozen=True)
class Fusion:
    """The fusion rules of a target."""

    dot_epilogues: bool = True  # fuse pointwise ops after a contraction into its kernel?
    # (dtype of the operands, flops from which on a contraction has no epilogue)
    plain_products: tuple[tuple[str, int], ...] = ()
    sums_in_dots: bool = True  # fuse column sums of a contraction's right operand into its kernel?
    # Fuse a pool into the convolution before it?  A string names a function of both nodes, "package.module:function";
    # "package.module:function:text" calls it with that text as a last argument, such as the name of the target.
    pools_in_convolutions: bool | str = True
    # Fuse pointwise ops into the convolution before them?  A string names a function, as above.
    convolution_epilogues: bool | str = True
    partial_sums: bool = False  # two-stage column sums: kernels over rows store partial sums, small kernels add them
    most_buffers: int = 16  # buffers that one loop reads and writes
    most_operands: int | None = None  # operands of a kernel over rows; None: no limit
    most_sums: int = 8  # column sums that one loop computes
    least_columns: int = 64  # columns of a contraction that also computes sums: threads partition these columns


@dataclass(frozen=True)
class Limits:
    """Sizes of a target that passes or its planner read; in bytes unless a field says otherwise."""

    threads: int = 1  # threads that plans are priced for; a plan runs on any number
    batch_parts: int = (
        1  # number of partial sums over the batch of a weight's gradient; fixed, since it determines the bits
    )
    nearest_cache: int = 32 << 10  # bytes of the cache (or shared memory) of one core (or block)
    cache: int = 1 << 20  # bytes of the next larger cache
    caches: int = 4 << 20  # all caches together: a working set above this is bound by memory bandwidth
    widest_head: int | None = None  # most bytes per row of a head in the attention routine; None: no limit
    largest_buffer: int | None = None  # largest buffer that a kernel can address; None: no limit


@dataclass(frozen=True)
class Target:
    """The description that plans are compiled for.  Two targets that differ in any field have different keys."""

    name: str  # family/kind: "cpu/portable", "cuda/sm_90"
    dtypes: Mapping[str, str] = field(hash=False)  # dtype of operands -> dtype of accumulation
    composites: frozenset[str]  # composites with kernels of their own; all others are decomposed
    costs: CostTable
    stored: frozenset[str] = frozenset()  # storage-only dtypes: the target's passes widen them before computing
    # The function that plans for it, "package.module:function".
    planner: str = "wholestep.compiler.plan.memory.sequential_schedule:make_plan"
    # The function that finds kernels whose schedule is slow for their work, "package.module:function": plan -> kernel
    # id -> why.  "": the target has no such estimate.
    advice: str = ""
    blocks_columns: bool = False  # are matrices among states and products stored in blocks of columns, not in rows?
    lowering: Lowering = Lowering()
    fusion: Fusion = Fusion()
    limits: Limits = Limits()

    @cached_property
    def key(self) -> str:
        """The name and a digest of every field: the key of the target in caches."""
        return f"{self.name} {hashlib.sha256(_text(self).encode()).hexdigest()[:16]}"

    @property
    def family(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    def slow_kernels(self, plan: Plan) -> Mapping[int, str]:
        """Kernel id -> why its schedule takes several times the price of its work."""
        if not self.advice:
            return {}
        module, _, name = self.advice.partition(":")
        reasons: Mapping[int, str] = getattr(importlib.import_module(module), name)(plan)
        return reasons

    def __str__(self) -> str:
        return self.name


# Family of targets -> its targets by name, or the module that defines them as TARGETS, imported on first use.
FAMILIES: dict[str, str | Mapping[str, Target]] = {
    "cpu": "wholestep.compiler.backends.cpu.target",
    "cuda": "wholestep.compiler.backends.cuda.target",
    "reference": "wholestep.compiler.backends.reference.target",
}


def targets_of(family: str) -> Mapping[str, Target]:
    """The targets of a family, by name."""
    entry = FAMILIES[family]
    if isinstance(entry, str):
        targets: Mapping[str, Target] = importlib.import_module(entry).TARGETS
        return targets
    return entry


def _text(value: object) -> str:
    """A canonical text of plain data, the same in every process."""
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
    assert value is None or isinstance(value, str | int | float | bool), f"{value!r} is not plain data"
    return repr(value)
