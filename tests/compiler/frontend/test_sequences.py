"""split, flip, cumsum, rotary: what they record, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wholestep as ws
from wholestep.errors import DTypeError, OptionError, ShapeError, WholestepError


def leaf(*shape: int | str, dtype: str = "float32") -> ws.Tensor:
    return ws.Graph().input("x", shape, dtype)


def test_pieces_of_a_split() -> None:
    assert [p.shape for p in ws.split(leaf(2, 7), 3, 1)] == [(2, 3), (2, 3), (2, 1)]
    assert [p.shape for p in ws.split(leaf(5, 7), [1, 4])] == [(1, 7), (4, 7)]
    assert all(p.node.op == "slice" for p in ws.split(leaf(4, 7), 2))


def test_shapes_and_dtypes_are_kept() -> None:
    x = leaf("batch", 3, 4)
    for y in (ws.flip(x, (0, 2)), ws.cumsum(x, 1), ws.rotary(x), ws.rotary(x, interleaved=True)):
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert ws.cumsum(leaf(5, dtype="int32")).dtype == ws.int32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ws.split(leaf("batch", 3), 1), ShapeError, "is symbolic; split an axis of fixed size"),
        (lambda: ws.split(leaf(4), 0), OptionError, "a piece must be at least 1; received 0"),
        (lambda: ws.split(leaf(4), [1, 2]), ShapeError, r"sizes must add up to 4, .* received \[1, 2\]"),
        (lambda: ws.split(leaf(4), 2, 1), ShapeError, r"split: axis 1 does not exist in shape \(4,\)"),
        (lambda: ws.flip(leaf(4), 1), ShapeError, "flip: axis 1 does not exist"),
        (lambda: ws.cumsum(leaf(4), -2), ShapeError, "cumsum: axis -2 does not exist"),
        (lambda: ws.rotary(leaf(4)), ShapeError, r"floats of shape \(..., time, d\)"),
        (lambda: ws.rotary(leaf(4, 4, dtype="int32")), DTypeError, "rotary needs floats"),
        (lambda: ws.rotary(leaf(4, 5)), ShapeError, r"the last axis must be even; received \(4, 5\)"),
    ],
)
def test_errors_teach(call: Callable[[], object], error: type[WholestepError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert "test_sequences.py" in str(caught.value)
