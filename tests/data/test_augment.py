"""Augmentations inside the step against NumPy, keyed by (seed, epoch, row), and in runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.data.augment import POINTS, Augmentations, beta_table
from wholestep.errors import OptionError, ShapeError, UsageError, WholestepError
from wholestep.steps.augment import augment_inputs

Array = np.ndarray[Any, Any]
SEED, EPOCH, ROWS = 7, 3, np.array([5, 0, 12, 100_000, 31], np.int32)
IMAGES = np.random.default_rng(0).random((5, 3, 9, 12)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(1, 9, (5, 7)).astype(np.int32)


# -- the oracle: NumPy ---------------------------------------------------------------------------------------------


def _hash(x: Any) -> Any:
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _keys() -> Array:
    words = _hash(ROWS.astype(np.int64))
    for number in (SEED, EPOCH):
        words = _hash(words ^ number)
    return np.asarray(words)


def uniform(number: int, axes: int = 1) -> Array:
    words = _hash(_keys() ^ _hash(number))
    return ((words >> 8) * 2.0**-24).reshape((-1, *(1,) * (axes - 1)))


def _box(top: Array, bottom: Array, left: Array, right: Array) -> Array:
    y, x = np.mgrid[:9, :12]
    inside = [(y >= t) & (y < b) & (x >= m) & (x < r) for t, b, m, r in zip(top, bottom, left, right, strict=True)]
    return np.array(inside)[:, None]


def erased() -> Array:
    area, ratio = (0.1 + uniform(0) * 0.2) * 108, np.exp(uniform(1) * math.log(4) - math.log(2))
    tall = np.clip(np.floor(np.sqrt(area * ratio) + 0.5), 1, 9)
    wide = np.clip(np.floor(np.sqrt(area / ratio) + 0.5), 1, 12)
    top, left = np.floor(uniform(2) * (10 - tall)), np.floor(uniform(3) * (13 - wide))
    return np.where(_box(top, top + tall, left, left + wide) & (uniform(4, 4) < 0.7), 0.25, IMAGES)


def cut_out() -> Array:
    top, left = np.floor(uniform(0) * 9) - 2, np.floor(uniform(1) * 12) - 2
    return np.where(_box(top, top + 4, left, left + 4), 0.0, IMAGES)


def moved(read: Callable[[Array, float, float], Array] | None = None) -> Array:
    """Each pixel of the result is read at the point from which rotation, shear, scale and shift bring it there."""
    out = np.zeros_like(IMAGES)
    angle, shear = ((2 * uniform(n) - 1) * math.radians(d) for n, d in ((0, 30), (1, 10)))
    factor, dx, dy = 0.8 + 0.4 * uniform(2), (2 * uniform(3) - 1) * 0.1 * 12, (2 * uniform(4) - 1) * 0.1 * 9
    for n, image in enumerate(IMAGES):
        rotate = np.array([[np.cos(angle[n]), -np.sin(angle[n])], [np.sin(angle[n]), np.cos(angle[n])]])
        back = np.linalg.inv(np.array([[1.0, np.tan(shear[n])], [0.0, 1.0]]) @ (factor[n] * rotate))
        for y in range(9):
            for x in range(12):
                sx, sy = back @ np.array([x - 5.5 - dx[n], y - 4.0 - dy[n]]) + np.array([5.5, 4.0])
                out[n, :, y, x] = (read or _bilinear)(image, sx, sy)
    return out


def _bilinear(image: Array, x: float, y: float) -> Array:
    total = np.zeros(len(image))
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                total += image[:, i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


def _nearest(image: Array, x: float, y: float) -> Array:
    i, j = math.floor(y + 0.5), math.floor(x + 0.5)
    inside = 0 <= i < image.shape[1] and 0 <= j < image.shape[2]
    return image[:, i, j] if inside else np.zeros(len(image))


def test_the_nearest_pixels_of_a_moved_image() -> None:
    """Where float32 rounds a position across the middle of two pixels, the other one is taken: in 1 % at most."""
    ours = augmented(ws.data.RandomAffine(30, 0.1, (0.8, 1.2), 10), IMAGES)
    assert (ours == moved(_nearest)).mean() > 0.99


LUMA = np.array([0.299, 0.587, 0.114]).reshape((1, 3, 1, 1))


def jittered() -> Array:
    x = IMAGES * (0.8 + 0.4 * uniform(0, 4))
    grey = (x * LUMA).sum(1, keepdims=True).mean((2, 3), keepdims=True)
    x = grey + (x - grey) * (0.7 + 0.6 * uniform(1, 4))
    grey = (x * LUMA).sum(1, keepdims=True)
    x = grey + (x - grey) * (0.5 + uniform(2, 4))
    yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    for n, turns in enumerate((2 * uniform(3) - 1) * 0.1):
        c, s = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
        turn = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
        x[n] = np.einsum("ij,jhw->ihw", np.linalg.inv(yiq) @ turn @ yiq, x[n])
    return x


def banded() -> Array:
    x = IMAGES.copy()
    for first, axis, widest in ((0, 2, 3), (16, 3, 5)):
        for band in range(2):
            width = np.floor(uniform(first + 2 * band) * (widest + 1))
            start = np.floor(uniform(first + 2 * band + 1) * (x.shape[axis] - width + 1))
            for n in range(5):
                at = slice(int(start[n]), int(start[n] + width[n]))
                x[n, :, at if axis == 2 else slice(None), at if axis == 3 else slice(None)] = 0.0
    return x


def masked() -> Array:
    words = _hash(_hash(_keys() ^ _hash(0))[:, None] ^ _hash(np.arange(7)))
    return np.where((words >> 8) * 2.0**-24 < 0.4, 8, TOKENS)


CASES: dict[str, tuple[Any, Array, Callable[[], Array]]] = {
    "flip": (ws.data.RandomFlip(), IMAGES, lambda: np.where(uniform(0, 4) < 0.5, IMAGES[..., ::-1], IMAGES)),
    "erasing": (ws.data.RandomErasing(0.7, (0.1, 0.3), (0.5, 2.0), 0.25), IMAGES, erased),
    "cutout": (ws.data.Cutout(4), IMAGES, cut_out),
    "affine": (ws.data.RandomAffine(30, 0.1, (0.8, 1.2), 10, "bilinear"), IMAGES, moved),
    "color": (ws.data.ColorJitter(0.2, 0.3, 0.5, 0.1), IMAGES, jittered),
    "spectrogram": (ws.data.SpecAugment(3, 5, 2), IMAGES, banded),
    "tokens": (ws.data.MaskTokens(0.4, 8), TOKENS, masked),
}


def augmented(augment: Any, x: Array, rows: Array = ROWS, epoch: int = EPOCH, device: str = "reference") -> Any:
    """The input of the model, and the share of the own target, in a training step."""
    g = ws.Graph()
    tensors = {
        "x": g.input("x", ("batch", *x.shape[1:]), str(x.dtype)),
        "row_numbers": g.input("row_numbers", ("batch",), "int32"),
    }
    w = g.parameter("w", (), 1.0)
    inputs, share = augment_inputs(g, tensors, Augmentations.of(augment, SEED))
    shares = {} if share is None else {"share": share * 1.0}
    g.set_outputs({"loss": w * w, "x": inputs["x"], **shares})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=8, device=device)
    session.state.epoch = epoch
    out = session.step(x=x, row_numbers=rows).outputs
    np.testing.assert_array_equal(session.evaluate(x=x, row_numbers=rows).outputs["x"], x)
    return (out["x"], out["share"]) if shares else out["x"]


@pytest.mark.parametrize("name", CASES)
def test_equals_numpy(name: str) -> None:
    augment, x, oracle = CASES[name]
    np.testing.assert_allclose(augmented(augment, x), oracle(), atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    """Compiled: other batches and other places of a row give the same bits; another epoch and row do not."""
    augment, x, _ = CASES[name]
    whole, order = augmented(augment, x, device="cpu"), np.array([3, 1, 4])
    np.testing.assert_array_equal(augmented(augment, x[order], ROWS[order], device="cpu"), whole[order])
    assert (augmented(augment, x, ROWS, EPOCH + 1) != augmented(augment, x)).any()
    assert (augmented(augment, x, ROWS + 1) != augmented(augment, x)).any()
    np.testing.assert_allclose(whole, augmented(augment, x), atol=2e-5)


# -- pairs of rows -----------------------------------------------------------------------------------------------


def test_mixup_equals_numpy() -> None:
    x, share = augmented(ws.data.MixUp(), IMAGES)
    np.testing.assert_allclose(share, uniform(0), atol=1e-7)
    own = uniform(0, 4)
    np.testing.assert_allclose(x, own * IMAGES + (1 - own) * IMAGES[::-1], atol=1e-6)


def test_cutmix_equals_numpy() -> None:
    x, share = augmented(ws.data.CutMix(), IMAGES)
    side = np.sqrt(1 - uniform(0))
    edges = []
    for number, size in ((1, 9), (2, 12)):
        middle, half = np.floor(uniform(number) * size), np.floor(side * size) * 0.5
        edges += [np.clip(np.floor(middle - half), 0, size), np.clip(np.floor(middle + half), 0, size)]
    inside = _box(*edges)
    np.testing.assert_array_equal(x, np.where(inside, IMAGES[::-1], IMAGES))
    np.testing.assert_allclose(share, 1 - inside.mean((1, 2, 3)), atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 4.0])
def test_shares_are_of_the_beta_distribution(alpha: float) -> None:
    """Mean, variance and fourth central moment of Beta(a, a)."""
    x = beta_table(alpha)
    middle = (x[1:] + x[:-1]) / 2
    variance = 1 / (4 * (2 * alpha + 1))
    assert middle.mean() == pytest.approx(0.5, abs=1e-9)
    assert ((middle - 0.5) ** 2).mean() == pytest.approx(variance, rel=2e-3)
    assert ((middle - 0.5) ** 4).mean() == pytest.approx(3 * variance**2 * (2 * alpha + 1) / (2 * alpha + 3), rel=5e-3)
    assert len(x) == POINTS + 1


def test_the_loss_of_mixed_rows_is_that_of_soft_targets() -> None:
    """By hand: the same step with mixed inputs and mixed one-hot targets."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 3, 6)
    one, other = (ws.nn.Sequential(ws.nn.Linear(4, 3)) for _ in range(2))
    other.load_state_dict(one.state_dict())
    options: dict[str, Any] = {
        "loss": "cross_entropy", "optimizer": ws.SGD(lr=0.5), "batch_size": 6, "shuffle": False, "progress": False,
        "device": "reference", "seed": 0,
    }  # fmt: skip
    ws.fit(one, (x, y), augment=ws.data.MixUp(), **options)
    words = _hash(np.arange(6))
    for number in (0, 0):
        words = _hash(words ^ number)
    share = ((_hash(words ^ _hash(0)) >> 8) * 2.0**-24)[:, None]
    hot = np.eye(3)[y]
    mixed = (share * x + (1 - share) * x[::-1]).astype(np.float32)
    soft = (share * hot + (1 - share) * hot[::-1]).astype(np.float32)
    ws.fit(other, (mixed, soft), **options)
    for name, value in other.state_dict().items():
        np.testing.assert_allclose(one.state_dict()[name], value, atol=2e-6)


