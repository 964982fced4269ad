"""PyTorch on a GPU: eager, compiled, and either captured by hand into one CUDA graph, with fused optimizers.

Images are channels-last, products may use tf32; half precision is autocast, with float32 weights and optimizer as ours.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.case import LEARNING_RATES
from benchmarks.frameworks.with_torch import OPTIMIZERS, as_tensor
from benchmarks.gpu.cases import GpuCase

WARM_UP = 3


class Stepper:
    def __init__(self, found: GpuCase, contender: str, device: str = "cuda") -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        case, cell, self.device = found.case, found.cell, device
        self.module = case.models["torch"](case.weights()).to(device)
        self.batch = {name: as_tensor(a).to(device) for name, a in case.batches(cell)[0].items()}
        if self.batch["x"].ndim == 4:
            self.module.to(memory_format=torch.channels_last)
            self.batch["x"] = self.batch["x"].contiguous(memory_format=torch.channels_last)
        captured = contender.endswith("_graph")
        options: dict[str, Any] = {"capturable": True} if captured else {}
        self.optimizer = OPTIMIZERS[cell.optimizer](
            self.module.parameters(), lr=LEARNING_RATES[cell.optimizer], fused=True, **options
        )
        self.forward = torch.compile(self.module) if "compile" in contender else self.module
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(cell.precision)
        self.graph = self._captured() if captured else None

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Capture a whole step in one graph; the weights are restored after the warm-up steps."""
        start = [p.detach().clone() for p in self.module.parameters()]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step()
        with torch.no_grad():
            for parameter, value in zip(self.module.parameters(), start, strict=True):
                parameter.copy_(value)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        return graph

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

    def _step(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self.last = self.optimizer.state[next(self.module.parameters())]["step"]


def start(found: GpuCase, contender: str) -> Stepper:
    return (Update if found.kind == "update" else Stepper)(found, contender)
