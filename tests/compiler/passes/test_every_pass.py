"""A pass has a file, which it shares with no other kind of rewrite, and a test file of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from wholestep.compiler.backends.cpu.target import TARGETS as CPUS
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS
from wholestep.compiler.pipeline import STAGES

TESTS = Path(__file__).parents[2]
PASSES = "wholestep.compiler.passes."

# Modules, or folders of them, whose tests have another name.
TESTED_ELSEWHERE = {
    "autodiff.reverse": "compiler/passes/test_autodiff.py",  # with the gradient table
    "distribute": "distributed",  # by training on several ranks
    "lower.scan": "ops/test_scan.py",  # with the loops of users
}
# Files with several passes: parts of one rewrite at several places of the pipeline.
SEVERAL = {
    "layout.spatial_reductions": "sums over pixels, over pixels and batch, and the variances that both leave",
    "lower.cast_fusion": "casts move to producers of products, then to those of routines",
    "lower.decompose": "composites, then the reductions and ratios that they leave",
    "lower.max_pooling": "before gradients and after them",
    "lower.scan": "what leaves a loop: casts, projections, lookups, other loops",
    "simplify.inline": "calls before gradients, markers for gradients after them",
}


def passes() -> dict[str, set[str]]:
    """The names of the passes of all targets by their module."""
    by_module: dict[str, set[str]] = {}
    for target in (*CPUS.values(), *GPUS.values()):
        for rewrite in (p for stage in STAGES for p in stage.passes_for(target)):
            if rewrite.__module__.startswith(PASSES):
                by_module.setdefault(rewrite.__module__.removeprefix(PASSES), set()).add(rewrite.__name__)
    return by_module


@pytest.mark.parametrize("module", sorted(passes()))
def test_a_pass_has_a_test_file_of_its_name(module: str) -> None:
    folder, _, stem = module.rpartition(".")
    elsewhere = TESTED_ELSEWHERE.get(module) or TESTED_ELSEWHERE.get(folder.partition(".")[0])
    file = TESTS / (elsewhere or f"compiler/passes/test_{stem}.py")
    assert file.exists(), f"{module} needs {file.name}"


def test_a_file_holds_one_pass_unless_it_says_why() -> None:
    assert {module for module, names in passes().items() if len(names) > 1} == set(SEVERAL)


def test_exceptions_are_passes() -> None:
    assert all(any(f"{module}.".startswith(f"{name}.") for module in passes()) for name in TESTED_ELSEWHERE)