def test_weighted_rows_are_mixed() -> None:
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32), np.ones(8)
    losses = [
        ws.fit(
            ws.nn.Sequential(ws.nn.Linear(4, 1)), data, augment=ws.data.MixUp(), loss="mse", shuffle=False, seed=0,
            progress=False,
        )["loss"]
        for data in ((x, y), (x, y, w))
    ]  # fmt: skip
    np.testing.assert_allclose(*losses, rtol=1e-6)


# -- runs --------------------------------------------------------------------------------------------------------

CHAIN = [ws.data.RandomAffine(10, 0.1), ws.data.RandomErasing(), ws.data.MixUp(0.4)]
SETTINGS: dict[str, Any] = {
    "loss": "cross_entropy", "metrics": ["accuracy"], "batch_size": 4, "progress": False, "seed": 0,
}  # fmt: skip


def _network() -> Any:
    ws.manual_seed(1)
    return ws.nn.Sequential(ws.nn.Conv2d(1, 4, 3), ws.nn.ReLU(), ws.nn.Flatten(), ws.nn.Linear(144, 3))


def _data() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.random((18, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 18)


def test_a_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    whole, parts = _network(), _network()
    ws.fit(whole, _data(), augment=CHAIN, validation=0.2, epochs=3, **SETTINGS)
    folder = tmp_path / "run"
    ws.fit(parts, _data(), augment=CHAIN, validation=0.2, epochs=1, checkpoint=folder, **SETTINGS)
    ws.fit(parts, _data(), augment=CHAIN, validation=0.2, epochs=3, checkpoint=folder, resume=True, **SETTINGS)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(value, parts.state_dict()[name])


def test_arrays_and_data_sets_are_augmented_alike() -> None:
    x, y = _data()
    one, other = _network(), _network()
    rows = [(x[i], y[i]) for i in range(len(x))]
    for net, data in ((one, (x, y)), (other, ws.DataLoader(_Rows(rows), batch_size=4, seed=0))):
        ws.fit(net, data, augment=CHAIN, epochs=2, **SETTINGS)
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(value, other.state_dict()[name], atol=1e-6)


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]


