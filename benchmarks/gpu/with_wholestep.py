"""Ours on a GPU."""

from __future__ import annotations

import time

import numpy as np

import wholestep as ws
from benchmarks.cases.epoch import ROWS, data
from benchmarks.frameworks.with_wholestep import optimizer_of
from benchmarks.gpu.cases import GpuCase


class Stepper:
    """The graph of a step launched again and again over one batch that lies on the GPU, as for the peers."""

    def __init__(self, found: GpuCase, contender: str) -> None:
        self.session = self.build(found)
        for name, value in found.case.weights().items():
            self.session.set(name, value)
        self.batch = found.case.batches(found.cell)[0]

    def build(self, found: GpuCase) -> ws.Session:
        return ws.build_session(
            found.case.models["wholestep"](),
            optimizer=optimizer_of(found.cell),
            batch_size=found.cell.batch,
            seed=0,
            device="cuda",
            precision="tf32" if found.tf32 else found.cell.precision,
            memory=found.memory,
        )

    def losses(self, count: int) -> list[float]:
        return [float(self.session.step(**self.batch).loss) for _ in range(count)]

    def measure(self, steps: int) -> float:
        """Seconds on the GPU's own clock's terms: launches queue up, and the host waits once."""
        program = self.session._programs.main.program  # the same graph that `step` launches, without new inputs
        return program.replay(steps)

    def measure_calls(self, steps: int) -> float:
        """Seconds of `session.step` from NumPy arrays, transfers and all."""
        began = time.perf_counter()
        for _ in range(steps):
            self.result = self.session.step(**self.batch)
        float(self.result.loss)
        return time.perf_counter() - began

    def measure_host(self, steps: int) -> float:
        """Seconds that the host spends in `session.step` while the GPU has nothing else to do."""
        spent = 0.0
        for _ in range(steps):
            began = time.perf_counter()
            self.result = self.session.step(**self.batch)
            spent += time.perf_counter() - began
            self.session.wait()
        return spent

    def device_bytes(self) -> int:
        return int(self.session.report().peak_bytes)


class Looper(Stepper):
    """Epochs over rows on the GPU; a step is one of an epoch."""

    def __init__(self, found: GpuCase, contender: str) -> None:
        super().__init__(found, contender)
        self.rows, self.steps = data(), -(-ROWS // found.cell.batch)

    def measure(self, steps: int) -> float:
        """The copy of all rows to the GPU, once a run, is not counted: the peers' rows lie there before."""
        epochs = max(1, round(steps / self.steps))
        return (self._run(1 + epochs) - self._run(1)) / (epochs * self.steps) * steps

    def _run(self, epochs: int) -> float:
        began = time.perf_counter()
        np.asarray(self.session.run(self.rows, epochs=epochs))
        return time.perf_counter() - began


class Update(Stepper):
    """AdamW alone, on weights and gradients that are given."""

    def build(self, found: GpuCase) -> ws.Session:
        optimizer, start = optimizer_of(found.cell), found.case.weights()

        @ws.step
        def step(g: ws.Graph) -> ws.Tensor:
            weights = {name: g.parameter(name, w.shape) for name, w in start.items()}
            slopes = {name: g.state(f"{name}.slope", w.shape) for name, w in start.items()}
            optimizer.update(g, list(weights.values()), list(slopes.values()))
            return g.step + 1.0

        session = ws.build_session(step, device="cuda")
        for name, w in start.items():
            session.set(f"{name}.slope", np.full_like(w, 1e-3))
        return session

    def losses(self, count: int) -> list[float]:
        return [float(self.session.step().loss) for _ in range(count)]


def start(found: GpuCase, contender: str) -> Stepper:
    return {"step": Stepper, "epochs": Looper, "update": Update}[found.kind](found, contender)
