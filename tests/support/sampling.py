"""Long catalogues of tests are sampled, and complete where a change is about them.

`make test` runs one in four tests of each catalogue below, chosen by a seed that is printed (by default the date), one
in two if a file has changed that the catalogue's tests run through, and all of them if a file has changed that they are
about: in the working tree, or since the merge base with main; on main itself, since the commit before.  `--complete`,
which `make test-all` gives, runs everything, and so does a run of single files or without git.  `--sample-seed` repeats
a sample.
"""

from __future__ import annotations

import datetime
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_IN, ONE_IN_THROUGH = 4, 2  # the part that runs: without a change, and after one to files that the tests run through


@dataclass(frozen=True)
class Subject:
    """Beginnings of paths: files that a catalogue is about, and others that its tests run through."""

    about: tuple[str, ...]
    through: tuple[str, ...] = ()


def _below(root: str, *names: str) -> tuple[str, ...]:
    return tuple(f"wholestep/{root}{name}" for name in names)


COMPILER = _below("", "compiler/", "options.py", "records.py")
STEPS = _below("", "steps/", "session/")
LIBRARY = _below("", "losses/", "metrics/", "nn/", "optim/", "schedules/")
SHARED = _below("compiler/", "ir/", "passes/", "plan/", "runtime/")  # by all backends
COLLECTIVES = (
    *_below("compiler/", "passes/distribute/", "backends/common/", "plan/lower/lower_cluster.py", "runtime/"),
    *_below("compiler/ir/", "type_rules/collectives.py", "mesh.py", "state_partition.py"),
    *_below("compiler/backends/", "cpu/runtime/simulated_ranks.py", "cuda/runtime/simulated_ranks.py"),
)
IMPORTED = Subject(_below("interop/", ""), _below("", "compiler/frontend/", "nn/"))
EXAMPLES = (
    *_below("", "compiler/frontend/", "interop/", "session/", "callbacks/", "data/", "models/", "train/"),
    *LIBRARY,
)
# Catalogue, by the beginning of its tests' names.
CATALOGUES: dict[str, Subject] = {
    "tests/compiler/backends/cuda/": Subject(_below("compiler/backends/", "common/", "cuda/", "gpu/"), SHARED + STEPS),
    "tests/compiler/backends/cpu/": Subject(_below("compiler/backends/", "common/", "cpu/"), SHARED),
    "tests/compiler/backends/reference/": Subject(_below("compiler/backends/", "reference/"), SHARED + STEPS),
    "tests/compiler/passes/": Subject(_below("compiler/", "ir/", "passes/"), SHARED),
    "tests/compiler/plan/": Subject(_below("compiler/", "ir/", "plan/", "backends/cpu/"), SHARED),
    "tests/compiler/test_through_every_stage.py": Subject(_below("compiler/", "ir/", "passes/", "plan/"), COMPILER),
    "tests/estimators/": Subject(_below("", "sklearn/"), (*STEPS, *LIBRARY, *_below("", "train/", "data/"))),
    "tests/fuzz/": Subject(_below("compiler/", "ir/", "passes/"), (*COMPILER, *STEPS, *LIBRARY)),
    "tests/interop/aten/": IMPORTED,
    "tests/interop/onnx/": IMPORTED,
    "tests/losses/test_contract.py": Subject(_below("", "losses/"), STEPS + LIBRARY),
    "tests/models/": Subject(_below("", "models/", "nn/"), (*COMPILER, *STEPS, *LIBRARY)),
    "tests/ops/": Subject(
        _below("", "nn/", *(f"compiler/{name}/" for name in ("ir", "frontend", "passes/autodiff", "passes/lower")))
        + _below("compiler/backends/", "common/", "cpu/render/", "cpu/native/"),
        COMPILER,
    ),
    "tests/optim/test_contract.py": Subject(_below("", "optim/"), STEPS + LIBRARY),
    "tests/train/test_classification.py": Subject(_below("", "losses/", "metrics/", "train/"), STEPS + LIBRARY),
    "tests/train/test_schedules_in_loops.py": Subject(_below("", "schedules/", "train/"), STEPS + LIBRARY),
    "tests/distributed/": Subject(
        (*COLLECTIVES, *_below("", "distributed/", "steps/distributed.py", "train/checkpoint/", "cli/launch.py")),
        (
            *_below("", "steps/", "data/loader.py", "data/order.py", "callbacks/checkpoint.py"),
            *_below("session/", "building/", "running/", "programs.py", "session.py"),
            *_below("train/", "experiment.py", "step_source.py", "trainer.py", "worker_sync.py"),
        ),
    ),
    "tests/end_to_end/test_docs.py": Subject(("docs/", "README.md"), ("examples/", *EXAMPLES)),
    "tests/end_to_end/test_examples.py": Subject(("examples/",), EXAMPLES),
    "tests/nn/test_layers.py": Subject(_below("", "nn/", "interop/"), COMPILER),
    "tests/session/test_gpt2_small.py": Subject(_below("", "session/", "models/", "nn/"), COMPILER + STEPS),
    "tests/session/test_gradients.py": Subject((*STEPS, *_below("compiler/passes/", "autodiff/")), COMPILER),
    "tests/session/test_memory_limit.py": Subject(
        (*STEPS, *_below("compiler/", "memory_budget.py", "passes/rematerialize/")), COMPILER
    ),
    "tests/session/test_same_bits.py": Subject(
        (*STEPS, *_below("compiler/", "plan/", "backends/cpu/")), (*COMPILER, *_below("", "nn/", "optim/"))
    ),
    "tests/session/test_selfcheck.py": Subject(STEPS, COMPILER),
    "tests/session/test_untrusted_files.py": Subject(
        _below("", "compiler/plan/", "data/", "nn/state/", "session/building/", "train/checkpoint/"),
        _below("", "compiler/backends/", "compiler/runtime/", "train/"),
    ),
}
# What everything is about: the tests' own machinery and the versions of what is installed.
EVERYWHERE = ("tests/conftest.py", "tests/support/sampling.py", "pyproject.toml")


