"""Is what a plan computes made of known instructions, each over values that are there, in dtypes that it takes?

The text of every instruction in C follows from this: a name that is no row of a table never gets there.
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
COMPOSITES = frozenset({"relu", "sigmoid", "tanh"})  # that have a text of their own
COMPUTED = POINTWISE | COMPOSITES  # ops of instructions
HOSTED = COMPUTED | {"ratio"}  # and of the scalar prologue
SOURCES = frozenset({"load", "const", "scalar", "index", "random", "acc", "position"})
REDUCTIONS = frozenset(name for name, op in OPS.items() if op.family is Family.REDUCE)
KEYS = 1 << 64


@lru_cache(maxsize=1024)
def _result(op: str, args: tuple[DType, ...], to: DType) -> DType | None:
    """The dtype that an op gives; None where it does not take these."""
    if len(args) != OPS[op].arity:
        return None
    try:
        found = OPS[op].infer(tuple(TensorType((), d) for d in args), CastAttrs(to) if op == "cast" else NONE)
    except WholestepError:
        return None
    assert isinstance(found, TensorType)
    return found.dtype


def check_values(plan: Plan, kernel: Kernel, need: Need) -> None:
    """Every instruction of a kernel."""
    where, dtypes = f"kernel {kernel.id}", {}
    instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
    reduces = [r for level in kernel.levels for r in level.reduces]
    ids = [*(i.id for i in instrs), *(r.id for r in reduces)]
    need(len(set(ids)) == len(ids) and min(ids, default=0) >= 0, f"the values of {where} have numbers of their own")
    dtypes.update({i.id: i.dtype for i in instrs} | {r.id: r.dtype for r in reduces})
    _check_scope(kernel, need)
    for n, (level, axes) in enumerate(zip(kernel.levels, kernel.body.level_axes(), strict=True)):
        for instr, around in [*((i, kernel.rows) for i in level.row), *((i, axes) for i in level.body)]:
            _check_instr(plan, kernel, n, instr, dtypes, around, need)
        stores = (*level.row_stores, *level.stores, *level.sums)
        need(len(set(stores)) == len(stores), f"{where} stores a value in a place once")
        for store, around in [
            *((s, kernel.rows) for s in level.row_stores),
            *((s, axes) for s in (*level.stores, *level.sums)),
        ]:
            need(_in_axes(store.load.index, around), f"{where} stores along the axes that it loops over")
        for s in level.sums:
            place = [i.plain for i in s.load.index]
            need(kernel.kind is Kind.NEST and place == [None, kernel.vector], f"{where} leaves parts of sums of rows")
        for r in level.reduces:
            of = dtypes.get(r.value)
            need(r.op in REDUCTIONS and of not in (None, boolean), f"{where} reduces by sum, max or argmax of numbers")
            need(r.dtype.is_integer if r.op == "argmax" else r.dtype == of, f"{where} gives {r.op} its dtype")


def _check_scope(kernel: Kernel, need: Need) -> None:
    """A value is computed before it is used, at the same level or once for its row."""
    rule = f"kernel {kernel.id} uses values that are there"
    nest = kernel.kind is Kind.NEST
    anywhere = {i.id for v in kernel.levels for i in (*v.row, *v.body) if i.op in ("const", "scalar")}
    outer = set(anywhere)
    for level in kernel.levels:
        need(nest or not (level.row or level.row_stores), f"kernel {kernel.id} computes rows in a nest alone")
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
    places = instr.load.index if instr.load else ()
    fill = () if instr.fill is None else (instr.fill,)
    return [*instr.args, *fill, *(i.value for i in places if i.value is not None)]


def _stored_values(level: Level, rows: bool) -> list[int]:
    stores = level.row_stores if rows else (*level.stores, *level.sums)
    return [*(s.value for s in stores), *(i.value for s in stores for i in s.load.index if i.value is not None)]


def _in_axes(indices: Iterable[Index], axes: Sequence[int]) -> bool:
    return all(a in axes for i in indices for a, _ in i.terms)


def _check_instr(
    plan: Plan, kernel: Kernel, level: int, i: Instr, dtypes: dict[int, DType], axes: Sequence[int], need: Need
) -> None:
    where = f"value {i.id} of kernel {kernel.id}"
    need(i.op in COMPUTED or i.op in SOURCES, f"{where} is an instruction; received {i.op!r}")
    need((i.load is not None) == (i.op == "load"), f"{where} has a place in memory if it is a load")
    need(not i.guards or (i.op == "load" and i.fill is not None), f"{where} has conditions, and a value without them")
    places = [*(g.index for g in i.guards), *(() if i.index is None else (i.index,))]
    need(all(p.value is None and p.over >= 1 for p in places), f"{where} has indices of axes")
    need(_in_axes([*places, *(i.load.index if i.load else ())], axes), f"{where} moves along the axes looped over")
    if i.op in COMPUTED:
        args = tuple(dtypes[a] for a in i.args)
        need(_result(i.op, args, i.dtype) == i.dtype, f"{where}: {i.op} of {', '.join(map(str, args))} is {i.dtype}")
        return
    need(not i.args, f"{where}: {i.op} takes no values")
    if i.op == "load":
        assert i.load is not None
        need(plan.buffers[i.load.buffer].type.dtype == i.dtype, f"{where} has the dtype of its buffer")
        need(i.fill is None or dtypes[i.fill] == i.dtype, f"{where} is filled with its dtype")
    elif i.op == "const":
        need(i.dtype.is_float or is_integral(i.const, i.dtype), f"{where} is a number of {i.dtype}")
    elif i.op == "index":
        need(i.index is not None and i.dtype.is_integer, f"{where} is an integer")
    elif i.op == "random":
        need(i.index is not None and i.dtype.is_float and 0 <= i.key < KEYS, f"{where} is a random number")
    elif i.op in ("acc", "position"):
        need(_has_source(kernel, level, i.op), f"{where} is what a product or a window gives")


def _has_source(kernel: Kernel, level: int, op: str) -> bool:
    body = kernel.body
    if not isinstance(body, Window):
        return isinstance(body, Dot) and level == 0 and op == "acc"
    if op == "acc":
        return True
    return level == 1 if body.pooled is not None else body.op in ("max_pool2d", "max_pool2d_index")


def is_integral(value: float, dtype: DType) -> bool:
    """Is it a number that an integer dtype holds?"""
    if not isfinite(value):
        return False
    import numpy as np

    low, high = (0, 1) if dtype == boolean else (int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max))
    return low <= int(value) <= high


def check_host(value: HostValue, need: Need) -> None:
    """One instruction of the scalar prologue."""
    where = f"host value {value.id}"
    if value.op in ("const", "scalar", "size"):
        need(not value.args, f"{where}: {value.op} takes no values")
        return
    need(value.op in HOSTED, f"{where} is an instruction; received {value.op!r}")
    need(len(value.args) == OPS[value.op].arity, f"{where}: {value.op} takes {OPS[value.op].arity} values")
    need(value.op != "cast" or value.dtype is not None, f"{where} is cast to a dtype")


def check_shape_of_kind(kernel: Kernel, need: Need) -> None:
    """A kernel has the levels of its kind."""
    where = f"kernel {kernel.id}"
    reduced = kernel.body.reduced if isinstance(kernel.body, Columns) else None
    inner = [a for a in (kernel.vector, reduced) if a is not None]
    if kernel.kind in (Kind.NEST, Kind.COLUMNS):
        whole = [*kernel.rows, *inner]
        need(sorted(whole) == list(range(len(kernel.axes))), f"{where} loops over each of its axes once")
    levels = len(kernel.levels)
    need(
        levels == 2 if kernel.kind is Kind.COLUMNS else kernel.kind is not Kind.NEST or levels >= 1,
        f"{where} has levels",
    )
    with_sums = {Kind.NEST: range(levels), Kind.COLUMNS: range(1), Kind.DOT: range(1, 2)}.get(kernel.kind, range(0))
    for n, level in enumerate(kernel.levels):
        need(not level.reduces or n in with_sums, f"{where} reduces where it can")
        sums_alone = n in with_sums and kernel.kind is not Kind.NEST
        need(not (sums_alone and level.stores), f"{where} stores what follows its sums")
