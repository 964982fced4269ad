"""Starter experiments: what a CSV file, a folder or file of images, or a text holds, and a script that trains on it.

The data is read once, to choose targets, loss, metric and sizes; the script reads it again by the same functions, so it
needs nothing of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

import numpy as np

from wholestep.errors import InputError, UsageError

MOST_CLASSES = 30  # a target with at most this many distinct integers has classes, not numbers
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
SIDE = 64  # the longest side of images that the script trains on
CONTEXT = 64  # characters of context of the network for texts

TABLE = Template('''\
"""Predict $column from the other columns of $name: $purpose."""

from pathlib import Path

import wholestep as ws

DATA = Path($path)


def build(hidden: int = 64) -> ws.Experiment:
    frame = ws.data.read_frame(DATA)
    return ws.Experiment(
        model=ws.models.Tabular(hidden=(hidden, hidden)),
        data=(frame, $target),
        validation=0.2,
        loss="$loss",
        metrics=["$metric"],
        optimizer=ws.AdamW(lr=3e-3),
        schedule=ws.schedules.cosine(),
        epochs=30,
        batch_size=$batch,
    )
''')

IMAGE = Template('''\
"""Classify the images of $name: $purpose."""

from pathlib import Path

import numpy as np

import wholestep as ws

DATA = Path($path)
CLASSES = $classes


$read


def build(width: int = 16) -> ws.Experiment:
    x, y = read()
    model = ws.nn.Sequential(
        ws.nn.Conv2d($channels, width, 3, padding=1),
        ws.nn.ReLU(),
        ws.nn.MaxPool2d(2),
        ws.nn.Conv2d(width, 2 * width, 3, padding=1),
        ws.nn.ReLU(),
        ws.nn.Flatten(),
        ws.nn.Linear(2 * width * $features, len(CLASSES)),
    )
    return ws.Experiment(
        model=model,
        data=(x, y),
        validation=0.2,
        loss="cross_entropy",
        metrics=["accuracy"],
        optimizer=ws.AdamW(lr=1e-3),
        schedule=ws.schedules.cosine(),
        epochs=10,
        batch_size=$batch,
    )
''')

READ_FOLDERS = Template('''\
def read() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, $channels, $height, $width) in 0..1, and the numbers of their folders."""
    files = [(file, label) for label, name in enumerate(CLASSES) for file in sorted((DATA / name).iterdir())]
    files = [(file, label) for file, label in files if file.suffix.lower() in $suffixes]
    x = np.stack([read_image(file) for file, _ in files])
    return x, np.array([label for _, label in files], np.int32)


def read_image(file: Path) -> np.ndarray:
    """One image (channels, height, width)."""
$one''')

ONE_NPY = Template("""\
    array = np.load(file, allow_pickle=False).astype(np.float32)$scale
    return array$layout""")

ONE_PICTURE = Template("""\
    from PIL import Image  # pip install pillow

    image = Image.open(file).convert("$mode").resize(($width, $height))
    return np.asarray(image, np.float32).reshape($height, $width, $channels).transpose(2, 0, 1) / 255""")

READ_ARRAYS = Template('''\
def read() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, $channels, $height, $width), and the numbers of their classes."""
    $load
    x = x.astype(np.float32)$scale
    return x$layout, np.searchsorted(CLASSES, y.reshape(-1)).astype(np.int32)''')

TEXT = Template('''\
"""A small GPT that continues $name, character by character: $purpose."""

from pathlib import Path

import numpy as np

import wholestep as ws

DATA = Path($path)


def windows(tokens: np.ndarray, context: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text, and the same pieces shifted by one character: the target of each position."""
    starts = np.arange(0, len(tokens) - context, stride)[:, None] + np.arange(context)
    return tokens[starts], tokens[starts + 1]


def build(layers: int = 2, width: int = 64, context: int = $context) -> ws.Experiment:
    text = DATA.read_text(encoding="utf-8")
    alphabet, tokens = np.unique(list(text), return_inverse=True)
    tokens = tokens.astype(np.int32)
    cut = len(tokens) * 9 // 10
    return ws.Experiment(
        model=ws.models.gpt2(layers=layers, width=width, heads=4, vocabulary=len(alphabet), context=context),
        data=windows(tokens[:cut], context, context // 2),
        validation=windows(tokens[cut:], context, context),
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=2e-3, weight_decay=0.1),
        schedule=ws.schedules.cosine(),
        clip_norm=1.0,
        epochs=3,
        batch_size=$batch,
    )
