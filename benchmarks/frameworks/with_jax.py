"""JAX: the whole step under one jit, parameters and optimizer state donated.

`models["jax"](params, batch) -> loss`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import LEARNING_RATES, WEIGHT_DECAY, Case, Cell

Params = dict[str, jax.Array]


def sgd_init(params: Params) -> Any:
    return ()


def sgd_update(params: Params, state: Any, grads: Params) -> tuple[Params, Any]:
    return jax.tree.map(lambda w, g: w - LEARNING_RATES["sgd"] * g, params, grads), state


def adam_init(params: Params) -> Any:
    return jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)


def adam_update(params: Params, state: Any, grads: Params) -> tuple[Params, Any]:
    """Adam (Kingma and Ba 2015), bias-corrected, eps outside the root."""
    m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    m_scale, v_scale = 1.0 / (1.0 - 0.9**t), 1.0 / (1.0 - 0.999**t)
    params = jax.tree.map(
        lambda w, m, v: w - LEARNING_RATES["adam"] * (m * m_scale) / (jnp.sqrt(v * v_scale) + 1e-8), params, m, v
    )
    return params, (m, v, t)


def adamw_update(params: Params, state: Any, grads: Params) -> tuple[Params, Any]:
    """AdamW (Loshchilov and Hutter 2019): the decay acts on the weights, multiplied by the learning rate."""
    decayed = jax.tree.map(lambda w: w * (1.0 - LEARNING_RATES["adamw"] * WEIGHT_DECAY), params)
    return adam_update(decayed, state, grads)


OPTIMIZERS = {"sgd": (sgd_init, sgd_update), "adam": (adam_init, adam_update), "adamw": (adam_init, adamw_update)}


class JaxTrainer:
    """Trains with asynchronous dispatch; only `loss` waits."""

    def __init__(self, case: Case, cell: Cell) -> None:
        init, update = OPTIMIZERS[cell.optimizer]
        loss = case.models["jax"]

        def step(params: Params, state: Any, batch: Params) -> tuple[Params, Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(params, batch)
            return *update(params, state, grads), value

        self.compiled = jax.jit(step, donate_argnums=(0, 1))
        self.params = {name: jnp.array(w) for name, w in case.weights().items()}
        self.state = init(self.params)
        self.batches = [{name: jnp.array(a) for name, a in batch.items()} for batch in case.batches(cell)]

    def step(self, index: int) -> None:
        batch = self.batches[index % len(self.batches)]
        self.params, self.state, self.last = self.compiled(self.params, self.state, batch)

    def loss(self) -> float:
        jax.block_until_ready((self.params, self.state))
        return float(self.last)


def start(contender: str, case: Case, cell: Cell, threads: int) -> JaxTrainer:
    """A jitted step. JAX sizes its pool by the processor affinity that the worker has set to `threads`."""
    return JaxTrainer(case, cell)