def test_evaluation_and_prediction_see_the_data_itself() -> None:
    x, y = _data()
    net = _network()
    history = ws.fit(net, (x, y), augment=CHAIN, validation=(x, y), epochs=1, **SETTINGS)
    assert history["val_loss"][-1] == pytest.approx(net.evaluate(x, y)["loss"], rel=1e-5)
    assert net.predict(x).shape == (18, 3)


def test_accumulated_batches_are_augmented_by_row() -> None:
    nets = []
    for batch_size, accumulate in ((8, 1), (4, 2)):
        net = _network()
        settings = {**SETTINGS, "batch_size": batch_size, "accumulate": accumulate, "optimizer": ws.SGD(lr=0.1)}
        ws.fit(net, _data(), augment=CHAIN[:2], **settings)
        nets.append(net.state_dict())
    for name, value in nets[0].items():
        np.testing.assert_allclose(value, nets[1][name], atol=1e-6)


def test_tokens_of_packed_rows_are_masked() -> None:
    sequences = [np.arange(n) % 5 for n in (3, 7, 5, 2, 9)]
    net = ws.models.lstm_lm(6, 8, 1)
    data = ws.data.Ragged(sequences, "next", capacity=16)
    settings = {**SETTINGS, "metrics": (), "batch_size": 2}
    history = ws.fit(net, data, augment=ws.data.MaskTokens(0.2, 5), epochs=3, **settings)
    assert history["loss"][-1] < history["loss"][0]


