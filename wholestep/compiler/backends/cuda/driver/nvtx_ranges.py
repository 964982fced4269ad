"""NVTX ranges around launches and slices of an epoch, if an NVIDIA profiler is attached."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from wholestep.compiler.backend import Epoch, StepRange
from wholestep.compiler.backends.cuda.driver.driver import INSTALL
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaLaunch
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram


@cache
def _nvtx() -> Any:
    """The module; None, with a warning, if it is not installed."""
    try:
        import nvtx
    except ImportError:
        warnings.warn(
            f"a profiler is attached, and nvtx, which would name steps for it, is missing: {INSTALL}.",
            stacklevel=2,
        )
        return None
    return nvtx


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Names the enclosed work in a profiler."""
    nvtx = _nvtx()
    if nvtx is None:
        yield
        return
    nvtx.push_range(name, domain="wholestep")
    try:
        yield
    finally:
        nvtx.pop_range(domain="wholestep")


class MarkedProgram(CudaProgram):
    """A program whose launches and epoch slices are NVTX ranges."""

    @property
    def _title(self) -> str:
        return "train" if self.plan.updated else "compute"

    def launch(self, sizes: Mapping[str, int]) -> CudaLaunch:
        """Launches a step inside a range: "train step 12, batch=64"."""
        size_text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        with nvtx_range(f"{self._title} step {self._state.step}, {size_text}"):
            return super().launch(sizes)

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Runs an epoch, each slice inside a range."""
        slices = super().epoch(epoch)
        while True:
            with nvtx_range(f"{self._title} epoch {epoch.number}, from step {self._state.step}"):
                steps = next(slices, None)
            if steps is None:
                return
            yield steps
