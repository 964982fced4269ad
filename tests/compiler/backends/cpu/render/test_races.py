"""ThreadSanitizer sees no race in generated steps, and does see them once the barriers are gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compiler.races import NoThreadSanitizerError, build, driver, need_thread_sanitizer, races, without_barriers
from tests.compiler.step_graphs import attention_step, clipped_step, convolution_step, kept_scores_step, mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph

THREADS, CAPACITY = 3, 40
ROWS = (CAPACITY, 13, CAPACITY)  # a partial batch between two full ones

STEPS: dict[str, Callable[[], IRGraph]] = {
    "adam": lambda: mlp_step(36, 40, 10),
    "clipped": lambda: clipped_step(36, 40, 24, 5),
    "sums in products": lambda: mlp_step(36, 80, 10),
    "attention": attention_step,
    "convolution": convolution_step,
    "kept scores": lambda: kept_scores_step(36, 40, 10),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("races")
    try:
        need_thread_sanitizer(folder)
    except NoThreadSanitizerError as reason:
        pytest.skip(f"no ThreadSanitizer: {reason}")
    return folder


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_no_races(name: str, folder: Path) -> None:
    plan = make_plan(STEPS[name](), {"batch": CAPACITY})
    assert plan.regions > 1
    assert races(build(render(plan), driver(plan, ROWS, THREADS), folder)) == 0


def test_without_barriers_there_are_races(folder: Path) -> None:
    plan = make_plan(STEPS["adam"](), {"batch": CAPACITY})
    program = build(without_barriers(render(plan)), driver(plan, ROWS, THREADS), folder)
    assert races(program) > 0
