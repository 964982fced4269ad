from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS, state_layout
from wholestep.compiler.ir.types import Dim, TensorType, float32, int32
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit
from wholestep.compiler.plan.model.kernel import Layout
from wholestep.compiler.plan.model.layout import layout_bytes, pack, unpack


@pytest.mark.parametrize("shape", [(3, 16), (5, 10), (1, 33), (2, 4, 17), (0, 20)])
@pytest.mark.parametrize("layout", [Layout.ROWS, PANELS])
def test_unpack_is_the_inverse_of_pack(shape: tuple[int, ...], layout: Layout) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(unpack(pack(array, layout), shape, layout), array)


def test_panels_are_sixteen_columns_wide_and_padded_with_zeros() -> None:
    array = np.arange(1, 37, dtype=np.float32).reshape(2, 18)
    panels = pack(array, PANELS).reshape(2, 2, 16)
    np.testing.assert_array_equal(panels[0], array[:, :16])
    np.testing.assert_array_equal(panels[1, :, :2], array[:, 16:])
    assert not panels[1, :, 2:].any()


@pytest.mark.parametrize("layout", [Layout.ROWS, PANELS])
def test_unpack_returns_a_copy(layout: Layout) -> None:
    flat = np.zeros(32, np.float32)
    unpack(flat, (2, 16), layout)[:] = 1
    assert not flat.any()


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4, 8), float32, PANELS),
        ((4, 7), float32, Layout.ROWS),
        ((64,), float32, Layout.ROWS),
        ((2, 4, 64), float32, Layout.ROWS),
        ((4, 64), int32, Layout.ROWS),
        ((4, Dim.symbol("n")), float32, Layout.ROWS),
    ],
)
def test_the_layout_of_a_state(shape, dtype, expected) -> None:
    assert state_layout(TensorType(shape, dtype)) == expected


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 9)), max_size=9))
def test_buffers_that_are_alive_at_one_moment_share_no_byte(spans: list[tuple[int, int, int]]) -> None:
    """Both ends belong to a lifetime: a kernel writes one buffer while it reads the last elements of another."""
    lifetimes = [Lifetime(first, first + length, size) for first, length, size in spans]
    starts, total = first_fit(lifetimes)
    for moment in range(10):
        alive = [(at, at + x.bytes) for at, x in zip(starts, lifetimes, strict=True) if x.first <= moment <= x.last]
        taken = [byte for begin, end in alive for byte in range(begin, end)]
        assert len(taken) == len(set(taken))
        assert max(taken, default=0) <= total


def test_bytes_are_whole_cache_lines_with_padding() -> None:
    batch = Dim.symbol("batch")
    assert layout_bytes(TensorType((batch, 10), float32), Layout.ROWS, {"batch": 13}) == 576  # 520 rounded up
    assert layout_bytes(TensorType((128, 10), float32), PANELS, {}) == 128 * 16 * 4
