"""The scalar prologue: expressions of runtime scalars, sizes and constants, in float64, once a step."""

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
        """Where kernels find the value of a host node."""
        at = self.value(node)
        known = self.values[at].slot
        if known is None:
            self.values[at] = replace(self.values[at], slot=self.slots)
            self.slots += 1
            return self.slots - 1
        return known

    def value(self, node: Node) -> int:
        if node not in self.ids:
            args = tuple(self.value(i) for i in node.inputs)
            made = self._make(node, args)
            self.ids[node] = made.id
            self.values.append(made)
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
