"""Linear systems, factors and determinants, Jacobians and Hessians: torch's values and gradients, and a fit by each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.recording import value, value_and_gradients
from wholestep.errors import DTypeError, GradientError, ShapeError, UsageError, WholestepError

Array = np.ndarray[Any, Any]
L = torch.linalg
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 5, 5)), RNG.normal(size=(2, 5, 3))
A[0, 0, 0] = 0.0  # a pivot that must be swapped
SPD = A @ A.transpose(0, 2, 1) + np.eye(5)
TRIANGLE = A + 3 * np.eye(5)
WEIGHTS = RNG.normal(size=(2, 5, 5))

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]] = {
    "det": (ws.det, L.det, (A,)),
    "det of one": (ws.det, L.det, (A[:, :1, 1:2],)),
    "slogdet": (lambda a: ws.slogdet(a)[1] + ws.slogdet(a)[0], lambda a: L.slogdet(a)[1] + L.slogdet(a)[0], (A,)),
    "inv": (ws.inv, L.inv, (A,)),
    "solve": (ws.solve, L.solve, (A, B)),
    "solve vectors": (ws.solve, lambda a, b: L.solve(a, b[..., None])[..., 0], (A, B[..., 0])),
    "cholesky": (ws.cholesky, L.cholesky, (SPD,)),
    "cholesky upper": (lambda a: ws.cholesky(a, upper=True), lambda a: L.cholesky(a, upper=True), (SPD,)),
    "triangular": (ws.solve_triangular, lambda a, b: L.solve_triangular(a.tril(), b, upper=False), (TRIANGLE, B)),
    "triangular upper": (
        lambda a, b: ws.solve_triangular(a, b, upper=True),
        lambda a, b: L.solve_triangular(a.triu(), b, upper=True),
        (TRIANGLE, B),
    ),
    "triangular unit": (
        lambda a, b: ws.solve_triangular(a, b, unit_diagonal=True),
        lambda a, b: L.solve_triangular(a.tril(-1) + torch.eye(5), b, upper=False, unitriangular=True),
        (TRIANGLE, B),
    ),
}


def weigh(x: Any, library: Any) -> Any:
    """One number that depends on every element."""
    size = int(np.prod([int(e) for e in x.shape]))
    weights = np.cos(np.arange(size, dtype=np.float64))
    return (x.reshape(size) * (ws.constant(weights) if library is ws else torch.tensor(weights))).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name: str) -> None:
    ours, theirs, arrays = FUNCTIONS[name]
    found, grads = value_and_gradients(lambda *t: weigh(ours(*t), ws), *arrays)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = weigh(theirs(*tensors), torch)
    wanted.backward()
    np.testing.assert_allclose(found, wanted.item(), rtol=1e-10)
    for mine, tensor in zip(grads, tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_covariance_is_fitted_through_its_cholesky_factor(device: str) -> None:
    """The normal log-likelihood, by a factor's determinant and a triangular system; its maximum has a closed form."""
    x = (np.random.default_rng(1).normal(size=(64, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])).astype("f")

    class Normal(ws.nn.Module):
        def __init__(self) -> None:
            self.root = ws.nn.Parameter(np.eye(2, dtype="f"))

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            covariance = self.root @ self.root.T
            lower = ws.cholesky(covariance)
            errors = ws.solve_triangular(lower, x.T)
            return 0.5 * (errors * errors).sum(0) + 0.5 * ws.slogdet(covariance)[1]

    model = Normal()
    ws.fit(
        model, (x, np.zeros(64, "f")), loss=lambda p, t: p.mean(), optimizer=ws.Adam(lr=0.05), epochs=80,
        schedule=ws.schedules.cosine(), batch_size=64, progress=False, device=device,
    )  # fmt: skip
    root = model.state_dict()["root"]
    np.testing.assert_allclose(root @ root.T, x.T @ x / 64, rtol=0.02, atol=0.01)


# -- Jacobians and Hessians --------------------------------------------------------------------------------------


def test_jacobians_are_torchs() -> None:
    x, w = RNG.normal(size=4), RNG.normal(size=(3, 4))

    def function(library: Any) -> Callable[..., Any]:
        return lambda x, w: library.tanh(w @ x) * library.exp(x[:3])

    for i in (0, 1):
        found = value(lambda *t, i=i: ws.jacobian(function(ws)(*t), t[i]), x, w)
        wanted = torch.autograd.functional.jacobian(function(torch), (torch.tensor(x), torch.tensor(w)))[i]
        assert found.shape == wanted.shape == (3, *(x, w)[i].shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_hessians_are_torchs() -> None:
    x = RNG.normal(size=(2, 3))
    found = value(lambda t: ws.hessian((ws.tanh(t @ t.T) * t.sum()).sum(), t), x)
    wanted = torch.autograd.functional.hessian(lambda t: (torch.tanh(t @ t.T) * t.sum()).sum(), torch.tensor(x))
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(value(lambda t: ws.hessian(3.0 * t.sum(), t), x), np.zeros((2, 3, 2, 3)))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_newtons_method_is_a_step(device: str) -> None:
    """x ← x - H⁻¹·∇f: with a Hessian, and a linear system, in the compiled step; a quadratic needs one."""

    @ws.step
    def newton(g: ws.Graph) -> ws.Tensor:
        x = g.parameter("x", (3,), init=1.0, dtype="float64")
        a = ws.constant(SPD[0][:3, :3])
        loss = 0.5 * x @ (a @ x) - (x * np.array([1.0, 2.0, 3.0])).sum()
        (slope,) = ws.gradients(loss, [x])
        g.update(x, x - ws.solve(ws.hessian(loss, x), slope))
        return loss

    session = ws.build_session(newton, device=device)
    session.step()
    np.testing.assert_allclose(session.get("x"), np.linalg.solve(SPD[0][:3, :3], [1.0, 2.0, 3.0]), rtol=1e-9)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Array, ...], type[WholestepError], str]] = {
    "rectangles": (ws.inv, (B,), ShapeError, r"square matrices \(\.\.\., n, n\) with n from 1 to 32.*\(2, 5, 3\)"),
    "large ones": (ws.det, (np.eye(33),), ShapeError, r"received \(33, 33\)\. Larger ones: np\.linalg\.det outside"),
    "integers": (ws.cholesky, (np.eye(2, dtype=np.int32),), DTypeError, "takes floats; received int32. Cast them"),
    "other rows": (ws.solve, (A, B[:, :4]), ShapeError, r"right sides \(2, 5, columns\); received \(2, 4, 3\)\. Exp"),
    "a batch": (ws.solve, (A[0], B), ShapeError, r"right sides \(5, columns\); received \(2, 5, 3\)"),
    "a vector": (
        ws.solve_triangular,
        (A, B[0, :, 0]),
        ShapeError,
        r"right sides \(\.\.\., 5, columns\); received \(5,\)",
    ),
    "a large Jacobian": (lambda x: ws.jacobian(x, x), (np.ones(300),), ShapeError, r"from 1 to 256; received \(300,\)"),
    "no path": (lambda x, y: ws.jacobian(x, y), (np.ones(3), np.ones(2)), GradientError, "does not depend on"),
    "a list": (
        lambda x: ws.hessian(x.sum(), [x]),
        (np.ones(3),),
        UsageError,
        r"hessian takes two tensors; received \[",
    ),
    "many losses": (lambda x: ws.hessian(x, x), (np.ones(3),), ShapeError, "gradients are taken of a scalar"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    function, arrays, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        value(function, *arrays)
