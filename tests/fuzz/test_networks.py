"""Networks that the fuzzer draws, compared with torch's in training; `tests/fuzz/cases.py` stores former failures.

One of them alone: `pytest "tests/fuzz/test_networks.py::test_drawn[17]"`.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import networks
from tests.fuzz.cases import NETWORKS

COUNT, LONG, LAYERS = 60, 120, 3  # of `make test`, and of `make test-all`


@pytest.mark.parametrize(
    "index", [*range(COUNT), *(pytest.param(i, marks=pytest.mark.long) for i in range(COUNT, LONG))]
)
def test_drawn(index: int) -> None:
    network = networks.draw(Random(f"make test {index}"), LAYERS)
    try:
        networks.check(network)
    except Exception as error:
        error.add_note(networks.text(network))
        raise


@pytest.mark.parametrize("name", NETWORKS)
def test_kept(name: str) -> None:
    networks.check(NETWORKS[name])
