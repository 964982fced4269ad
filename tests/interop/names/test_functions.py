"""Functions under torch's names and arguments: values and gradients are torch's, by the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.interop.names.cases import COMPOSED, FUNCTIONAL, METHODS, Array, Case
from tests.support.complete import assert_has_rows
from tests.support.oracles import assert_close
from tests.support.recording import run, value
from wholestep.interop import numpy_ufuncs as ufuncs


def upstream(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def ours(case: Case, package: object) -> tuple[Array, list[Array]]:
    g = ws.Graph()
    given = {f"x{i}": a for i, a in enumerate(case.arrays)}
    tensors = [g.input(name, a.shape, a.dtype) for name, a in given.items()]
    out = case.line(package, *tensors)
    leaves = [t for t in tensors if t.dtype.is_float] if case.slope else []
    slopes = ws.gradients((out * upstream(tuple(out.shape))).sum(), leaves) if leaves else []
    g.set_outputs({"out": out, **{f"slope{i}": s for i, s in enumerate(slopes)}})
    outputs = run(g.to_ir(), given).outputs
    return outputs["out"], [outputs[f"slope{i}"] for i in range(len(slopes))]


def theirs(case: Case, package: object) -> tuple[Array, list[Array]]:
    # torch looks things up by int64 alone
    arrays = [a.astype(np.int64) if a.dtype == np.int32 else a for a in case.arrays]
    tensors = [torch.tensor(a, requires_grad=case.slope and a.dtype.kind == "f") for a in arrays]
    out = case.line(package, *tensors)
    if not case.slope:
        return out.numpy(), []
    (out * torch.tensor(upstream(tuple(out.shape)))).sum().backward()
    return out.detach().numpy(), [t.grad.numpy() for t in tensors if t.requires_grad]


LINES = {
    **{name: (case, ws, torch) for name, case in COMPOSED.items()},
    **{name: (case, ws.nn.functional, torch.nn.functional) for name, case in FUNCTIONAL.items()},
    **{name: (case, ws, torch) for name, case in METHODS.items()},
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_means_what_it_means_in_torch(name: str) -> None:
    case, our_package, their_package = LINES[name]
    out, slopes = ours(case, our_package)
    expected, expected_slopes = theirs(case, their_package)
    assert_close(out, expected, "float64", scale=1.0)
    assert len(slopes) == len(expected_slopes)
    for slope, other in zip(slopes, expected_slopes, strict=True):
        assert_close(slope, other, "float64", scale=1.0)


SYMBOLIC = {
    "var over the batch": (lambda x: ws.var(x, 0), lambda x: x.var(0)),
    "std over both": (lambda x: ws.std(x, (0, 1)), lambda x: x.std((0, 1))),
    "norm over time": (lambda x: ws.norm(x, axis=1), lambda x: x.norm(dim=1)),
    "tril": (lambda x: ws.tril(x @ x.transpose(1, 2)), lambda x: torch.tril(x @ x.mT)),
    "a causal mask": (lambda x: ws.tril(ws.ones("time", "time")), lambda x: torch.ones(x.shape[1], x.shape[1]).tril()),
    "eye": (lambda x: ws.eye("time", dtype="float64") + x.sum(), lambda x: torch.eye(x.shape[1]).double() + x.sum()),
    "flatten": (lambda x: ws.flatten(x, 1) * 2.0, lambda x: x.flatten(1) * 2.0),
    "repeat": (lambda x: ws.repeat(x, 1, 3, 2), lambda x: x.repeat(1, 3, 2)),
    "einsum": (lambda x: ws.einsum("btd,bsd->bts", x, x), lambda x: torch.einsum("btd,bsd->bts", x, x)),
    "einsum over the batch": (lambda x: ws.einsum("btd,bte->de", x, x), lambda x: torch.einsum("btd,bte->de", x, x)),
    "zeros_like": (lambda x: ws.zeros_like(x) + ws.ones("time", 1, dtype="float64"), lambda x: torch.ones_like(x)),
}


GRID, INDEX = (
    np.random.default_rng(1).uniform(-1, 1, (3, 4, 4, 2)),
    np.array([[0, 5, 1], [2, 2, 3], [4, 0, 0]], np.int32),
)
IMAGES, ROWS = np.random.default_rng(2).normal(size=(3, 2, 6, 6)), np.random.default_rng(3).normal(size=(3, 6))
F = torch.nn.functional
# ours, torch's, and what they are called on; the first axis of all of them is one symbol
BATCHES: dict[str, tuple[Any, Any, tuple[np.ndarray, ...]]] = {
    "grid_sample": (ws.grid_sample, lambda x, g: F.grid_sample(x, g, align_corners=False), (IMAGES, GRID)),
    "unfold, fold": (
        lambda x: ws.fold(ws.unfold(x, 3, padding=1), (6, 6), 3, padding=1),
        lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 6), 3, padding=1), (IMAGES,),
    ),
    "put_along_axis": (
        lambda x, i: ws.put_along_axis(x, i, x[:, :3], 1, "max"), lambda x, i: x.scatter_reduce(1, i, x[:, :3], "amax"),
        (ROWS, INDEX),
    ),
    "one of each row": (
        lambda x, i: x[ws.arange("b"), i[:, 0]], lambda x, i: x[torch.arange(3), i[:, 0]], (ROWS, INDEX)
    ),
    "index_put": (
        lambda x, i: ws.index_put(x, (ws.arange("b"), i[:, 1]), 1.5),
        lambda x, i: x.index_put((torch.arange(3), i[:, 1]), torch.tensor(1.5).double()), (ROWS, INDEX),
    ),
    "local_response_norm": (
        lambda x: ws.local_response_norm(x, 3, 0.5), lambda x: F.local_response_norm(x, 3, 0.5), (IMAGES,)
    ),
    "prod": (lambda x: ws.prod(x, 1) * ws.prod(x, 0).sum(), lambda x: x.prod(1) * x.prod(0).sum(), (ROWS,)),
    "cumsum": (lambda x: ws.cumsum(x, 1) * ws.cumsum(x, 0), lambda x: x.cumsum(1) * x.cumsum(0), (ROWS,)),
    "sort, topk": (
        lambda x: ws.sort(x)[:, :2] * ws.topk(x, 2)[0], lambda x: x.sort()[0][:, :2] * x.topk(2)[0], (ROWS,)
    ),
    "rfft": (lambda x: ws.rfft(x)[1], lambda x: torch.fft.rfft(x).imag, (ROWS,)),
    "max_unpool2d": (
        lambda x: ws.max_unpool2d(*ws.max_pool2d_with_indices(x, 2), (6, 6)),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (IMAGES,),
    ),
    "masked_scatter": (lambda x: ws.masked_scatter(x, x > 0, x * 2), lambda x: x.masked_scatter(x > 0, x * 2), (ROWS,)),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_may_be_a_symbol(name: str) -> None:
    mine, theirs, arrays = BATCHES[name]
    g = ws.Graph()
    tensors = [g.input(f"x{i}", ("b", *a.shape[1:]), a.dtype) for i, a in enumerate(arrays)]
    out = mine(*tensors)
    slopes = ws.gradients((out * out).sum(), [t for t in tensors if t.dtype.is_float])
    g.set_outputs({"out": out, **{f"slope{i}": s for i, s in enumerate(slopes)}})
    found = run(g.to_ir(), {f"x{i}": a for i, a in enumerate(arrays)}).outputs
    given = [
        torch.tensor(a.astype(np.int64)) if a.dtype == np.int32 else torch.tensor(a, requires_grad=True) for a in arrays
    ]
    expected = theirs(*given)
    (expected * expected).sum().backward()
    assert_close(found["out"], expected.detach().numpy(), "float64", scale=1.0)
    for i, t in enumerate(t for t in given if t.requires_grad):
        assert t.grad is not None
        assert_close(found[f"slope{i}"], t.grad.numpy(), "float64", scale=1.0)


@pytest.mark.parametrize("name", SYMBOLIC)
def test_sizes_may_be_symbolic(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    ours, theirs = SYMBOLIC[name]
    assert_close(value(ours, x, dims=(("batch", "time", 5),)), theirs(torch.tensor(x)).numpy(), "float64", scale=1.0)


UNARY = sorted(
    ufuncs.FUNCTIONS
    - {"arctan2", "hypot", "logaddexp", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"}
)


def test_every_ufunc_that_has_our_name_is_accepted() -> None:
    ours = {
        name for name, f in vars(np).items() if isinstance(f, np.ufunc) and name == f.__name__ and name in ws.__all__
    }
    assert_has_rows(ufuncs.FUNCTIONS | set(ufuncs.OPERATORS), ours, "FUNCTIONS of wholestep/interop/numpy_ufuncs.py")


def test_numpys_functions_are_ours() -> None:
    """`np.exp(x)`, and operators whose left side is an array or a number of NumPy's."""
    x, y = np.random.default_rng(1).uniform(0.2, 0.9, (2, 3, 4))
    for name in UNARY:
        function = getattr(np, name)
        given = x + 1 if name == "arccosh" else x
        found = value(function, given)
        assert_close(found, function(given), "exact" if found.dtype == bool else "float64", scale=1.0)
    for name in (
        "arctan2",
        "hypot",
        "logaddexp",
        "maximum",
        "minimum",
        "add",
        "subtract",
        "multiply",
        "divide",
        "power",
        "remainder",
    ):
        function = getattr(np, name)
        assert_close(value(lambda t, f=function: f(y, t), x), function(y, x), "float64", scale=1.0)
        assert_close(value(lambda t, f=function: f(t, y), x), function(x, y), "float64", scale=1.0)
    for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        function = getattr(np, name)
        np.testing.assert_array_equal(value(lambda t, f=function: f(y, t), x), function(y, x))
    assert_close(value(lambda t: y.T @ t + np.float64(2.0) * t[0, 0], x), y.T @ x + 2.0 * x[0, 0], "float64", scale=1.0)
    with pytest.raises(ws.errors.UsageError, match=r"np\.nextafter was called on a tensor of a program.*with NumPy"):
        value(lambda t: np.nextafter(t, t), x)
    with pytest.raises(ws.errors.UsageError, match=r"np\.add was called on a tensor"):
        value(lambda t: np.add.reduce(t), x)
