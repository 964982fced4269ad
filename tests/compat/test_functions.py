"""Functions under torch's names and arguments: values and gradients are torch's, by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import assert_close
from recording import run, value

import wholestep as ws
from tests.compat.cases import COMPOSED, FUNCTIONAL, METHODS, Array, Case
from wholestep.compat import ufuncs


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


@pytest.mark.parametrize("name", SYMBOLIC)
def test_sizes_may_be_symbolic(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    ours, theirs = SYMBOLIC[name]
    assert_close(value(ours, x, dims=(("batch", "time", 5),)), theirs(torch.tensor(x)).numpy(), "float64", scale=1.0)


UNARY = sorted(
    ufuncs.FUNCTIONS
    - {"arctan2", "hypot", "logaddexp", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"}
)


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
