"""Small ONNX files that ask for absurd sizes: refused while they are recorded, before any memory is taken."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import wholestep as ws
from wholestep.errors import ShapeError, WholestepError
from wholestep.interop.onnx.read.sizes import LIMIT

HUGE = 2**32
ROOM = 2**32  # bytes of address space that a test may take on top of what the process has


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """An allocation of the sizes that the files ask for fails, and so does the test."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def node(op: str, *inputs: str, out: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [out], **attributes)


def ints(**named: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.int64) for name, value in named.items()}


def floats(**named: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float32) for name, value in named.items()}


def added(name: str, axes: str = "z") -> list[onnx.NodeProto]:
    """x + the sum of a value over its axes."""
    total = node("ReduceSum", name, axes, out="total", keepdims=0)
    return [total, node("Cast", "total", out="number", to=1), node("Add", "x", "number")]


def tiles(first: str, times: int) -> list[onnx.NodeProto]:
    """One Tile after the other, the last called `tiled`."""
    names = [first, *(f"t{i}" for i in range(times - 1)), "tiled"]
    return [node("Tile", a, "n", out=b) for a, b in pairwise(names)]


IMAGE = (1, 1, 4, 4)
RANGE = node("Range", "a", "b", "c", out="r")
MEL = node("MelWeightMatrix", "b", "d", "r", "l", "h", out="w")
Case = tuple[tuple[int, ...], list[onnx.NodeProto], dict[str, np.ndarray]]
CASES: dict[str, Case] = {
    "Range": ((2, 3), [RANGE, *added("r")], ints(a=0, b=HUGE, c=1, z=[0])),
    "Range of floats": ((2, 3), [RANGE, *added("r")], {**floats(a=0.0, b=1.0, c=1e-12), **ints(z=[0])}),
    "Tile": ((2, 3), [node("Tile", "x", "n")], ints(n=[1, HUGE])),
    "Tile, a chain": ((2, 3), [*tiles("x", 5), node("ReduceSum", "tiled", "z")], ints(n=[1, 1024], z=[1])),
    "Tile of a constant, a chain": ((2, 3), [*tiles("k", 5), *added("tiled")],
                                    {**ints(n=[1024], z=[0]), **floats(k=[1.0])}),
    "Expand": ((2, 3), [node("Expand", "x", "s")], ints(s=[HUGE, 1, 3])),
    "ConstantOfShape": ((2, 3), [node("ConstantOfShape", "s", out="c"), *added("c")], ints(s=[2**20, 2**20], z=[0, 1])),
    "Pad": ((2, 3), [node("Pad", "x", "p")], ints(p=[0, 0, 0, HUGE])),
    "Pad, edge": ((2, 3), [node("Pad", "x", "p", mode="edge")], ints(p=[0, 0, 0, HUGE])),
    "OneHot": ((2, 3), [node("Cast", "x", out="i", to=7), node("OneHot", "i", "d", "v")],
               {**ints(d=HUGE), **floats(v=[0, 1])}),
    "Resize, nearest": (IMAGE, [node("Resize", "x", "", "s")], floats(s=[1, 1, 2**30, 1])),
    "Resize, linear": (IMAGE, [node("Resize", "x", "", "s", mode="linear")], floats(s=[1, 1, 2**30, 1])),
    "Upsample": (IMAGE, [node("Upsample", "x", "s")], floats(s=[1, 1, 2**30, 1])),
    "HannWindow": ((2, 3), [node("HannWindow", "n", out="w"), *added("w")], ints(n=HUGE, z=[0])),
    "MelWeightMatrix": ((2, 3), [MEL, *added("w")],
                        {**ints(b=2**20, d=2**30, r=16000, z=[0, 1]), **floats(l=0.0, h=8e3)}),
    "AffineGrid": ((1, 2, 3), [node("AffineGrid", "x", "s")], ints(s=[1, 1, 2**16, 2**16])),
    "Col2Im": ((1, 1, 4), [node("Col2Im", "x", "i", "b")], ints(i=[2**17, 2**17], b=[1, 1])),
    "AveragePool, margins": (IMAGE, [node("AveragePool", "x", kernel_shape=[3, 3], pads=[0, 0, 2**31, 2**31])], {}),
    "MaxPool, a window": (IMAGE, [node("MaxPool", "x", kernel_shape=[2**20, 2**20], pads=[2**20] * 4)], {}),
    "EyeLike": ((2, 3), [node("Expand", "k", "s", out="e"), node("EyeLike", "e", out="i"), *added("i")],
                {**floats(k=[[1.0]]), **ints(s=[2**20, 2**20], z=[0, 1])}),
    "DFT": ((1, 8, 1), [node("DFT", "x", "n")], ints(n=HUGE)),
}  # fmt: skip


def written(path: Path, case: Case) -> Path:
    shape, nodes, constants = case
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    opset = 18 if any(n.op_type == "DFT" for n in nodes) else 20
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), str(path))
    assert path.stat().st_size < 4096
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_file_that_asks_for_an_absurd_size_is_refused_by_our_error(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "net.onnx", CASES[name])
    x = np.zeros(CASES[name][0], np.float32)
    with pytest.raises(ShapeError, match=rf"ONNX .*takes [\d,]+ bytes; .* at most {LIMIT:,}"):
        ws.from_onnx(path).predict(x, device="reference")


OTHER: dict[str, Callable[[], Case]] = {
    "Range, no step": lambda: ((2, 3), [RANGE, *added("r")], ints(a=0, b=HUGE, c=0, z=[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_sizes_that_mean_nothing_are_refused_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(WholestepError, match="a step of 0"):
        ws.from_onnx(written(tmp_path / "net.onnx", OTHER[name]())).predict(np.zeros((2, 3), np.float32))


def test_large_values_below_the_limit_are_taken(tmp_path: Path) -> None:
    case = (2, 3), [node("Tile", "x", "n", out="t"), node("ReduceMax", "t", "z", keepdims=0)], ints(n=[1, 2**20], z=[1])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = ws.from_onnx(written(tmp_path / "net.onnx", case)).predict(x, device="reference")
    np.testing.assert_array_equal(found, [2.0, 5.0])
