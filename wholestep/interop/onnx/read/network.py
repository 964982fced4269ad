"""What an ONNX file says, as plain data: nothing of the onnx package is needed behind this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reference:
    """An attribute of a function's node that has the value of the function's own attribute."""

    name: str


@dataclass(frozen=True)
class Input:
    """What a graph is given: its name, dtype and shape as far as the file says them; a str names a dimension."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Call:
    """One node: an operator, the names of its inputs ("" where one is left out) and outputs, its attributes."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def shown(self) -> str:
        """The node in an error."""
        operator = self.op if not self.domain else f"{self.domain}.{self.op}"
        return f"node {self.name or ', '.join(self.outputs)!r} ({operator})"


@dataclass(frozen=True)
class Function:
    """A model-local function: the names of its arguments, results and attributes, and its nodes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, Any]
    calls: tuple[Call, ...]
    opset: int


@dataclass(frozen=True, eq=False)
class Network:
    """A graph of an ONNX file."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...]
    constants: Mapping[str, Array]
    opset: int
    functions: Mapping[tuple[str, str], Function] = field(default_factory=dict)
    ours: bool = False  # written by `ws.export_onnx`: indices are within range, random numbers have keys
    notes: Mapping[str, str] = field(default_factory=dict)  # what else the file says of itself

    def live(self) -> tuple[Call, ...]:
        """The nodes that the outputs need, in order."""
        needed, found = set(self.outputs), []
        for call in reversed(self.calls):
            if needed.intersection(call.outputs):
                needed.update(call.inputs)
                needed.update(outside_names(call))
                found.append(call)
        return tuple(reversed(found))


def outside_names(call: Call) -> set[str]:
    """What the graphs among a node's attributes read from around them."""
    found: set[str] = set()
    for value in call.attributes.values():
        if isinstance(value, Network):
            inside = {i.name for i in value.inputs} | set(value.constants)
            for inner in value.calls:
                found |= ({n for n in inner.inputs if n} | outside_names(inner)) - inside
                inside.update(inner.outputs)
            found |= set(value.outputs) - inside
    return found
