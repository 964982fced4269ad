"""PyTorch's DistributedDataParallel over gloo, eager and compiled: each rank processes its rows of every batch.

Gradients are views into DDP's buckets, which saves it a copy; the optimizer is the fused one.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.case import LEARNING_RATES, Arrays, Case, Cell
from benchmarks.frameworks.with_torch import OPTIMIZERS, as_tensor


def rows_of(batch: Arrays, rank: int, size: int) -> Arrays:
    """A rank's rows of a batch, whose size the number of ranks must divide, so that the mean over ranks is the mean
    over rows.
    """
    rows = len(next(iter(batch.values())))
    assert rows % size == 0, f"{rows} rows do not divide among {size} ranks"
    return {name: array[rank * rows // size : (rank + 1) * rows // size] for name, array in batch.items()}


class DDPTrainer:
    """Trains with zeroed gradients, forward, backward with all-reduces, and fused update."""

    def __init__(self, case: Case, cell: Cell, compiled: bool) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        module = case.models["torch"](case.weights())
        together = DistributedDataParallel(module, gradient_as_bucket_view=True)
        self.optimizer = OPTIMIZERS[cell.optimizer](module.parameters(), lr=LEARNING_RATES[cell.optimizer], fused=True)
        self.forward = torch.compile(together) if compiled else together
        mine = (rows_of(batch, rank, size) for batch in case.batches(cell))
        self.batches = [{name: as_tensor(a) for name, a in batch.items()} for batch in mine]

    def step(self, index: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.last = self.forward(**self.batches[index % len(self.batches)])
        self.last.backward()
        self.optimizer.step()

    def loss(self) -> float:
        """The loss over all rows."""
        total = self.last.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


def start(contender: str, case: Case, cell: Cell, threads: int) -> DDPTrainer:
    """A module ready for its first step; RANK, WORLD_SIZE and the rendezvous are in the environment."""
    torch.set_num_threads(threads)
    if not dist.is_initialized():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", f"file://{os.environ['MEETING_FILE']}", rank=rank, world_size=size)
    return DDPTrainer(case, cell, compiled=contender == "torch_ddp_compile")
