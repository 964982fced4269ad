"""A page in a browser as tests use it: train, download the checkpoint, read its history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

import wholestep as ws
from tests.support.browser import Tab, opened

TRAINED = "document.querySelector('#train-status').textContent.startsWith('{}')"


@contextmanager
def ready(page: Path | str, folder: Path) -> Iterator[Tab]:
    """A page that has started; at the end, its console has no error and it has asked only its own server."""
    with opened(page, folder) as tab:
        tab.wait("document.documentElement.dataset.ready")
        yield tab
        assert tab.problems == []
        own = ("file:", "blob:", "data:", *([page] if isinstance(page, str) else []))
        assert [url for url in tab.requests if not url.startswith(own)] == []


def train(tab: Tab, epochs: int, seconds: float = 60.0) -> None:
    tab.fill("#epochs", epochs)
    tab.click("#start")
    tab.wait(TRAINED.format("Finished"), seconds)


def stop(tab: Tab) -> None:
    """Stop a run as soon as it may be stopped."""
    tab.wait("!document.querySelector('#stop').disabled")
    tab.click("#stop")
    tab.wait(TRAINED.format("Stopped"))


def data_is(tab: Tab, beginning: str) -> None:
    """Wait until the page says that it has read files."""
    tab.wait(f"document.querySelector('#data-status').textContent.startsWith({json.dumps(beginning)})")


def refused(tab: Tab, place: str = "data") -> str:
    """What the page says about files that it does not take."""
    tab.wait(f"!document.querySelector('#{place}-error').hidden")
    return tab.text(f"#{place}-error")


def predictions(tab: Tab) -> list[str]:
    return tab.evaluate("[...document.querySelectorAll('[data-prediction]')].map((e) => e.textContent)")


def checkpoint(tab: Tab, name: str = "digits") -> Path:
    """The downloaded checkpoint."""
    for old in tab.downloads.glob("*.safetensors"):
        old.unlink()
    tab.click("#save")
    return tab.downloaded(f"{name}.safetensors")


def header(file: Path, key: str = "run") -> dict[str, Any]:
    """A part of what a checkpoint holds beside its tensors."""
    with safe_open(file, "np") as opened_file:
        return json.loads(opened_file.metadata()[f"wholestep.{key}"])


def history(file: Path) -> list[dict[str, float]]:
    return [epoch["logs"] for epoch in header(file)["history"]["epochs"]]


def numbers(run: ws.TrainHistory, *names: str) -> list[dict[str, float]]:
    names = names or ("loss", "accuracy", "val_loss", "val_accuracy")
    return [{name: epoch.logs[name] for name in names} for epoch in run.epochs]
