"""Helper modules shared between test folders: `import oracles`, `from random_graphs import graphs`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from wholestep.compiler.backends.cpu.compiler import find_compiler

_HERE = Path(__file__).parent

for _folder in (_HERE, _HERE / "compiler", _HERE / "compiler" / "ir"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

# A compile or a busy machine is no reason to fail: time limits belong to benchmarks.  The examples are the same on all
# machines and every time, so that a change is judged by what it changes; new ones are what `make fuzz` looks for.
settings.register_profile(
    "wholestep",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("wholestep")

# What these test is the library, not the code of kernels: they compile at -O1, to the same bits in half the time.
LIBRARY = ("train", "nn", "optim", "schedules", "metrics", "data", "steps", "end_to_end")
LIBRARY_FILES = (
    *("test_cli", "test_conformance_", "test_explain", "test_micro_batches", "test_session", "test_techniques"),
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    folder = item.path.relative_to(_HERE).parts[0]
    about_library = folder in LIBRARY or (folder == item.path.name and folder.startswith(LIBRARY_FILES))
    with pytest.MonkeyPatch.context() as patch:
        if about_library and "CC" not in os.environ:
            patch.setenv("CC", shlex.join([*find_compiler().command, "-O1"]))
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden from what is made")
