"""The GPU of these tests: an emulated one or, with `--gpu`, this machine's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver, fake_gpu


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest) -> Iterator[FakeDriver | None]:
    """None stands for a real one."""
    if request.config.getoption("--gpu"):
        yield None
        return
    with fake_gpu() as found:
        yield found
