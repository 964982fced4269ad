"""PyTorch on a GPU: eager, compiled, and either captured by hand into one CUDA graph, with fused optimizers.

Images are channels-last, products may use tf32; half precision is autocast, with float32 weights and optimizer as ours.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.frameworks.with_torch import OPTIMIZERS, as_tensor
from benchmarks.gpu.cases import GpuCase

WARM_UP = 3


class Stepper:
    """A step of a case.  `compile` may run while other processes run; `settle` and everything after it may not."""

    def __init__(self, found: GpuCase, contender: str, device: str = "cuda") -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = found.peers_tf32
        case, cell, self.device = found.case, found.cell, device
        self.module = case.models["torch"](case.weights()).to(device)
        self.batch = {name: as_tensor(a).to(device) for name, a in case.batches(cell)[0].items()}
        if self.batch["x"].ndim == 4:
            self.module.to(memory_format=torch.channels_last)
            self.batch["x"] = self.batch["x"].contiguous(memory_format=torch.channels_last)
        self.is_captured = contender.endswith("_graph")
        options: dict[str, Any] = {"capturable": True} if self.is_captured else {}
        self.optimizer = OPTIMIZERS[cell.optimizer](
            self.module.parameters(), lr=cell.learning_rate, fused=True, **options
        )
        self.forward = torch.compile(self.module) if "compile" in contender else self.module
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(cell.precision)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.start = [p.detach().to("cpu", copy=True) for p in self.module.parameters()]  # not in the memory of steps

    def compile(self) -> list[float]:
        """Take a first step, which is undone.  cuDNN must not choose algorithms by their time while others use the GPU;
        its choices are kept apart by `deterministic`, so `settle` makes new ones.
        """
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
        self._step()
        self.last.item()
        self._restore()
        self.optimizer.zero_grad(set_to_none=True)
        del self.last
        torch.cuda.empty_cache()
        return []

    def settle(self) -> None:
        """Let cuDNN choose its algorithms by time, and capture a whole step in one graph if this contender does."""
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(aside)
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()  # trials of algorithms take memory that steps do not
        if self.is_captured:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
        self._restore()

    def _restore(self) -> None:
        """The weights and optimizer states of the start, in place."""
        with torch.no_grad():
            for parameter, value in zip(self.module.parameters(), self.start, strict=True):
                parameter.copy_(value)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        kind = torch.device(self.device).type
        with torch.autocast(kind, self.half, cache_enabled=False) if self.half else nullcontext():
            self.last = self.forward(**self.batch)
        self.last.backward()
        self.optimizer.step()

    def step(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step()

    def losses(self, count: int) -> list[float]:
        values = []
        for _ in range(count):
            self.step()
            values.append(float(self.last.item()))
        return values

    def measure(self, steps: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def device_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated())


class Update(Stepper):
    """Measures AdamW alone, on given weights and gradients."""

    def __init__(self, found: GpuCase, contender: str) -> None:
        super().__init__(found, contender)
        self.gradients = [torch.full_like(parameter, 1e-3) for parameter in self.module.parameters()]

    def _step(self) -> None:
        for parameter, gradient in zip(self.module.parameters(), self.gradients, strict=True):
            parameter.grad = gradient  # not a part of the graph, which would otherwise fill it in every replay
        self.optimizer.step()
        self.last = self.optimizer.state[next(self.module.parameters())]["step"]


def start(found: GpuCase, contender: str) -> Stepper:
    return (Update if found.kind == "update" else Stepper)(found, contender)
