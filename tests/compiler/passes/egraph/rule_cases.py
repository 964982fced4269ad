"""Both sides of a rule as nodes, at the shapes and values of one of its samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Graph, Node, Output, toposort
from wholestep.compiler.ir.types import DType, TensorType, as_shape, int32
from wholestep.compiler.ir.values import VALUES, Run
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.rules.rule import Rule, Sample
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.egraph.terms import TERMS

DEFAULT_SHAPE = (3, 4)


class Case:
    """One sample of one rule."""

    def __init__(self, rule: Rule, sample: dict[str, Sample], dtype: DType) -> None:
        integers = any(isinstance(t, Apply) and t.op == "iota" for t in subtrees(rule.left))
        self.rule, self.sample, self.dtype = rule, sample, int32 if integers else dtype
        names = {t.name for t in subtrees(rule.left) if isinstance(t, Variable)}
        self.leaves = {n: self._leaf(n) for n in sorted(names)}
        self.left = self._build(rule.left, None)
        self.right = self._build(rule.right, self.left.type)

    def _leaf(self, name: str) -> Node:
        return Node("input", (), at.InputAttrs(name, self._type(self.sample.get(name, DEFAULT_SHAPE))), name)

    def _type(self, shape: Any) -> TensorType:
        return TensorType(as_shape(shape), self.dtype)

    def _build(self, tree: Tree, expected: TensorType | None) -> Node:
        if isinstance(tree, Variable):
            return self.leaves[tree.name]
        if isinstance(tree, Number):
            type = self._type(self.sample[tree.type]) if tree.type else expected
            assert type is not None, f"the type of {tree} is not told"
            return b.full(float(tree.value.evaluate(self.numbers())), type)
        return self._apply(tree, expected)

    def _apply(self, tree: Apply, expected: TensorType | None) -> Node:
        """Numbers take the type of what stands beside them."""
        built = {i: self._build(c, None) for i, c in enumerate(tree.children) if not isinstance(c, Number)}
        beside = next((n.type for n in built.values()), expected)
        inputs = [built[i] if i in built else self._build(c, beside) for i, c in enumerate(tree.children)]
        named = tree.type in self.sample
        type = self._type(self.sample[tree.type]) if named else (beside or inputs[0].type)
        slots = tuple(int(s.evaluate(self.numbers())) for s in tree.slots)
        return Node(tree.op, inputs, TERMS[tree.op].read(slots, type))

    def numbers(self) -> dict[str, Any]:
        """What attributes, values and types stand for."""
        tables = Tables()
        return {
            name: tables.type_id(self._type(value)) if isinstance(value, tuple) else value
            for name, value in self.sample.items()
        }

    def graph(self) -> Graph:
        nodes = (Output("left", self.left), Output("right", self.right))
        return Graph(nodes, (), tuple(self.leaves.values()))

    def values(self, rng: np.random.Generator) -> dict[str, Any]:
        """Random, with the special values among them where equal bits are claimed."""
        out = {}
        for name, leaf in self.leaves.items():
            low = 0.1 if name in self.rule.positive else -3.0
            shape = tuple(int(e) for e in leaf.type.shape)
            out[name] = rng.uniform(low, 3.0, shape).astype(self.dtype.numpy)
        return out


def run_in_own_dtype(root: Node, inputs: dict[str, Any], state: dict[str, Any] | None = None) -> Any:
    """Evaluate with every value rounded to its dtype, as a device would."""
    run = Run(inputs, state or {}, {}, {}, 0, 0)
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in toposort([root]):
            value = VALUES[node.op](run, node.attrs, *(values[i] for i in node.inputs))
            values[node] = np.asarray(value, dtype=node.type.dtype.numpy)
    return values[root]
