"""`ImageFolder`: images in one folder per class, decoded by Pillow, resized and cropped to one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wholestep.data.table import Array
from wholestep.errors import InputError, OptionError, UsageError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB"}


class ImageFolder:
    """A data set of the images below a folder, whose subfolders are the classes: `photos/cat/17.jpg`.

    An item is `(image, class)`: the image is float32 (channels, height, width) from 0 to 1, rotated as its EXIF
    data says; classes are numbered in the order of their names.  Images are read when a batch needs them, by several
    processes with `ws.DataLoader(data, num_workers=4)`; `read()` decodes all of them once, for data that fits into
    memory.

    Args:
        folder: the folder that contains one subfolder per class.
        size: height and width of the images, or one number for both.
        channels: 3 for colours, 1 for grey.
        fit: "crop" resizes the shorter side and crops the middle; "stretch" changes the proportions.
        classes: names of the classes in their order, e.g. the classes of the training data: `classes=train.classes`.

    Example::

        data = ws.data.ImageFolder("photos", size=64)
        train, held = ws.data.split(data, 0.2, stratify=True)
        ws.fit(model, ws.DataLoader(train, num_workers=2), validation=held, loss="cross_entropy")
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        size: int | tuple[int, int] = 224,
        *,
        channels: int = 3,
        fit: Literal["crop", "stretch"] = "crop",
        classes: Sequence[str] | None = None,
    ) -> None:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in sides):
            raise OptionError(f"ImageFolder: size={size!r}: expected pixels, 224 or (height, width).")
        if channels not in MODES:
            raise OptionError(f"ImageFolder: channels={channels!r}: expected 3, colours, or 1, grey.")
        if fit not in ("crop", "stretch"):
            raise OptionError(f"ImageFolder: fit={fit!r}: expected 'crop' or 'stretch'.")
        self.folder, self.height, self.width = Path(folder), sides[0], sides[1]
        self.channels, self.fit = channels, fit
        files = _files_by_class(self.folder)
        self.classes = tuple(files) if classes is None else tuple(classes)
        if unknown := files.keys() - set(self.classes):
            raise InputError(
                f"ImageFolder: {folder} has the class {min(unknown)!r}, which is not among classes={self.classes}."
            )
        self.files = [file for name in self.classes for file in files.get(name, ())]
        counts = [len(files.get(name, ())) for name in self.classes]
        self.targets: Array = np.repeat(np.arange(len(self.classes), dtype=np.int32), counts)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Array, np.int32]:
        return self.image(self.files[row]), self.targets[row]

    def __repr__(self) -> str:
        return f"{len(self)} images of {len(self.classes)} classes in {self.folder}"

    def image(self, path: str | PathLike[str]) -> Array:
        """One file as an array (channels, height, width).  Example: `model.predict(data.image(path)[None])`."""
        pillow, operations = _pillow()
        try:
            with pillow.open(path) as file:
                image = operations.exif_transpose(file).convert(MODES[self.channels])
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(
                f"{path} cannot be read as an image: {error}. Delete the file, or save the image again."
            ) from None
        if self.fit == "crop":
            image = operations.fit(image, (self.width, self.height), pillow.Resampling.BILINEAR)
        else:
            image = image.resize((self.width, self.height), pillow.Resampling.BILINEAR)
        pixels = np.asarray(image, np.float32) / np.float32(255.0)
        return np.ascontiguousarray(pixels.reshape(self.height, self.width, self.channels).transpose(2, 0, 1))

    def read(self) -> tuple[Array, Array]:
        """All images and classes as arrays, (images, channels, height, width) and (images,)."""
        return np.stack([self.image(file) for file in self.files]), self.targets


def _files_by_class(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise InputError(f"ImageFolder: {folder} is not a folder. Give the folder that contains a folder per class.")
    subfolders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    files = {p.name: sorted(f for f in p.rglob("*") if f.suffix.lower() in ENDINGS) for p in subfolders}
    if not files:
        raise InputError(f"ImageFolder: {folder} has no folders. Each class is a folder of images: {folder}/cat/1.jpg.")
    if empty := [name for name, images in files.items() if not images]:
        endings = Counter(p.suffix for p in (folder / empty[0]).rglob("*") if p.is_file())
        have = f"files that end in {', '.join(sorted(endings))}" if endings else "no files"
        raise InputError(
            f"ImageFolder: the class {empty[0]!r} has no images but {have}; images end in {', '.join(ENDINGS)}. "
            "Delete the folder, or convert its files."
        )
    return files


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise UsageError('ImageFolder reads images by Pillow: pip install "wholestep[images]".') from None
    return Image, ImageOps
