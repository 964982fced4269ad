"""Names are the field's words: docs/internals/vocabulary.md lists them with the idiom that they replace."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import wholestep

PACKAGE = Path(wholestep.__file__).parent
PAGE = PACKAGE.parent / "docs" / "internals" / "vocabulary.md"
# Names from before this test, or of other libraries (`nn.init.kaiming_uniform_` of PyTorch): the list may only shrink.
ALLOWED = Path(__file__).parents[1] / "golden" / "participle_names.txt"
IRREGULAR = frozenset({
    "bound", "brought", "built", "chosen", "done", "drawn", "found", "given", "gone", "held", "hidden", "kept", "known",
    "laid", "left", "lost", "made", "meant", "met", "said", "seen", "sent", "shown", "spent", "taken", "told",
    "written",
})  # fmt: skip
NOT_PARTICIPLES = frozenset({
    "embed", "embedding", "exceed", "feed", "need", "padding", "proceed", "ring", "seed", "speed", "spread", "string",
})  # fmt: skip

# Names of locals and parameters that leave the noun out: `matches` or `neighbours` says what was `found`.
NO_NOUN = frozenset({"found", "given", "kept", "known", "made"})

pytestmark = pytest.mark.skipif(
    not PAGE.exists(), reason="the page of words is part of the repository, not of the package"
)


def refused_words() -> frozenset[str]:
    rows = re.findall(r"^\| (?!word|---)[^|]+\| ([^|]+) \|$", PAGE.read_text(), re.M)
    return frozenset(word.strip() for row in rows for word in row.split(","))


@cache
def modules() -> dict[str, ast.Module]:
    return {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text()) for p in sorted(PACKAGE.rglob("*.py"))}


def definitions() -> Iterator[tuple[str, str, ast.AST]]:
    """(module below the package, name, node) of all classes and functions."""
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node.name, node


def is_participle(name: str) -> bool:
    """Is a function named by a participle alone, or by an irregular one before anything else?"""
    words = name.strip("_").split("_")
    regular = len(words) == 1 and re.fullmatch(r"\w{2,}(ed|ing)", words[0]) is not None
    return (regular or words[0] in IRREGULAR) and words[0] not in NOT_PARTICIPLES and not name.startswith("__")


def test_no_module_is_named_by_idiom() -> None:
    names = [p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if p.stem in refused_words()]
    assert names == [], "docs/internals/vocabulary.md names the word to use"


def test_functions_are_not_named_by_participles(request: pytest.FixtureRequest) -> None:
    functions = {f"{m} {n}" for m, n, node in definitions() if not isinstance(node, ast.ClassDef) and is_participle(n)}
    if request.config.getoption("--update-golden"):
        ALLOWED.write_text("".join(f"{name}\n" for name in sorted(functions)))
    allowed = set(ALLOWED.read_text().splitlines())
    assert sorted(functions - allowed) == [], "name what the function returns, or the verb that it does"
    assert sorted(allowed - functions) == [], f"these are gone: remove them from {ALLOWED.name}"


def test_a_class_name_is_defined_once_in_the_compiler() -> None:
    classes = Counter(n for m, n, node in definitions() if isinstance(node, ast.ClassDef) and m.startswith("compiler/"))
    assert sorted(name for name, count in classes.items() if count > 1) == []


def locals_without_noun() -> list[str]:
    """`module:line name` of every local variable and parameter with a name of `NO_NOUN`."""
    places = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NO_NOUN
            if is_stored or (isinstance(node, ast.arg) and node.arg in NO_NOUN):
                places.append(f"{module}:{node.lineno} {ast.unparse(node)}")
    return places


def test_locals_are_nouns() -> None:
    assert locals_without_noun() == [], "name what was found or given"