def changed_files() -> list[str] | None:
    """Files that differ from the base of this branch, uncommitted and new ones too; None where git cannot say."""
    try:
        head = _git("rev-parse", "HEAD")
        base = _git("merge-base", "HEAD", "main")
        base = f"{base[0]}~1" if base == head else base[0]
        return [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def sampled_catalogues(changed: Sequence[str] | None) -> dict[str, int]:
    """Catalogue -> n, if one in n of its tests runs; those that run completely are left out."""
    if changed is None or any(path.startswith(EVERYWHERE) for path in changed):
        return {}
    parts = {catalogue: _part(catalogue, subject, changed) for catalogue, subject in CATALOGUES.items()}
    return {catalogue: part for catalogue, part in parts.items() if part > 1}


def _part(catalogue: str, subject: Subject, changed: Sequence[str]) -> int:
    if any(path.startswith((*subject.about, catalogue)) for path in changed):
        return 1
    return ONE_IN_THROUGH if any(path.startswith(subject.through) for path in changed) else ONE_IN


def is_drawn(test: str, seed: int, part: int = ONE_IN) -> bool:
    """Is a test in the sample?  It depends on its own name and the seed alone; a larger sample contains a smaller."""
    return zlib.crc32(f"{seed} {test}".encode()) % part == 0


def draw(items: Iterable[pytest.Item], catalogues: Mapping[str, int], seed: int) -> list[pytest.Item]:
    """The tests that are in no sampled catalogue, and the samples of those that are."""

    def part(test: str) -> int:
        return next((n for catalogue, n in catalogues.items() if test.startswith(catalogue)), 1)

    return [item for item in items if is_drawn(item.nodeid, seed, part(item.nodeid))]


def describe(catalogues: Mapping[str, int], seed: int) -> str:
    """The samples of a run, and how to repeat them."""
    by_part = {n: [catalogue for catalogue in catalogues if catalogues[catalogue] == n] for n in catalogues.values()}
    parts = (f"one in {n} tests of {', '.join(names)}" for n, names in sorted(by_part.items()))
    return f"{'; '.join(parts)} (--sample-seed {seed})"


def default_seed() -> int:
    """The date: every test of a catalogue has its turn within days."""
    return int(datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d"))
