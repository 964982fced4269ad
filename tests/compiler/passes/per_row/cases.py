"""Networks for values of single rows, with data: one for each rule, and their gradients row by row, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import wholestep as ws
from wholestep import nn

rng = np.random.default_rng(0)
ROWS = 5
VECTORS = rng.standard_normal((ROWS, 6))
SEQUENCES = rng.standard_normal((ROWS, 4, 6))
IMAGES = rng.standard_normal((ROWS, 4, 7, 6))
VIDEOS = rng.standard_normal((ROWS, 2, 3, 4, 5))
TOKENS = rng.integers(0, 11, (ROWS, 5)).astype("i4")
CLASSES = rng.integers(0, 3, ROWS).astype("i4")
MASKED = np.where(rng.random((ROWS, 5)) < 0.3, -1, rng.integers(0, 11, (ROWS, 5))).astype("i4")
NUMBERS = rng.standard_normal((ROWS, 2))

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    x: Any
    y: Any
    loss: Any = "cross_entropy"
    weights: Any = None  # of the rows
    is_float64: bool = False  # the model has numbers already, in float64

    def arrays(self, rows: slice = slice(None)) -> dict[str, Any]:
        named = {"x": self.x, "labels": self.y, "sample_weight": self.weights}
        return {name: array[rows] for name, array in named.items() if array is not None}

    def session(self, device: str, dtype: str = "float64", **options: Any) -> ws.Session:
        targets = {"labels": _spec(self.y, dtype)}
        if self.weights is not None:
            targets["sample_weight"] = _spec(self.weights, dtype)
        settings: dict[str, Any] = {"optimizer": ws.SGD(lr=0.0), "batch_size": ROWS, **options}
        return ws.build_session(
            self.model() if self.is_float64 else self.model().astype(dtype),
            inputs=_spec(self.x, dtype),
            targets=targets,
            loss=self.loss,
            device=device,
            seed=0,
            options=ws.CompileOptions(egraph=False),
            **settings,
        )


def _spec(array: Any, dtype: str) -> ws.Spec:
    return ws.Spec(("batch", *array.shape[1:]), dtype if array.dtype.kind == "f" else str(array.dtype))


def row_by_row(case: Case) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """The loss of each row, and its gradients, from steps over one row each."""
    session = case.session("reference")
    rows = [case.arrays(slice(i, i + 1)) for i in range(ROWS)]
    losses = [float(session.step(row).loss) for row in rows]
    return np.array(losses), [{n: np.array(g) for n, g in session.gradients(row).items()} for row in rows]


def norm_of(gradients: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((g**2).sum() for g in gradients.values())))


class SharedWeights(nn.Module):
    """One layer twice, and a weight used without a layer: contributions are sums of several terms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(ws.tanh(self.layer(ws.tanh(self.layer(x)))))


class LastOfSequence(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        outputs, _ = self.layer(x)
        return self.head(outputs[:, -1])


class Positions(nn.Module):
    """A table of positions, which every row reads at the same places, beside one of words."""

    def __init__(self, positions: int = 5, *, backwards: bool = False) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(11, 6), nn.Embedding(positions, 6), nn.Linear(6, 11)
        self.backwards = backwards

    def forward(self, x: Any) -> Any:
        places = ws.arange(5)
        return self.head(ws.tanh(self.words(x) + self.places(4 - places if self.backwards else places)))


class LearnedImage(nn.Module):
    """A convolution of a trained image that is added to every row: its gradients have no rules, but loops over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Parameter((1, 4, 7, 6), ws.init.normal(1.0))
        self.layer, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(168, 3)

    def forward(self, x: Any) -> Any:
        learned = self.layer(self.image)
        return self.head(ws.flatten(ws.tanh(x + learned), 1))


class Composed(nn.Module):
    """Weights that are joined, cut, permuted, normalised and transposed before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter((6, n), ws.init.normal(0.5)) for n in (2, 3))
        self.mixed, self.cube = nn.Parameter((5, 4), ws.init.normal(1.0)), nn.Parameter((2, 4, 2), ws.init.normal(0.5))
        self.slopes = nn.Parameter((3, 4), ws.init.normal(0.5))

    def forward(self, x: Any) -> Any:
        hidden = ws.tanh(x @ ws.concat([self.left, self.right], 1)) @ ws.softmax(self.mixed)
        cube = self.cube.permute((1, 2, 0)).reshape((4, 4))
        return ws.tanh(hidden @ cube)[:, :3] - (hidden.reshape((-1, 4, 1)) * self.slopes.permute((1, 0))).sum(1)


