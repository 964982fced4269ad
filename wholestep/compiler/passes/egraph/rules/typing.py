"""Type inference for laws, by unification: operands and results of an elementwise op have the same type."""

from __future__ import annotations

from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees

_COMPARE = ops_with(Trait.COMPARES)
_LIKE_INPUT = {n for n in ops_with(Trait.ELEMENTWISE) if OPS[n].family is Family.COMPOSITE} | {"softmax", "log_softmax"}


class Types:
    """The type variable of every subtree of a rule (union-find): anonymous, or named by the law."""

    def __init__(self, rule: Rule, both: bool = True) -> None:
        self._parent: dict[object, object] = {}
        self._constrain("left", rule.left)
        if rule.second_left:
            self._constrain("left", rule.second_left)
        if both:
            self._constrain("right", rule.right)
            self._join(self._key("left", rule.left), self._key("right", rule.right))

    def of(self, side: str, tree: Tree, parent: Apply | None = None, position: int = 0) -> object:
        """The representative of a subtree's type variable: equal for equal types."""
        return self._find(self._key(side, tree, parent, position))

    def by_name(self, name: str) -> object:
        """The representative of a type that the law names."""
        return self._find(name)

    def _key(self, side: str, tree: Tree, parent: Apply | None = None, position: int = 0) -> object:
        """The key of a subtree's type: the same for all occurrences of a variable; constants have separate keys."""
        if isinstance(tree, Variable):
            return tree
        if tree.type:
            return tree.type
        return (side, tree, parent, position) if isinstance(tree, Number) else (side, tree)

    def _find(self, key: object) -> object:
        while key in self._parent:
            key = self._parent[key]
        return key

    def _join(self, a: object, b: object) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            if isinstance(a, str):  # a named type becomes the representative
                a, b = b, a
            self._parent[a] = b

    def _constrain(self, side: str, tree: Tree) -> None:
        for t in subtrees(tree):
            if not isinstance(t, Apply) or t.opaque:
                continue
            keys = [self._key(side, child, t, i) for i, child in enumerate(t.children)]
            for key in keys[1:] if t.op != "where" else keys[2:]:
                if _children_agree(t.op):
                    self._join(keys[0] if t.op != "where" else keys[1], key)
            if _like_children(t.op):
                self._join(keys[-1], self._key(side, t))


def _children_agree(op: str) -> bool:
    return OPS[op].family in (Family.POINTWISE, Family.RATIO) or op == "bce_with_logits"


def _like_children(op: str) -> bool:
    """Does the result have the type of its last input?"""
    if op in _COMPARE or op == "cast":
        return False
    return OPS[op].family in (Family.POINTWISE, Family.RATIO) or op in _LIKE_INPUT
