"""How many bytes of tensors a training step of torch has at its peak, by torch's own profiler.

The profiler reports every allocation and release of torch's allocator in order: a running sum over them, on top of what
lives all the time (parameters and optimizer state), is exact for tensors, and the same on every machine.
Memory that libraries underneath take for themselves (packed weights of a convolution, say) is not in it, nor is
anything of the process; what the session of Wholestep maps has all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._C._profiler import _EventType, _ProfilerEvent
from torch.profiler import ProfilerActivity, profile


def peak_above_start(work: Callable[[], object]) -> int:
    """The most bytes that `work` holds at a time beyond what was there before.

    Releases of what was allocated before are not seen by the profiler: `work` must not count on them.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    assert found.profiler is not None
    events = list(every_event(found.profiler.kineto_results.experimental_event_tree()))
    allocations = [e for e in events if e.tag == _EventType.Allocation]
    now = peak = 0
    for event in sorted(allocations, key=lambda e: e.start_time_ns):
        now += event.extra_fields.alloc_size  # negative where memory is given back
        peak = max(peak, now)
    return peak


def every_event(tree: Iterable[_ProfilerEvent]) -> Iterable[_ProfilerEvent]:
    """Events are nested as calls are."""
    for event in tree:
        yield event
        yield from every_event(event.children)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their storages, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def step_bytes(step: Callable[[int], object], optimizer: torch.optim.Optimizer) -> int:
    """The peak of a steady step: parameters, gradients, optimizer state, activations; not the batch, which is given.

    Two steps are profiled from a moment without gradients on, so that those of the first are seen in the second.
    """
    optimizer.zero_grad(set_to_none=True)
    return bytes_of(lasting_tensors(optimizer)) + peak_above_start(lambda: (step(0), step(1)))


def lasting_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters and what the optimizer keeps for them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return parameters + [v for held in optimizer.state.values() for v in held.values() if isinstance(v, torch.Tensor)]
