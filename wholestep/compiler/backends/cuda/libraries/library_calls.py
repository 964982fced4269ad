"""The kernels of a plan that cuDNN computes: their selection, schedules and operation graphs."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from wholestep.compiler.backends.cuda.libraries import cudnn_attention, cudnn_convolution
from wholestep.compiler.backends.cuda.libraries.cudnn import LibraryCall
from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule
from wholestep.compiler.backends.gpu.target import Libraries
from wholestep.compiler.plan.model.bodies import Call, Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel

# Body of a kernel -> the module with its `why_not_cudnn`, `schedule` and `describe_call`.
MODULES: Mapping[type, ModuleType] = {Call: cudnn_attention, Window: cudnn_convolution}


def why_not_cudnn(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
    """Why a convolution or an attention is not computed by cuDNN; None if it is."""
    reason: str | None = MODULES[type(kernel.body)].why_not_cudnn(plan, kernel, sizes)
    return reason


def schedule(plan: Draft, kernel: Kernel) -> GpuSchedule:
    result: GpuSchedule = MODULES[type(kernel.body)].schedule(plan, kernel)
    return result


def call_of(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The library call of a kernel with the form GRAPH, for the sizes of a step."""
    call: LibraryCall = MODULES[type(kernel.body)].describe_call(plan, kernel, sizes)
    return call


LIBRARIES = Libraries("cuDNN", cudnn_convolution.is_for_library, why_not_cudnn, schedule)
