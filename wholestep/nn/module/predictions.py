"""The outputs of a model on arrays; probabilities and classes of its scores, by the loss it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.losses.forms import Meaning
from wholestep.nn.layers.table_encoding import encoding_of
from wholestep.nn.module.module import MEANINGS, Module

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module

Array = np.ndarray[Any, Any]

SAID = {"softmax": Meaning(each=False), "sigmoid": Meaning(each=True)}


def probabilities(model: Module, outputs: Any, asked: bool | str) -> Any:
    """The outputs with scores converted to probabilities: by softmax for classes, by sigmoid for binary targets."""
    return _each(model, outputs, "probabilities", asked, _probabilities)


def classes(model: Module, outputs: Any, scores: str | None) -> Any:
    """The most probable class of each row, or 1 where the probability is above ½; labels if the model has them."""
    encoding = encoding_of(model)
    if encoding is not None and encoding.classes is None:
        fail(UsageError, "this model was trained to predict numbers, which have no classes; use predict.")
    indices = _each(model, outputs, "scores", True if scores is None else scores, _classes)
    if encoding is None or encoding.classes is None:
        return indices
    return np.array(encoding.classes)[indices.reshape(len(indices))]


def _each(model: Module, outputs: Any, option: str, asked: bool | str, change: Any) -> Any:
    if asked is not True and asked not in SAID:
        fail(OptionError, f"{option}={asked!r}: expected 'softmax' (one of several classes) or 'sigmoid' (yes or no).")
    if isinstance(outputs, list):  # one array for each sequence of `ws.data.Ragged`
        return [_each(model, out, option, asked, change) for out in outputs]
    if not isinstance(outputs, np.ndarray | Mapping | tuple):
        fail(UsageError, f"{type(model).__name__} gives {type(outputs).__name__}, which holds no scores.")
    numbered = {f"output{i}": out for i, out in enumerate(outputs)} if isinstance(outputs, tuple) else outputs
    named = {"output": numbered} if isinstance(numbered, np.ndarray) else dict(numbered)
    meanings = _meanings_of(model, named) if asked is True else dict.fromkeys(named, SAID[str(asked)])
    if not meanings:
        fail(
            UsageError,
            f"what the scores of this {type(model).__name__} mean follows from the loss of its training or evaluation, "
            f"and it has met none that takes classes. Say it: {option}='softmax' (one of several classes) or "
            f"{option}='sigmoid' (yes or no).",
        )
    changed = {name: change(out, meanings[name]) if name in meanings else out for name, out in named.items()}
    if isinstance(outputs, np.ndarray):
        return changed["output"]
    return tuple(changed.values()) if isinstance(outputs, tuple) else changed


def _meanings_of(model: Module, outputs: Mapping[str, Any]) -> dict[str, Meaning]:
    met: dict[str, Meaning] = model.__dict__.get(MEANINGS, {})
    encoding = encoding_of(model)
    if not met and encoding is not None and encoding.classes is not None:  # the encoding was loaded from a file
        return {"output": Meaning(each=encoding.outputs == 1)}
    return {name: meaning for name, meaning in met.items() if name in outputs}


def _probabilities(scores: Array, meaning: Meaning) -> Array:
    if meaning.probabilities:
        return scores
    if not meaning.logits:
        fail(
            UsageError,
            "the loss of this model, a hinge, takes scores that are no logits: there are no probabilities. Train with "
            "'cross_entropy' or 'bce', or take model.predict_classes(x).",
        )
    out = np.array(scores)  # a copy that is changed in place
    if meaning.each:  # sigmoid, written so that exp cannot overflow
        np.exp(-np.abs(scores), out=out)
        return np.asarray(np.where(scores >= 0, 1, out) / (1 + out), scores.dtype)
    out -= out.max(axis=meaning.axis, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=meaning.axis, keepdims=True)
    return out


def _classes(scores: Array, meaning: Meaning) -> Array:
    if meaning.each:
        return (scores > (0.5 if meaning.probabilities else 0.0)).astype(np.int64)
    return np.asarray(scores.argmax(axis=meaning.axis))


class Outputs(np.ndarray[Any, Any]):
    """An array that records the model and the inputs that it was computed from, so that a loss of it has gradients.

    What is computed from it in NumPy is an array like any other.
    """

    model: Module | None = None
    inputs: tuple[object, ...] = ()
    named: Mapping[str, object] = {}

    def __array_wrap__(self, array: Any, *rest: Any) -> Any:
        return np.asarray(array)[()]


def remember_outputs(model: Module, inputs: tuple[object, ...], named: Mapping[str, object], computed: Any) -> Any:
    """The outputs with a record of their model and inputs; several outputs are returned unchanged."""
    if not isinstance(computed, np.ndarray):
        return computed
    outputs = computed.view(Outputs)
    outputs.model, outputs.inputs, outputs.named = model, inputs, named
    return outputs
