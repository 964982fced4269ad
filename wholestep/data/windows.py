"""`Windows`: a time series as pairs of a window and the values after it, without copies of the overlapping parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.data.table import Array
from wholestep.errors import InputError, OptionError, ShapeError


class Windows(tuple[Array, Array]):
    """Windows of time series with the values that follow them: a pair `(x, y)` that `ws.fit` takes as data.

    x is (windows, length, features) and y (windows, horizon, targets).  For a series (time,) they lack the last axis.
    The windows of a series are views that share memory.  With several series, no window crosses from one to the next.

    Args:
        series: an array (time,) or (time, features), or a list of them.
        length: elements of a window.
        horizon: elements to forecast.
        gap: elements to skip between a window and its first forecast.
        stride: elements from one window to the next.
        targets: the indices of the features to forecast; None: all.

    Example::

        windows = ws.data.Windows(series, length=48, horizon=12)
        train, held = windows.split(0.2)
        ws.fit(model, train, validation=held, loss="mse")
    """

    length: int
    horizon: int
    gap: int
    starts: NDArray[np.int64]
    """The element at which each window begins, in its series."""

    def __new__(
        cls,
        series: Any,
        length: int,
        horizon: int = 1,
        *,
        gap: int = 0,
        stride: int = 1,
        targets: int | Sequence[int] | None = None,
    ) -> Windows:
        least = {"length": 1, "horizon": 1, "gap": 0, "stride": 1}
        for name, value in {"length": length, "horizon": horizon, "gap": gap, "stride": stride}.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
                raise OptionError(f"Windows: {name} must be an integer of at least {least[name]}; received {value!r}.")
        parts = [_windows_of(np.asarray(s), length, horizon, gap, stride, targets) for s in _as_list(series)]
        x, y, starts = (p[0] if len(parts) == 1 else np.concatenate(p) for p in zip(*parts, strict=True))
        return cls._of(x, y, starts, (length, horizon, gap))

    @classmethod
    def _of(cls, x: Array, y: Array, starts: NDArray[np.int64], sizes: tuple[int, int, int]) -> Windows:
        out = tuple.__new__(cls, (x, y))
        out.starts = starts
        out.length, out.horizon, out.gap = sizes
        return out

    @property
    def x(self) -> Array:
        """The windows, (windows, length, features)."""
        return self[0]

    @property
    def y(self) -> Array:
        """The forecasts of each window, (windows, horizon, targets)."""
        return self[1]

    def split(self, fraction: float) -> tuple[Windows, Windows]:
        """Earlier windows for training and the last ones for validation; windows that overlap both are left out.

        Windows of several series are divided at the same element of each.
        """
        if not isinstance(fraction, float) or not 0.0 < fraction < 1.0:
            raise OptionError(f"Windows.split: the fraction must be between 0 and 1, e.g. 0.2; received {fraction!r}.")
        first = int(np.quantile(self.starts, 1.0 - fraction, method="higher"))
        span = self.length + self.gap + self.horizon
        parts = [np.flatnonzero(self.starts + span <= first), np.flatnonzero(self.starts >= first)]
        if not all(map(len, parts)):
            raise OptionError(f"Windows.split: {fraction} of {len(self.starts)} windows of {span} leaves a part empty.")
        sizes = self.length, self.horizon, self.gap
        early, late = (type(self)._of(self.x[_run(p)], self.y[_run(p)], self.starts[p], sizes) for p in parts)
        return early, late

    def __reduce__(self) -> tuple[Any, ...]:
        return Windows._of, (self.x, self.y, self.starts, (self.length, self.horizon, self.gap))

    def __repr__(self) -> str:
        return f"{len(self.starts)} windows of {self.length}, each with {self.horizon} to forecast"


def _run(rows: NDArray[np.int64]) -> Any:
    """Consecutive rows as a slice, which is a view."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _as_list(series: Any) -> list[Any]:
    if isinstance(series, list) and series and np.ndim(series[0]) > 0:
        return series
    return [series]


def _windows_of(
    series: Array, length: int, horizon: int, gap: int, stride: int, targets: int | Sequence[int] | None
) -> tuple[Array, Array, NDArray[np.int64]]:
    if series.ndim not in (1, 2):
        raise ShapeError(f"Windows: a series is (time,) or (time, features); received {series.shape}.")
    if targets is not None and series.ndim == 1:
        raise OptionError("Windows: targets= chooses features; this series has one number per element.")
    span = length + gap + horizon
    count = (len(series) - span) // stride + 1
    if count < 1:
        raise InputError(
            f"Windows: a series of {len(series)} elements has no window of {length} with a gap of {gap} and {horizon} "
            f"to forecast, {span} together. Choose shorter ones, or leave the series out."
        )
    aim = series if targets is None else series[:, np.atleast_1d(targets)]
    return (
        _views(series, 0, length, stride, count),
        _views(aim, length + gap, horizon, stride, count),
        (stride * np.arange(count)),
    )


def _views(series: Array, first: int, size: int, stride: int, count: int) -> Array:
    views = np.lib.stride_tricks.sliding_window_view(series[first:], size, axis=0)[::stride][:count]
    return views if series.ndim == 1 else views.swapaxes(1, 2)
