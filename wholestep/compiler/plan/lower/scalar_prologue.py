"""The scalar prologue: expressions of runtime scalars, sizes and constants, evaluated in float64 once per step.

Kernels read the results (a learning rate, a bias correction) from numbered slots instead of memory.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.plan.model.kernel import HostValue, Scalar


class ScalarPrologue:
    def __init__(self) -> None:
        self.values: list[HostValue] = []
        self.ids: dict[Node, int] = {}
        self.scalars: dict[str, Scalar] = {}
        self.slots = 0

    def slot(self, node: Node) -> int:
        """The slot from which kernels read the value of a host node."""
        at = self.value(node)
        slot = self.values[at].slot
        if slot is None:
            self.values[at] = replace(self.values[at], slot=self.slots)
            self.slots += 1
            return self.slots - 1
        return slot

    def value(self, node: Node) -> int:
        """The id of the prologue's instruction that computes a node; its operands come first."""
        if node not in self.ids:
            args = tuple(self.value(i) for i in node.inputs)
            value = self._make(node, args)
            self.ids[node] = value.id
            self.values.append(value)
        return self.ids[node]

    def _make(self, node: Node, args: tuple[int, ...]) -> HostValue:
        id, dtype, attrs = len(self.values), node.type.dtype, node.attrs
        if node.op == "constant":
            return HostValue(id, "const", const=float(attrs.array.value), dtype=dtype)  # type: ignore[attr-defined]
        if node.op == "scalar":
            scalar = self.scalars.setdefault(attrs.name, Scalar(attrs.name, attrs.default))  # type: ignore[attr-defined]
            return HostValue(id, "scalar", index=list(self.scalars).index(scalar.name), dtype=dtype)
        if node.op == "size":
            return HostValue(id, "size", extent=attrs.extent, dtype=dtype)  # type: ignore[attr-defined]
        return HostValue(id, node.op, args, dtype=dtype)
