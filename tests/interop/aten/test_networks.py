"""Networks of torch, trained by `ws.fit` and by torch; their predictions, saving, loading and conversion back."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from tests.support.compilers import quick

QUICK = replace(quick(), egraph=False)


class Residual(nn.Module):
    """Convolutions, batch norm, a depthwise one, a skip, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 2)
        return self.head(F.adaptive_avg_pool2d(x + self.deep(x), 1).flatten(1))


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up, self.norm, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Any) -> Any:
        a = F.silu(self.down(x))
        b = self.up(F.gelu(self.middle(a)))
        c = F.interpolate(F.avg_pool2d(a, 2), scale_factor=2, mode="bilinear")
        return self.out(self.norm(torch.cat([a + c, b], 1))).mean((2, 3))


class Language(nn.Module):
    """Tokens, positions, causal attention, tied weights, padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.tokens.weight
        self.unused = nn.Linear(3, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6) < 0, persistent=False)

    def forward(self, tokens: Any) -> Any:
        h = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.out(self.body(h, mask=self.mask, is_causal=True))[:, -1]


class Pair(nn.Module):
    """Encoder and decoder, by two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, source: Any, target: Any) -> Any:
        return self.out(self.inner(target, source).mean(1))


class Recurrent(nn.Module):
    """Both directions, and another kind behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.then = nn.GRU(8, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.then(self.first(x)[0])[1][0]


class Teacher(nn.Module):
    """What is detached, what is under no_grad, a weight norm, a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.teacher, self.frozen = nn.Linear(4, 3), nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        y = self.student(x)
        with torch.no_grad():
            wanted = self.teacher(x)
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return y * self.frozen - 0.1 * wanted + self.seen * y.detach()


def _images() -> Any:
    return np.random.default_rng(0).normal(size=(12, 1, 8, 8)).astype(np.float32)


def _rows(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=(12, *shape)).astype(np.float32)


NETWORKS: dict[str, tuple[type[nn.Module], Any]] = {
    "residual": (Residual, _images),
    "u-net": (UNet, _images),
    "language": (Language, lambda: np.random.default_rng(2).integers(0, 11, (12, 6))),
    "pair": (Pair, lambda: {"source": _rows(4, 8), "target": _rows(3, 8)}),
    "recurrent": (Recurrent, lambda: _rows(3, 3)),
    "teacher": (Teacher, lambda: _rows(4)),
}


def _as_torch(data: Any) -> tuple[Any, ...]:
    return tuple(map(torch.from_numpy, data.values())) if isinstance(data, dict) else (torch.from_numpy(data),)


def _trained_by_torch(module: nn.Module, data: Any, labels: Any, epochs: int) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 0.01, weight_decay=0.1)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(*_as_torch(data)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


COMPILED = ("residual", "language")  # the others by the reference: what they compute is asked, not how


LONG = ("u-net", "pair")  # exporting takes longer than training


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in NETWORKS])
def test_a_network_trains_as_in_torch(name: str) -> None:
    device = "cpu" if name in COMPILED else "reference"
    kind, data = NETWORKS[name][0], NETWORKS[name][1]()
    torch.manual_seed(0)
    module = kind().double()
    data = {k: v.astype(np.float64) for k, v in data.items()} if isinstance(data, dict) else data
    data = data.astype(np.float64) if not isinstance(data, dict) and data.dtype == np.float32 else data
    labels = np.arange(12) % 3
    example = {k: v[:1] for k, v in data.items()} if isinstance(data, dict) else data[:1]
    net = ws.from_torch(module, example)
    before = net.state_dict()
    assert before.keys() == module.state_dict().keys()
    for key, value in module.state_dict().items():
        np.testing.assert_array_equal(before[key], value.numpy())

    history = ws.fit(
        net, (data, labels), loss="cross_entropy", optimizer=ws.AdamW(lr=0.01, weight_decay=0.1, decay_on=("*",)),
        epochs=4, batch_size=12, shuffle=False, progress=False, device=device, options=QUICK,
    )  # fmt: skip
    theirs = _trained_by_torch(module, data, labels, 4)

    np.testing.assert_allclose(history["loss"], theirs, rtol=1e-9)
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[key], value.numpy(), 1e-8, 1e-9, err_msg=key)
    module.eval()
    with torch.no_grad():
        wanted = module(*_as_torch({k: v[:5] for k, v in data.items()} if isinstance(data, dict) else data[:5])).numpy()
    few = {k: v[:5] for k, v in data.items()} if isinstance(data, dict) else {"x": data[:5]}
    given = (
        net.predict(**few, device="reference") if isinstance(data, dict) else net.predict(few["x"], device="reference")
    )
    np.testing.assert_allclose(given, wanted, 1e-8, 1e-9)


