"""The target of a block-and-thread machine: sizes, a cost model, and libraries that replace kernels.

`backends/gpu` reads a machine through this record only, so another vendor's GPU is another record
([060](../../../../docs/decisions/060-gpu-target.md)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from wholestep.compiler.backends.gpu.cost_model import GpuCosts
from wholestep.compiler.target import Target, targets_of
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule
    from wholestep.compiler.ir.graph import Node
    from wholestep.compiler.plan.model.kernel import Draft, Kernel

WIDEST_HEAD = 512  # bytes per row of the widest attention head that our kernels have shared memory for


def _no_convolution(node: Node, target: GpuTarget) -> bool:
    return False


def _no_kernel(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
    return "this GPU has no library for them"


def _no_schedule(plan: Draft, kernel: Kernel) -> GpuSchedule:
    raise NotImplementedError("a library that computes no kernel schedules none")


@dataclass(frozen=True)
class Libraries:
    """The functions that decide what a vendor's library for convolutions and attention computes; by default nothing.

    Matrix products need no function here: `Fusion.plain_products` says from which size on a library computes them.
    """

    name: str = ""  # name of the library, for reports
    convolves: Callable[[Node, GpuTarget], bool] = _no_convolution  # does the library compute this node?
    # Why the library does not compute a planned convolution or attention at these sizes; None if it does.
    why_not: Callable[[Draft, Kernel, Mapping[str, int]], str | None] = _no_kernel
    schedule: Callable[[Draft, Kernel], GpuSchedule] = _no_schedule  # schedule of a kernel that the library computes


@dataclass(frozen=True)
class GpuTarget(Target):
    """A target whose plans `backends/gpu` schedules and renders."""

    cost_model: GpuCosts = GpuCosts()  # thresholds and tiles of the scheduler
    tensor_cores: bool = False  # does the GPU have the primitives of native/attention_mma.h?
    tf32: bool = False  # are the operands of float32 products rounded to tf32, which has 10 mantissa bits?
    tf32_convolutions: bool = False  # are operands of float32 convolutions rounded to tf32?
    # The `Libraries` record, "package.module:name": a target is plain data, and importing it loads no library.
    libraries: str = f"{__name__}:NO_LIBRARIES"

    @property
    def multiprocessors(self) -> int:
        return self.limits.threads

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one block may use."""
        return self.limits.nearest_cache

    def load_libraries(self) -> Libraries:
        module, _, name = self.libraries.partition(":")
        libraries = getattr(import_module(module), name)
        assert isinstance(libraries, Libraries)
        return libraries


NO_LIBRARIES = Libraries()


def gpu_target(name: str) -> GpuTarget:
    """The GPU target of this name; the name of any other target is an error."""
    target = targets_of(name.partition("/")[0])[name]
    assert isinstance(target, GpuTarget), f"{name!r} is not the target of a GPU"
    return target


def target_of(plan: Draft) -> GpuTarget:
    """The target that a plan is compiled for."""
    return gpu_target(plan.target)


def costs_of(plan: Draft) -> GpuCosts:
    """The cost model that a plan is scheduled with."""
    return target_of(plan).cost_model
