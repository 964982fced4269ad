"""A target that lacks a dtype refuses a graph with it where the user wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.common.numpy_program import HostDevice
from wholestep.compiler.backends.reference.program import ReferenceProgram
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.devices import register, unregister
from wholestep.errors import DTypeError

HAS = ("bool", "float32", "int32")
NARROW = replace(REFERENCE, name="narrow", dtypes=dict.fromkeys(HAS, "float32") | {"bool": "bool", "int32": "int32"})


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    register("narrow", NARROW, lambda target: HostDevice(target, ReferenceProgram))
    yield
    unregister("narrow")


def graph(dtype: str = "float32", inside: Any = lambda x: x) -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 4), dtype=dtype), g.input("labels", ("batch",), dtype="int32")
    logits = inside(x) @ g.parameter("w", (4, 3), dtype=dtype)
    g.set_outputs([ws.losses.cross_entropy(logits, labels)])
    return g


def through_float64(x: ws.Tensor) -> ws.Tensor:
    return ws.cast(ws.cast(x, "float64") * 2.0, "float32")  # the line


def in_a_loop(x: ws.Tensor) -> ws.Tensor:
    carry, _ = ws.scan(lambda carry, row: (carry + through_float64(row), row), ws.zeros((3,)), ws.zeros((2, 3)))
    return x + carry.sum()


@pytest.mark.parametrize(
    ("made", "options", "text"),
    [
        (lambda: graph("float64"), {}, r"input 'x' is float64\[batch, 4\], and narrow has no float64: it has bool, "),
        (lambda: graph(inside=through_float64), {}, r"cast is float64.*\n  at .*test_dtypes\.py:\d+: return ws\.cast"),
        (lambda: graph(inside=in_a_loop), {}, r"cast is float64\[3\].*\n  at .*test_dtypes\.py:\d+: return ws\.cast"),
        (graph, {"precision": "bfloat16"}, r"has no bfloat16: it has bool, float32, int32\. Use one of these"),
    ],
)  # fmt: skip
def test_a_dtype_that_the_device_lacks_is_refused(made: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(DTypeError, match=re.compile(text, re.DOTALL)):
        ws.build_session(made(), optimizer=ws.SGD(lr=0.1), batch_size=8, device="narrow", **options)


def test_runtime_scalars_are_no_tensors_of_the_device() -> None:
    """They are float64 everywhere, and the host's."""
    session = ws.build_session(graph(), optimizer=ws.Adam(lr=0.1), batch_size=8, device="narrow", clip_norm=1.0)
    assert float(session.step(x=np.ones((8, 4), np.float32), labels=np.zeros(8, np.int32))) > 0


def test_dtypes_that_are_stored_need_not_be_computed_with() -> None:
    """On a CPU without products of half types these are how operands are stored."""
    session = ws.build_session(graph(), batch_size=8, device="null:cpu/portable", precision="float16")
    assert any("no products of float16" in note for note in session.plan.notes)
