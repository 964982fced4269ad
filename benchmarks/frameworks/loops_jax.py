"""JAX: a Python loop over a jitted step with donated buffers, and a whole epoch as one `lax.scan`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Arrays
from benchmarks.cases import mlp
from benchmarks.cases.epoch import OPTIMIZER, EpochCell
from benchmarks.frameworks.with_jax import OPTIMIZERS, Params

Held = tuple[Params, Any, jax.Array]  # parameters, the optimizer's state, the sum of losses


def taken(data: Params, rows: jax.Array) -> Params:
    """Gather rows; without `promise_in_bounds` XLA would mask indices out of range."""
    return {name: a.at[rows].get(mode="promise_in_bounds") for name, a in data.items()}


def stepped(held: Held, batch: Params) -> Held:
    """One step; the loss is weighted by its number of rows."""
    params, state, total = held
    value, grads = jax.value_and_grad(mlp.jax_loss)(params, batch)
    return *OPTIMIZERS[OPTIMIZER][1](params, state, grads), total + value * len(batch["x"])


class JaxLoop(ABC):
    """The base class of JAX loops: data and parameters on the device; NumPy permutes the rows of an epoch, faster than
    XLA.
    """

    def __init__(self, cell: EpochCell, arrays: Arrays) -> None:
        self.batch, self.rng = cell.batch, np.random.default_rng(0)
        self.data = {name: jnp.array(a) for name, a in arrays.items()}
        params = {name: jnp.array(w) for name, w in mlp.weights().items()}
        self.held: Held = (params, OPTIMIZERS[OPTIMIZER][0](params), jnp.zeros(()))

    def epochs(self, count: int, shuffled: bool = True) -> float:
        rows = len(self.data["x"])
        for _ in range(count):
            order = self.rng.permutation(rows) if shuffled else np.arange(rows)
            self.held = (*self.held[:2], jnp.zeros(()))
            self.one_epoch(order.astype(np.int32))
        jax.block_until_ready(self.held)
        return float(self.held[2]) / rows

    @abstractmethod
    def one_epoch(self, order: np.ndarray) -> None:
        """All steps of an epoch over the rows in this order."""


class StepByStep(JaxLoop):
    """A loop with a jitted step per batch: its rows are gathered inside the step, or sliced from the permuted data."""

    def __init__(self, cell: EpochCell, arrays: Arrays, permute: bool) -> None:
        super().__init__(cell, arrays)
        self.permute = permute

        @partial(jax.jit, donate_argnums=0)
        def gathered(held: Held, data: Params, rows: jax.Array) -> Held:
            return stepped(held, taken(data, rows))

        @partial(jax.jit, donate_argnums=0, static_argnums=3)
        def sliced(held: Held, data: Params, start: Any, size: int) -> Held:
            return stepped(held, {n: jax.lax.dynamic_slice_in_dim(a, start, size) for n, a in data.items()})

        self.gathered, self.sliced = gathered, sliced
        self.permuted = jax.jit(lambda data, order: taken(data, order))

    def one_epoch(self, order: np.ndarray) -> None:
        data = self.permuted(self.data, order) if self.permute else self.data
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            if self.permute:
                self.held = self.sliced(self.held, data, start, len(rows))
            else:
                self.held = self.gathered(self.held, data, rows)


class Scanned(JaxLoop):
    """An epoch as one program: a scan over full batches, then the rest."""

    def __init__(self, cell: EpochCell, arrays: Arrays) -> None:
        super().__init__(cell, arrays)
        full = len(arrays["x"]) // self.batch * self.batch

        @partial(jax.jit, donate_argnums=0)
        def whole(held: Held, data: Params, order: jax.Array) -> Held:
            def step(held: Held, rows: jax.Array) -> tuple[Held, None]:
                return stepped(held, taken(data, rows)), None

            held, _ = jax.lax.scan(step, held, order[:full].reshape(-1, self.batch))
            return held if full == len(order) else step(held, order[full:])[0]

        self.whole = whole

    def one_epoch(self, order: np.ndarray) -> None:
        self.held = self.whole(self.held, self.data, jnp.asarray(order))