WRONG: dict[str, tuple[Callable[[], object], type[WholestepError], str]] = {
    "probability": (lambda: ws.data.RandomErasing(1.5), OptionError, "p must be a probability"),
    "range": (lambda: ws.data.RandomAffine(scale=(2, 1)), OptionError, "least first"),
    "size": (lambda: ws.data.RandomAffine(degrees=-1), OptionError, "degrees must be a number of at least 0"),
    "mode": (lambda: ws.data.RandomAffine(mode="cubic"), OptionError, "'bilinear' or 'nearest'"),
    "alpha": (lambda: ws.data.MixUp(0), OptionError, "alpha must be above 0"),
    "square": (lambda: ws.data.Cutout(0), OptionError, "Cutout: size"),
    "transform": (lambda: augmented(ws.data.Crop(2), IMAGES), UsageError, "transform="),
    "input": (lambda: augmented({"y": ws.data.RandomFlip()}, IMAGES), OptionError, "no input 'y'"),
    "twice": (lambda: augmented([ws.data.MixUp(), ws.data.CutMix()], IMAGES), UsageError, "mixed once"),
    "images": (lambda: augmented(ws.data.Cutout(2), IMAGES[:, 0]), ShapeError, r"takes images of floats"),
    "grey": (lambda: augmented(ws.data.ColorJitter(hue=0.1), IMAGES[:, :1]), ShapeError, r"\(N, 3, H, W\)"),
    "floats": (lambda: augmented(ws.data.MaskTokens(0.1), IMAGES), ShapeError, "integer tokens"),
    "spectrogram": (lambda: augmented(ws.data.SpecAugment(20), IMAGES), ShapeError, "SpecAugment"),
    "parts": (
        lambda: ws.fit(_network(), _data(), augment=CHAIN, accumulate=2, **SETTINGS),
        WholestepError,
        "cannot be split into batches",
    ),
    "loss": (
        lambda: ws.fit(_network(), _data(), augment=ws.data.MixUp(), **{**SETTINGS, "loss": lambda out, y: out.mean()}),
        UsageError,
        "loss is one by name",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_augmentations(name: str) -> None:
    make, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        make()
