"""PyTorch: a plain loop over tensors in memory, and one over its DataLoader, both with the fused optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.case import LEARNING_RATES, Arrays
from benchmarks.cases import mlp
from benchmarks.cases.epoch import OPTIMIZER, EpochCell
from benchmarks.frameworks.with_torch import OPTIMIZERS, as_tensor

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


class TorchLoop(ABC):
    """The usual loop: zero the gradients, forward, backward, fused update; losses are summed as tensors and read once
    per epoch.
    """

    def __init__(self, cell: EpochCell, arrays: Arrays, threads: int) -> None:
        torch.set_num_threads(threads)
        self.batch = cell.batch
        self.x, self.labels = as_tensor(arrays["x"]), as_tensor(arrays["labels"])
        self.network = mlp.torch_module(mlp.weights())
        self.optimizer = OPTIMIZERS[OPTIMIZER](self.network.parameters(), lr=LEARNING_RATES[OPTIMIZER], fused=True)

    @abstractmethod
    def batches(self, shuffled: bool) -> Batches:
        """The inputs and labels of every batch of an epoch."""

    def epochs(self, count: int, shuffled: bool = True) -> float:
        for _ in range(count):
            total = torch.zeros(())
            for x, labels in self.batches(shuffled):
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.network(x, labels)
                loss.backward()
                self.optimizer.step()
                total += loss.detach() * len(x)
        return float(total) / len(self.x)


class InMemory(TorchLoop):
    """A loop that gathers the rows of each batch by index, or permutes the whole data once and slices it."""

    def __init__(self, cell: EpochCell, arrays: Arrays, threads: int, permute: bool) -> None:
        super().__init__(cell, arrays, threads)
        self.permute = permute
        self.room = torch.empty_like(self.x) if permute else self.x  # reused, since new pages would double the cost

    def batches(self, shuffled: bool) -> Batches:
        if not shuffled:
            return zip(self.x.split(self.batch), self.labels.split(self.batch), strict=True)
        order = torch.randperm(len(self.x))
        if self.permute:
            torch.index_select(self.x, 0, order, out=self.room)
            return zip(self.room.split(self.batch), self.labels[order].split(self.batch), strict=True)
        return ((self.x.index_select(0, rows), self.labels.index_select(0, rows)) for rows in order.split(self.batch))


class Loaded(TorchLoop):
    """A loop over a DataLoader of a TensorDataset, which fetches single rows; worker processes are persistent."""

    def __init__(self, cell: EpochCell, arrays: Arrays, threads: int, workers: int) -> None:
        super().__init__(cell, arrays, threads)
        rows = TensorDataset(self.x, self.labels)
        self.in_order = DataLoader(rows, self.batch)
        self.loader = DataLoader(rows, self.batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    def batches(self, shuffled: bool) -> Batches:
        return self.loader if shuffled else self.in_order
