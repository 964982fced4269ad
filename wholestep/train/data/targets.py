"""Checks of targets before anything is compiled: which values each loss takes, one row of a table per loss.

A loss computes with any target: with a target of 2 binary cross entropy falls without bound, and with several ones in a
row cross entropy trains towards a wrong distribution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wholestep.compiler.ir.types import letter_of
from wholestep.data.table import Array
from wholestep.errors import InputError
from wholestep.losses import Loss

Check = Callable[[Loss, Array], None]


def check_targets(loss: Loss, y: Array) -> None:
    """InputError, with the fix, for targets that the loss does not take."""
    for check in TARGETS.get(loss.kind, ()):
        check(loss, y)


def _are_numbers(loss: Loss, y: Array) -> None:
    if letter_of(y.dtype) not in "fiub":
        raise InputError(
            f"the labels are of dtype {y.dtype}, not numbers; number the classes: names, y = np.unique(y, "
            "return_inverse=True)."
        )


def _are_classes(loss: Loss, y: Array) -> None:
    if letter_of(y.dtype) == "f" and (y.ndim == 1 or y.shape[1:] == (1,)):
        raise InputError(
            "the labels are floats; classes are integers: y.astype('int32'). For binary targets with one score use "
            "loss='bce', for numbers loss='mse'."
        )
    if letter_of(y.dtype) in "iub" and y.ndim == 2 and y.shape[1] > 1 and (y.sum(axis=1) == 1).all() and y.max() <= 1:
        raise InputError(
            "the labels are one-hot integers; give class indices, y.argmax(axis=1), or probabilities as floats, "
            "y.astype('float32')."
        )
    if letter_of(y.dtype) == "b":
        raise InputError(
            "the labels are booleans; with one score for each row give loss='bce', which takes them; with two scores "
            "classes are integers, y.astype('int32')."
        )


def _sum_to_one(loss: Loss, y: Array) -> None:
    """Float targets are probabilities: each row sums to 1."""
    axis = loss.options.get("axis", -1 if y.ndim == 2 or loss.kind == "kl_div" else None)
    if letter_of(y.dtype) != "f" or y.ndim < 2 or axis is None:  # without an axis the loss itself raises the error
        return
    sums = y.sum(axis)
    wrong = ~np.isclose(sums, 1.0, atol=1e-3) | (y.min(axis) < 0)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{loss.kind} takes rows of probabilities, from 0 and with the sum 1; row {where[0]} has the sum "
            f"{sums[where]:g}. Where several labels of a row can be true use loss='bce'; weights of rows are data=(x, "
            "y, sample_weight)."
        )


def _are_answers(loss: Loss, y: Array) -> None:
    if letter_of(y.dtype) != "b":
        _refuse_others(
            loss, y, (y < 0) | (y > 1), "targets from 0 (no) to 1 (yes)", "(y + 1) / 2 makes them of -1 and 1"
        )


def _floats_are_answers(loss: Loss, y: Array) -> None:
    if letter_of(y.dtype) == "f":
        _are_answers(loss, y)


def _are_signs(loss: Loss, y: Array) -> None:
    _refuse_others(loss, y, (y != -1.0) & (y != 1.0), "targets -1 (no) and 1 (yes)", "2 * y - 1 makes them of 0 and 1")


def _floats_are_signs(loss: Loss, y: Array) -> None:
    if letter_of(y.dtype) in "fb":
        _are_signs(loss, y)


def _refuse_others(loss: Loss, y: Array, wrong: Array, expected: str, fix: str) -> None:
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{loss.kind} takes {expected}; received {float(y[where]):g} in row {where[0]}. {fix}; for classes use "
            "loss='cross_entropy', for other numbers loss='mse'."
        )


TARGETS: dict[str, tuple[Check, ...]] = {
    "cross_entropy": (_are_numbers, _are_classes, _sum_to_one),
    "kl_div": (_are_numbers, _sum_to_one),
    "binary_cross_entropy": (_are_numbers, _are_answers),
    "focal": (_are_numbers, _floats_are_answers),
    "dice": (_are_numbers, _floats_are_answers),
    "hinge": (_are_numbers, _floats_are_signs),
    "tversky": (_are_numbers, _floats_are_answers),
    "nll": (_are_numbers, _are_classes),
    "bce_of_probabilities": (_are_numbers, _are_answers),
    "contrastive": (_are_numbers, _are_answers),
}
BINARY: dict[str, Check] = {  # for losses of classes or binary targets, if each score has its own target
    "focal": _are_answers,
    "dice": _are_answers,
    "tversky": _are_answers,
    "hinge": _are_signs,
}
