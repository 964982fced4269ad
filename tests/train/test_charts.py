"""Charts as SVG: the document is read back, and its lines are compared with the numbers that they show."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

import wholestep as ws
from wholestep.charts import HEIGHT, WIDTH, Chart, svg

SVG = "{http://www.w3.org/2000/svg}"


def lines(document: str) -> list[list[tuple[float, float]]]:
    """The points of every curve, in pixels."""
    found = Xml.fromstring(document).iter(f"{SVG}polyline")
    return [[tuple(map(float, p.split(","))) for p in each.attrib["points"].split()] for each in found]  # type: ignore[misc]


def texts(document: str) -> list[str]:
    return [each.text or "" for each in Xml.fromstring(document).iter(f"{SVG}text")]


def test_pixels_are_affine_in_the_values_and_lie_inside() -> None:
    values = [(float(x), x * x - 3.0) for x in range(20)]
    (drawn,) = lines(svg([Chart("square", "x", {"y": values})]))
    (x0, y0), (x1, y1) = drawn[0], drawn[-1]
    for (x, y), (px, py) in zip(values, drawn, strict=True):
        assert px == pytest.approx(x0 + (x1 - x0) * x / 19, abs=0.1)
        assert py == pytest.approx(y0 + (y1 - y0) * (y + 3) / 361, abs=0.1)
        assert 0 < px < WIDTH
        assert 0 < py < HEIGHT
    assert y1 < y0, "larger values are higher"


@pytest.mark.parametrize(
    ("ys", "runs"),
    [
        ([1.0, math.nan, 2.0, 3.0], [2, 2]),  # a single point is drawn as a dot: a line of length 0
        ([math.nan, math.inf], []),
        ([5.0], [2]),
        ([0.0, 0.0, 0.0], [3]),
        ([], []),
    ],
)
def test_values_that_are_not_finite_are_gaps(ys: list[float], runs: list[int]) -> None:
    assert list(map(len, lines(svg([Chart("t", "x", {"y": list(enumerate(ys, 1))})])))) == runs


def test_ticks_are_round_and_a_logarithmic_axis_has_powers_of_ten() -> None:
    plain = texts(svg([Chart("t", "x", {"y": [(0.0, 0.13), (7.0, 0.87)]}, legend=False)]))
    assert [t for t in plain if t not in ("t", "x")] == ["0", "2", "4", "6", "0.2", "0.4", "0.6", "0.8"]
    log = texts(svg([Chart("t", "x", {"y": [(1e-4, 1.0), (1e-1, 2.0)]}, log=True, legend=False)]))
    assert log[2:6] == ["0.0001", "0.001", "0.01", "0.1"]


def test_names_are_escaped() -> None:
    assert "a<b & c" in texts(svg([Chart("a<b & c", "x", {"y": [(0.0, 1.0)]})]))


def test_a_history_and_a_schedule_are_drawn_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [m for m in sys.modules if m.partition(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    logs = [{"loss": 1 / (i + 1), "val_loss": 1.0, "accuracy": 0.5} for i in range(3)]
    history = ws.History([ws.EpochStats(i, each["loss"], 4, each) for i, each in enumerate(logs)])
    assert history.plot(tmp_path / "run.svg") == str(tmp_path / "run.svg")
    document = (tmp_path / "run.svg").read_text()
    assert list(map(len, lines(document))) == [3, 3, 3]
    assert {"loss", "val_loss", "accuracy", "epoch"} <= set(texts(document))
    assert len(lines(Path(ws.schedules.cosine(lr=0.1, steps=50).plot(tmp_path / "lr.svg")).read_text())[0]) == 51
    with pytest.raises(ws.errors.UsageError, match=r"drawing 'run.png' needs matplotlib.*\.svg file needs no package"):
        history.plot(tmp_path / "run.png")
