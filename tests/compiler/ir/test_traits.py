"""Traits of ops stand in one table: nobody else spells one out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import wholestep
from wholestep.compiler.ir import ops
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with

ROOT = Path(wholestep.__file__).parent
TRAITS = [trait for trait in Trait if trait]


def literal_names(tree: ast.AST) -> Iterator[tuple[int, frozenset[str]]]:
    """The line and the names of every collection of strings that are ops."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List) and len(node.elts) > 1:
            names = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
            if len(names) == len(node.elts) and set(names) <= OPS.keys():
                yield node.lineno, frozenset(names)


def test_no_file_spells_a_trait_again() -> None:
    spelled = {ops_with(trait): trait for trait in TRAITS}
    found = [
        f"{path.relative_to(ROOT)}:{line} spells {spelled[names]}"
        for path in ROOT.rglob("*.py")
        if path != Path(ops.__file__)
        for line, names in literal_names(ast.parse(path.read_text()))
        if names in spelled
    ]
    assert not found, "query the table of ops, ops_with(Trait....), instead: " + "; ".join(found)


def test_a_spelled_trait_would_be_seen() -> None:
    assert [names for _, names in literal_names(ast.parse('x = ("dropout", "random")'))] == [ops_with(Trait.DRAWS)]


@pytest.mark.parametrize("trait", TRAITS, ids=lambda t: t.name)
def test_every_trait_has_ops_and_every_op_of_a_trait_exists(trait: Trait) -> None:
    assert ops_with(trait)
    assert set(ops._TRAITS[trait]) == ops_with(trait)


def test_elementwise_ops_are_the_pointwise_ones_and_activations() -> None:
    composites = {name for name in ops_with(Trait.ELEMENTWISE) if OPS[name].family is not Family.POINTWISE}
    assert composites == {"relu", "sigmoid", "tanh", "silu", "softplus", "gelu", "bce_with_logits"}
    assert ops_with(Trait.STATE | Trait.DRAWS) == {"parameter", "state", "random", "dropout"}
