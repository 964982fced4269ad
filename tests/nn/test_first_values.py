"""First values of layers against torch's: by default, and under every initialiser of `ws.init`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import OptionError

Array = np.ndarray[Any, Any]


class TorchGates(torch.nn.Module):
    """A ConvLSTM has no twin in torch; its weights start as those of an LSTM with as many numbers in a state."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"weight_ih": (80, 20, 3, 3), "weight_hh": (80, 20, 3, 3)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape).uniform_(-(180**-0.5), 180**-0.5)))
        self.bias = torch.nn.Parameter(torch.zeros(80))


# Every layer that owns numbers, with torch's of the same shapes.
DEFAULTS: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[], torch.nn.Module]]] = {
    "PReLU": (lambda: ws.nn.PReLU(3), lambda: torch.nn.PReLU(3)),
    "Linear": (lambda: ws.nn.Linear(300, 200), lambda: torch.nn.Linear(300, 200)),
    "CosineLinear": (lambda: ws.nn.CosineLinear(300, 200), lambda: torch.nn.Linear(300, 200, bias=False)),
    "Embedding": (lambda: ws.nn.Embedding(300, 200), lambda: torch.nn.Embedding(300, 200)),
    "Bilinear": (lambda: ws.nn.Bilinear(30, 40, 50), lambda: torch.nn.Bilinear(30, 40, 50)),
    "EmbeddingBag": (lambda: ws.nn.EmbeddingBag(300, 200), lambda: torch.nn.EmbeddingBag(300, 200)),
    "TransformerEncoderLayer": (
        lambda: ws.nn.TransformerEncoderLayer(96, 4, 200), lambda: torch.nn.TransformerEncoderLayer(96, 4, 200)
    ),
    "TransformerDecoderLayer": (
        lambda: ws.nn.TransformerDecoderLayer(96, 4, 200), lambda: torch.nn.TransformerDecoderLayer(96, 4, 200)
    ),
    "Conv1d": (lambda: ws.nn.Conv1d(40, 90, 5), lambda: torch.nn.Conv1d(40, 90, 5)),
    "Conv2d": (lambda: ws.nn.Conv2d(64, 32, 3), lambda: torch.nn.Conv2d(64, 32, 3)),
    "Conv2d, groups": (lambda: ws.nn.Conv2d(64, 96, 3, groups=4), lambda: torch.nn.Conv2d(64, 96, 3, groups=4)),
    "Conv3d": (lambda: ws.nn.Conv3d(16, 32, 3), lambda: torch.nn.Conv3d(16, 32, 3)),
    "ConvTranspose1d": (lambda: ws.nn.ConvTranspose1d(40, 90, 5), lambda: torch.nn.ConvTranspose1d(40, 90, 5)),
    "ConvTranspose2d": (
        lambda: ws.nn.ConvTranspose2d(64, 96, 3, groups=4), lambda: torch.nn.ConvTranspose2d(64, 96, 3, groups=4)
    ),
    "ConvTranspose3d": (lambda: ws.nn.ConvTranspose3d(16, 32, 3), lambda: torch.nn.ConvTranspose3d(16, 32, 3)),
    "RNN": (lambda: ws.nn.RNN(60, 90), lambda: torch.nn.RNN(60, 90)),
    "LSTM": (lambda: ws.nn.LSTM(60, 90, num_layers=2), lambda: torch.nn.LSTM(60, 90, num_layers=2)),
    "GRU": (lambda: ws.nn.GRU(60, 90), lambda: torch.nn.GRU(60, 90)),
    **{
        kind: (lambda k=kind: getattr(ws.nn, k)(60, 90), lambda k=kind: getattr(torch.nn, k)(60, 90))
        for kind in ("RNNCell", "LSTMCell", "GRUCell")
    },
    "ConvLSTM2d": (lambda: ws.nn.ConvLSTM2d(20, 20, 3), TorchGates),
    "LayerNorm": (lambda: ws.nn.LayerNorm(50), lambda: torch.nn.LayerNorm(50)),
    "RMSNorm": (lambda: ws.nn.RMSNorm(50), lambda: torch.nn.RMSNorm(50)),
    "GroupNorm": (lambda: ws.nn.GroupNorm(5, 50), lambda: torch.nn.GroupNorm(5, 50)),
    "BatchNorm1d": (lambda: ws.nn.BatchNorm1d(50), lambda: torch.nn.BatchNorm1d(50)),
    "BatchNorm2d": (lambda: ws.nn.BatchNorm2d(50), lambda: torch.nn.BatchNorm2d(50)),
    "BatchNorm3d": (lambda: ws.nn.BatchNorm3d(50), lambda: torch.nn.BatchNorm3d(50)),
    "MultiHeadAttention": (
        lambda: ws.nn.MultiHeadAttention(96, 4),
        lambda: torch.nn.MultiheadAttention(96, 4),
    ),
}  # fmt: skip
MADE_OF_OTHERS = {"Module", "Sequential", "Ensemble", "Residual", "TransformerBlock", "SwiGLU", "SeparableConv2d",
                  "TransformerDecoderBlock", "Transformer", "TransformerEncoder", "TransformerDecoder"}  # fmt: skip


