"""Long catalogues of tests are sampled, and complete where a change may concern them.

`make test` runs one in four tests of each catalogue below, chosen by a seed that is printed (by default the date), and
all of them if a file that the catalogue is about has changed: in the working tree, or since the merge base with main;
on main itself, since the commit before.  `--complete`, which `make test-all` gives, runs everything, and so does a run
of single files or without git.  `--sample-seed` repeats a sample.
"""

from __future__ import annotations

import datetime
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_IN = 4
COMPILER = ("wholestep/compiler/", "wholestep/options.py", "wholestep/records.py")
STEPS = ("wholestep/steps/", "wholestep/session/")
LIBRARY = tuple(f"wholestep/{name}/" for name in ("losses", "metrics", "nn", "optim", "schedules"))
SHARED = tuple(f"wholestep/compiler/{name}/" for name in ("ir", "passes", "plan", "runtime"))  # by all backends
COLLECTIVES = (
    "wholestep/compiler/passes/distribute/",
    *(f"wholestep/compiler/ir/{name}.py" for name in ("type_rules/collectives", "mesh", "state_partition")),
    "wholestep/compiler/backends/common/",
    *(f"wholestep/compiler/backends/{name}/runtime/simulated_ranks.py" for name in ("cpu", "cuda")),
    *("wholestep/compiler/plan/lower/lower_cluster.py", "wholestep/compiler/runtime/"),
)
EXAMPLES = (
    *("examples/", "wholestep/compiler/frontend/", "wholestep/interop/", "wholestep/session/", *LIBRARY),
    *(f"wholestep/{name}/" for name in ("callbacks", "data", "models", "train")),
)
# Catalogue, by the beginning of its tests' names -> what it is about, by the beginning of paths.
CATALOGUES: dict[str, tuple[str, ...]] = {
    "tests/compiler/backends/cuda/": (
        *(*SHARED, *STEPS),
        *(f"wholestep/compiler/backends/{name}/" for name in ("common", "cuda", "gpu")),
    ),
    "tests/compiler/backends/cpu/": (*SHARED, *(f"wholestep/compiler/backends/{name}/" for name in ("common", "cpu"))),
    "tests/compiler/passes/": SHARED,
    "tests/compiler/plan/": (*SHARED, "wholestep/compiler/backends/cpu/"),
    "tests/estimators/": (*STEPS, *LIBRARY, *(f"wholestep/{name}/" for name in ("sklearn", "train", "data"))),
    "tests/fuzz/": (*COMPILER, *STEPS, *LIBRARY),
    "tests/interop/aten/": ("wholestep/interop/", "wholestep/compiler/frontend/", "wholestep/nn/"),
    "tests/interop/onnx/": ("wholestep/interop/", "wholestep/compiler/frontend/", "wholestep/nn/"),
    "tests/losses/test_contract.py": (*STEPS, *LIBRARY),
    "tests/models/": (*COMPILER, *STEPS, *LIBRARY, "wholestep/models/"),
    "tests/ops/": (*COMPILER, "wholestep/nn/"),
    "tests/optim/test_contract.py": (*STEPS, *LIBRARY),
    "tests/train/test_classification.py": (*STEPS, *LIBRARY, "wholestep/train/"),
    "tests/train/test_schedules_in_loops.py": (*STEPS, *LIBRARY, "wholestep/train/"),
    "tests/distributed/": (
        *(*COLLECTIVES, "wholestep/distributed/", "wholestep/steps/", "wholestep/train/checkpoint/"),
        *(f"wholestep/session/{name}" for name in ("building/", "running/", "programs.py", "session.py")),
        *(f"wholestep/train/{name}.py" for name in ("experiment", "step_source", "trainer", "worker_sync")),
        *(f"wholestep/{name}.py" for name in ("data/loader", "data/order", "callbacks/checkpoint", "cli/launch")),
    ),
    "tests/compiler/backends/reference/": (*SHARED, *STEPS, "wholestep/compiler/backends/reference/"),
    "tests/compiler/test_through_every_stage.py": COMPILER,
    "tests/end_to_end/test_docs.py": ("docs/", "README.md", *EXAMPLES),
    "tests/end_to_end/test_examples.py": EXAMPLES,
    "tests/nn/test_layers.py": (*COMPILER, "wholestep/nn/", "wholestep/interop/"),
    "tests/session/test_gpt2_small.py": (*COMPILER, *STEPS, "wholestep/models/", "wholestep/nn/"),
    "tests/session/test_gradients.py": (*COMPILER, *STEPS),
    "tests/session/test_memory_limit.py": (*COMPILER, *STEPS),
    "tests/session/test_same_bits.py": (*COMPILER, *STEPS, "wholestep/nn/", "wholestep/optim/"),
    "tests/session/test_selfcheck.py": (*COMPILER, *STEPS),
    "tests/session/test_untrusted_files.py": (
        *("wholestep/compiler/plan/", "wholestep/data/", "wholestep/nn/state/", "wholestep/session/building/"),
        *("wholestep/compiler/backends/", "wholestep/compiler/runtime/", "wholestep/train/"),
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


def sampled_catalogues(changed: Sequence[str] | None) -> list[str]:
    """The catalogues that no change concerns."""
    if changed is None or any(path.startswith(EVERYWHERE) for path in changed):
        return []
    return [
        catalogue
        for catalogue, about in CATALOGUES.items()
        if not any(path.startswith((*about, catalogue)) for path in changed)
    ]


def is_drawn(test: str, seed: int) -> bool:
    """Is a test in the sample?  It depends on its own name and the seed alone."""
    return zlib.crc32(f"{seed} {test}".encode()) % ONE_IN == 0


def draw(items: Iterable[pytest.Item], catalogues: Sequence[str], seed: int) -> list[pytest.Item]:
    """The tests that are in no sampled catalogue, and the sample of those that are."""
    return [item for item in items if not item.nodeid.startswith(tuple(catalogues)) or is_drawn(item.nodeid, seed)]


def default_seed() -> int:
    """The date: every test of a catalogue has its turn within days."""
    return int(datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d"))