''')


def starter(data: Path, target: str | None) -> str:
    """The text of a script that trains on some data; UsageError if the kind of the data is not recognised."""
    suffix = data.suffix.lower()
    if data.is_dir():
        return _of_folder(data)
    if not data.is_file():
        raise UsageError(f"there is nothing at {data}; name a .csv or .txt file, a .npz file, or a folder of images.")
    if target is not None and suffix not in (".csv", ".tsv"):
        raise UsageError(f"--target {target}: only a table has columns to choose from; {data} is not a .csv file.")
    if suffix == ".csv":
        return _of_table(data, target)
    if suffix == ".npz":
        return _of_arrays(data, *_pair_in_npz(data))
    if suffix in (".txt", ".md", ".text"):
        return _of_text(data)
    raise UsageError(
        f"{data}: expected a table (.csv), a text (.txt, .md), arrays x and y (.npz), or a folder: of images in "
        "subfolders named after their classes, or with x.npy and y.npy."
    )


def _fill(template: Template, data: Path, values: Mapping[str, object]) -> str:
    """A script; texts of the data are literals or comments without quotes and line ends."""
    name = "".join(c if c.isprintable() and c not in '"\\\\' else "?" for c in data.name)
    return template.substitute({"path": repr(str(data.resolve())), "name": name, **values})


# -- tables ----------------------------------------------------------------------------------------------------------


def _of_table(data: Path, target: str | None) -> str:
    from wholestep.data.files import read_frame

    frame = read_frame(data)
    column = target if target is not None else list(frame.columns)[-1]
    if column not in frame.columns:
        raise UsageError(f"{data} has no column {column!r}; it has: {', '.join(frame.columns)}.")
    values = frame.columns[column]
    if len(values.values) < 10:
        raise InputError(f"{data} has {len(values.values)} rows; a starter needs at least 10.")
    if values.missing.any():
        raise InputError(f"the target {column!r} of {data} has missing values; choose another column: --target NAME.")
    different = len(set(values.values.tolist()))
    kind = values.values.dtype.kind
    is_class = kind in "Ob" or (kind in "iu" and different <= MOST_CLASSES)
    if different < 2:
        raise InputError(f"the target {column!r} of {data} has one value only; choose another: --target NAME.")
    shown = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in column)
    rows = len(values.values)
    purpose = f"{different} classes, {rows} rows" if is_class else f"a number, {rows} rows"
    loss = {"loss": "cross_entropy", "metric": "accuracy"} if is_class else {"loss": "mse", "metric": "mae"}
    return _fill(TABLE, data, {"column": shown, "target": repr(column), "purpose": purpose, **loss, **_batch(rows)})


def _batch(rows: int) -> dict[str, int]:
    return {"batch": 16 if rows < 500 else 64}


# -- images ----------------------------------------------------------------------------------------------------------


def _of_folder(data: Path) -> str:
    from wholestep.data.files import load_npy

    if (data / "x.npy").is_file() and (data / "y.npy").is_file():
        return _of_arrays(data, "x", "y", load_npy(data / "x.npy"), load_npy(data / "y.npy"))
    names = sorted(path.name for path in data.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = {
        name: [f for f in sorted((data / name).iterdir()) if f.suffix.lower() in (".npy", *IMAGES)] for name in names
    }
    classes = [name for name in names if files[name]]
    if len(classes) < 2:
        raise UsageError(
            f"{data} is no folder of images: expected at least two subfolders, named after their classes, with "
            f"{', '.join(IMAGES)} or .npy files; or x.npy and y.npy."
        )
    first = files[classes[0]][0]
    kinds = {f.suffix.lower() == ".npy" for name in classes for f in files[name]}
    if len(kinds) > 1:
        raise UsageError(f"{data} has both .npy files and pictures; keep one of the two.")
    shape, one = _npy_image(load_npy(first)) if first.suffix.lower() == ".npy" else _picture(first)
    read = READ_FOLDERS.substitute(shape, one=one, suffixes=repr((".npy",) if kinds == {True} else IMAGES))
    count = sum(len(files[name]) for name in classes)
    return _image_script(data, classes, shape, read, count)


def _picture(file: Path) -> tuple[dict[str, int], str]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UsageError("pictures are read by Pillow: pip install pillow; or give .npy files.") from None
    try:
        with Image.open(file) as image:
            (width, height), is_grey = image.size, image.mode in ("1", "L", "I", "I;16")
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}.") from None
    scale = min(1.0, SIDE / max(width, height))
    sizes = {"width": max(4, round(width * scale)), "height": max(4, round(height * scale))}
    shape = {"channels": 1 if is_grey else 3, **sizes}
    return shape, ONE_PICTURE.substitute(shape, mode="L" if is_grey else "RGB")


def _npy_image(array: np.ndarray) -> tuple[dict[str, int], str]:
    shape, layout = _layout(array.shape, rows=False)
    return shape, ONE_NPY.substitute(layout=layout, scale=_scale(array))


def _scale(array: np.ndarray) -> str:
    return " / 255" if array.dtype == np.uint8 else ""


def _layout(shape: tuple[int, ...], *, rows: bool) -> tuple[dict[str, int], str]:
    """Channels, height and width of an image, and how the script puts channels first."""
    image = shape[1:] if rows else shape
    first = ":, None" if rows else "None"
    if len(image) == 2:
        return _sizes(1, *image), f"[{first}]"
    if len(image) == 3 and image[2] in (1, 3, 4) and image[0] not in (1, 3, 4):
        order = (0, 3, 1, 2) if rows else (2, 0, 1)
        return _sizes(image[2], image[0], image[1]), f".transpose{order}"
    if len(image) == 3:
        return _sizes(*image), ""
    raise InputError(f"images have two or three axes; received {list(image)}.")


def _sizes(channels: int, height: int, width: int) -> dict[str, int]:
    if min(height, width) < 4:
        raise InputError(f"images of {height} x {width} are too small; expected at least 4 x 4.")
    return {"channels": channels, "height": height, "width": width}


def _pair_in_npz(data: Path) -> tuple[str, str, np.ndarray, np.ndarray]:
    try:
        with np.load(data, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{data} cannot be read as .npz: {error}.") from None
    pairs = (("x", "y"), ("x_train", "y_train"), ("images", "labels"), ("data", "target"))
    pair = next((pair for pair in pairs if set(pair) <= arrays.keys()), None)
    if pair is None:
        raise InputError(f"{data} has the arrays {', '.join(arrays)}; expected x and y (or images and labels).")
    return (*pair, arrays[pair[0]], arrays[pair[1]])


def _of_arrays(data: Path, x_name: str, y_name: str, x: np.ndarray, y: np.ndarray) -> str:
    if len(x) != y.size or y.dtype.kind not in "iub":
        raise InputError(
            f"{data}: expected a class for each image; received {list(x.shape)} and {list(y.shape)} of {y.dtype}."
        )
    classes = np.unique(y).astype(int).tolist()
    shape, layout = _layout(x.shape, rows=True)
    if data.is_dir():
        load = 'x, y = (np.load(DATA / f"{name}.npy", allow_pickle=False) for name in ("x", "y"))'
    else:
        load = (
            f'with np.load(DATA, allow_pickle=False) as stored:\n        x, y = stored["{x_name}"], stored["{y_name}"]'
        )
    read = READ_ARRAYS.substitute(shape, load=load, layout=layout, scale=_scale(x))
    return _image_script(data, classes, shape, read, len(x))


def _image_script(data: Path, classes: list[str] | list[int], shape: Mapping[str, int], read: str, count: int) -> str:
    sizes = {"channels": shape["channels"], "features": (shape["height"] // 2) * (shape["width"] // 2)}
    purpose = f"{len(classes)} classes, {count} images of {shape['height']} x {shape['width']}"
    return _fill(IMAGE, data, {"classes": repr(classes), "read": read, "purpose": purpose, **sizes, **_batch(count)})


# -- texts -----------------------------------------------------------------------------------------------------------


def _of_text(data: Path) -> str:
    try:
        text = data.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{data} is not UTF-8 text: {error}.") from None
    if len(text) < 20 * CONTEXT:
        raise InputError(f"{data} has {len(text)} characters; a starter needs at least {20 * CONTEXT}.")
    purpose = f"{len(text):,} characters, {len(set(text))} different ones"
    return _fill(TEXT, data, {"purpose": purpose, "context": CONTEXT, "batch": 16})
