"""Layers made with torch's arguments, from torch's numbers, give what torch's give; so do ways to begin them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.nn.test_first_values import assert_alike
from tests.support.oracles import assert_close
from tests.support.recording import run
from wholestep.errors import HabitError, UsageError

RNG = np.random.default_rng(3)
X, IMAGES, SIGNALS = RNG.normal(size=(4, 6)), RNG.normal(size=(2, 4, 6, 6)), RNG.normal(size=(2, 4, 9))
TOKENS = RNG.integers(0, 7, (3, 5)).astype(np.int32)

# torch's class -> its arguments, what it is called on
LAYERS: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    "Linear": ({"in_features": 6, "out_features": 3, "bias": True, "device": None}, X),
    "Conv1d": ({"in_channels": 4, "out_channels": 3, "kernel_size": 3, "padding": 1, "padding_mode": "zeros"}, SIGNALS),
    "Conv2d": ({"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "groups": 2}, IMAGES),
    "ConvTranspose2d": ({"in_channels": 4, "out_channels": 3, "kernel_size": 2, "stride": 2}, IMAGES),
    "MaxPool2d": ({"kernel_size": 2, "stride": 2, "dilation": 1, "return_indices": False}, IMAGES),
    "AvgPool2d": ({"kernel_size": 2, "count_include_pad": True}, IMAGES),
    "AdaptiveAvgPool2d": ({"output_size": 2}, IMAGES),
    "Embedding": ({"num_embeddings": 7, "embedding_dim": 4, "sparse": False}, TOKENS),
    "LayerNorm": ({"normalized_shape": 6, "elementwise_affine": True, "eps": 1e-4}, X),
    "RMSNorm": ({"normalized_shape": 6, "eps": 1e-4}, X),
    "GroupNorm": ({"num_groups": 2, "num_channels": 4, "affine": True}, IMAGES),
    "BatchNorm2d": ({"num_features": 4, "momentum": 0.2, "affine": True}, IMAGES),
    "Dropout": ({"p": 0.0, "inplace": True}, X),
    "Flatten": ({}, IMAGES),
    "Unflatten": ({"dim": 1, "unflattened_size": (2, 3)}, X),
    "Identity": ({}, X),
    "ReLU": ({"inplace": True}, X),
    "LeakyReLU": ({"negative_slope": 0.2, "inplace": True}, X),
    "ELU": ({"alpha": 0.5}, X),
    "SiLU": ({"inplace": True}, X),
    "GELU": ({"approximate": "tanh"}, X),
    "Softmax": ({"dim": 1}, X),
    "LogSoftmax": ({"dim": 0}, X),
    "Softmin": ({"dim": 1}, X),
    "GLU": ({"dim": 1}, X),
    "PReLU": ({"num_parameters": 4}, IMAGES),
    "Hardtanh": ({"min_val": -0.5, "max_val": 0.7, "inplace": True}, X),
    "ReLU6": ({"inplace": True}, 4 * X),
    "SELU": ({}, X),
    "CELU": ({"alpha": 0.7}, X),
    "LogSigmoid": ({}, X),
    "Hardsigmoid": ({}, 3 * X),
    "Softsign": ({}, X),
    "Tanhshrink": ({}, X),
    "Softshrink": ({"lambd": 0.3}, X),
    "Hardshrink": ({"lambd": 0.3}, X),
    "Threshold": ({"threshold": 0.1, "value": 2.0}, X),
    "Upsample": ({"scale_factor": 2}, IMAGES),
    "PixelShuffle": ({"upscale_factor": 2}, IMAGES),
    "UpsamplingNearest2d": ({"scale_factor": 2}, IMAGES),
    "UpsamplingBilinear2d": ({"size": (5, 9)}, IMAGES),
    "LocalResponseNorm": ({"size": 3, "alpha": 0.5}, IMAGES),
    "ChannelShuffle": ({"groups": 2}, IMAGES),
    "Softmax2d": ({}, IMAGES),
    "Unfold": ({"kernel_size": 3, "padding": 1, "stride": 2}, IMAGES),
    "Fold": ({"output_size": (6, 4), "kernel_size": 2}, RNG.normal(size=(2, 8, 15))),
    "AdaptiveAvgPool3d": ({"output_size": (2, 1, 3)}, RNG.normal(size=(2, 3, 4, 5, 4))),
    "AdaptiveMaxPool3d": ({"output_size": 2}, RNG.normal(size=(2, 3, 4, 5, 4))),
    "EmbeddingBag": ({"num_embeddings": 7, "embedding_dim": 4, "mode": "mean"}, TOKENS),
    "TransformerEncoderLayer": (
        {"d_model": 6, "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, "activation": "gelu", "layer_norm_eps": 1e-3},
        RNG.normal(size=(4, 3, 6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_made_with_torchs_arguments_is_torchs(name: str) -> None:
    given, x = LAYERS[name]
    theirs, ours = getattr(torch.nn, name)(**given).double(), getattr(ws.nn, name)(**given).astype("float64")
    numbers = {n: a.numpy() for n, a in theirs.state_dict().items() if n != "num_batches_tracked"}
    assert {n: p.shape for n, p in ours.named_arrays().items()} == {n: a.shape for n, a in numbers.items()}
    g = ws.Graph()
    g.set_outputs({"out": ours(g.input("x", x.shape, x.dtype))})
    found = run(g.to_ir(), {"x": x}, state=numbers or None).outputs["out"]
    expected = theirs(torch.tensor(x.astype(np.int64) if x.dtype == np.int32 else x)).detach().numpy()
    assert_close(found, expected, "float64", scale=1.0)


def test_recurrent_layers_and_attention_take_torchs_arguments() -> None:
    lstm = ws.nn.LSTM(input_size=3, hidden_size=5, num_layers=2, batch_first=True, bidirectional=True, proj_size=0)
    assert (lstm.inputs, lstm.hidden, lstm.directions) == (3, 5, 2)
    attention = ws.nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
    assert {n: p.shape for n, p in attention.named_arrays().items()} == {
        n: tuple(a.shape) for n, a in torch.nn.MultiheadAttention(8, 2, batch_first=True).state_dict().items()
    }


WORDS, MEMORY = RNG.normal(size=(2, 4, 6)), RNG.normal(size=(2, 5, 6))
LATER = np.triu(np.ones((4, 4), bool), 1)
ABSENT, AWAY = (
    np.array([[False, False, True, False], [False] * 4]),
    np.array([[False] * 5, [False, True, True, True, True]]),
)
CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bool masks": {"mask": LATER, "src_key_padding_mask": ABSENT},
    "numbers": {"mask": np.where(LATER, -np.inf, 0.5), "src_key_padding_mask": ABSENT},
    "numbers for each head": {"mask": RNG.normal(size=(4, 4, 4))},
    "padding": {"src_key_padding_mask": ABSENT},
}


def as_torch(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def outputs_of(theirs: Any, ours: Any, arrays: list[np.ndarray], **how: Any) -> tuple[Any, Any]:
    """What both give for the same numbers."""
    numbers = {n: a.numpy() for n, a in theirs.state_dict().items()}
    assert set(ours.named_arrays()) == set(numbers)
    g = ws.Graph()
    tensors = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    g.set_outputs({"out": ours(*tensors, **{n: v.astype(v.dtype) for n, v in how.items()})})
    found = run(g.to_ir(), {f"x{i}": a for i, a in enumerate(arrays)}, state=numbers).outputs["out"]
    theirs.train()  # the fast path of evaluation has other rules for masks
    return found, theirs(*map(torch.tensor, arrays), **{n: as_torch(v) for n, v in how.items()}).detach().numpy()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_encoder_is_torchs_with_every_mask(name: str) -> None:
    how = {"d_model": 6, "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, "batch_first": True, "norm_first": True}
    theirs = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**how), 2, torch.nn.LayerNorm(6)).double()
    ours = ws.nn.TransformerEncoder(ws.nn.TransformerEncoderLayer(**how), num_layers=2, norm=ws.nn.LayerNorm(6))
    found, expected = outputs_of(theirs, ours.astype("float64"), [WORDS], **CALLS[name])
    assert_close(found, expected, "float64", scale=1.0)


def test_a_decoder_is_torchs() -> None:
    how = {"d_model": 6, "nhead": 3, "dim_feedforward": 5, "dropout": 0.0, "batch_first": True, "bias": False}
    theirs = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**how), 2).double()
    ours = ws.nn.TransformerDecoder(decoder_layer=ws.nn.TransformerDecoderLayer(**how), num_layers=2).astype("float64")
    masks = {"tgt_mask": LATER, "tgt_key_padding_mask": ABSENT, "memory_key_padding_mask": AWAY}
    found, expected = outputs_of(theirs, ours, [WORDS, MEMORY], **masks)
    assert_close(found, expected, "float64", scale=1.0)
    g = ws.Graph()
    x, m = g.input("x", WORDS.shape, "float64"), g.input("m", MEMORY.shape, "float64")
    g.set_outputs({"flag": ours(x, m, tgt_is_causal=True), "mask": ours(x, m, LATER)})
    made = run(
        g.to_ir(), {"x": WORDS, "m": MEMORY}, state={n: a.numpy() for n, a in theirs.state_dict().items()}
    ).outputs
    assert_close(made["flag"], made["mask"], "float64", scale=1.0)


class Weighted(ws.nn.Module):
    def __init__(self) -> None:
        self.scales = ws.nn.ParameterList([np.full(3, 2.0), ws.nn.Parameter((3,), 3.0, "float64")])
        self.named = ws.nn.ParameterDict({"shift": np.full(3, 0.5)})
        self.pair = ws.nn.Bilinear(3, 3, 2, dtype="float64")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        for scale in self.scales:
            x = x * scale
        return self.pair(x + self.named["shift"], x)


def test_parameters_in_lists_and_dicts_have_torchs_names() -> None:
    model = Weighted().astype("float64")
    assert list(model.named_arrays()) == ["scales.0", "scales.1", "named.shift", "pair.weight", "pair.bias"]
    assert len(model.scales) == 2
    assert list(model.named) == ["shift"]
    x, theirs = np.ones((2, 3)), torch.nn.Bilinear(3, 3, 2).double()
    state = model.state_dict()
    theirs.load_state_dict({n: torch.tensor(state[f"pair.{n}"]) for n in ("weight", "bias")})
    expected = theirs(torch.tensor(x * 6 + 0.5), torch.tensor(x * 6)).detach().numpy()
    assert_close(model.predict(x, device="reference"), expected, "float64", scale=1.0)
    with pytest.raises(IndexError, match="this ParameterList has 2 parameters; received the index 2"):
        model.scales[2]


def test_places_of_maxima_lead_back() -> None:
    class Net(ws.nn.Module):
        def __init__(self) -> None:
            self.back = ws.nn.MaxUnpool2d(2)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return self.back(*ws.max_pool2d_with_indices(x, 2))

    images = torch.tensor(IMAGES, dtype=torch.float32)
    values, places = torch.nn.functional.max_pool2d(images, 2, return_indices=True)
    found = Net().predict(IMAGES.astype(np.float32), device="reference")
    np.testing.assert_array_equal(found, torch.nn.functional.max_unpool2d(values, places, 2).numpy())


# -- how parameters begin --------------------------------------------------------------------------------------------

BEGINNINGS = {
    "normal_": (0.1, 0.5),
    "uniform_": (-0.3, 0.4),
    "constant_": (0.3,),
    "ones_": (),
    "zeros_": (),
    "xavier_uniform_": (2.0,),
    "xavier_normal_": (),
    "kaiming_uniform_": (0.5,),
    "kaiming_normal_": (0.0, "fan_out", "relu"),
    "orthogonal_": (0.5,),
    "trunc_normal_": (0.1, 0.5, -0.4, 0.9),
    "dirac_": (),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_parameter_begins_as_torchs(name: str) -> None:
    layer = ws.nn.Conv2d(64, 32, 3)
    assert getattr(ws.nn.init, name)(layer.weight, *BEGINNINGS[name]) is layer.weight
    torch.manual_seed(1)
    theirs = torch.empty(32, 64, 3, 3)
    getattr(torch.nn.init, name)(theirs, *BEGINNINGS[name])
    assert_alike(layer.state_dict()["weight"], theirs.numpy(), name)


def test_gains_are_torchs() -> None:
    for name, parameter in (("relu", None), ("tanh", None), ("leaky_relu", 0.2), ("selu", None), ("conv2d", None)):
        assert ws.nn.init.calculate_gain(name, parameter) == pytest.approx(
            torch.nn.init.calculate_gain(name, parameter)
        )


def test_a_model_is_begun_by_apply_as_in_torch() -> None:
    def begin(m: ws.nn.Module) -> None:
        if isinstance(m, ws.nn.Linear):
            ws.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)
        elif type(m).__name__.find("Norm") != -1:
            m.weight.data.normal_(1.0, 0.02)
            m.bias.data.zero_()

    model = ws.nn.Sequential(ws.nn.Linear(64, 48), ws.nn.LayerNorm(48), ws.nn.Linear(48, 2)).apply(begin)
    numbers = model.state_dict()
    np.testing.assert_array_equal(numbers["0.bias"], np.full(48, 0.01, np.float32))
    assert abs(numbers["0.weight"]).max() == pytest.approx((6.0 / 112.0) ** 0.5, rel=0.01)
    assert abs(numbers["1.weight"] - 1.0).max() < 0.1
    np.testing.assert_array_equal(numbers["1.bias"], 0.0)


def test_a_model_that_was_used_has_its_numbers() -> None:
    layer = ws.nn.Linear(3, 2)
    before = layer.state_dict()["weight"]
    with pytest.raises(UsageError, match=r"normal_: .*has its numbers already.*load_state_dict"):
        ws.nn.init.normal_(layer.weight)
    np.testing.assert_array_equal(layer.state_dict()["weight"], before)
    ws.nn.init.zeros_(layer.bias)  # given numbers can be written
    layer.weight.data = np.ones((2, 3))
    np.testing.assert_array_equal(layer.predict(np.ones((4, 3), np.float32), device="reference"), 3.0)


# -- what modules hold -------------------------------------------------------------------------------------------------


class Held(ws.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = ws.nn.ModuleList(ws.nn.Linear(4, 4) for _ in range(2))
        self.heads = ws.nn.ModuleDict({"left": ws.nn.Linear(4, 2), "right": ws.nn.Identity()})
        self.grid = ws.nn.ModuleList([ws.nn.ModuleList([ws.nn.Linear(4, 4, bias=False)])])
        self.register_buffer("mask", np.tril(np.ones((2, 2))))
        self.register_parameter("scale", ws.nn.Parameter((4,), init=1.0))
        self.add_module("last", ws.nn.ReLU())

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        for block in self.blocks:
            x = ws.nn.functional.dropout(block(x), 0.5, training=self.training)
        return self.last(self.heads["left"](self.grid[0][0](x) * self.scale))


def test_lists_and_dicts_of_modules_have_torchs_names() -> None:
    model = Held()
    assert {name for name, _ in model.named_parameters()} == {
        "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias", "heads.left.weight", "heads.left.bias",
        "grid.0.0.weight", "scale",
    }  # fmt: skip
    assert [name for name, _ in model.named_buffers()] == ["mask"]
    assert [type(m).__name__ for m in model.modules()].count("Linear") == 4
    assert dict(model.named_children()).keys() == model.children().keys()
    assert model.get_submodule("heads.left") is model.heads["left"]
    assert model.get_parameter("scale").shape == (4,)
    assert model.predict(np.ones((2, 4), np.float32), device="reference").shape == (2, 2)
    with pytest.raises(UsageError, match="ModuleList holds modules; received 3"):
        ws.nn.ModuleList([3])


def test_parameters_are_counted_and_frozen_as_in_torch() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))
    assert sum(p.numel() for p in model.parameters()) == 26
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 26
    for p in model[0].parameters():
        p.requires_grad = False
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["0.weight", "0.bias"]
    assert model.requires_grad_(True)[0].weight.requires_grad
    assert model.double().to("cpu").get_parameter("0.weight").dtype == ws.float64
    with pytest.raises(HabitError, match="a parameter has no `grad`: gradients live within one step"):
        _ = next(iter(model.parameters())).grad


def test_a_sequence_is_made_and_cut_as_in_torch_and_keras() -> None:
    layers = [ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2)]
    assert ws.Sequential(layers).layers == layers
    named = ws.nn.Sequential({"in": layers[0], "out": layers[2]})
    assert list(named.state_dict()) == ["in.weight", "in.bias", "out.weight", "out.bias"]
    body = ws.nn.Sequential(*layers)[:2]
    assert isinstance(body, ws.nn.Sequential)
    assert body.append(layers[2])[2] is layers[2]
    assert list(ws.nn.Sequential(*list(ws.nn.Sequential(*layers).children().values())[:-1])) == layers[:2]


# -- losses ------------------------------------------------------------------------------------------------------------

LOSSES: dict[str, tuple[dict[str, Any], np.ndarray, np.ndarray]] = {
    "CrossEntropyLoss": ({"label_smoothing": 0.1, "reduction": "sum"}, X, np.array([1, 0, 5, 2])),
    "NLLLoss": ({}, X, np.array([1, 0, 5, 2])),
    "BCEWithLogitsLoss": ({}, X, (X > 0).astype(float)),
    "BCELoss": ({}, 1.0 / (1.0 + np.exp(-X)), (X > 0).astype(float)),
    "MSELoss": ({"reduction": "sum"}, X, X[::-1].copy()),
    "L1Loss": ({}, X, X[::-1].copy()),
    "HuberLoss": ({"delta": 0.5}, X, X[::-1].copy()),
    "SmoothL1Loss": ({"beta": 0.5}, X, X[::-1].copy()),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:.*probabilities")
def test_a_criterion_is_torchs(name: str) -> None:
    given, x, y = LOSSES[name]
    criterion = getattr(ws.nn, name)(**given)
    assert isinstance(criterion, ws.losses.Loss)
    g = ws.Graph()
    arrays = {"x": x, "y": y.astype(np.int32) if y.dtype.kind == "i" else y}
    g.set_outputs({"loss": criterion(*(g.input(n, a.shape, a.dtype) for n, a in arrays.items()))})
    expected = getattr(torch.nn, name)(**given)(torch.tensor(x), torch.tensor(y)).item()
    assert float(run(g.to_ir(), arrays).outputs["loss"]) == pytest.approx(expected, rel=1e-9)
