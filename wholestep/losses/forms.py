"""How a classifier's scores and targets correspond; what a loss records about this for metrics and the linter.

*Multi-class*: scores have a class axis, along which one class is correct; the other axes are rows.  *Binary*: each
score has a target of its own, 0 or 1.  A loss records its interpretation (`takes_as`), which metrics of the same output
then use.  An axis of size 1 is never a class axis.
"""

from __future__ import annotations

import warnings

from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail, user_line
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Shape, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError, TrainingWarning
from wholestep.losses.shared import Target
from wholestep.records import dataclass

SAME_VALUES = ops_with(Trait.VIEW) | {"cast"}


@dataclass(frozen=True)
class Meaning:
    """The interpretation of an output by a loss."""

    each: bool  # binary, with one target per score; otherwise classes along `axis`
    axis: int = -1
    ignore_index: int | None = None
    logits: bool = True  # sigmoid or softmax of the scores gives the probabilities
    signs: bool = False  # binary targets are 1 and -1 instead of 1 and 0
    probabilities: bool = False  # the scores are probabilities themselves


def takes_as(scores: Tensor, meaning: Meaning) -> None:
    """Record the meaning of `scores` for metrics; None if two losses disagree."""
    if scores.graph is not None:
        meanings = scores.graph.meanings
        meanings[scores.node] = meaning if meanings.get(scores.node, meaning) == meaning else None


# -- classes -----------------------------------------------------------------------------------------------------


def class_axis(name: str, scores: Shape, target: Shape, axis: int | None = None) -> int:
    """The class axis: the given one, or the axis whose removal from the scores gives the target's shape.

    It may be the last, as in language models, or axis 1, as in torch; if both are possible, it must be given.
    """
    last = len(scores) - 1
    if axis is not None:
        if not isinstance(axis, int) or isinstance(axis, bool) or not -len(scores) <= axis <= last:
            fail(OptionError, f"{name}: axis={axis!r} is no axis of scores of shape {shape_text(scores)}.")
        return axis % len(scores)
    if last < 2:
        return last
    fits = [a for a in (1, last) if target == scores or _is_row_of(target, without(scores, a))]
    if len(fits) == 2:
        fits = [a for a in fits if scores[a] != 1] or [last]
    if len(fits) == 2:
        fail(
            ShapeError,
            f"{name}: in scores of shape {shape_text(scores)} for targets of shape {shape_text(target)}, classes may "
            "be on axis 1 or on the last axis. Say which: axis=1 or axis=-1, as in ws.losses.Loss('cross_entropy', "
            "axis=1).",
        )
    return fits[0] if fits else last


def without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _is_row_of(target: Shape, rows: Shape) -> bool:
    """Do the targets have the shape of the rows?  A column of class indices, (N, 1), counts as (N,)."""
    return target in (rows, (*rows, 1))


def classes_last(scores: Tensor, axis: int) -> Tensor:
    if axis == scores.ndim - 1:
        return scores
    return scores.permute(*(a for a in range(scores.ndim) if a != axis), axis)


