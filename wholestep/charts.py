"""Line charts in files: SVG is written here, every other format by matplotlib, which is optional.

A figure is a row of charts with a frame, ticks at round numbers and a legend: what a run or a schedule needs, without
the 100 MB that matplotlib and its dependencies occupy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from wholestep.errors import UsageError

WIDTH, HEIGHT = 480, 320  # size of a chart in pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 44  # margins around the frame
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")

Curve = Sequence[tuple[float, float]]  # points (x, y); a gap where y is not finite


@dataclass(frozen=True)
class Chart:
    """Curves over one axis."""

    title: str
    xlabel: str
    curves: Mapping[str, Curve]
    log: bool = False  # a logarithmic x axis
    legend: bool = True
    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)  # half the height of a band around a curve


def draw(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts side by side into a file, whose suffix selects the format."""
    if path.suffix.lower() == ".svg":
        path.write_text(svg(charts), encoding="utf-8")
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            f"drawing {path.name!r} needs matplotlib: pip install matplotlib. "
            "An .svg file needs no package; plot() returns text."
        ) from None
    figure = Figure(figsize=(5 * len(charts), 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for name, points in chart.curves.items():
            axes.plot(
                [x for x, _ in points], [y for _, y in points], marker="." if len(points) < 100 else "", label=name
            )
            if name in chart.bands:
                low, high = _edges(points, chart.bands[name])
                axes.fill_between([x for x, _ in points], [y for _, y in low], [y for _, y in high], alpha=0.2)
        axes.set(xlabel=chart.xlabel, xscale="log" if chart.log else "linear")
        axes.set_title(chart.title, fontsize=10)
        if chart.legend:
            axes.legend()
    figure.savefig(path)


def plot_text(values: Sequence[float], width: int, height: int) -> list[tuple[str, str]]:
    """A curve drawn with dots, as `height` lines of a label (the largest and the smallest value) and a row of dots."""
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite), max(finite)
    span, columns = (high - low) or 1.0, min(width, len(values))
    grid = [[" "] * columns for _ in range(height)]
    for column in range(columns):
        value = values[column * (len(values) - 1) // max(columns - 1, 1)]
        if math.isfinite(value):
            grid[height - 1 - round((value - low) / span * (height - 1))][column] = "•"
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    return [(label, "".join(row)) for label, row in zip(labels, grid, strict=True)]


def svg(charts: Sequence[Chart]) -> str:
    """The charts as a standalone SVG document."""
    drawn = [f'<g transform="translate({WIDTH * i} 0)">{"".join(_chart(p))}</g>' for i, p in enumerate(charts)]
    size = f'width="{WIDTH * len(charts)}" height="{HEIGHT}" viewBox="0 0 {WIDTH * len(charts)} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', background, *drawn, "</svg>\n"])


def _chart(chart: Chart) -> Iterator[str]:
    edges = [edge for name, half in chart.bands.items() for edge in _edges(chart.curves[name], half)]
    finite = [(x, y) for points in (*chart.curves.values(), *edges) for x, y in points if math.isfinite(y)]
    across = _Axis([x for x, _ in finite], LEFT, WIDTH - RIGHT, chart.log)
    up = _Axis([y for _, y in finite], HEIGHT - BOTTOM, TOP)
    frame = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
    yield f'<rect {frame} fill="none" stroke="#888"/>'
    yield _text(WIDTH / 2, TOP - 12, "middle", chart.title)
    yield _text(WIDTH / 2, HEIGHT - 8, "middle", chart.xlabel)
    for value, at in across.ticks():
        yield f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        yield _text(at, HEIGHT - BOTTOM + 16, "middle", f"{value:.4g}")
    for value, at in up.ticks():
        yield f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield _text(LEFT - 6, at + 4, "end", f"{value:.4g}")
    for i, (name, points) in enumerate(chart.curves.items()):
        color = COLORS[i % len(COLORS)]
        if name in chart.bands:
            low, high = _edges(points, chart.bands[name])
            around = [(x, y) for x, y in (*low, *reversed(high)) if math.isfinite(y)]
            corners = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in around)
            yield f'<polygon points="{corners}" fill="{color}" fill-opacity="0.2"/>'
        for run in _runs(points):
            line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in run)
            ends = ' stroke-linecap="round" stroke-linejoin="round"'  # a run of one point is a dot
            yield (
                f'<polyline points="{line}{" " + line if len(run) == 1 else ""}" fill="none" stroke="{color}" '
                f'stroke-width="2"{ends}/>'
            )
        if chart.legend:
            yield f'<path d="M{LEFT + 10} {TOP + 14 + 16 * i}h18" stroke="{color}" stroke-width="2"/>'
            yield _text(LEFT + 34, TOP + 18 + 16 * i, "start", name)


def _edges(points: Curve, half: Sequence[float]) -> tuple[Curve, Curve]:
    """The lower and the upper edge of a band around a curve."""
    around = list(zip(points, half, strict=True))
    return [(x, y - h) for (x, y), h in around], [(x, y + h) for (x, y), h in around]


def _runs(points: Curve) -> Iterator[list[tuple[float, float]]]:
    """The stretches of a curve without gaps."""
    run: list[tuple[float, float]] = []
    for x, y in points:
        if math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


class _Axis:
    """Maps values to pixels between `begin` and `end`, with room at both ends."""

    def __init__(self, values: Sequence[float], begin: float, end: float, log: bool = False) -> None:
        self._log = log
        scaled = [self._scale(v) for v in values] or [0.0]
        low, high = min(scaled), max(scaled)
        room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
        self._low, self._high, self._begin, self._end = low - room, high + room, begin, end

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        return self._begin + (self._scale(value) - self._low) / (self._high - self._low) * (self._end - self._begin)

    def ticks(self) -> Iterator[tuple[float, float]]:
        """Some five round values, and their pixels: multiples of 1, 2 or 5 times a power of ten."""
        rough = (self._high - self._low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = max(1.0, power) if self._log else next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
        first = math.ceil(self._low / step)
        for i in range(first, math.floor(self._high / step) + 1):
            value = 10.0 ** (i * step) if self._log else i * step
            yield value, self(value)
