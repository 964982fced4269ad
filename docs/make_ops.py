"""Writes docs/ops.md, which op runs on which device in which dtype: `python docs/make_ops.py`.

Every cell is tried: the example of the op in the tests is compiled in that dtype for that device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
for folder in (ROOT, ROOT / "tests", ROOT / "tests/compiler", ROOT / "tests/compiler/ir"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from test_types_of_ops import GOOD  # noqa: E402

from wholestep.compiler.backends.cpu.target import PORTABLE  # noqa: E402
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS  # noqa: E402
from wholestep.compiler.backends.gpu.render.source import render as render_cuda  # noqa: E402
from wholestep.compiler.backends.reference.target import REFERENCE  # noqa: E402
from wholestep.compiler.ir import attrs as at  # noqa: E402
from wholestep.compiler.ir.graph import IRGraph, Node, Output  # noqa: E402
from wholestep.compiler.ir.ops import OPS, Family  # noqa: E402
from wholestep.compiler.ir.types import (  # noqa: E402
    DTYPES,
    DType,
    TensorType,
    TupleType,
    boolean,
    float32,
    int32,
)
from wholestep.compiler.pipeline import Compiler  # noqa: E402
from wholestep.compiler.plan.model.kernel import Plan  # noqa: E402
from wholestep.compiler.target import Target  # noqa: E402
from wholestep.errors import WholestepError  # noqa: E402
from wholestep.options import CompileOptions  # noqa: E402

PAGE = Path(__file__).with_name("ops.md")
DEVICES: Mapping[str, Target] = {"cpu": PORTABLE, "cuda": GPUS["cuda/sm_90"], "reference": REFERENCE}
SIZES = {"batch": 6, "time": 5}
INTRODUCTION = """\
# Which op runs where
Every op of the [intermediate representation](architecture.md), by device and dtype. A cell lists the dtypes in which
the example of the op can be planned and, for a GPU, rendered. The type rule of the op refuses all others, with an
error that says which cast helps. `half` is bfloat16 and float16. Most composites, and ops that control gradients, are
decomposed before planning. `python docs/make_ops.py` writes this page by trying every cell; one test keeps it up to
date, and another compares the kernels of `cuda` with the interpreter.
"""
FAMILIES = {
    Family.LEAF: "Leaves",
    Family.POINTWISE: "Elementwise",
    Family.REDUCE: "Reductions",
    Family.MOVEMENT: "Movement",
    Family.INDEX: "Indices",
    Family.CONTRACTION: "Products",
    Family.WINDOW: "Windows",
    Family.RATIO: "Ratios",
    Family.COMPOSITE: "Composites",
    Family.CONTROL: "Control",
    Family.LOOP: "Loops",
    Family.COLLECTIVE: "Collectives",
}
WORDS = {  # the word of a cell -> its dtypes
    "all": tuple(DTYPES.values()),
    "numbers": tuple(d for d in DTYPES.values() if d != boolean),
    "floats": tuple(d for d in DTYPES.values() if d.is_float),
    "integers": tuple(d for d in DTYPES.values() if d.is_integer),
    "half": tuple(d for d in DTYPES.values() if d.is_half),
}
HOLDS_GRAPHS = (Family.CONTROL, Family.LOOP)  # their examples contain graphs, in float32
_Y = Node("input", (), at.InputAttrs("y", TensorType((3,), float32)))
_SUM = Node("sum", [Node("mul", [_Y, _Y], at.NONE)], at.SumAttrs((0,), float32))
OWN: Mapping[str, Node] = {  # replacements for examples of type rules that are not runnable graphs
    "gradient": Node(
        "gradient", [Node("sum", [Node("mul", [_Y, _Y], at.NONE)], at.SumAttrs((0,), float32)), _Y], at.NONE
    ),
    "item": Node("call", [_Y], GOOD["call"][0]),
}


# -- examples ----------------------------------------------------------------------------------------------------


def principal(types: Sequence[Any], attrs: Any) -> DType | None:
    """The dtype of an example; None if it has none."""
    found = {t.dtype for each in (*types, getattr(attrs, "type", None)) for t in _tensors(each)}
    return next((d for d in (float32, int32, boolean) if d in found), None)


def _tensors(type: Any) -> Iterator[TensorType]:
    if isinstance(type, TupleType):
        yield from type.items
    elif isinstance(type, TensorType):
        yield type


def _in_dtype(value: Any, old: DType, new: DType) -> Any:
    """The example with another dtype in place of the old one; accumulation dtypes are adapted."""
    if isinstance(value, TensorType):
        return TensorType(value.shape, new) if value.dtype == old else value
    if isinstance(value, DType):
        return new.accumulate if value == old else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _in_dtype(getattr(value, f.name), old, new) for f in fields(value)})
    return value


def example(op: str, dtype: DType) -> IRGraph | None:
    """A graph with one node of an op; None if its type rule refuses the dtype."""
    if OPS[op].family in HOLDS_GRAPHS and dtype != float32:
        return None
    if op in OWN:
        return _graph(op, OWN[op], [_Y])
    attrs, types, _ = GOOD[op]
    old = principal(types, attrs)
    if old is not None:
        attrs, types = _in_dtype(attrs, old, dtype), [_in_dtype(t, old, dtype) for t in types]
    elif dtype != float32:
        return None
    if isinstance(attrs, at.StateAttrs):  # a state has a fixed shape
        attrs = replace(attrs, type=TensorType((3, 4), attrs.type.dtype), name=op)
    try:
        leaves = [Node("input", (), at.InputAttrs(f"{op}{i}", t)) for i, t in enumerate(types)]
        if op == "attention_grad":  # its operands come from the attention
            leaves[3] = Node("attention_lse", leaves[:3], attrs)
        return _graph(op, Node(op, leaves, attrs), leaves)
    except WholestepError:
        return None


def _graph(op: str, node: Node, leaves: Sequence[Node]) -> IRGraph:
    several = isinstance(node.result, TupleType)
    made = [Node("item", [node], at.ItemAttrs(i)) for i in range(len(node.results))] if several else [node]
    inputs = tuple(n for n in (node, *leaves) if n.op == "input")
    return IRGraph(tuple(Output(f"{op}.{i}", n) for i, n in enumerate(made)), (), inputs)


def planned(graph: IRGraph, target: Target) -> Plan:
    """The plan of an example; a WholestepError if it cannot be planned."""
    return Compiler(CompileOptions(egraph=False, check_passes=False)).plan(graph, SIZES, target)[0]


# -- the page ----------------------------------------------------------------------------------------------------


def refusal(graph: IRGraph, target: Target) -> str:
    """Why it cannot be planned, or rendered for a GPU; "" if it can."""
    try:
        plan = planned(graph, target)
        if target.family == "cuda":
            render_cuda(plan)
    except WholestepError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def worded(dtypes: Sequence[DType]) -> str:
    """A cell: the dtypes, grouped under the most general words that apply."""
    left, found = set(dtypes), []
    for word, meant in WORDS.items():
        if left.issuperset(meant):
            found.append(word)
            left -= set(meant)
    return ", ".join([*found, *(d.name for d in DTYPES.values() if d in left)]) or "no"


def row(op: str) -> str:
    """One line of the table."""
    cells = []
    graphs = {d: g for d in DTYPES.values() if (g := example(op, d)) is not None}
    for target in DEVICES.values():
        tried = {d: refusal(graph, target) for d, graph in graphs.items()}
        good = [d for d, text in tried.items() if not text]
        refused = sorted({text for text in tried.values() if text})
        cell = "yes" if OPS[op].family in HOLDS_GRAPHS and good else worded(good)
        cells.append(f"{cell}; else {'; '.join(refused)}" if refused else cell)
    return f"| `{op}` | {' | '.join(cells)} |"


def render() -> str:
    """The text of docs/ops.md."""
    lines = [INTRODUCTION]
    for family, title in FAMILIES.items():
        lines += [f"## {title}", f"| op | {' | '.join(DEVICES)} |", "|---" * (len(DEVICES) + 1) + "|"]
        lines += [*(row(op) for op in OPS if OPS[op].family is family), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render())
