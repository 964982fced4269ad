"""All cases compiled into one program: each has a separate data set; its loss is multiplied by an upstream number."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch

import wholestep as ws
from tests.losses.cases import CASES, Array, Case, Data
from tests.support.compilers import judged_by_an_oracle

UPSTREAM = 2.5
CAPACITY = 8


@dataclass(frozen=True)
class Outcome:
    value: Array
    grads: list[Array]


def typed(array: Array, dtype: str) -> Array:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def case_data(name: str, rows: int, dtype: str) -> Data:
    made = CASES[name].data(np.random.default_rng(len(name)), 2 * CAPACITY)
    return {key: typed(a[:rows], dtype) for key, a in made.items()}


def wanted(case: Case) -> tuple[str, ...]:
    return ("p", *case.extra)


@functools.cache
def session(dtype: str, capacity: int = CAPACITY) -> ws.Session:
    g = ws.Graph()
    upstream = g.scalar("upstream", UPSTREAM)
    outputs: dict[str, ws.Tensor] = {}
    for name, case in CASES.items():
        tensors = {
            key: g.input(f"{name}/{key}", ("batch", *a.shape[1:]), a.dtype)
            for key, a in case_data(name, 2, dtype).items()
        }
        outputs[name] = loss = case.ours(*tensors.values()) * upstream
        grads = ws.gradients(loss, [tensors[key] for key in wanted(case)])
        outputs |= {f"{name}/{key}.grad": t for key, t in zip(wanted(case), grads, strict=True)}
    g.set_outputs(outputs)
    return ws.build_inference_session(g, batch_size=capacity, options=judged_by_an_oracle(dtype))


def run(dtype: str, data: dict[str, Data], capacity: int = CAPACITY) -> dict[str, Outcome]:
    """Values and gradients of all cases on data by the name of the case."""
    given = {f"{name}/{key}": a for name, arrays in data.items() for key, a in arrays.items()}
    out = session(dtype, capacity).step(given).outputs
    return {
        name: Outcome(out[name], [out[f"{name}/{key}.grad"] for key in wanted(case)]) for name, case in CASES.items()
    }


@functools.cache
def results(dtype: str, rows: int, capacity: int = CAPACITY) -> dict[str, Outcome]:
    return run(dtype, {name: case_data(name, rows, dtype) for name in CASES}, capacity)


def torch_says(name: str, rows: int) -> Outcome:
    """Value and gradients by torch in float64, times the upstream number."""
    case = CASES[name]
    tensors = {key: torch.tensor(a) for key, a in case_data(name, rows, "float64").items()}
    for key in wanted(case):
        tensors[key].requires_grad_()
    loss = case.theirs(*tensors.values())
    (loss * UPSTREAM).backward()
    return Outcome(UPSTREAM * loss.detach().numpy(), [tensors[key].grad.numpy() for key in wanted(case)])