class Attending(nn.Module):
    """Attention, a gate with a trained slope, and layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.slope = nn.MultiHeadAttention(6, 2), nn.PReLU()
        self.layer, self.head = nn.LSTM(6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        outputs, _ = self.layer(self.slope(self.attention(x)))
        return self.head(outputs[:, -1])


def linear() -> nn.Linear:
    """A layer with numbers, in float64."""
    layer = nn.Linear(6, 3).astype("float64")
    layer.load_state_dict({"weight": np.sin(np.arange(18.0)).reshape(3, 6), "bias": np.cos(np.arange(3.0))})
    return layer


def imported() -> nn.Module:
    """A module of PyTorch with a table of positions, a convolution, and a transposed product."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = torch.nn.Embedding(11, 6), torch.nn.Embedding(5, 6)
            self.layer, self.head = torch.nn.Conv1d(5, 5, 3, padding=1), torch.nn.Linear(6, 11)

        def forward(self, x: Any) -> Any:
            return self.head(torch.tanh(self.layer(self.words(x) + self.places(torch.arange(x.shape[1])))))

    torch.manual_seed(0)
    return ws.from_torch(Net().double(), (torch.zeros(ROWS, 5, dtype=torch.int32),))


def images(*layers: Callable[[], nn.Module], features: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for make in layers), nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))


CASES: dict[str, Case] = {
    "dense layers and a norm": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3)), VECTORS, CLASSES
    ),
    "a sequence, whose contribution is a Gram form": Case(
        lambda: nn.Sequential(nn.Linear(6, 9), nn.RMSNorm(9), nn.Linear(9, 3)), SEQUENCES,
        rng.integers(0, 3, (ROWS, 4)).astype("i4"),
    ),
    "shared weights": Case(SharedWeights, VECTORS, CLASSES),
    "weights in pieces": Case(Composed, VECTORS, CLASSES),
    "weights of rows": Case(SharedWeights, VECTORS, CLASSES, weights=np.array([1.0, 0.5, 2.0, 3.0, 1.5])),
    "a convolution": Case(images(lambda: nn.Conv2d(4, 3, 3, stride=2, padding=1), features=36), IMAGES, CLASSES),
    "a convolution and a pool": Case(
        images(
            lambda: nn.Conv2d(4, 3, 3, padding=1), nn.ReLU, lambda: nn.MaxPool2d(2, ceil_mode=False),
            lambda: nn.Conv2d(3, 2, 2), features=8,
        ), IMAGES[:, :, :6], CLASSES,
    ),
    "a wide convolution of few pixels": Case(images(lambda: nn.Conv2d(4, 16, (7, 5)), features=32), IMAGES, CLASSES),
    "a grouped and a dilated convolution": Case(
        images(lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: nn.Conv2d(6, 2, 2, dilation=2), features=12), IMAGES,
        CLASSES,
    ),
    "a convolution of signals": Case(
        images(lambda: nn.Conv1d(4, 3, 3), features=12), SEQUENCES, CLASSES
    ),
    "a transposed convolution": Case(
        images(lambda: nn.ConvTranspose2d(4, 2, 3, stride=2), features=2 * 15 * 13), IMAGES, CLASSES
    ),
    "a three-dimensional convolution": Case(
        images(lambda: nn.Conv3d(2, 3, 2, padding=1), features=3 * 4 * 5 * 6), VIDEOS, CLASSES
    ),
    "a transposed convolution of three dimensions": Case(
        images(lambda: nn.ConvTranspose3d(2, 2, 2, stride=2), features=2 * 6 * 8 * 10), VIDEOS, CLASSES
    ),
    "a weight in factors": Case(
        lambda: nn.weight_norm(linear()), VECTORS, CLASSES, is_float64=True
    ),
    "a table of positions": Case(Positions, TOKENS, np.abs(MASKED)),
    "a longer table, read backwards": Case(lambda: Positions(7, backwards=True), TOKENS, np.abs(MASKED)),
    "an encoder of positions and attention": Case(
        lambda: ws.models.bert(layers=1, width=8, heads=2, vocabulary=11, context=6, dropout=0.0), TOKENS,
        np.abs(MASKED),
    ),
    "an imported network": Case(imported, TOKENS, np.abs(MASKED), is_float64=True),
    "layers without a rule": Case(LearnedImage, IMAGES, CLASSES),
    "attention, slopes and both directions": Case(Attending, SEQUENCES, CLASSES),
    "instance norm": Case(images(lambda: nn.InstanceNorm2d(4, affine=True), features=168), IMAGES, CLASSES),
    "group norm": Case(images(lambda: nn.GroupNorm(2, 4), features=168), IMAGES, CLASSES),
    "a tied embedding, attention, and masked targets": Case(
        lambda: ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=11, context=5), TOKENS, MASKED,
        ws.losses.Loss("cross_entropy", ignore_index=-1),
    ),
    "an embedding and an LSTM": Case(lambda: ws.models.lstm_lm(11, width=6, layers=2), TOKENS, np.abs(MASKED)),
    "a GRU": Case(lambda: LastOfSequence(nn.GRU(6, 5, batch_first=True)), SEQUENCES, CLASSES),
    "a recurrent layer": Case(lambda: LastOfSequence(nn.RNN(6, 5, batch_first=True)), SEQUENCES, CLASSES),
    "numbers": Case(lambda: nn.Linear(6, 2), VECTORS, NUMBERS, "mse"),
    "binary targets": Case(lambda: nn.Linear(6, 2), VECTORS, rng.integers(0, 2, (ROWS, 2)).astype("f8"), "bce"),
}  # fmt: skip
