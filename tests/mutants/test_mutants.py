"""The table of planted bugs fits the source; `python -m tests.mutants` applies it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS, ROOT, Mutant

PACKAGE = ROOT / "wholestep"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_its_text_stands_once(mutant: Mutant) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in mutant.files(PACKAGE)]
    assert len(files) == 1, f"{mutant.before!r} occurs in {files}: write the bug into the text as it is now"
    assert mutant.before != mutant.after


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_it_is_python_and_its_tests_are_part_of_make_test(mutant: Mutant, tmp_path: Path) -> None:
    (path,) = mutant.files(PACKAGE)
    if path.suffix == ".py":
        ast.parse(path.read_text(encoding="utf-8").replace(mutant.before, mutant.after))
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test


def test_names_differ_and_every_part_has_some() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 24
    parts = ("compiler/ir", "compiler/passes", "compiler/plan", "compiler/backends", "compiler/runtime")
    for part in (*parts, "optim", "schedules", "metrics", "losses", "steps", "data", "train/checkpoint"):
        assert any(m.where.startswith(part) for m in MUTANTS), part
