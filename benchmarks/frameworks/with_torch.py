"""PyTorch, eager and compiled, with its fused optimizers.

Compiled means: network, loss and their backward by torch.compile, the fused optimizer eagerly. The whole step under
torch.compile was 4 to 8 % slower in every cell (best of nine interleaved rounds), so the peer uses the faster form.

`models["torch"](weights) -> Module` whose forward takes the batch by name and returns the loss.  In a half precision
it runs under autocast, with float32 weights and optimizer as ours.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import torch

from benchmarks.case import LEARNING_RATES, WEIGHT_DECAY, Case, Cell
from benchmarks.frameworks.torch_memory import step_bytes

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=WEIGHT_DECAY),
}


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A torch tensor; class labels are 64-bit in torch."""
    tensor = torch.tensor(array)
    return tensor.long() if tensor.dtype == torch.int32 else tensor


class TorchTrainer:
    """Trains with zeroed gradients, forward, backward and fused update."""

    def __init__(self, case: Case, cell: Cell, compiled: bool, channels_last: bool = False) -> None:
        module = case.models["torch"](case.weights())
        self.updates = cell.optimizer != "none"
        chosen = cell.optimizer if self.updates else "sgd"  # with updates=False this optimizer never steps
        self.optimizer = OPTIMIZERS[chosen](module.parameters(), lr=LEARNING_RATES[chosen], fused=True)
        self.forward = torch.compile(module) if compiled else module
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(cell.precision)
        self.batches = [{name: as_tensor(a) for name, a in batch.items()} for batch in case.batches(cell)]
        if channels_last:
            module.to(memory_format=torch.channels_last)
            for batch in self.batches:
                batch["x"] = batch["x"].contiguous(memory_format=torch.channels_last)

    def step(self, index: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", self.half) if self.half else nullcontext():
            self.last = self.forward(**self.batches[index % len(self.batches)])
        self.last.backward()
        if self.updates:
            self.optimizer.step()

    def loss(self) -> float:
        return float(self.last.item())

    def tensor_bytes(self) -> int:
        """The bytes of tensors, measured by the profiler in two more steps."""
        return step_bytes(self.step, self.optimizer)


def start(contender: str, case: Case, cell: Cell, threads: int) -> TorchTrainer:
    """A module ready for its first step."""
    torch.set_num_threads(threads)
    compiled, channels_last = contender == "torch_compile", contender == "torch_channels_last"
    return TorchTrainer(case, cell, compiled, channels_last)
