"""Helper modules shared between test folders: `import oracles`, `from random_graphs import graphs`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden from what is made")
