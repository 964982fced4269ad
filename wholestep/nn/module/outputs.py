"""The outputs of a model that was called on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module


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
