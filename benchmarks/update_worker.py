"""The process of one contender of `... optimizers` and `... adamw`: one update at a time.

`{"do": "start", "cell": c}` -> `{"form", "checks"}` and the answer of `benchmarks.worker`, with the checks as losses;
`{"do": "measure", "cell": c, "steps": n}` -> `{"seconds"}`;
`{"do": "limit"}` -> `{"gigabytes_per_second"}` of an in-place pass over a large array.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.cases.optimizers import UPDATES, Update, gradients, weights
from benchmarks.frameworks import OURS
from benchmarks.worker import limit_processors, serve

COMPARED_STEPS = 5
LIMIT_ELEMENTS = 60_000_000  # as many bytes as Adam's state, far more than a cache
CHECKED = 1000  # elements of the first parameter


class UpdateLoop:
    """A step, how to wait for it, the first weights after it, and the bytes of its tensors, if they are known."""

    def __init__(
        self,
        step: Callable[[], object],
        wait: Callable[[], object],
        first: Callable[[], np.ndarray],
        tensor_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.step, self.wait, self.first, self.tensor_bytes = step, wait, first, tensor_bytes


def wholestep_forms(update: Update, threads: int) -> dict[str, Callable[[], UpdateLoop]]:
    import wholestep as ws

    optimizer, slopes, start = update.ours(ws), gradients(update), weights(update)
    inputs = {f"d{i}": d for i, d in enumerate(slopes)}

    def make() -> UpdateLoop:
        @ws.step
        def step(g: ws.Graph) -> ws.Tensor:
            params = [g.parameter(f"w{i}", w.shape) for i, w in enumerate(start)]
            optimizer.update(g, params, [g.input(f"d{i}", p.shape) for i, p in enumerate(params)])
            return g.step + 1.0

        session = ws.build_session(step, threads=threads)
        for i, w in enumerate(start):
            session.set(f"w{i}", w)
        held = session.report().footprint
        return UpdateLoop(
            lambda: session.step(inputs),
            session.wait,
            lambda: session.get("w0"),
            lambda: held.peak_bytes - held.staging - dict(held.rows())["page rounding"],
        )

    return {"compiled step": make}


def torch_forms(update: Update, threads: int, compiled: bool = False) -> dict[str, Callable[[], UpdateLoop]]:
    import torch

    torch.set_num_threads(threads)
    assert update.torch is not None
    name, options = update.torch
    kinds = {"foreach": {"foreach": True}, "single": {"foreach": False}} | (
        {"fused": {"fused": True}} if update.fused else {}
    )

    def make(kind: dict[str, bool]) -> UpdateLoop:
        params = [torch.nn.Parameter(torch.tensor(w)) for w in weights(update)]
        for p, d in zip(params, gradients(update), strict=True):
            p.grad = torch.tensor(d)
        optimizer = getattr(torch.optim, name)(params, **options, **kind)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        return UpdateLoop(step, lambda: None, lambda: params[0].detach().numpy(), lambda: update_bytes(step, optimizer))

    if name in ("Adafactor", "Muon"):  # one form each
        return {"default": lambda: make({})}
    return {form: lambda kind=kind: make(kind) for form, kind in kinds.items()}  # type: ignore[misc]


def update_bytes(step: Callable[[], object], optimizer: Any) -> int:
    """Bytes of parameters, optimizer state and temporaries of an update; gradients are given."""
    from benchmarks.frameworks.torch_memory import bytes_of, lasting_tensors, peak_above_start

    return bytes_of(lasting_tensors(optimizer)) + peak_above_start(step)


def only(form: str, compiled: bool = False) -> Callable[[Update, int], dict[str, Callable[[], UpdateLoop]]]:
    """Use one form of torch's optimizer as a separate contender."""
    return lambda update, threads: {form: torch_forms(update, threads, compiled)[form]}


