"""Kernels that run as a cuDNN operation graph: their description, and the addresses of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from wholestep.compiler.backends.cuda.libraries.cudnn import Description
from wholestep.compiler.plan.model.bodies import Call, Window
from wholestep.compiler.plan.model.kernel import Kernel, Plan

SCRATCH = -1  # buffer of a tensor in the kernel's scratch memory, which our epilogue kernel reads


@dataclass(frozen=True)
class TensorAddress:
    """Address of a described tensor: buffer and byte offset."""

    name: str
    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class LibraryCall:
    """A description, bound to buffers of a plan."""

    description: Description
    places: tuple[TensorAddress, ...]

    @property
    def written(self) -> set[int]:
        """Buffers that it writes."""
        computed = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name in computed}

    @property
    def read(self) -> set[int]:
        """Buffers that it reads."""
        computed = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name not in computed}


Describe = Callable[[Plan, Kernel, Mapping[str, int]], LibraryCall]


@cache
def describers() -> Mapping[type, Describe]:
    """Kernel body -> function that describes its call for the sizes of a step."""
    from wholestep.compiler.backends.cuda.libraries import (
        attention,
        cudnn_convolution,  # here, since they import the records above
    )

    return {Call: attention.describe_call, Window: cudnn_convolution.describe_call}


def call_of(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The library call of a kernel with the form GRAPH."""
    return describers()[type(kernel.body)](plan, kernel, sizes)
