"""JAX on a GPU: the step under one donated jit; an epoch over rows on the GPU as one `lax.scan`."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases.epoch import ROWS, data
from benchmarks.frameworks.with_jax import OPTIMIZERS, Params
from benchmarks.gpu.cases import GpuCase


class Stepper:
    def __init__(self, found: GpuCase, contender: str) -> None:
        case, cell = found.case, found.cell
        init, update = OPTIMIZERS[cell.optimizer]
        loss = case.models["jax"]

        def step(params: Params, state: Any, batch: Params) -> tuple[Params, Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(params, batch)
            return *update(params, state, grads), value

        self.one, self.jitted = step, jax.jit(step, donate_argnums=(0, 1))
        self.params = {name: jnp.array(w) for name, w in case.weights().items()}
        self.state = init(self.params)
        self.batch = {name: jnp.array(a) for name, a in case.batches(cell)[0].items()}

    def compile(self) -> list[float]:
        """The loss of the first step, which compiles."""
        return self.losses(1)

    def settle(self) -> None:
        """Nothing: XLA chose its algorithms when it compiled."""

    def step(self) -> None:
        self.params, self.state, self.last = self.jitted(self.params, self.state, self.batch)

    def losses(self, count: int) -> list[float]:
        values = []
        for _ in range(count):
            self.step()
            values.append(float(self.last))
        return values

    def measure(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        jax.block_until_ready((self.params, self.state, self.last))
        return time.perf_counter() - began

    def device_bytes(self) -> int:
        stats = jax.devices()[0].memory_stats() or {}
        return int(stats.get("peak_bytes_in_use", 0))


class Scanner(Stepper):
    """Measures epochs; the unit is one step of an epoch."""

    def __init__(self, found: GpuCase, contender: str) -> None:
        super().__init__(found, contender)
        self.rows = {name: jnp.array(a) for name, a in data().items()}
        self.batch_rows, self.rng = found.cell.batch, np.random.default_rng(0)
        self.steps = ROWS // self.batch_rows

        def epoch(params: Params, state: Any, rows: Params, order: jax.Array) -> tuple[Params, Any, jax.Array]:
            def body(held: tuple[Params, Any], taken: jax.Array) -> tuple[tuple[Params, Any], jax.Array]:
                batch = {name: a.at[taken].get(mode="promise_in_bounds") for name, a in rows.items()}
                *held, value = self.one(*held, batch)
                return tuple(held), value

            (params, state), losses = jax.lax.scan(body, (params, state), order)
            return params, state, losses.mean()

        self.epoch = jax.jit(epoch, donate_argnums=(0, 1))

    def measure(self, steps: int) -> float:
        epochs = max(1, round(steps / self.steps))
        began = time.perf_counter()
        for _ in range(epochs):
            order = self.rng.permutation(ROWS)[: self.steps * self.batch_rows].astype(np.int32)
            order = jnp.array(order.reshape(self.steps, self.batch_rows))
            self.params, self.state, self.last = self.epoch(self.params, self.state, self.rows, order)
        jax.block_until_ready((self.params, self.state, self.last))
        return (time.perf_counter() - began) / (epochs * self.steps) * steps


def start(found: GpuCase, contender: str) -> Stepper:
    return (Scanner if contender == "jax_scan" else Stepper)(found, contender)
