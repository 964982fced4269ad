"""Wholestep on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np

import wholestep as ws
from benchmarks.cases.epoch import ROWS, data
from benchmarks.frameworks.with_wholestep import optimizer_of
from benchmarks.gpu.cases import GpuCase
from wholestep.session.inspect.profile import KernelTime

ROUND = 8  # steps of a host round, if that many may be in flight
LONGEST = 15  # kernels that are named
PAUSE = 1e-3  # seconds between two polls of a sleeping host


class Stepper:
    """Launches the graph of a step repeatedly over one batch on the GPU, as for the peers."""

    import_seconds: float | None = None  # from the network's description to its graph

    def __init__(self, found: GpuCase, contender: str) -> None:
        self.session = self.build(found)
        for name, value in found.case.weights().items():
            self.session.set(name, value)
        self.batch = found.case.batches(found.cell)[0]

    def build(self, found: GpuCase) -> ws.Session:
        began = time.perf_counter()
        graph = found.case.models["wholestep"]()
        self.import_seconds = time.perf_counter() - began
        return ws.build_session(
            graph,
            optimizer=optimizer_of(found.cell),
            batch_size=found.cell.batch,
            seed=0,
            device="cuda",
            precision="tf32" if found.tf32 else found.cell.precision,
            memory=found.memory,
        )

    def compile(self) -> list[float]:
        """The loss of the first step, which builds whatever the session left to it."""
        return self.losses(1)

    def settle(self) -> None:
        """Nothing: the plan is fixed."""

    def losses(self, count: int) -> list[float]:
        return [float(self.session.step(**self.batch).loss) for _ in range(count)]

    def profile(self) -> dict[str, list[dict[str, Any]]]:
        """The kernels that take the most time; those that take several times their price, those that lose most time
        first, and why.
        """
        profile = self.session.profile(self.batch, steps=3)

        def row(k: KernelTime) -> dict[str, Any]:
            us, price_us = round(1e6 * k.seconds, 1), round(1e6 * k.expected, 1)
            why = (profile.advice or {}).get((k.program, k.kernel), "")
            return {"kernel": k.kernel, "us": us, "price_us": price_us, "name": k.name, "why": why}

        longest = sorted(profile.kernels, key=lambda k: -k.seconds)[:LONGEST]
        return {"kernels": list(map(row, longest)), "slow_kernels": list(map(row, profile.slow))}

    def measure(self, steps: int) -> float:
        """Seconds of queued launches with one wait of the host at the end."""
        return float(self.program.replay(steps))  # the same graph that `step` launches, without new inputs

    @property
    def program(self) -> Any:
        return self.session._programs.main.program

    def measure_calls(self, steps: int) -> float:
        """Seconds of `session.step` from NumPy arrays, transfers included."""
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        float(self.result.loss)
        return time.perf_counter() - began

    def measure_host(self, steps: int) -> float:
        """Host seconds of steps that follow others, as in a training loop; none waits for the GPU.

        A round has as many steps as may be in flight; its first one, after a wait, is not counted.
        """
        length = min(ROUND, len(self.program._exchange._turns))
        spent = list[float]()
        while len(spent) < steps:
            self.session.wait()
            spent += [timed(self._step) for _ in range(length)][1:]
        return median(spent) * steps

    def measure_host_after_wait(self, steps: int) -> float:
        """Host seconds of steps that each follow a wait for the GPU."""
        spent = list[float]()
        for _ in range(steps):
            self.session.wait()
            spent.append(timed(self._step))
        return median(spent) * steps

    def measure_host_copy(self, steps: int) -> float:
        """Seconds to copy the inputs of the last step to pinned memory, which every step does."""
        self.session.wait()
        program = self.program
        turns, arguments = cycle(program._exchange._turns), (program._inputs, program._own_sizes, program.host_copies)
        return median(timed(lambda: next(turns).fill(*arguments)) for _ in range(steps)) * steps

    def _step(self) -> None:
        self.result = self.session.step(**self.batch)

    def device_bytes(self) -> int:
        return int(self.session.report().peak_bytes)


class Sleeper:
    """Lets the host sleep while it waits: the driver would spin on a core."""

    def until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            time.sleep(PAUSE)


class EpochStepper(Stepper):
    """Measures epochs over rows on the GPU; the unit is one step of an epoch."""

    def __init__(self, found: GpuCase, contender: str) -> None:
        super().__init__(found, contender)
        self.rows, self.steps = data(), -(-ROWS // found.cell.batch)

    def measure(self, steps: int) -> float:
        """The seconds of epochs without the copy of the data to the GPU, once per run: the peers' data is already
        there.
        """
        epochs = max(1, round(steps / self.steps))
        return (self._run(1 + epochs) - self._run(1)) / (epochs * self.steps) * steps

    def measure_host_in_epochs(self, steps: int) -> float:
        """Processor seconds of all threads, with a host that sleeps instead of spinning while it waits for the GPU."""
        epochs, gpu = max(1, round(steps / self.steps)), self.program._gpu
        gpu.watch = Sleeper()
        try:
            spent = self._run(1 + epochs, time.process_time) - self._run(1, time.process_time)
        finally:
            gpu.watch = None
        return spent / (epochs * self.steps) * steps

    def _run(self, epochs: int, clock: Callable[[], float] = time.perf_counter) -> float:
        return timed(lambda: np.asarray(self.session.run(self.rows, epochs=epochs)), clock)


class Update(Stepper):
    """Measures AdamW alone, on given weights and gradients."""

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


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds of a call."""
    began = clock()
    call()
    return clock() - began


def start(found: GpuCase, contender: str) -> Stepper:
    kinds = {"step": Stepper, "network": Stepper, "epochs": EpochStepper, "update": Update}
    return kinds[found.kind](found, contender)
