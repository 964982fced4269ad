"""What Python does in forward: `.data`, dicts as arguments, inputs that are not by rows, dropout that is always on,
einsum; and what no exported program can contain is refused at the module's line."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from wholestep.errors import TrainingWarning, UsageError

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.other = nn.Linear(6, 3), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(3))


class WrittenData(Base):
    def forward(self, x: Any) -> Any:
        self.scale.data.mul_(0.9)
        return self.layer(x) * self.scale


class AssignedData(Base):
    def forward(self, x: Any) -> Any:
        self.scale.data = self.scale.data * 0.9
        return self.layer(x) * self.scale


class ReadData(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.layer.weight.data.sum() * self.other(x)


@pytest.mark.parametrize("kind", [WrittenData, AssignedData, ReadData])
def test_data_is_read_and_written_as_by_torch(kind: Any) -> None:
    """Losses, final weights and buffers of three steps, in which no gradient goes through `.data`."""
    module, y = kind(), torch.zeros(4, 3)
    net = ws.from_torch(module, X)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    theirs = []
    for _ in range(3):
        loss = ((module(X) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    history = ws.fit(
        net, (X.numpy(), y.numpy()), loss="mse", optimizer=ws.SGD(0.1), epochs=3, progress=False, shuffle=False
    )
    np.testing.assert_allclose(history["loss"], theirs, rtol=1e-5)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value.numpy(), 1e-5, 1e-6, err_msg=name)


# -- arguments ---------------------------------------------------------------------------------------------------


class TakesDict(Base):
    def forward(self, batch: Any) -> Any:
        return self.layer(batch["a"]) + 2.0 * self.other(batch["b"])


class TakesNested(Base):
    def forward(self, batch: Any, extra: Any) -> Any:
        return self.layer(batch["deep"]["a"]) + 2.0 * self.other(batch["b"][0]) + extra[0]


@pytest.mark.parametrize("positional", [True, False])
def test_a_forward_that_takes_a_dict_is_called_by_its_keys(positional: bool) -> None:
    module, inputs = TakesDict(), {"a": X, "b": -X}
    net = ws.from_torch(module, (inputs,) if positional else {"batch": inputs})
    arrays = {name: t.numpy() for name, t in inputs.items()}
    theirs = module.eval()(inputs).detach().numpy()
    np.testing.assert_allclose(net.predict(arrays), theirs, 1e-5, 1e-6)
    np.testing.assert_allclose(net.predict(**arrays), theirs, 1e-5, 1e-6)
    assert net.predict({name: a[:3] for name, a in arrays.items()}).shape == (3, 3)  # the batch is a symbol
    history = ws.fit(net, (arrays, theirs), loss="mse", optimizer=ws.SGD(0.1), epochs=1, progress=False)
    assert history["loss"][0] < 1e-10


def test_dicts_and_lists_inside_each_other_have_the_names_of_their_path() -> None:
    module = TakesNested()
    example = {"deep": {"a": X}, "b": [-X]}, (torch.ones(4, 3),)
    net = ws.from_torch(module, example, dynamic={"extra_0": {0: "batch"}})
    theirs = module.eval()(*example).detach().numpy()
    named = {"batch_deep_a": X.numpy(), "batch_b_0": -X.numpy(), "extra_0": np.ones((4, 3), np.float32)}
    np.testing.assert_allclose(net.predict(**named), theirs, 1e-5, 1e-6)
    np.testing.assert_allclose(net.predict(**{n: a[:2] for n, a in named.items()}), theirs[:2], 1e-5, 1e-6)


@pytest.mark.parametrize("example", [({"a": 3, "b": "text"},), (), {"batch": {"a": None}}])
def test_an_example_without_tensors_is_described_by_types(example: Any) -> None:
    with pytest.raises(UsageError, match=r"in tuples, lists and dicts; received (a: int, b: str|nothing|a: NoneType)"):
        ws.from_torch(TakesDict(), example)


# -- inputs that are not by rows ---------------------------------------------------------------------------------


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Any, edges: Any) -> Any:
        y = self.layer(x)
        return torch.zeros_like(y).index_add_(0, edges[1], y[edges[0]])


def test_a_graph_network_predicts_nodes_though_edges_are_no_rows() -> None:
    module, edges = Graph(), torch.randint(0, 6, (2, 14))
    net = ws.from_torch(module, (torch.randn(6, 5), edges))
    for nodes in (6, 9):
        x = torch.randn(nodes, 5)
        theirs = module(x, edges).detach().numpy()
        np.testing.assert_allclose(net.predict(x.numpy(), edges.numpy()), theirs, 1e-5, 1e-6)


class Table(nn.Module):
    def forward(self, x: Any, table: Any) -> Any:
        return x @ table


def test_an_input_that_all_rows_share_is_given_to_every_part_whole() -> None:
    net = ws.from_torch(Table(), (torch.randn(4, 3), torch.randn(3, 2)))
    x, table = np.random.default_rng(0).normal(size=(70, 3)).astype("f4"), np.ones((3, 2), "f4")
    np.testing.assert_allclose(net.predict(x, table, batch_size=16), x @ table, 1e-5, 1e-6)


# -- random numbers and sizes ------------------------------------------------------------------------------------


class AlwaysDrops(Base):
    def forward(self, x: Any) -> Any:
        return F.dropout(self.layer(x), 0.25)


class DropsInTraining(Base):
    def forward(self, x: Any) -> Any:
        return F.dropout(self.layer(x), 0.25, self.training)


def test_dropout_that_eval_does_not_switch_off_drops_in_predict_too() -> None:
    x = np.random.default_rng(0).normal(size=(2000, 6)).astype("f4")
    module = AlwaysDrops()
    found = ws.from_torch(module, X).predict(x)
    whole = module.layer(torch.from_numpy(x)).detach().numpy()
    dropped = found == 0
    assert abs(dropped.mean() - 0.25) < 0.02
    np.testing.assert_allclose(found[~dropped], whole[~dropped] / 0.75, 1e-4, 1e-5)
    assert not (ws.from_torch(DropsInTraining(), X).predict(x) == 0).any()


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Any) -> Any:
        return torch.einsum("td,df,fe->te", x, self.a, self.b)


def test_an_einsum_of_three_operands_keeps_the_batch_symbolic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where opt_einsum is installed: its path would be asked for, and there is none here to give one."""
    module, x = Einsum(), torch.randn(7, 4)
    theirs = module(x).detach().numpy()
    settings = sys.modules["torch.backends.opt_einsum"].m  # type: ignore[attr-defined]
    monkeypatch.setattr(settings, "is_available", lambda: True)
    monkeypatch.setattr(settings, "enabled", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        net = ws.from_torch(module, torch.randn(3, 4))
    np.testing.assert_allclose(net.predict(x.numpy()), theirs, 1e-5, 1e-6)
    assert torch.backends.opt_einsum.enabled


# -- refused -----------------------------------------------------------------------------------------------------


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(6, 4, batch_first=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.recurrent(packed)[1][0]


class Differentiates(Base):
    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        return torch.autograd.grad(self.layer(x).sum(), x, create_graph=True)[0]


class GoesBackward(Base):
    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        self.layer(x).sum().backward()
        return x.grad


class BranchesOnADraw(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) if torch.rand(1).item() < 0.5 else -self.layer(x)


LENGTHS = torch.tensor([5, 4, 2, 1])


@pytest.mark.parametrize(
    ("module", "example", "told", "line"),
    [
        (Packs(), (torch.randn(4, 5, 6), LENGTHS), r"reads lengths from the data, .*lengths - 1\]", "packed = nn"),
        (Differentiates(), X, r"torch\.autograd\.grad\), and torch exports no gradients", "return torch.au"),
        (GoesBackward(), X, r"backward\(\)\), and torch exports no gradients", "self.layer(x).sum().backward()"),
        (BranchesOnADraw(), X, r"branches on a value that depends on .*torch\.where", "return self.la"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
def test_what_cannot_be_traced_is_refused_at_the_module_s_line(module: Any, example: Any, told: str, line: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        ws.from_torch(module, example)
    place = str(caught.value).partition("\n  at ")[2]
    assert place.startswith(__file__), caught.value
    assert line in place, caught.value


def test_the_padded_batch_that_the_error_names_has_the_same_outputs() -> None:
    class Padded(Packs):
        def forward(self, x: Any, lengths: Any) -> Any:
            out, _ = self.recurrent(x)
            return out[torch.arange(x.shape[0]), lengths - 1]

    packed, padded, x = Packs(), Padded(), torch.randn(4, 5, 6)
    padded.load_state_dict(packed.state_dict())
    found = ws.from_torch(padded, (x, LENGTHS)).predict(x.numpy(), LENGTHS.numpy())
    np.testing.assert_allclose(found, packed(x, LENGTHS).detach().numpy(), 1e-5, 1e-6)
