"""Kernels that are a graph of cuDNN: what the library is told of them, and where their tensors are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from wholestep.compiler.backends.cuda.libraries.cudnn import Description
from wholestep.compiler.plan.model.bodies import Call, Window
from wholestep.compiler.plan.model.kernel import Kernel, Plan

SCRATCH = -1  # the place of a tensor that a kernel of ours reads behind the library: the kernel's scratch memory


@dataclass(frozen=True)
class TensorAddress:
    """Where a tensor of a description is: bytes from the start of a buffer on."""

    name: str
    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class LibraryCall:
    """A description in a plan."""

    description: Description
    places: tuple[TensorAddress, ...]

    @property
    def written(self) -> set[int]:
        """The buffers that it writes."""
        made = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name in made}

    @property
    def read(self) -> set[int]:
        """The buffers that it reads."""
        made = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name not in made}


Describe = Callable[[Plan, Kernel, Mapping[str, int]], LibraryCall]


@cache
def describers() -> Mapping[type, Describe]:
    """Body -> its call for the sizes of a step."""
    from wholestep.compiler.backends.cuda.libraries import (
        attention,
        cudnn_convolution,  # which describe by the records above
    )

    return {Call: attention.describe_call, Window: cudnn_convolution.describe_call}


def call_of(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The call that a kernel of the form GRAPH is."""
    return describers()[type(kernel.body)](plan, kernel, sizes)