# -- modes, draws, files -----------------------------------------------------------------------------------------


class Modes(nn.Module):
    """Batch norm and dropout, a draw, two results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.mean, self.spread, self.leave = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(2, 3)
        self.register_buffer("places", torch.arange(6))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        h = self.drop(torch.relu(self.norm(self.enter(x))))[:, self.places]
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread) if self.training else mean
        return {"scores": self.leave(z) * scale, "mean": mean}


@pytest.fixture(scope="module")
def modes() -> Any:
    torch.manual_seed(0)
    module = Modes()
    return module, ws.from_torch(module, _rows(4)[:1])


def _trained(net: Any, epochs: int = 2, seed: int = 0) -> Any:
    return ws.fit(
        net, (_rows(4), {"scores": np.arange(12) % 3}), loss={"scores": "cross_entropy"}, epochs=epochs, batch_size=6,
        seed=seed, progress=False, device="reference", options=QUICK,
    )  # fmt: skip


def test_entry_points_choose_the_mode(modes: Any) -> None:
    module, net = modes
    assert repr(net).startswith("Modes(from torch")
    x = _rows(4)
    module.eval()
    with torch.no_grad():
        wanted = {name: value.numpy() for name, value in module(torch.from_numpy(x)).items()}
    module.train()
    given = net.predict(x, device="reference")
    for name, value in wanted.items():
        np.testing.assert_allclose(given[name], value, 1e-4, 1e-5)
    _trained(net)
    after = net.state_dict()
    assert after["norm.num_batches_tracked"] == 4
    assert after["norm.num_batches_tracked"].dtype == np.int64
    assert not np.array_equal(after["norm.running_mean"], module.norm.running_mean.numpy())
    again = net.predict(x, device="reference")
    np.testing.assert_array_equal(
        again["scores"], net.predict(x, device="reference")["scores"]
    )  # nothing is drawn or dropped
    rates = list(net._program.graph.leaves("scalar"))
    assert rates == ["drop/random0.rate"]  # keyed by the module's path


def test_weights_go_both_ways(modes: Any) -> None:
    module, net = modes
    before = net.predict(_rows(4)[:3], device="reference")["scores"]
    assert net.to_torch() is module
    module.eval()
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(_rows(4)[:3]))["scores"].numpy(), before, 1e-4, 1e-5)
    module.train()
    torch.manual_seed(5)
    other = Modes()
    net.load_state_dict(other.state_dict())
    np.testing.assert_array_equal(net.state_dict()["enter.weight"], other.enter.weight.detach().numpy())
    wrong = {**other.state_dict(), "places": torch.arange(6).flip(0)}
    with pytest.raises(ws.errors.InputError, match="'places' has other numbers than when the network was imported"):
        net.load_state_dict(wrong)
    with pytest.raises(ws.errors.UnknownNameError, match=r"the module has no 'enter\.weight'"):
        net.to_torch(nn.Linear(3, 3))


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None
    import numpy as np
    import wholestep as ws
    net = ws.load_network(sys.argv[1])
    given = np.load(sys.argv[2])
    np.testing.assert_allclose(net.predict(given["x"], device="reference")["scores"], given["scores"], 1e-4, 1e-5)
    data = (given["x"], {"scores": np.arange(len(given["x"])) % 3})
    ws.fit(net, data, loss={"scores": "cross_entropy"}, epochs=1, progress=False, device="reference")
    assert net.state_dict()["norm.num_batches_tracked"] == given["count"] + 1
    try:
        net.to_torch()
    except AttributeError:
        pass
    try:
        ws.from_torch(None, given["x"])
    except ws.errors.UsageError as error:
        assert "pip install torch" in str(error), error
    else:
        raise AssertionError("torch is not installed here")
"""


