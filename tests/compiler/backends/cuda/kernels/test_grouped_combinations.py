"""Depthwise and grouped convolutions: every pair of an axis, window, stride, dilation, group, dtype and batch size."""

from __future__ import annotations

import random
from itertools import combinations
from math import prod
from typing import Any

import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.kernels.test_graphs import together
from tests.compiler.backends.cuda.kernels.test_grouped_convolutions import (
    assert_the_interpreters_step,
    traced,
    windows_of,
)
from wholestep.compiler.pipeline import Compiler
from wholestep.options import CompileOptions

CAPACITY = 4
VALUES: dict[str, tuple[Any, ...]] = {
    "axes": (1, 2, 3),
    "window": (1, 2, 3, 5, 7, 12, 31),  # along the last axis
    "stride": (1, 2, 3),
    "dilation": (1, 2),
    "group": ((1, 1), (1, 2), (1, 3), (4, 4), (3, 2)),  # input and output channels of a group
    "groups": (5, 8),
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "rows": (1, CAPACITY),
}
SIDES = (3, 5, 40)  # sizes of the axes of an image, the last axis last
Row = tuple[Any, ...]
FEW, PARTS = 6, 4  # rows that are not long; parts of the others


def pairs_of(row: Row) -> set[tuple[int, Any, int, Any]]:
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def covering_rows() -> list[Row]:
    """Rows in which every pair of two values occurs, the row with most new pairs first."""
    rng, rows = random.Random(0), list[Row]()
    wanted = {(i, x, j, y) for (i, a), (j, b) in combinations(enumerate(VALUES.values()), 2) for x in a for y in b}
    while wanted:
        drawn = [tuple(map(rng.choice, VALUES.values())) for _ in range(50)]
        rows.append(max(drawn, key=lambda row: len(pairs_of(row) & wanted)))
        wanted -= pairs_of(rows[-1])
    return rows


def layer_of(row: Row) -> tuple[ws.nn.Module, tuple[int, ...], str, int]:
    """The layer, the shape of its input without the batch, dtype and rows."""
    axes, window, stride, dilation, (inputs, outputs), groups, dtype, rows = row
    windows = (*(min(window, 3),) * (axes - 1), window)
    options: dict[str, Any] = {
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "padding": tuple(w // 2 for w in windows),
    }
    kind: Any = (ws.nn.Conv1d, ws.nn.Conv2d, ws.nn.Conv3d)[axes - 1]
    size = windows if axes > 1 else window
    options["padding"] = options["padding"] if axes > 1 else window // 2
    stored = "float64" if dtype == "float64" else "float32"
    sides = [max(s, dilation * (w - 1) + 1) for s, w in zip(SIDES[-axes:], windows, strict=True)]
    layer = kind(groups * inputs, groups * outputs, size, dtype=stored, **options)
    return layer, (groups * inputs, *sides), dtype, rows


def check(rows: list[Row]) -> None:
    compiler, layers = Compiler(CompileOptions(egraph=False)), list(map(layer_of, rows))
    graphs = [traced(*layer[:3]) for layer in layers]
    plans = [compiler.plan(graph, {"batch": CAPACITY}, TARGET)[0] for graph in graphs]
    for row, (_, shape, dtype, count), graph, plan, emulated in zip(
        rows, layers, graphs, plans, together(plans), strict=True
    ):
        forms = set(windows_of(plan).values())
        assert forms <= {"grouped", "grouped gradient", "cudnn"}, row
        try:
            assert_the_interpreters_step(graph, emulated, shape, dtype, count)
        except AssertionError as error:
            raise AssertionError(f"{row}: {error}") from None


def test_the_rows_have_every_value() -> None:
    rows = covering_rows()
    assert prod(map(len, VALUES.values())) > 50 * len(rows) > 0
    for place, values in enumerate(VALUES.values()):
        assert {row[place] for row in rows} == set(values)


def test_some_combinations_are_the_interpreters() -> None:
    check(covering_rows()[:FEW])


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_combinations_are_the_interpreters(part: int) -> None:
    check(covering_rows()[FEW + part :: PARTS])
