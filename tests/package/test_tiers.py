"""`make quick`, `make test` and `make test-all`: what each of them runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.mutants.table import MUTANTS, Mutant
from tests.support import durations, quick, sampling
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.options import CompileOptions

ROOT = Path(__file__).parents[2]


# -- quick -------------------------------------------------------------------------------------------------------


def test_a_quick_test_is_skipped_before_it_plans_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick.skip_native_code(patch)
        patch.setattr("wholestep.compiler.pipeline.Compiler.plan", lambda *_: pytest.fail("it was planned"))
        with pytest.raises(pytest.skip.Exception, match=quick.REASON):
            ws.build_session(mlp(), batch_size=16)
        with pytest.raises(pytest.skip.Exception, match=quick.REASON):
            compile_c("int f(void) { return 1; }", target="cpu/portable")
    session = ws.build_session(mlp(), batch_size=16, device="reference")
    assert np.isfinite(float(session.step(**data(16))))


def test_the_reference_stands_in_for_the_cpu_in_tests_of_the_library() -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick.take_the_reference(patch)
        quick.skip_native_code(patch)
        session = ws.build_session(mlp(), batch_size=16)
        assert session.plan.target == "reference"
        assert np.isfinite(float(session.step(**data(16))))


def test_no_compiler_is_within_reach_of_a_quick_run() -> None:
    environment = {name: os.environ.get(name) for name in ("PATH", "CC", "WHOLESTEP_CACHE_DIR", quick.NOTE)}
    if environment[quick.NOTE] is not None:
        pytest.skip("this is a quick run: the test would end it")
    try:
        quick.install()
        for name in quick.COMPILERS:
            done = subprocess.run([name, "-c", "a.c"], capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert quick.MESSAGE in done.stderr
        program = "import wholestep as ws; g = ws.Graph(); g.set_outputs([g.parameter('w', (2,)).sum()])\n"
        child = subprocess.run(
            [sys.executable, "-c", f"{program}ws.build_session(g)"], capture_output=True, text=True, check=False
        )
        assert quick.MESSAGE in child.stderr
        calls = Path(os.environ[quick.NOTE]).read_text().splitlines()
        assert len(calls) > len(quick.COMPILERS)
        folder = Path(os.environ[quick.NOTE]).parent
        quick.remove()
        assert not folder.exists()
    finally:
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def test_fewer_quick_tests_than_on_record_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "recorded_quick", lambda: {"tests": 100})
    count = quick.Count(is_whole=True, update=False)
    count.ran.update({"tests/a.py": 98})
    assert not count.is_short
    count.ran.update({"tests/a.py": -1})
    assert count.is_short
    assert not quick.Count(is_whole=False, update=False).is_short


def test_files_without_a_quick_test_are_left_out_until_the_record_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quick, "recorded_quick", lambda: {"without": ["tests/test_a.py"]})
    assert quick.is_elsewhere("tests/test_a.py", update=False)
    assert not quick.is_elsewhere("tests/test_a.py", update=True)
    assert not quick.is_elsewhere("tests/test_b.py", update=False)
    assert quick.is_elsewhere("tests/distributed", update=True)


def test_folders_that_quick_runs_treat_by_name_are_there() -> None:
    assert all((ROOT / path).exists() for path in (*quick.ELSEWHERE, *quick.ON_THE_REFERENCE))


# -- samples -----------------------------------------------------------------------------------------------------


def test_a_catalogue_is_complete_after_a_change_that_it_is_about() -> None:
    quarters = dict.fromkeys(sampling.CATALOGUES, 4)
    assert sampling.sampled_catalogues([]) == sampling.sampled_catalogues(["CHANGELOG.md"]) == quarters
    assert sampling.sampled_catalogues(None) == sampling.sampled_catalogues(["tests/conftest.py"]) == {}
    launcher = sampling.sampled_catalogues(["wholestep/distributed/launch/launcher.py"])
    assert "tests/distributed/" not in launcher
    assert launcher["tests/fuzz/"] == 4
    planner = sampling.sampled_catalogues(["wholestep/compiler/plan/fusion/clusters.py"])
    assert not {"tests/compiler/plan/", "tests/session/test_same_bits.py"} & {*planner}
    assert planner["tests/compiler/backends/cuda/"] == planner["tests/models/"] == 2
    assert planner["tests/distributed/"] == 4
    assert "tests/distributed/" not in sampling.sampled_catalogues(
        ["wholestep/compiler/passes/distribute/tensor_parallel/operands.py"]
    )
    for catalogue in sampling.CATALOGUES:  # a new or changed test
        assert catalogue not in sampling.sampled_catalogues([f"{catalogue.rstrip('/')}/test_new.py"])


def test_catalogues_and_what_they_are_about_are_there() -> None:
    subjects = sampling.CATALOGUES.values()
    paths = {p for subject in subjects for p in (*subject.about, *subject.through)}
    for path in {*sampling.CATALOGUES, *sampling.EVERYWHERE, *paths}:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_tests_of_a_planted_bug_run_completely_where_it_is(mutant: Mutant) -> None:
    changed = [path.relative_to(ROOT).as_posix() for path in mutant.files(ROOT / "wholestep")]
    sampled = sampling.sampled_catalogues(changed)
    assert any(not test.startswith(tuple(sampled)) for test in mutant.tests)


class Item:
    def __init__(self, name: str) -> None:
        self.nodeid = name


def test_a_quarter_is_drawn_and_days_draw_everything() -> None:
    inside = [Item(f"tests/fuzz/test_x.py::test_y[{i}]") for i in range(900)]
    outside = [Item(f"tests/data/test_loader.py::test_y[{i}]") for i in range(50)]
    drawn: set[Any] = set()
    for seed in range(20260101, 20260161):
        chosen = sampling.draw([*inside, *outside], {"tests/fuzz/": 4}, seed)  # type: ignore[list-item]
        assert set(outside) <= set(chosen)
        assert 170 < len(chosen) - len(outside) < 280
        assert chosen == sampling.draw([*inside, *outside], {"tests/fuzz/": 4}, seed)  # type: ignore[list-item]
        drawn |= set(chosen)
    assert drawn >= set(inside)
    half = {item for item in inside if sampling.is_drawn(item.nodeid, 7, 2)}
    assert 380 < len(half) < 520
    assert half > {item for item in inside if sampling.is_drawn(item.nodeid, 7)}


def test_changes_are_those_since_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(sampling, "ROOT", tmp_path)
    assert sampling.changed_files() is None  # no repository: everything is run
    git("init", "-b", "main")
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
        git("add", "-A")
        git("commit", "-m", name)
    assert sampling.changed_files() == ["b"]  # on main: the last commit
    git("checkout", "-b", "branch")
    (tmp_path / "c").write_text("1")
    git("add", "-A")
    git("commit", "-m", "c")
    (tmp_path / "a").write_text("2")
    (tmp_path / "d").write_text("1")
    assert sampling.changed_files() == ["a", "c", "d"]  # committed, edited and new


# -- durations ---------------------------------------------------------------------------------------------------

RECORD = {"unit": 0.01, "folders": {"tests/a": {"seconds": 10.0, "tests": 5}, "tests/b": {"seconds": 0.5, "tests": 1}}}


@pytest.mark.parametrize(
    ("seconds", "scale", "warned"), [(11.9, 1.0, False), (12.1, 1.0, True), (23.0, 2.0, False), (10.0, 0.5, True)]
)
def test_a_folder_that_takes_a_fifth_more_is_warned_of(seconds: float, scale: float, warned: bool) -> None:
    ((line, is_more),) = durations.comparison({"tests/a": {"seconds": seconds, "tests": 5}}, RECORD, scale)
    assert is_more == warned == ("more than recorded" in line)


def test_folders_of_which_a_part_ran_are_not_compared() -> None:
    measured = {"tests/a": {"seconds": 90.0, "tests": 4}, "tests/new": {"seconds": 90.0, "tests": 4}}
    assert durations.comparison(measured, RECORD, 1.0) == []
    ((_, is_more),) = durations.comparison({"tests/b": {"seconds": 2.0, "tests": 1}}, RECORD, 1.0)
    assert not is_more  # a second or two are noise


def test_long_files_start_first_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "recorded", lambda: {"files": {"c": 9.0, "b": 5.0, "d": 3.0}})
    items: Any = [Item(f"{file}::{test}") for file in "abcd" for test in "12"]
    durations.long_files_first(items, 2)
    assert [item.nodeid for item in items] == ["c::1", "c::2", "d::1", "d::2", "b::1", "b::2", "a::1", "a::2"]


def test_seconds_count_children_that_run() -> None:
    begun = durations.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        while durations.cpu_seconds() < begun + 0.2:
            pass
        child.kill()


def test_the_record_is_of_tests_that_are_there() -> None:
    record = durations.recorded()
    missing = [file for file in record["files"] if not (ROOT / file).exists()]
    assert len(missing) < 0.1 * len(record["files"]), f"write a new record: pytest --update-durations; gone: {missing}"


# -- the e-graph -------------------------------------------------------------------------------------------------


def test_the_egraph_is_on_in_this_folder() -> None:
    assert CompileOptions().egraph
