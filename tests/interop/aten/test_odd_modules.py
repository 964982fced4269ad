"""Modules that keep things, make things late, or give nothing: imported, or refused with a reason, never broken."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from wholestep.errors import UnsupportedOpError, UsageError
from wholestep.interop.torch.aten import network


class Keeps(nn.Module):
    """What a subclass keeps is added to what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.kept(x)

    def kept(self, x: Any) -> Any:
        raise NotImplementedError


class Attribute(Keeps):
    mask: Any = None

    def kept(self, x: Any) -> Any:
        if self.mask is None or self.mask.size(0) != x.size(1):
            self.mask = torch.tril(torch.ones(x.size(1), 4))
        return self.mask


class Batch(Keeps):
    start: Any = None

    def kept(self, x: Any) -> Any:
        if self.start is None or self.start.size(0) != x.size(0):
            self.start = torch.zeros(x.size(0), 1, 4)
        return self.start


class Table(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Any] = {}

    def kept(self, x: Any) -> Any:
        if x.size(1) not in self.tables:
            self.tables[x.size(1)] = torch.arange(x.size(1), dtype=torch.float32)[:, None]
        return self.tables[x.size(1)]


class LateBuffer(Keeps):
    def kept(self, x: Any) -> Any:
        if not hasattr(self, "places"):
            self.register_buffer("places", torch.arange(x.size(1), dtype=torch.float32)[:, None], persistent=False)
        return self.places


class EmptyBuffer(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("scale", None)

    def kept(self, x: Any) -> Any:
        if self.scale is None:
            self.scale = torch.full((x.size(1), 1), 2.0)
        return self.norm(x) * self.scale


@pytest.mark.parametrize("kind", [Attribute, Batch, Table, LateBuffer, EmptyBuffer])
def test_modules_that_keep_what_they_computed_are_imported_and_stay_usable(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(3, 5, 4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    net = ws.from_torch(module, x)
    assert not net.fixed_batch
    for name, value in before.items():  # running statistics are unchanged
        np.testing.assert_array_equal(module.state_dict()[name].numpy(), value.numpy(), err_msg=name)
    theirs = module.eval()(x[:2]).detach().numpy()  # nothing of the trace is left in it
    np.testing.assert_allclose(net.predict(x[:2].numpy()), theirs, 1e-5, 1e-6)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("bytes", torch.arange(4, dtype=torch.int8))
        self.register_buffer("shorts", torch.arange(4, dtype=torch.int16) - 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.bytes + self.shorts


def test_small_whole_numbers_are_kept_as_larger_ones() -> None:
    module, x = Small(), torch.randn(3, 4)
    net = ws.from_torch(module, x)
    assert net.state_dict()["shorts"].tolist() == [-2, -1, 0, 1]
    np.testing.assert_allclose(net.predict(x.numpy()), module(x).detach().numpy(), 1e-5, 1e-6)
    assert net.to_torch().bytes.dtype == torch.int8


class Returns(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result, self.layer = result, nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.result(self.layer(x))


ROWS = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("module", "example", "told"),
    [
        (nn.LazyLinear(3), ROWS, r"'weight', which has no shape before the first call: call the module once"),
        (Returns(lambda _: 3), ROWS, r"Returns gives no tensor"),
        (nn.Linear(4, 4), np.array(["a"]), r"the example holds numbers; received an array of <U1"),
        (nn.Embedding(5, 3, max_norm=1.0), torch.ones(2, 2, dtype=torch.int64), r"'weight'.*max_norm would: normalise"),
        (Returns(lambda y: y.sum().item() * y), ROWS, r"makes a number of Python of the data"),
        (Returns(lambda y: torch.where(y > 0)[0]), ROWS, r"has a shape that depends on the data"),
        (Returns(lambda y: torch.unique(y)), ROWS, r"_unique2.*has a shape that depends on the data"),
        (Returns(lambda y: torch.linalg.eigvals(y[:3, :3]).real), ROWS, r"complex results; of symmetric matrices"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_says_why(module: Any, example: Any, told: str) -> None:
    with pytest.raises((UsageError, UnsupportedOpError), match=told):
        ws.from_torch(module, example)


def test_a_forward_without_a_signature_is_torch_s_to_refuse() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(nn.Linear(4, 4), ROWS)
    with pytest.raises(UsageError, match=r"torch\.export cannot export"):
        ws.from_torch(traced, ROWS)


def test_a_mistake_of_ours_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(network, "network_of", broken)
    with pytest.raises(UnsupportedOpError, match="Linear cannot be imported: ZeroDivisionError") as caught:
        ws.from_torch(nn.Linear(4, 4), ROWS)
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_parameters_without_elements_stay() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])  # the last projection has no rows
    assert module.tail[1][0].weight.numel() == 0

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = module

        def forward(self, x: Any) -> Any:
            return self.scores.log_prob(x)

    x = torch.randn(3, 8)
    net = ws.from_torch(Scores(), x)
    assert net.state_dict()["scores.tail.1.0.weight"].shape == (0, 8)
    np.testing.assert_allclose(net.predict(x.numpy()), module.log_prob(x).detach().numpy(), 1e-5, 1e-5)


def test_an_alarm_is_not_taken_for_a_module_that_cannot_be_exported() -> None:
    """Whoever limits the time of an import is told so at once: nothing is tried a second time."""
    calls = []

    def late(y: Any) -> Any:
        calls.append(y)
        raise TimeoutError("too long")

    with pytest.raises(TimeoutError, match="too long"):
        ws.from_torch(Returns(late), ROWS)
    assert len(calls) == 1
