"""The peak bytes of tensors in a training step of torch, from torch's own profiler.

The profiler reports every allocation and release of torch's allocator in order.  A running sum over them, plus the
bytes of persistent tensors (parameters and optimizer state), is exact for tensors and equal on every machine.  It does
not include memory that libraries allocate (for example packed convolution weights) or memory of the process; the bytes
that a session of Wholestep maps include all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._C._profiler import _EventType, _ProfilerEvent
from torch.profiler import ProfilerActivity, profile


def peak_above_start(work: Callable[[], object]) -> int:
    """The peak of the bytes that `work` allocates, relative to the bytes before it.

    The profiler does not see releases of earlier allocations, so `work` must not depend on them.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = list(every_event(profiler.profiler.kineto_results.experimental_event_tree()))
    allocations = [e for e in events if e.tag == _EventType.Allocation]
    now = peak = 0
    for event in sorted(allocations, key=lambda e: e.start_time_ns):
        now += event.extra_fields.alloc_size  # negative for a release
        peak = max(peak, now)
    return peak


def every_event(tree: Iterable[_ProfilerEvent]) -> Iterable[_ProfilerEvent]:
    """All events of a tree, whose events are nested like calls."""
    for event in tree:
        yield event
        yield from every_event(event.children)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the tensors' storages, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def step_bytes(step: Callable[[int], object], optimizer: torch.optim.Optimizer) -> int:
    """The peak of a steady step: parameters, gradients, optimizer state, activations; not the inputs.

    Two steps are profiled, starting without gradients, so that the second one releases the gradients of the first.
    """
    optimizer.zero_grad(set_to_none=True)
    return bytes_of(lasting_tensors(optimizer)) + peak_above_start(lambda: (step(0), step(1)))


def lasting_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that persist between steps: parameters and the optimizer's state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return parameters + [v for held in optimizer.state.values() for v in held.values() if isinstance(v, torch.Tensor)]
