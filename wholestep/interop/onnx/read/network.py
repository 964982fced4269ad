"""An ONNX graph as plain data; code that uses it does not need the onnx package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reference:
    """An attribute of a node in a function whose value is an attribute of the function."""

    name: str


@dataclass(frozen=True)
class OnnxInput:
    """An input of a graph; dtype and shape as far as the file declares them, a str is a symbolic dimension."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxNode:
    """A node: an operator, the names of its inputs ("" if omitted) and outputs, its attributes."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def description(self) -> str:
        """A description of the node for errors."""
        operator = self.op if not self.domain else f"{self.domain}.{self.op}"
        return f"node {self.name or ', '.join(self.outputs)!r} ({operator})"


@dataclass(frozen=True)
class OnnxFunction:
    """A model-local function: the names of its arguments, results and attributes, and its nodes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, Any]
    calls: tuple[OnnxNode, ...]
    opset: int


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A graph of an ONNX file."""

    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    calls: tuple[OnnxNode, ...]
    constants: Mapping[str, Array]
    opset: int
    functions: Mapping[tuple[str, str], OnnxFunction] = field(default_factory=dict)
    ours: bool = False  # written by `ws.export_onnx`: indices are within range, random numbers have keys
    notes: Mapping[str, str] = field(default_factory=dict)  # other metadata of the file

    def live(self) -> tuple[OnnxNode, ...]:
        """The nodes that the outputs need, in order."""
        needed, live = set(self.outputs), []
        for call in reversed(self.calls):
            if needed.intersection(call.outputs):
                needed.update(call.inputs)
                needed.update(outside_names(call))
                live.append(call)
        return tuple(reversed(live))


def outside_names(call: OnnxNode) -> set[str]:
    """The outer values that the subgraphs of a node read."""
    names: set[str] = set()
    for value in call.attributes.values():
        if isinstance(value, OnnxGraph):
            inside = {i.name for i in value.inputs} | set(value.constants)
            for inner in value.calls:
                names |= ({n for n in inner.inputs if n} | outside_names(inner)) - inside
                inside.update(inner.outputs)
            names |= set(value.outputs) - inside
    return names
