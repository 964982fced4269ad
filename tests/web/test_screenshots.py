"""Pages at the width of a desktop and of a phone, light and dark: nothing is cut off; `--update-golden` keeps pictures.

Those of docs/images are written by `pytest -m long tests/web/test_screenshots.py --update-golden`.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path
from tests.support.mnist import real_mnist
from tests.web.pages import ready, train
from tests.web.test_page_files import houses, table
from wholestep.web.export import export_page

pytestmark = [pytest.mark.long, pytest.mark.skipif(browser_path() is None, reason=INSTALL)]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZES = {"desktop": (1280, 1050), "phone": (390, 1250)}
COLOURS = 200  # of a picture that is kept: charts and text need no more
# Elements that extend beyond the window, without elements that scroll by themselves.
CUT = """[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, .visually-hidden, .skip')
  && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""


def digits(folder: Path) -> tuple[Path, int]:
    model = ws.nn.Sequential(ws.nn.Linear(64, 64), ws.nn.ReLU(), ws.nn.Linear(64, 10))
    data = {"data": ws.datasets.digits(), "validation": 0.2, "loss": "cross_entropy", "metrics": ["accuracy"]}
    run = ws.Experiment(model=model, **data, schedule=ws.schedules.cosine(), optimizer=ws.AdamW(lr=3e-3), epochs=12)
    return export_page(run, folder / "digits.html", image="8x8", script="digits.py"), 12


def houses_page(folder: Path) -> tuple[Path, int]:
    (folder / "houses.csv").write_text(houses(600, 0))
    run = table(ws.data.read_frame(folder / "houses.csv")).having({"metrics": ["mae"]})
    return export_page(run, folder / "houses.html", script="houses.py"), 40


def mnist(folder: Path) -> tuple[Path, int]:
    train_part, _ = ws.data.mnist(real_mnist())
    run = ws.Experiment(
        model=ws.models.LeNet5(), data=train_part, validation=0.1, loss="cross_entropy", metrics=["accuracy"],
        optimizer=ws.Adam(lr=2e-3), batch_size=64, epochs=3, seed=0,
    )  # fmt: skip
    return export_page(run, folder / "mnist.html", rows=2000, script="mnist.py"), 3


def show_predictions(tab: Tab) -> None:
    """Fill the card of predictions as a visitor does."""
    if tab.evaluate("document.querySelector('#pad') !== null"):
        down = [(0.5, 0.15 + 0.07 * i) for i in range(11)]
        tab.drag("#pad", *down)
        tab.wait("document.querySelector('#pad-answer .answer')")
    else:
        tab.click("#row button")
        tab.wait("document.querySelector('#answer')")
    tab.evaluate("scrollTo(0, 0)")


@pytest.mark.parametrize("make_page", [digits, houses_page, mnist], ids=["digits", "houses", "mnist"])
def test_nothing_is_cut_off(make_page, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    page, epochs = make_page(tmp_path)
    with ready(page, tmp_path) as tab:
        train(tab, epochs, 600)
        show_predictions(tab)
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                tab.resize(width, height, dark)
                name = f"{page.stem}-{size}-{'dark' if dark else 'light'}.png"
                tab.screenshot(tmp_path / f"whole-{name}")
                tab.screenshot(tmp_path / name, whole=False)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert tab.evaluate(CUT) == []
                if pytestconfig.getoption("update_golden") and (IMAGES / f"page-{name}").exists():
                    keep(tmp_path / name, IMAGES / f"page-{name}")


def keep(picture: Path, to: Path) -> None:
    """The picture with fewer colours, a third of its bytes."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.open(picture).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(file, "PNG", optimize=True)
    to.write_bytes(file.getvalue())
