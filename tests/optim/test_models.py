"""`optimizer.step` on a model's own numbers, and what may be assigned to a parameter."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import DTypeError, UsageError

Array = np.ndarray[Any, Any]


def small() -> ws.nn.Linear:
    return ws.nn.Linear(3, 2)


def slopes(step: int) -> dict[str, Array]:
    rng = np.random.default_rng(step)
    return {"weight": rng.normal(size=(2, 3)).astype("f"), "bias": rng.normal(size=2).astype("f")}


def test_an_optimizer_moves_a_models_own_numbers() -> None:
    """By the model, its parameters, and gradients by name or in order: four steps against torch's."""
    model, theirs = small(), torch.nn.Linear(3, 2)
    theirs.load_state_dict({n: torch.tensor(a) for n, a in model.state_dict().items()})
    ours, adam = ws.Adam(lr=0.1), torch.optim.Adam(theirs.parameters(), lr=0.1)
    for step in range(4):
        given = slopes(step)
        grads: Any = list(given.values()) if step % 2 else given
        ours.step(model if step < 2 else model.parameters(), grads)
        theirs.weight.grad, theirs.bias.grad = (torch.tensor(given[n]) for n in ("weight", "bias"))
        adam.step()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], value.numpy(), rtol=1e-5)
    x = np.ones((1, 3), "f")
    np.testing.assert_allclose(model.predict(x), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5)


def test_frozen_parameters_have_no_gradient() -> None:
    model = small()
    model.freeze("bias")
    before = model.state_dict()
    ws.SGD(lr=1.0).step(model, {"weight": np.ones((2, 3), "f")})
    np.testing.assert_allclose(model.state_dict()["weight"], before["weight"] - 1.0, rtol=1e-6)
    np.testing.assert_array_equal(model.state_dict()["bias"], before["bias"])
    with pytest.raises(UsageError, match=r"each of \['weight'\] needs one gradient, in this order; received 2"):
        ws.SGD(lr=1.0).step(model, [np.ones((2, 3), "f"), np.ones(2, "f")])


def test_copies_are_refused() -> None:
    model = small()
    with pytest.raises(UsageError, match=r"state_dict\(\) holds copies.*optimizer\.step\(model, grads\)"):
        ws.SGD(lr=1.0).step(model.state_dict(), slopes(0))
    own = dict(model.state_dict())  # arrays that the caller has taken for their own
    ws.SGD(lr=1.0).step(own, slopes(0))
    assert (own["weight"] != model.state_dict()["weight"]).all()


def test_a_state_dict_is_edited_and_loaded_as_ever() -> None:
    model = small()
    values = model.state_dict()
    values["weight"] *= 2.0
    model.load_state_dict(values)
    np.testing.assert_array_equal(model.state_dict()["weight"], values["weight"])
    assert copy.deepcopy(values).keys() == {**values}.keys() == {"weight", "bias"}


def test_parameters_in_a_list_are_refused_with_the_way_out() -> None:
    model = small()
    with pytest.raises(DTypeError, match=r"received Parameter: .*optimizer\.step\(model, grads\)"):
        ws.SGD(lr=1.0).step(list(model.parameters().values()), list(slopes(0).values()))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"received ParameterName: 'weight'\. The numbers of a model change by"):
        ws.SGD(lr=1.0).step(list(model.parameters()), list(slopes(0).values()))  # type: ignore[arg-type]


# -- assigning -------------------------------------------------------------------------------------------------------


def test_an_array_does_not_take_the_place_of_a_parameter() -> None:
    """torch raises a TypeError, too."""
    model = small()
    with pytest.raises(UsageError, match=r"Linear\.weight is a parameter, float32\[2, 3\], and ndarray was assigned"):
        model.weight = np.zeros((2, 3), "f")  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"load_state_dict\(\{'weight': array\}, strict=False\); to replace it assign"):
        model.weight = [[0.0] * 3] * 2  # type: ignore[assignment]
    norm = ws.nn.BatchNorm1d(3)
    with pytest.raises(TypeError, match=r"BatchNorm1d\.running_mean is a buffer"):
        norm.running_mean = np.zeros(3, "f")  # type: ignore[assignment]
    assert list(model.parameters()) == ["weight", "bias"]
    assert model.load_state_dict({"weight": np.zeros((2, 3), "f")}, strict=False).loaded == ("weight",)
    assert (model.state_dict()["weight"] == 0).all()


def test_a_tensor_does_not_either() -> None:
    class Growing(ws.nn.Module):
        def __init__(self) -> None:
            self.count: Any = ws.nn.Buffer((3,))

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            self.count = self.count + 1.0
            return x * self.count

    with pytest.raises(UsageError, match=r"Growing\.count is a buffer.*x\.graph\.update\(self\.count, value\)"):
        Growing().predict(np.ones((1, 3), "f"))


def test_a_parameter_takes_the_place_of_a_parameter_and_none_removes_it() -> None:
    model: Any = small()
    model.weight = ws.nn.Parameter((2, 3), init=np.full((2, 3), 0.5))
    model.bias = None
    assert list(model.parameters()) == ["weight"]
    np.testing.assert_allclose(model.predict(np.ones((1, 3), "f")), [[1.5, 1.5]])