def optax_forms(update: Update, threads: int) -> dict[str, Callable[[], UpdateLoop]]:
    import jax
    import jax.numpy as jnp
    import optax

    assert update.optax is not None
    rule = update.optax(optax)

    def make() -> UpdateLoop:
        held: dict[str, Any] = {"params": [jnp.array(w) for w in weights(update)]}
        held["state"] = rule.init(held["params"])
        slopes = [jnp.array(d) for d in gradients(update)]

        def whole(params: Any, state: Any, grads: Any) -> Any:
            moves, state = rule.update(grads, state, params)
            return optax.apply_updates(params, moves), state

        compiled = jax.jit(whole, donate_argnums=(0, 1))

        def step() -> None:
            held["params"], held["state"] = compiled(held["params"], held["state"], slopes)

        return UpdateLoop(step, lambda: jax.block_until_ready(held), lambda: np.asarray(held["params"][0]))

    return {"jit": make}


FORMS = {
    "wholestep": wholestep_forms,
    "torch": torch_forms,
    "optax": optax_forms,
    "torch_fused": only("fused"),
    "torch_foreach": only("foreach"),
    "torch_compile": only("foreach", compiled=True),
}


class Worker:
    """Builds one update at a time: ten million parameters and their moments fill the memory of a small machine."""

    def __init__(self, contender: str, threads: int) -> None:
        self.contender, self.threads = contender, threads
        self.loop: UpdateLoop | None = None

    def start(self, cell: str) -> dict[str, Any]:
        """The fastest form of the contender, and its first weights."""
        self.loop = None
        forms = FORMS[self.contender](UPDATES[cell], self.threads)
        form = min(forms, key=lambda name: trial_seconds(forms[name])) if len(forms) > 1 else next(iter(forms))
        began = time.perf_counter()
        self.loop = forms[form]()
        checks = [weight_magnitude(self.loop)]
        first_step_s = time.perf_counter() - began
        checks += [weight_magnitude(self.loop) for _ in range(1, COMPARED_STEPS)]
        tensor_bytes = self.loop.tensor_bytes()
        return {
            "form": form,
            "checks": checks,
            "first_step_s": first_step_s,
            "losses": checks,
            "peak_bytes": tensor_bytes if self.contender == OURS else None,
            "tensor_bytes": tensor_bytes,
        }

    def measure(self, cell: str, steps: int) -> dict[str, Any]:
        """Seconds of `steps` steps with one wait at the end, after one step that warms the caches."""
        assert self.loop is not None
        return {"seconds": seconds(self.loop, steps)}

    def limit(self) -> dict[str, Any]:
        """The bandwidth of x ← a·x on all threads, which reads and writes each byte once: the limit for an update."""
        parts = np.array_split(np.ones(LIMIT_ELEMENTS, np.float32), self.threads)
        one = np.float32(1.0)

        def pass_over(part: np.ndarray) -> None:
            np.multiply(part, one, out=part)

        best = float("inf")
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in range(20):
                began = time.perf_counter()
                list(pool.map(pass_over, parts))
                best = min(best, time.perf_counter() - began)
        return {"gigabytes_per_second": 2 * 4 * LIMIT_ELEMENTS / best / 1e9}


def weight_magnitude(loop: UpdateLoop) -> float:
    """The mean magnitude of some weights after a step."""
    loop.step()
    loop.wait()
    return float(np.abs(loop.first().ravel()[:CHECKED]).mean(dtype=np.float64))


def seconds(loop: UpdateLoop, steps: int) -> float:
    loop.step()
    loop.wait()
    began = time.perf_counter()
    for _ in range(steps):
        loop.step()
    loop.wait()
    return time.perf_counter() - began


def trial_seconds(make: Callable[[], UpdateLoop]) -> float:
    loop = make()
    return min(seconds(loop, 1) for _ in range(4))


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["optimizers", "adamw"])
    parser.add_argument("contender", choices=FORMS)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    limit_processors(arguments.threads)
    serve(lambda: Worker(arguments.contender, arguments.threads))


if __name__ == "__main__":
    main()