def assert_alike(ours: Array, theirs: Array, what: str) -> None:
    """Drawn from one distribution, as far as the numbers of a layer tell."""
    assert ours.shape == theirs.shape, what
    if theirs.std() == 0.0:
        np.testing.assert_array_equal(ours, theirs, err_msg=what)
        return
    several = 4.0 / np.sqrt(theirs.size)
    assert abs(ours.std() / theirs.std() - 1.0) < 2.0 * several, f"{what}: std {ours.std()}, torch's {theirs.std()}"
    assert abs(ours.mean() - theirs.mean()) < 2.0 * several * theirs.std(), what
    # The largest of a uniform kind is its bound; the kurtosis tells it from a normal one.
    assert abs(_kurtosis(ours) - _kurtosis(theirs)) < 20.0 / np.sqrt(theirs.size), what


def _kurtosis(x: Array) -> float:
    centred = (x - x.mean()).astype(np.float64)
    return float((centred**4).mean() / (centred**2).mean() ** 2)


@pytest.mark.parametrize("name", DEFAULTS)
def test_layers_start_as_torchs(name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = (make() for make in DEFAULTS[name])
    known = {n: a.numpy() for n, a in theirs.state_dict().items() if n != "num_batches_tracked"}
    found = {n: a for n, a in ours.state_dict().items() if n != "num_batches_tracked"}
    assert found.keys() == known.keys()
    for path, array in known.items():
        assert_alike(found[path], array, f"{name} {path}")


OF_LOSSES = {"GradNorm", "UncertaintyWeights"}  # tests/train/test_task_weights.py


def test_every_layer_with_numbers_is_in_the_table() -> None:
    covered = {name.split(",")[0] for name in DEFAULTS}
    for name in ws.nn.__all__:
        kind = getattr(ws.nn, name)
        if (
            isinstance(kind, type)
            and issubclass(kind, ws.nn.Module)
            and name not in covered | MADE_OF_OTHERS | OF_LOSSES
        ):
            assert not made(kind).named_arrays(), f"{name} has parameters: add it to DEFAULTS"


def made(kind: type[ws.nn.Module]) -> ws.nn.Module:
    """A layer with the first arguments that it takes."""
    for given in ((), (2,), (abs,), (2, 2), (2, 2, 2), (1, (2, 2))):
        with contextlib.suppress(TypeError, ws.errors.WholestepError):
            return kind(*given)
    raise AssertionError(f"{kind.__name__} takes none of these: add it to the table")


WITH_INIT: dict[str, Callable[[Any], ws.nn.Module]] = {
    "Linear": lambda init: ws.nn.Linear(200, 320, init=init),
    "Embedding": lambda init: ws.nn.Embedding(320, 200, init=init),
    "Conv1d": lambda init: ws.nn.Conv1d(40, 90, 5, init=init),
    "Conv2d": lambda init: ws.nn.Conv2d(64, 32, 3, init=init),
    "Conv2d, groups": lambda init: ws.nn.Conv2d(64, 128, (3, 5), groups=4, init=init),
}
KINDS: dict[str, tuple[Any, Callable[[torch.Tensor], Any]]] = {
    "normal": (ws.init.normal(0.1, 0.5), lambda w: torch.nn.init.normal_(w, 0.1, 0.5)),
    "uniform": (ws.init.uniform(-0.1, 0.4), lambda w: torch.nn.init.uniform_(w, -0.1, 0.4)),
    "constant": (ws.init.constant(0.3), lambda w: torch.nn.init.constant_(w, 0.3)),
    "ones": (ws.init.ones(), torch.nn.init.ones_),
    "zeros": (ws.init.zeros(), torch.nn.init.zeros_),
    "xavier_uniform": (ws.init.xavier_uniform(2.0), lambda w: torch.nn.init.xavier_uniform_(w, 2.0)),
    "xavier_normal": (ws.init.xavier_normal(), torch.nn.init.xavier_normal_),
    "kaiming_uniform": (ws.init.kaiming_uniform(0.5), lambda w: torch.nn.init.kaiming_uniform_(w, 0.5)),
    "kaiming_normal": (ws.init.kaiming_normal(), torch.nn.init.kaiming_normal_),
    "kaiming_normal, fan_out": (
        ws.init.kaiming_normal(mode="fan_out"),
        lambda w: torch.nn.init.kaiming_normal_(w, mode="fan_out"),
    ),
    "trunc_normal": (
        ws.init.trunc_normal(0.1, 0.5, -0.6, 0.7),
        lambda w: torch.nn.init.trunc_normal_(w, 0.1, 0.5, -0.6, 0.7),
    ),
    "lecun_normal": (ws.init.lecun_normal(), lambda w: w.normal_(0.0, w[0].numel() ** -0.5)),
    "lecun_uniform": (
        ws.init.lecun_uniform(),
        lambda w: w.uniform_(-((3 / w[0].numel()) ** 0.5), (3 / w[0].numel()) ** 0.5),
    ),
    "orthogonal": (ws.init.orthogonal(0.5), lambda w: torch.nn.init.orthogonal_(w, 0.5)),
}


def test_every_initialiser_is_in_the_table() -> None:
    assert {name.split(",")[0] for name in KINDS} | {"values"} == set(ws.init.__all__)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", WITH_INIT)
def test_an_initialiser_knows_the_layout_it_fills(layer: str, kind: str) -> None:
    ours, fill = KINDS[kind]
    found = WITH_INIT[layer](ours).state_dict()["weight"]
    torch.manual_seed(1)
    theirs = torch.empty(found.shape)
    fill(theirs)
    assert_alike(found, theirs.numpy(), f"{layer} {kind}")
    if kind == "orthogonal":
        rows = found.reshape(len(found), -1)
        gram = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
        np.testing.assert_allclose(gram, 0.25 * np.eye(len(gram)), atol=1e-6)


RECURRENT = {
    "LSTM": (lambda **i: ws.nn.LSTM(60, 90, **i), "weight_ih_l0", "weight_hh_l0"),
    "GRUCell": (lambda **i: ws.nn.GRUCell(60, 90, **i), "weight_ih", "weight_hh"),
    "ConvLSTM2d": (lambda **i: ws.nn.ConvLSTM2d(8, 16, 3, **i), "weight_ih", "weight_hh"),
}


@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_take_one_for_the_inputs_and_one_for_the_state(layer: str) -> None:
    make, inputs, state = RECURRENT[layer]
    found = make(init=ws.init.normal(std=0.3), recurrent_init=ws.init.orthogonal()).state_dict()
    assert abs(found[inputs].std() / 0.3 - 1) < 0.05
    rows = found[state].reshape(len(found[state]), -1)
    gram = rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


def test_attention_and_transformers_take_one_for_all_their_weights() -> None:
    for module in (
        ws.nn.MultiHeadAttention(32, 4, init=ws.init.normal(std=0.01)),
        ws.nn.TransformerBlock(32, 4, init=ws.init.normal(std=0.01)),
        ws.nn.TransformerDecoderBlock(32, 4, init=ws.init.normal(std=0.01)),
    ):
        weights = {name: a for name, a in module.state_dict().items() if a.ndim == 2}
        assert all(abs(a.std() / 0.01 - 1) < 0.1 for a in weights.values()), weights.keys()


def test_a_range_that_a_normal_number_never_meets_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the probability of .50, 60. is 0 for .* choose a range nearer to the mean"):
        ws.init.trunc_normal(low=50.0, high=60.0)
    drawn = ws.nn.Linear(300, 300, init=ws.init.trunc_normal(low=1.5, high=9.0)).state_dict()["weight"]
    assert drawn.min() >= 1.5
    assert 1.8 < drawn.mean() < 2.0  # the mean of a normal number above 1.5 is 1.94


def test_filters_of_the_published_shape() -> None:
    weight = ws.nn.Conv2d(64, 32, 3, init=ws.init.kaiming_normal()).state_dict()["weight"]
    assert abs(weight.std() - 0.0589) < 0.001


def test_a_parameter_of_ones_own_is_for_x_at_w() -> None:
    """(inputs, outputs), unless it says otherwise."""

    class Pair(ws.nn.Module):
        def __init__(self) -> None:
            self.right = ws.nn.Parameter((400, 100), ws.init.kaiming_normal())
            self.left = ws.nn.Parameter((400, 100), ws.init.kaiming_normal(), outputs_first=True)
            self.open = ws.nn.Parameter((400, 100), outputs_first=True)

    found = Pair().state_dict()
    for name, std in {"right": (2 / 400) ** 0.5, "left": 0.02**0.5, "open": 0.02**0.5}.items():
        assert abs(found[name].std() / std - 1) < 0.02, name


def test_resnets_start_as_torchvisions() -> None:
    for name, array in ws.models.resnet18(classes=10).state_dict().items():
        if array.ndim == 4:
            theirs = torch.nn.init.kaiming_normal_(torch.empty(array.shape), mode="fan_out").std()
            assert abs(array.std() / float(theirs) - 1) < 0.05, name
        elif ".weight" in name and array.ndim == 1:
            assert (array == 1).all(), name


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="mode='fan_avg': expected 'fan_in' or 'fan_out'"):
        ws.init.kaiming_normal(mode="fan_avg")