def test_a_saved_network_needs_no_torch(modes: Any, tmp_path: Path) -> None:
    _, net = modes
    net.save(tmp_path / "net.safetensors")
    x = _rows(4)
    count = net.state_dict()["norm.num_batches_tracked"]
    np.savez(tmp_path / "given.npz", x=x, scores=net.predict(x, device="reference")["scores"], count=count)
    script = tmp_path / "load.py"
    script.write_text(textwrap.dedent(WITHOUT_TORCH))
    subprocess.run(
        [sys.executable, script, tmp_path / "net.safetensors", tmp_path / "given.npz"], check=True, timeout=300
    )


def test_damaged_networks_are_refused(modes: Any, tmp_path: Path) -> None:
    _, net = modes
    whole = tmp_path / "net.safetensors"
    net.save(whole)
    data = whole.read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for old, new, said in (
        (b"matmul(", b"natmul(", "there is no op named 'natmul'"),
        (b'\\"format\\": 1', b'\\"format\\": 9', "format 9"),
        (b'\\"name\\"', b'\\"nome\\"', "damaged: KeyError: 'name'"),
        (b"float32[6, 4]", b"float32[4, 6]", "damaged"),
    ):
        assert old in data
        damaged.write_bytes(data.replace(old, new, 1))
        with pytest.raises(ws.errors.CheckpointError, match=said):
            ws.load_network(damaged)
    damaged.write_bytes(data[: len(data) // 2])
    with pytest.raises(ws.errors.CheckpointError, match="not a complete safetensors file"):
        ws.load_network(damaged)
    ws.nn.Linear(2, 2).save(damaged)
    with pytest.raises(ws.errors.CheckpointError, match="holds weights, no network"):
        ws.load_network(damaged)


# -- what is refused ---------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Ops without a row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return torch.special.bessel_j0(y) + torch.special.airy_ai(x)


def test_missing_ops_are_named() -> None:
    module, x = Odd(), _rows(4)[:1]
    with pytest.raises(
        ws.errors.UnsupportedOpError, match=r"aten\.special_bessel_j0\.default has no row here"
    ) as error:
        ws.from_torch(module, x)
    text = str(error.value)
    assert "@ws.torch_op('aten.special_bessel_j0')" in text
    assert "aten.special_airy_ai.default (1x)" in text
    assert "torch.special.bessel_j0(y)" in text
    assert "test_networks.py" in text
    found = ws.torch_coverage(module, x)
    assert [op.name for op in found.missing] == ["aten.special_bessel_j0.default", "aten.special_airy_ai.default"]
    assert "missing: aten.special_bessel_j0.default (1x)" in str(found)
    assert found.ops["aten.linear.default"] == 1
    assert not found
    with pytest.raises(ws.errors.UnsupportedOpError, match=r"special_bessel_j0\.default in the module '1\.0'"):
        ws.from_torch(torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(module)), x)


def test_an_op_is_registered(monkeypatch: Any) -> None:
    from wholestep.interop.torch.aten import table

    monkeypatch.setattr(table, "OWN", {})

    @ws.torch_op("aten.special_bessel_j0")
    def bessel(x: Any) -> Any:
        return 1.0 - x * x / 4.0

    @ws.torch_op("aten.special_airy_ai.default")
    def airy(x: Any) -> Any:
        return x * 0.0

    net = ws.from_torch(Odd(), _rows(4)[:1])
    x, state = _rows(4), net.state_dict()
    y = x @ state["inner.0.weight"].T + state["inner.0.bias"]
    np.testing.assert_allclose(net.predict(x, device="reference"), 1.0 - y * y / 4.0, 1e-5, 1e-6)
    with pytest.raises(ws.errors.UsageError, match="torch_op takes the name of an op"):
        ws.torch_op("hypot")


class Fixed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x @ torch.eye(3) + torch.eye(3)


class Changing(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x, x) if self.training else x


class Masking(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0].sum()


def test_what_cannot_be_imported_is_told() -> None:
    x = _rows(3)
    with pytest.warns(ws.errors.TrainingWarning, match="axis 0 of 'x' is 3"):
        net = ws.from_torch(Fixed(), x[:3])
    np.testing.assert_allclose(net.predict(x[:3], device="reference"), x[:3] + np.eye(3), 1e-6)
    with pytest.raises(ws.errors.ShapeError, match=r"the network expects 'x' of shape \(3, 3\); received \(12, 3\)"):
        net.predict(x, device="reference")
    with pytest.raises(ws.errors.UsageError, match=r"in training and .* in evaluation"):
        ws.from_torch(Changing(), x[:2])
    with pytest.raises(ws.errors.UnsupportedOpError, match="selects by a mask that depends on the data"):
        ws.from_torch(Masking(), x[:2])
    with pytest.raises(ws.errors.UsageError, match=r"takes a torch\.nn\.Module"):
        ws.from_torch(ws.nn.Linear(3, 3), x)
    with pytest.raises(ws.errors.UsageError, match="the example holds arrays or tensors"):
        ws.from_torch(Fixed(), "x")
    with pytest.raises(ws.errors.DTypeError, match="parameters are kept in float32"):
        ws.from_torch(nn.Linear(3, 3).bfloat16(), torch.zeros(2, 3, dtype=torch.bfloat16))
    with pytest.raises(ws.errors.UsageError, match="cannot export"):
        ws.from_torch(nn.Linear(3, 3), x[:, :2])


# -- sizes, and networks inside others ---------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        y = F.scaled_dot_product_attention(self.q(x), self.k(x), x + torch.arange(x.shape[1])[:, None])
        return y, torch.cat([y[:, :1], x], 1).mean(1) / x.shape[1]


def test_other_axes_may_be_symbols() -> None:
    torch.manual_seed(0)
    module = Attending()
    net = ws.from_torch(module, _rows(5, 3)[:1], dynamic={"x": {1: "time"}})
    for length in (2, 7):
        x = _rows(length, 3)
        with torch.no_grad():
            wanted, last = module(torch.from_numpy(x))
        given = net.predict(x, device="reference")
        np.testing.assert_allclose(given[0], wanted.numpy(), 1e-5, 1e-6)
        np.testing.assert_allclose(given[1], last.numpy(), 1e-5, 1e-6)


class Twice(ws.nn.Module):
    """An imported network as a part, called twice: it has two batches to follow, one after the other."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x) + 2.0 * self.net(x * x)


def test_a_network_is_a_part_of_another() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
    net = Twice(ws.from_torch(module, _rows(4)[:1]))
    x, y = _rows(4).astype(np.float64), np.zeros((12, 3))
    session = ws.build_session(
        net, inputs=ws.Spec((12, 4), "float64"), targets=ws.Spec((12, 3), "float64"), loss="mse", device="reference",
        optimizer=ws.SGD(lr=0.0),
    )  # fmt: skip
    assert {"net/2/random0.rate", "net/2/random1.rate"} <= set(session.scalars)  # two draws with different keys
    session.step(x=x, labels=y)
    module(torch.from_numpy(x))
    module(torch.from_numpy(x * x))
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[f"net.{name}"], value.numpy(), 1e-9, 1e-12, err_msg=name)


class Frozen(nn.Module):
    """A part that stays in evaluation while the rest trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm(x))


def test_what_is_frozen_stays_frozen() -> None:
    module = Frozen()
    module.norm.eval()
    module.norm.running_mean.fill_(0.5)
    module.out.bias.requires_grad_(False)
    net = ws.from_torch(module, _rows(4)[:1])
    assert not module.norm.training
    assert module.training
    before = net.state_dict()
    ws.fit(
        net, (_rows(4), np.zeros((12, 2), np.float32)), loss="mse", progress=False, device="reference", batch_size=12
    )
    after = net.state_dict()
    for name in ("norm.running_mean", "norm.num_batches_tracked", "out.bias"):
        np.testing.assert_array_equal(before[name], after[name])
    assert not np.array_equal(before["out.weight"], after["out.weight"])