def class_numbers(loss: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Class indices in the shape of the rows: the shape of the scores without the class axis (the last one)."""
    rows = scores.shape[:-1]
    if not _is_row_of(labels.shape, rows):
        fail(
            ShapeError,
            f"{loss}: logits of shape {shape_text(scores.shape)}, classes last, need labels of shape "
            f"{shape_text(rows)}; received {shape_text(labels.shape)}.",
        )
    return labels if labels.shape == rows else labels.reshape(rows)


def need_classes(loss: str, scores: Shape, axis: int) -> None:
    if (scores and scores[axis] == 1) or (len(scores) == 1 and not isinstance(scores[0], int)):
        fail(
            ShapeError,
            f"{loss}: scores of shape {shape_text(scores)} are one for each row, and the probability of a single class "
            "is always 1. For binary targets use loss='bce'; otherwise give the model an output for each "
            "class.",
        )


def class_weights(loss: str, scores: Tensor, class_weight: Target | None) -> Tensor | None:
    """The weights of classes in the dtype of the scores (classes last); None without weights."""
    if class_weight is None:
        return None
    weights = as_tensor(class_weight)
    if weights.shape != scores.shape[-1:]:
        fail(
            ShapeError,
            f"{loss}: class_weight has one number for each class, shape {shape_text(scores.shape[-1:])}; received "
            f"{shape_text(weights.shape)}. For one number for each row use sample_weight=.",
        )
    return weights.astype(scores.dtype)


def resolve_class_axis(loss: str, logits: Tensor, labels: Tensor, axis: int | None) -> int:
    """The class axis of raw scores whose targets are class indices or probabilities."""
    if not labels.dtype.is_float:
        _refuse_whole_rows(loss, logits, labels)
    at = class_axis(loss, logits.shape, labels.shape, axis)
    need_classes(loss, logits.shape, at)
    if labels.dtype.is_float:
        _refuse_float_labels(loss, logits, labels, at)
    lint(loss, logits, each=False)
    return at


def _refuse_float_labels(loss: str, logits: Tensor, labels: Tensor, axis: int) -> None:
    rows = without(logits.shape, axis)
    if labels.shape in (rows, (*rows, 1)):
        fail(
            DTypeError,
            f"{loss}: labels of shape {shape_text(labels.shape)} are class indices of an integer dtype; "
            f"received {labels.dtype}. Cast them: labels.astype('int32'). Probabilities have the shape of the logits, "
            f"{shape_text(logits.shape)}.",
        )


def _refuse_whole_rows(loss: str, logits: Tensor, labels: Tensor) -> None:
    if labels.shape == logits.shape and logits.ndim > 0:
        fail(
            DTypeError,
            f"{loss}: a target of shape {shape_text(labels.shape)}, that of the logits, holds probabilities and "
            f"needs dtype {logits.dtype}; received {labels.dtype}. Cast it, target.astype('{logits.dtype}'), or pass "
            "class indices: target.argmax(-1). For one binary target per score use loss='bce'.",
        )


# -- binary ------------------------------------------------------------------------------------------------------


def shapes_match(a: Shape, b: Shape) -> bool:
    """Are the shapes equal, except for a last axis of size 1?  Nothing else is broadcast."""
    return a == b or (*a, 1) == b or (*b, 1) == a


def answers(scores: Tensor, target: Target) -> Target:
    """Binary targets in the shape and dtype of the scores if they fit; otherwise unchanged."""
    if isinstance(target, int | float):
        return target
    t = as_tensor(target)
    if t.shape != scores.shape and shapes_match(t.shape, scores.shape):
        t = t.reshape(scores.shape)
    return t if t.dtype.is_float else t.astype(scores.dtype)


def by_score(scores: Tensor, target: Target) -> bool:
    """Does each score have its own target?  Class indices lack the class axis, which never has size 1."""
    if isinstance(target, int | float):
        return True
    return shapes_match(scores.shape, as_tensor(target).shape)


# -- linter ---------------------------------------------------------------------------------------

_ONE_TRUE = "use loss='cross_entropy' where one class is true"
LINT = {  # (binary?, the op that computed the scores) -> text of the warning
    (False, "softmax"): "leave the softmax out; ws.nn.Softmax()(model.predict(x)) gives probabilities.",
    (False, "sigmoid"): "leave the sigmoid out, or use loss='bce' for binary labels.",
    (True, "sigmoid"): "leave the sigmoid out; ws.nn.Sigmoid()(model.predict(x)) gives probabilities.",
    (True, "softmax"): f"leave the softmax out, or {_ONE_TRUE}.",
    (True, "log_softmax"): f"leave the log_softmax out, or {_ONE_TRUE}.",
}


def source_of(scores: Tensor) -> Node:
    """The node that computed the values of a tensor, before views and casts."""
    node = scores.node
    while node.op in SAME_VALUES:
        node = node.inputs[0]
    return node


def lint(loss: str, scores: Tensor, each: bool) -> None:
    """Warn about scores that are probabilities already: the second sigmoid or softmax makes gradients vanish."""
    node = source_of(scores)
    advice = LINT.get((each, node.op))
    if advice is not None:
        line = user_line()
        text = f"{loss} takes raw scores and applies the {'sigmoid' if each else 'softmax'} itself: {advice}"
        warning = TrainingWarning(f"{text} ({node.op} at {node.line})", code="WS102" if each else "WS101")
        warnings.warn_explicit(warning, TrainingWarning, line.file, line.line)
