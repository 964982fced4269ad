"""Both sides of a rule as nodes, at the shapes and values of one of its samples, or of its exact types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, toposort
from wholestep.compiler.ir.semantics.values import VALUES, StepValues
from wholestep.compiler.ir.types import (
    DType,
    Extent,
    TensorType,
    TupleType,
    Type,
    as_shape,
    boolean,
    evaluate,
    float64,
    int32,
)
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.rules.rule import Rule, Sample
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.egraph.terms import TERMS

DEFAULT_SHAPE = (3, 4)


class Case:
    """One sample of a law."""

    def __init__(self, rule: Rule, sample: Mapping[str, Sample], dtype: DType) -> None:
        trees = [*subtrees(rule.left), *subtrees(rule.right)]
        integers = any(isinstance(t, Apply) and t.op == "iota" for t in trees)
        self.rule, self.sample, self.dtype = rule, sample, int32 if integers else dtype
        self.conditions = {t.children[0] for t in trees if isinstance(t, Apply) and t.op in ("where", "logical_not")}
        self.compared = {
            c for t in trees if isinstance(t, Apply) and t.op in ("equal", "not_equal") for c in t.children
        }
        names = {t.name for t in trees if isinstance(t, Variable)}
        self.leaves = {n: self._leaf(n) for n in sorted(names)}
        self.left = self._build(rule.left, None)
        self.right = self._build(rule.right, self.left.type)

    def _leaf(self, name: str) -> Node:
        dtype = boolean if Variable(name) in self.conditions else self.dtype
        type = TensorType(as_shape(self.sample.get(name, DEFAULT_SHAPE)), dtype)  # type: ignore[arg-type]
        return Node("input", (), at.InputAttrs(name, type), name)

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
        beside = next((n.type for n in built.values() if n.type.dtype != boolean), expected)
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

    def graph(self) -> IRGraph:
        nodes = (Output("left", self.left), Output("right", self.right))
        return IRGraph(nodes, (), tuple(self.leaves.values()))

    def values(self, rng: np.random.Generator) -> dict[str, Any]:
        """Random; what is compared is drawn from few values, so that some are equal."""
        out = {}
        for name, leaf in self.leaves.items():
            shape = tuple(int(e) for e in leaf.type.shape)
            if leaf.type.dtype == boolean:
                out[name] = rng.random(shape) < 0.5
            elif Variable(name) in self.compared:
                out[name] = rng.integers(0, 3, shape).astype(self.dtype.numpy)
            else:
                low = 0.1 if name in self.rule.positive else -3.0
                out[name] = rng.uniform(low, 3.0, shape).astype(self.dtype.numpy)
        return out


class ExactCase:
    """A rule made from nodes: types are those of the tables, with symbols at small, different sizes."""

    def __init__(
        self, rule: Rule, tables: Tables, dtype: DType = float64, types: Mapping[str, Type] | None = None
    ) -> None:
        self.rule, self.tables, self.dtype = rule, tables, dtype
        self.sizes: dict[str, int] = {}
        self.leaves: dict[str, Node] = {}
        known = types or {n: tables.type(i) for n, i in rule.types if n[0].islower()}
        self._known = {n: self._sized(t) for n, t in known.items()}
        self._built: dict[Tree, Node] = {}
        self.left = self._build(rule.left)
        self.right = self._build(rule.right)

    def _sized(self, type: Type) -> Type:
        if isinstance(type, TupleType):
            return TupleType(tuple(self._sized(t) for t in type.items))  # type: ignore[misc]
        dtype = self.dtype if type.dtype.is_float and type.rank else type.dtype  # host scalars stay what they are
        return TensorType(tuple(self._size(e) for e in type.shape), dtype)

    def _size(self, extent: Extent) -> int:
        if isinstance(extent, int):
            return extent
        for s in sorted(extent.symbols):
            self.sizes.setdefault(s, 7 + len(self.sizes))
        return evaluate(extent, self.sizes)

    def _build(self, tree: Tree) -> Node:
        if tree not in self._built:
            self._built[tree] = self._node(tree)
        return self._built[tree]

    def _node(self, tree: Tree) -> Node:
        if isinstance(tree, Variable):
            return self.leaves.setdefault(
                tree.name, b.make("input", (), at.InputAttrs(tree.name, self._known[tree.name]))
            )
        inputs = [self._build(c) for c in tree.children] if isinstance(tree, Apply) else []
        type = self._sized(self.tables.type(int(tree.type[1:]))) if tree.type else inputs[0].result
        if isinstance(tree, Number):
            return b.full(float(tree.value.evaluate({})), type)  # type: ignore[arg-type]
        slots = tuple(int(s.evaluate({})) for s in tree.slots)
        if tree.opaque or tree.op not in TERMS:
            attrs = self.tables.attributes[slots[0]][1]
        else:
            attrs = TERMS[tree.op].read(slots, type)  # type: ignore[arg-type]
        node = Node(tree.op, inputs, self._sized_attrs(attrs, type))
        assert node.result == type, f"{node!r} is not of {type}"
        return node

    def _sized_attrs(self, attrs: at.Attrs, type: Type) -> at.Attrs:
        if isinstance(attrs, at.SliceAttrs):
            return at.SliceAttrs(tuple(map(self._size, attrs.starts)), tuple(map(self._size, attrs.stops)), attrs.steps)
        if isinstance(attrs, at.SizeAttrs):
            return at.SizeAttrs(self._size(attrs.extent))
        if isinstance(attrs, at.RandomAttrs):
            assert isinstance(type, TensorType)
            return at.RandomAttrs(attrs.key, type)
        return attrs

    def graph(self) -> IRGraph:
        return IRGraph((Output("left", self.left), Output("right", self.right)), (), tuple(self.leaves.values()))

    def values(self, rng: np.random.Generator) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, leaf in self.leaves.items():
            shape = tuple(int(e) for e in leaf.type.shape)
            if leaf.type.dtype.is_integer:
                out[name] = rng.integers(0, 3, shape).astype(leaf.type.dtype.numpy)
            elif name == "rate":
                draw = next(n for n in toposort([self.left]) if n.op == "random")
                out[name] = run_in_own_dtype(draw, {}).flat[0]  # where u is the rate, x is kept
            else:
                out[name] = rng.uniform(-3.0, 3.0, shape).astype(leaf.type.dtype.numpy)
        return out


def run_in_own_dtype(root: Node, inputs: dict[str, Any], state: dict[str, Any] | None = None) -> Any:
    """Evaluate with every value rounded to its dtype, as a device would."""
    run = StepValues(inputs, state or {}, {}, {}, 0, 0)
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in toposort([root]):
            value = VALUES[node.op](run, node.attrs, *(values[i] for i in node.inputs))
            if isinstance(node.result, TensorType):
                value = np.asarray(value, dtype=node.result.dtype.numpy)
            values[node] = value
    return values[root]
