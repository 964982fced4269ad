"""docs/internals/walk.md: the way of a model to C names functions that exist, and is short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOP = re.compile(r"^\| (\d+) \| `([\w/]+\.py): ([\w.]+)` \|", re.MULTILINE)
MOST_HOPS = 25


def names_in(path: Path) -> set[str]:
    """Functions of a module, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_the_walk_of_a_model_to_c_is_true_and_short() -> None:
    hops = HOP.findall((ROOT / "docs" / "internals" / "walk.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 15 <= len(hops) <= MOST_HOPS
    for _, file, function in hops:
        path = ROOT / "wholestep" / file
        assert path.exists(), f"docs/internals/walk.md names {file}, which does not exist"
        assert function in names_in(path), f"docs/internals/walk.md names {function}, which {file} does not define"
