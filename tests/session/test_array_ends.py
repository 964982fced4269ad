"""Arrays are read to their end and no further: each input ends where memory cannot be read."""

from __future__ import annotations

import ctypes
import functools
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import QUICK

Array = np.ndarray[Any, Any]
Case = tuple[dict[str, tuple[Any, ...]], Callable[..., Any], dict[str, tuple[int, ...]]]
ROWS = 3
CLASSES = 9


def before_the_end(array: Array, keep: list[mmap.mmap]) -> Array:
    """A copy whose last byte is the last before a page that cannot be read."""
    room = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    keep.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + room), mmap.PAGESIZE, 0) == 0
    copy = np.frombuffer(memory, np.uint8, array.nbytes, room - array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _last(x: Any) -> Any:
    """Channels second, of images that have them last."""
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def convolutions() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for c in (3, 9, 20):
        for k, stride in ((1, 1), (3, 2)):
            found[f"depthwise of {c}, {k} x {k}"] = (
                {"x": ("batch", 7, 7, c)},
                lambda x, w, c=c, stride=stride: ws.conv2d(_last(x), w, groups=c, stride=stride),
                {"w": (c, 1, k, k)},
            )
        found[f"depthwise of {c} and a pool"] = (
            {"x": ("batch", 7, 6, c)},
            lambda x, w, c=c: ws.max_pool2d(ws.conv2d(_last(x), w, groups=c), 2),
            {"w": (c, 1, 2, 2)},
        )
        found[f"depthwise of {c} over time"] = (
            {"x": ("batch", 7, c)},
            lambda x, w, c=c: ws.conv1d(_last(x), w, groups=c),
            {"w": (c, 1, 3)},
        )
        found[f"plain of {c}"] = (
            {"x": ("batch", 6, 7, c), "y": ("batch", c, 6, 7)},
            lambda x, y, w: ws.conv2d(_last(x), w) + ws.conv2d(y, w),
            {"w": (19, c, 3, 3)},
        )
        found[f"grouped of {c}"] = (
            {"x": ("batch", 5, 6, 2 * c)},
            lambda x, w: ws.conv2d(_last(x), w, groups=2),
            {"w": (6, c, 2, 2)},
        )
        found[f"pool of {c}"] = (
            {"x": ("batch", 5, 6, c)},
            lambda x, w: ws.max_pool2d(_last(x), 2) * w,
            {"w": (c, 1, 1)},
        )
    return found


def rows() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for n in (1, 3, 17):
        each: dict[str, Case] = {
            "x w": ({"x": ("batch", n)}, lambda x, w: x @ w, {"w": (n, 5)}),
            "x turned": ({"x": ("batch", n)}, lambda x, w: x.T @ (x @ w), {"w": (n, n)}),
            "x y": ({"x": ("batch", n), "y": (n, n + 1)}, lambda x, y, w: x @ y + w, {"w": (n + 1,)}),
            "x y turned": ({"x": ("batch", n), "y": (n + 2, n)}, lambda x, y, w: x @ y.T + w, {"w": (n + 2,)}),
            "attention": (
                {"q": ("batch", n, n + 1), "k": ("batch", n + 2, n + 1), "v": ("batch", n + 2, n)},
                lambda q, k, v, w: ws.attention(q * w, k, v) + ws.attention(q, k, v),
                {"w": (n + 1,)},
            ),
            "softmax": ({"x": ("batch", n)}, lambda x, w: ws.softmax(x * w), {"w": (n,)}),
            "sums": ({"x": ("batch", n)}, lambda x, w: (x * w).sum(0) + (x * w).max(0), {"w": (n,)}),
            "turned": ({"x": ("batch", n, 3)}, lambda x, w: x.permute(2, 1, 0)[:, ::2] * w, {"w": (3, 1, 1)}),
            "rows of a table": (
                {"x": (CLASSES, n), "labels": ("batch",)},
                lambda x, i, w: ws.gather(x * 1.0, i) * w + ws.gather(x, i),
                {"w": (n,)},
            ),
        }
        found |= {f"{name} of {n}": case for name, case in each.items()}
    return found


GROUPS = {"convolutions": convolutions, "rows": rows}


def step(group: str) -> None:
    """All cases of a group in one step, of as many rows as there is room for, then of fewer."""
    rng, g, terms = np.random.default_rng(0), ws.Graph(), []
    shapes: dict[str, tuple[Any, ...]] = {}
    for i, (inputs, case, parameters) in enumerate(GROUPS[group]().values()):
        given = [g.input(f"{n}{i}", s, "int32" if n == "labels" else "float32") for n, s in inputs.items()]
        weights = [g.parameter(f"p{i}{n}", s, init=rng.normal(size=s)) for n, s in parameters.items()]
        terms.append(ws.tanh(case(*given, *weights)).sum())
        shapes |= {f"{n}{i}": s for n, s in inputs.items()}
    g.set_outputs({"loss": functools.reduce(ws.Tensor.__add__, terms)})
    options = ws.CompileOptions(compiler=QUICK, egraph=False, verify=False)
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=ROWS, threads=1, options=options)
    keep: list[mmap.mmap] = []
    for count in (ROWS, 1):
        known = {n: [count if e == "batch" else e for e in s] for n, s in shapes.items()}
        arrays = {
            n: rng.integers(0, CLASSES, s).astype("int32") if n.startswith("labels") else rng.normal(size=s)
            for n, s in known.items()
        }
        arrays = {n: a if a.dtype == np.int32 else a.astype("float32") for n, a in arrays.items()}
        assert np.isfinite(float(session.step({n: before_the_end(a, keep) for n, a in arrays.items()})))
    print("read to the end")


@pytest.mark.parametrize("group", GROUPS)
def test_no_kernel_reads_past_the_end_of_an_input(group: str) -> None:
    code = f"from tests.session import test_array_ends; test_array_ends.step({group!r})"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "read to the end\n"), ran.stderr
