"""Verifies the instructions of a plan file: known ops, operands defined before their use, dtypes that the op accepts.

Code generation relies on it: only names from our tables reach the generated source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import isfinite

from wholestep.compiler.ir.attrs import NONE, CastAttrs
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import DType, TensorType, boolean
from wholestep.compiler.plan.model.bodies import Columns, Dot, Window
from wholestep.compiler.plan.model.kernel import HostValue, Index, Instr, Kernel, Kind, Level, Plan
from wholestep.errors import WholestepError

Need = Callable[[bool, str], None]

POINTWISE = frozenset(name for name, op in OPS.items() if op.family is Family.POINTWISE)
COMPOSITES = frozenset({"relu", "sigmoid", "tanh"})  # composites that renderers emit as one instruction
COMPUTED = POINTWISE | COMPOSITES  # ops of instructions in kernels
HOSTED = COMPUTED | {"ratio"}  # ops of the scalar prologue
SOURCES = frozenset({"load", "const", "scalar", "index", "random", "acc", "position"})
REDUCTIONS = frozenset(name for name, op in OPS.items() if op.family is Family.REDUCE)
KEYS = 1 << 64  # bound of the keys of random numbers: 64 bits


@lru_cache(maxsize=1024)
def _result(op: str, args: tuple[DType, ...], to: DType) -> DType | None:
    """The result dtype of an op; None if it does not accept these operands."""
    if len(args) != OPS[op].arity:
        return None
    try:
        type = OPS[op].infer(tuple(TensorType((), d) for d in args), CastAttrs(to) if op == "cast" else NONE)
    except WholestepError:
        return None
    assert isinstance(type, TensorType)
    return type.dtype


def check_values(plan: Plan, kernel: Kernel, need: Need) -> None:
    """Check every instruction, store and reduction of a kernel."""
    where, dtypes = f"kernel {kernel.id}", {}
    instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
    reduces = [r for level in kernel.levels for r in level.reduces]
    ids = [*(i.id for i in instrs), *(r.id for r in reduces)]
    need(len(set(ids)) == len(ids) and min(ids, default=0) >= 0, f"ids of the values of {where} are unique")
    dtypes.update({i.id: i.dtype for i in instrs} | {r.id: r.dtype for r in reduces})
    _check_scope(kernel, need)
    for n, (level, axes) in enumerate(zip(kernel.levels, kernel.body.level_axes(), strict=True)):
        for instr, around in [*((i, kernel.rows) for i in level.row), *((i, axes) for i in level.body)]:
            _check_instr(plan, kernel, n, instr, dtypes, around, need)
        stores = (*level.row_stores, *level.stores, *level.sums)
        need(len(set(stores)) == len(stores), f"{where} has no duplicate store")
        for store, around in [
            *((s, kernel.rows) for s in level.row_stores),
            *((s, axes) for s in (*level.stores, *level.sums)),
        ]:
            need(
                _in_axes(store.load.index, around),
                f"{where} stores only at indices over the loops that enclose the store",
            )
        for s in level.sums:
            axes_of_sum = [i.plain for i in s.load.index]
            need(
                kernel.kind is Kind.NEST and axes_of_sum == [None, kernel.vector],
                f"{where} stores partial sums as (part, column) in a nest",
            )
        for r in level.reduces:
            dtype = dtypes.get(r.value)
            need(
                r.op in REDUCTIONS and dtype not in (None, boolean),
                f"{where} reduces numeric values by sum, max or argmax",
            )
            need(
                r.dtype.is_integer if r.op == "argmax" else r.dtype == dtype,
                f"the {r.op} of {where} has its result dtype",
            )


def _check_scope(kernel: Kernel, need: Need) -> None:
    """A value must be computed before it is used, at the same level or once for its row."""
    rule = f"kernel {kernel.id} uses a value only after its definition"
    nest = kernel.kind is Kind.NEST
    anywhere = {i.id for v in kernel.levels for i in (*v.row, *v.body) if i.op in ("const", "scalar")}
    outer = set(anywhere)
    for level in kernel.levels:
        need(
            nest or not (level.row or level.row_stores),
            f"kernel {kernel.id} has instructions per row only if it is a nest",
        )
        need(kernel.vector is not None or not (level.body or level.stores or level.reduces), rule)
        for instr in level.row:
            need(outer.issuperset(operands_of(instr)), rule)
            outer.add(instr.id)
        need(outer.issuperset(_stored_values(level, rows=True)), rule)
        inner = set(outer)
        for instr in level.body:
            need(inner.issuperset(operands_of(instr)), rule)
            inner.add(instr.id)
        need(inner.issuperset([*_stored_values(level, rows=False), *(r.value for r in level.reduces)]), rule)
        outer = (outer if nest else set(anywhere)) | {r.id for r in level.reduces}


def operands_of(instr: Instr) -> list[int]:
    """The values that an instruction reads."""
    indices = instr.load.index if instr.load else ()
    fill = () if instr.fill is None else (instr.fill,)
    return [*instr.args, *fill, *(i.value for i in indices if i.value is not None)]


def _stored_values(level: Level, rows: bool) -> list[int]:
    stores = level.row_stores if rows else (*level.stores, *level.sums)
    return [*(s.value for s in stores), *(i.value for s in stores for i in s.load.index if i.value is not None)]


def _in_axes(indices: Iterable[Index], axes: Sequence[int]) -> bool:
    return all(a in axes for i in indices for a, _ in i.terms)


def _check_instr(
    plan: Plan, kernel: Kernel, level: int, i: Instr, dtypes: dict[int, DType], axes: Sequence[int], need: Need
) -> None:
    where = f"value {i.id} of kernel {kernel.id}"
    need(i.op in COMPUTED or i.op in SOURCES, f"{where} has a known op; received {i.op!r}")
    need((i.load is not None) == (i.op == "load"), f"{where} has an address exactly if it is a load")
    need(
        not i.guards or (i.op == "load" and i.fill is not None),
        f"{where} has guards only if it is a load with a fill value",
    )
    indices = [*(g.index for g in i.guards), *(() if i.index is None else (i.index,))]
    need(all(index.value is None and index.over >= 1 for index in indices), f"{where} has affine guards and indices")
    need(
        _in_axes([*indices, *(i.load.index if i.load else ())], axes),
        f"{where} uses only indices over the loops that enclose it",
    )
    if i.op in COMPUTED:
        args = tuple(dtypes[a] for a in i.args)
        need(_result(i.op, args, i.dtype) == i.dtype, f"{where}: {i.op} of {', '.join(map(str, args))} is {i.dtype}")
        return
    need(not i.args, f"{where}: {i.op} has no operands")
    if i.op == "load":
        assert i.load is not None
        need(plan.buffers[i.load.buffer].type.dtype == i.dtype, f"{where} has the dtype of its buffer")
        need(i.fill is None or dtypes[i.fill] == i.dtype, f"{where} has a fill value of its dtype")
    elif i.op == "const":
        need(i.dtype.is_float or is_integral(i.const, i.dtype), f"{where} is a constant that {i.dtype} can represent")
    elif i.op == "index":
        need(i.index is not None and i.dtype.is_integer, f"{where} is an index of integer dtype")
    elif i.op == "random":
        need(
            i.index is not None and i.dtype.is_float and 0 <= i.key < KEYS,
            f"{where} is a random number of floating dtype with a 64-bit key",
        )
    elif i.op in ("acc", "position"):
        need(_has_source(kernel, level, i.op), f"{where} is the result of a product or a window")


def _has_source(kernel: Kernel, level: int, op: str) -> bool:
    body = kernel.body
    if not isinstance(body, Window):
        return isinstance(body, Dot) and level == 0 and op == "acc"
    if op == "acc":
        return True
    return level == 1 if body.pooled is not None else body.op in ("max_pool2d", "max_pool2d_index")


def is_integral(value: float, dtype: DType) -> bool:
    """Can an integer dtype represent the value?"""
    if not isfinite(value):
        return False
    import numpy as np

    low, high = (0, 1) if dtype == boolean else (int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max))
    return low <= int(value) <= high


def check_host(value: HostValue, need: Need) -> None:
    """Check one instruction of the scalar prologue."""
    where = f"host value {value.id}"
    if value.op in ("const", "scalar", "size"):
        need(not value.args, f"{where}: {value.op} has no operands")
        return
    need(value.op in HOSTED, f"{where} has a known op; received {value.op!r}")
    need(len(value.args) == OPS[value.op].arity, f"{where}: {value.op} has {OPS[value.op].arity} operands")
    need(value.op != "cast" or value.dtype is not None, f"{where} casts to a dtype")


def check_shape_of_kind(kernel: Kernel, need: Need) -> None:
    """Check that a kernel has the axes and levels of its kind."""
    where = f"kernel {kernel.id}"
    reduced = kernel.body.reduced if isinstance(kernel.body, Columns) else None
    inner = [a for a in (kernel.vector, reduced) if a is not None]
    if kernel.kind in (Kind.NEST, Kind.COLUMNS):
        loops = [*kernel.rows, *inner]
        need(sorted(loops) == list(range(len(kernel.axes))), f"{where} loops over each of its axes once")
    levels = len(kernel.levels)
    need(
        levels == 2 if kernel.kind is Kind.COLUMNS else kernel.kind is not Kind.NEST or levels >= 1,
        f"{where} has the number of levels of its kind",
    )
    with_sums = {Kind.NEST: range(levels), Kind.COLUMNS: range(1), Kind.DOT: range(1, 2)}.get(kernel.kind, range(0))
    for n, level in enumerate(kernel.levels):
        need(not level.reduces or n in with_sums, f"{where} reduces only at levels that allow it")
        sums_alone = n in with_sums and kernel.kind is not Kind.NEST
        need(not (sums_alone and level.stores), f"{where} stores only after its sums")
