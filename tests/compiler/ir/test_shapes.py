"""The position of an element of a reshape in its operand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wholestep.compiler.ir.shapes import Quotient, common_groups, reshape_quotients
from wholestep.compiler.ir.types import Dim

BATCH = Dim.symbol("batch")


def test_groups_of_a_group_norm() -> None:
    groups = common_groups((BATCH, 8, 256), (BATCH, 32, 8, 8))
    assert groups == [([(0, BATCH)], [(0, BATCH)]), ([(1, 8), (2, 256)], [(1, 32), (2, 8), (3, 8)])]
    assert reshape_quotients((BATCH, 8, 256), (BATCH, 32, 8, 8)) == [
        Quotient((0,), 1),
        Quotient((1, 2), 64),
        None,
        None,
    ]


def test_a_symbol_belongs_to_the_axes_that_hold_it() -> None:
    assert reshape_quotients((BATCH * 64, 3), (BATCH, 64, 3)) == [Quotient((0,), 64), None, Quotient((1,), 1)]
    assert reshape_quotients((3 * BATCH,), (3, BATCH)) == [None, None]  # a quotient by a symbol is no quotient of ours


def test_axes_of_size_one_are_nowhere() -> None:
    assert reshape_quotients((6, 1), (1, 2, 3)) == [Quotient((), 1), Quotient((0,), 3), None]


def test_shapes_without_groups() -> None:
    assert common_groups((8, 3), (12, 2)) is None
    assert reshape_quotients((2, 3), (2, 3, 2)) is None


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_quotients_say_where_elements_are(below: list[int], data: st.DataObject) -> None:
    count = int(np.prod(below))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(below)), max_size=len(below))) | {len(below)})
    starts = [0, *cuts[:-1]]
    shape = tuple(int(np.prod(below[a:b])) for a, b in zip(starts, cuts, strict=True))  # runs of axes merged
    found = reshape_quotients(shape, tuple(below))
    assert found is not None
    places = np.indices(below).reshape(len(below), count)
    above = np.indices(shape).reshape(len(shape), count)
    for d, quotient in enumerate(found):
        if quotient is not None:
            whole = np.zeros(count, int)
            for a in quotient.axes:
                whole = whole * shape[a] + above[a]
            np.testing.assert_array_equal(whole // quotient.over, places[d])
