"""`Ensemble`: several models that predict together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.nn.layers.table_encoding import encoding_of, keep_encoding
from wholestep.nn.module.module import MEANINGS, Module


class Ensemble(Module):
    """The mean of the outputs of several models with the same inputs and outputs, as one program.

    For scores of classes it is the mean of the scores, whose softmax is the normalised geometric mean of the members'
    probabilities.

    Example: `ws.nn.Ensemble([one, other]).predict(x)`.
    """

    def __init__(self, members: Sequence[Module]) -> None:
        if not members or not all(isinstance(m, Module) for m in members):
            fail(UsageError, f"an ensemble has at least one module; received {members!r}. Give [one, other].")
        self.members = list(members)
        if (encoding := encoding_of(self.members[0])) is not None:
            keep_encoding(self, encoding)
        if MEANINGS in self.members[0].__dict__:
            self.__dict__[MEANINGS] = self.members[0].__dict__[MEANINGS]

    def children(self) -> dict[str, Module]:
        return {str(i): member for i, member in enumerate(self.members)}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return _mean([member(*inputs, **named) for member in self.members])


def _mean(outputs: list[Any]) -> Any:
    """The mean of tensors, or of tuples or dicts of tensors element by element."""
    first = outputs[0]
    if isinstance(first, dict):
        return {name: _mean([out[name] for out in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(_mean(list(each)) for each in zip(*outputs, strict=True))
    return reduce(add, outputs) / float(len(outputs))
