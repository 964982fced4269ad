"""Images in folders, vocabularies, byte pairs and windows of time series: values, errors, files, and a fit of each."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import wholestep as ws
from wholestep.data.text import _CHUNKS
from wholestep.errors import InputError, OptionError, ShapeError, UsageError

# -- images --------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 12, 3), np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i, pixels in enumerate(PIXELS):
        folder = tmp_path / ("dog", "cat")[i % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    return tmp_path


def test_images_are_the_pixels_of_their_files_by_class(photos: Path) -> None:
    data = ws.data.ImageFolder(photos, size=(8, 12))
    assert data.classes == ("cat", "dog")
    assert data.targets.tolist() == [0, 0, 0, 1, 1, 1]
    x, y = data.read()
    assert x.shape == (6, 3, 8, 12)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, PIXELS[[1, 3, 5, 0, 2, 4]].transpose(0, 3, 1, 2) / np.float32(255))
    np.testing.assert_array_equal(x[4], data[4][0])
    assert y[4] == data[4][1]
    assert repr(data).startswith("6 images of 2 classes")


def test_images_are_cropped_or_stretched_to_the_size(photos: Path) -> None:
    cropped, stretched = (ws.data.ImageFolder(photos, size=4, channels=1, fit=fit)[3][0] for fit in ("crop", "stretch"))
    grey = Image.fromarray(PIXELS[0]).convert("L")
    middle = grey.resize((6, 4), Image.Resampling.BILINEAR).crop((1, 0, 5, 4))  # as torchvision has it
    np.testing.assert_array_equal(cropped[0], np.asarray(middle, np.float32) / np.float32(255))
    all_of_it = grey.resize((4, 4), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(stretched[0], np.asarray(all_of_it, np.float32) / np.float32(255))


def test_an_image_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    image, exif = Image.fromarray(PIXELS[0]), Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "all" / "1.png", exif=exif)
    pixels = ws.data.ImageFolder(tmp_path, size=(8, 12))[0][0]
    np.testing.assert_array_equal(pixels, PIXELS[0][::-1, ::-1].transpose(2, 0, 1) / np.float32(255))


def test_a_folder_of_images_trains_by_processes_as_in_memory(photos: Path) -> None:
    data = ws.data.ImageFolder(photos, size=4)
    train, held = ws.data.split(data, 1 / 3, stratify=True)
    assert sorted(held.targets["labels"].tolist()) == [0, 1]

    def weights(source: Any) -> dict[str, Any]:
        model = ws.nn.Sequential(ws.nn.Flatten(), ws.nn.Linear(48, 2))
        model.load_state_dict({"1.weight": np.zeros((2, 48), np.float32), "1.bias": np.zeros(2, np.float32)})
        how: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": 3, "progress": False}
        history = ws.fit(model, source, validation=held, **how)
        assert np.isfinite(history["val_accuracy"]).all()
        return model.state_dict()

    loaded = weights(ws.DataLoader(train, batch_size=2, num_workers=1))
    x, y = data.read()
    in_memory = weights(ws.DataLoader(x[train.rows], y[train.rows], batch_size=2))
    for name in loaded:
        np.testing.assert_allclose(loaded[name], in_memory[name], rtol=1e-6, atol=1e-7)


def test_folders_that_are_wrong_say_so(photos: Path, tmp_path: Path) -> None:
    assert ws.data.ImageFolder(photos, classes=["bird", "cat", "dog"]).targets.tolist() == [1, 1, 1, 2, 2, 2]
    with pytest.raises(InputError, match=r"has the class 'dog', which is not among classes=\('cat',\)"):
        ws.data.ImageFolder(photos, classes=["cat"])
    with pytest.raises(InputError, match=r"is not a folder\. Give the folder that contains a folder per class"):
        ws.data.ImageFolder(photos / "none")
    with pytest.raises(InputError, match=r"has no folders\. Each class is a folder"):
        ws.data.ImageFolder(photos / "cat")
    with pytest.raises(OptionError, match="size=0: expected pixels"):
        ws.data.ImageFolder(photos, size=0)
    with pytest.raises(OptionError, match="channels=4: expected 3"):
        ws.data.ImageFolder(photos, channels=4)
    with pytest.raises(OptionError, match="fit='pad': expected 'crop'"):
        ws.data.ImageFolder(photos, fit="pad")  # type: ignore[arg-type]
    (photos / "cat" / "broken.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(InputError, match=r"broken\.png cannot be read as an image"):
        ws.data.ImageFolder(photos).read()
    (photos / "empty").mkdir()
    (photos / "empty" / "a.heic").write_bytes(b"")
    with pytest.raises(InputError, match=r"the class 'empty' has no images but files that end in \.heic"):
        ws.data.ImageFolder(photos)


# -- text ----------------------------------------------------------------------------------------------------------

TEXTS = ["The cat sat. The cat!", "a dog sat", "naïve 日本 🙂\n\n  the"]


def test_a_vocabulary_counts_words_and_keeps_0_for_others(tmp_path: Path) -> None:
    words = ws.data.Vocabulary(TEXTS)
    assert words.entries[:4] == ["<unknown>", "the", "cat", "sat"]
    assert words.encode("The elephant sat").tolist() == [1, 0, 3]
    assert words.decode(words.encode("the dog.")) == "the dog ."
    assert len(ws.data.Vocabulary(TEXTS, size=3)) == 3
    assert ws.data.Vocabulary(TEXTS, least=2).entries == ["<unknown>", "the", "cat", "sat"]
    letters = ws.data.Vocabulary(TEXTS, "characters")
    assert letters.decode(letters.encode(TEXTS[2])) == TEXTS[2]
    for vocabulary in (words, letters):
        vocabulary.save(tmp_path / "v.json")
        again = ws.data.Vocabulary.load(tmp_path / "v.json")
        assert [a.tolist() for a in again.encode(TEXTS)] == [a.tolist() for a in vocabulary.encode(TEXTS)]


def slow_merges(texts: list[str], count: int) -> list[tuple[int, int]]:
    """Byte pair encoding as the paper has it: all pairs of the corpus are counted for each merge."""
    words = [list(chunk.encode()) for text in texts for chunk in _CHUNKS.findall(text)]
    merges: list[tuple[int, int]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = max(pairs, key=lambda p: (pairs[p], -p[0], -p[1]))
        if pairs[best] < 2:
            break
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [256 + len(merges)]
                i += 1
        merges.append(best)
    return merges


def test_byte_pairs_are_those_of_the_paper_and_keep_every_text(tmp_path: Path) -> None:
    texts = ["".join(RNG.choice(list("aab c"), 60)) for _ in range(20)] + TEXTS
    tokens = ws.data.BytePairs(texts, size=300)
    assert tokens.merges == slow_merges(texts, 44)
    assert len(tokens) == 300
    for text in [*texts, "unseen žluťoučký 🐎\t\x00", ""]:
        assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode(texts[0])) < len(texts[0])
    tokens.save(tmp_path / "t.json")
    again = ws.data.BytePairs.load(tmp_path / "t.json")
    assert [a.tolist() for a in again.encode(texts)] == [a.tolist() for a in tokens.encode(texts)]
    assert tokens.decode([255]) == "\ufffd"


def test_text_that_is_wrong_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"received one text. Write \[text\]"):
        ws.data.Vocabulary("one text")
    with pytest.raises(InputError, match="a text is a str; received int: 3"):
        ws.data.BytePairs(["a", 3])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="size must be an integer of at least 256; received 100"):
        ws.data.BytePairs(TEXTS, size=100)
    with pytest.raises(OptionError, match="by='syllables'"):
        ws.data.Vocabulary(TEXTS, "syllables")  # type: ignore[arg-type]
    ws.data.Vocabulary(TEXTS).save(tmp_path / "v.json")
    with pytest.raises(InputError, match=r"v\.json is not a BytePairs"):
        ws.data.BytePairs.load(tmp_path / "v.json")
    (tmp_path / "v.json").write_text("{")
    with pytest.raises(InputError, match=r"v\.json is not a Vocabulary"):
        ws.data.Vocabulary.load(tmp_path / "v.json")


# -- windows -------------------------------------------------------------------------------------------------------


def test_windows_are_slices_of_the_series() -> None:
    series = RNG.normal(size=(30, 3))
    windows = ws.data.Windows(series, 5, 2, gap=1, stride=4, targets=[2])
    x, y = windows
    assert windows.starts.tolist() == [0, 4, 8, 12, 16, 20]
    for start, window, after in zip(windows.starts, x, y, strict=True):
        np.testing.assert_array_equal(window, series[start : start + 5])
        np.testing.assert_array_equal(after, series[start + 6 : start + 8, 2:])
    assert np.shares_memory(x, series)
    last = ws.data.Windows(np.arange(8.0), 5, 2, gap=1)
    assert last.x.tolist() == [[0, 1, 2, 3, 4]]
    assert last.y.tolist() == [[6, 7]]


def test_windows_of_several_series_stay_within_them() -> None:
    x, y = ws.data.Windows([np.arange(5.0), 10 + np.arange(4.0)], 2)
    assert x.tolist() == [[0, 1], [1, 2], [2, 3], [10, 11], [11, 12]]
    assert y.tolist() == [[2], [3], [4], [12], [13]]


def test_a_split_of_windows_shares_no_element() -> None:
    windows = ws.data.Windows(np.arange(100.0), 5, 3, gap=1)
    train, held = windows.split(0.25)
    assert max(train.x.max(), train.y.max()) < held.x.min()
    assert held.y.max() == 99
    assert isinstance(held, ws.data.Windows)
    for again in (copy.deepcopy(held), pickle.loads(pickle.dumps(held))):  # noqa: S301
        np.testing.assert_array_equal(again.x, held.x)
        assert again.horizon == 3
    with pytest.raises(OptionError, match="leaves a part empty"):
        ws.data.Windows(np.arange(10.0), 5).split(0.5)


def test_windows_train_like_copied_arrays() -> None:
    series = np.sin(0.3 * np.arange(200)).astype(np.float32)
    train, held = ws.data.Windows(series, 8, 2).split(0.2)
    trained = []
    for data in (train, tuple(np.ascontiguousarray(a) for a in train)):
        model = ws.nn.Linear(8, 2)
        model.load_state_dict({"weight": np.zeros((2, 8), np.float32), "bias": np.zeros(2, np.float32)})
        history = ws.fit(
            model, data, validation=held, loss="mse", optimizer=ws.Adam(lr=0.02), epochs=30, progress=False
        )
        trained.append(model.state_dict())
        assert history["val_loss"][-1] < 1e-3
    for name in trained[0]:
        np.testing.assert_array_equal(trained[0][name], trained[1][name])


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ws.data.Windows(np.arange(9.0), 0), OptionError, "length must be an integer of at least 1"),
        (lambda: ws.data.Windows(np.arange(9.0), 8, 2), InputError, "a series of 9 elements has no window of 8"),
        (lambda: ws.data.Windows(np.zeros((2, 2, 2)), 1), ShapeError, r"\(time,\) or \(time, features\)"),
        (lambda: ws.data.Windows(np.arange(9.0), 2, targets=0), OptionError, "one number per element"),
        (lambda: ws.data.Windows(np.arange(9.0), 2).split(2), OptionError, "between 0 and 1"),
    ],
)
def test_windows_that_are_wrong_say_so(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
