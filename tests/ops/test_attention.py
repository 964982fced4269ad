"""`ws.attention` compiled, against torch's scaled_dot_product_attention: values and all gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import wholestep as ws
from tests.support.compilers import judged_by_an_oracle
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.errors import ShapeError

Array = np.ndarray[Any, Any]
CAPACITY, ROWS = 11, 9  # a partial batch, of which two threads have a part each
NEAR = {"float32": 2e-5, "float64": 1e-13}  # of the largest element
ROUNDING = 1e-14  # what torch leaves of a gradient that is 0, as of a query that has one key


@dataclass(frozen=True)
class Case:
    """Heads of queries and of keys, times of both, widths of both and of values."""

    heads: int
    shared: int
    queries: int
    keys: int
    width: int
    values: int
    causal: bool = False
    mask: str = ""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "q": (self.heads, self.queries, self.width),
            "k": (self.shared, self.keys, self.width),
            "v": (self.shared, self.keys, self.values),
        }


CASES = {
    "causal": Case(2, 2, 64, 64, 16, 16, causal=True),
    "causal, ragged": Case(2, 2, 37, 37, 24, 24, causal=True),
    "causal, wide": Case(1, 1, 70, 70, 64, 64, causal=True),
    "full": Case(2, 2, 33, 33, 8, 8),
    "cross": Case(2, 2, 5, 50, 16, 8),
    "one query": Case(2, 2, 1, 1, 8, 8, causal=True),
    "grouped": Case(6, 2, 20, 20, 16, 16, causal=True),
    "one head of keys": Case(4, 1, 18, 30, 8, 8),
    "truth mask": Case(2, 1, 19, 35, 8, 8, mask="bool"),
    "added mask": Case(2, 2, 19, 35, 8, 8, mask="float"),
    "queries that look nowhere": Case(4, 2, 19, 35, 8, 8, mask="bool, nowhere"),
    "queries that numbers let look nowhere": Case(1, 1, 33, 5, 8, 8, mask="float, nowhere"),
    "causal queries that look nowhere": Case(2, 2, 18, 18, 8, 8, causal=True, mask="bool, nowhere"),
    "causal, more queries than keys": Case(2, 2, 21, 6, 8, 8, causal=True),
}


def mask_of(case: Case, dtype: str) -> Array | None:
    rng = np.random.default_rng(5)
    if not case.mask:
        return None
    nowhere = np.arange(case.queries)[:, None] % 4 == 1 if "nowhere" in case.mask else np.False_
    if "bool" in case.mask:
        return ((rng.random((case.queries, case.keys)) < 0.6) | (np.arange(case.keys) == 0)) & ~nowhere
    return np.where(nowhere, -np.inf, rng.normal(size=(case.queries, case.keys))).astype(dtype)


def graph(dtype: str) -> ws.Graph:
    """All cases in one program; each result is weighted by an input: no upstream gradient is 1."""
    g = ws.Graph()
    loss, outputs, params = 0.0, {}, {}
    for i, case in enumerate(CASES.values()):
        scale = g.input(f"x{i}", ("batch", 1, 1, 1), dtype)
        mine = {f"{n}{i}": g.parameter(f"{n}{i}", s, dtype=dtype) for n, s in case.shapes().items()}
        q, k, v = (p.reshape(1, *p.shape) * scale for p in mine.values())
        y = ws.attention(q, k, v, causal=case.causal, mask=mask_of(case, dtype))
        weight = g.input(f"w{i}", ("batch", case.heads, case.queries, case.values), dtype)
        loss = loss + (y * weight).sum()
        outputs[f"y{i}"], params = y, params | mine
    grads = zip(params, ws.gradients(loss, list(params.values())), strict=True)
    g.set_outputs({"loss": loss, **outputs, **{f"d{n}": d for n, d in grads}})
    return g


def feeds(dtype: str) -> dict[str, Array]:
    rng, made = np.random.default_rng(1), {}
    for i, case in enumerate(CASES.values()):
        made[f"x{i}"] = rng.uniform(0.5, 1.5, (ROWS, 1, 1, 1)).astype(dtype)
        made[f"w{i}"] = rng.normal(size=(ROWS, case.heads, case.queries, case.values)).astype(dtype)
    return made


def expected(i: int, case: Case, dtype: str, state: dict[str, Array], fed: dict[str, Array]) -> dict[str, Array]:
    leaves = [torch.tensor(state[f"{n}{i}"].astype(np.float64), requires_grad=True) for n in "qkv"]
    scaled = [leaf[None] * torch.from_numpy(fed[f"x{i}"].astype(np.float64)) for leaf in leaves]
    mask = mask_of(case, dtype)
    if mask is not None and case.causal:  # torch takes one of the two
        mask = mask & np.tri(*mask.shape, dtype=bool)
    attn_mask = None if mask is None else torch.from_numpy(mask if mask.dtype == bool else mask.astype(np.float64))
    causal = case.causal and mask is None
    y = scaled_dot_product_attention(
        *scaled, attn_mask=attn_mask, is_causal=causal, enable_gqa=case.heads != case.shared
    )
    (y * torch.from_numpy(fed[f"w{i}"].astype(np.float64))).sum().backward()
    grads = {f"d{n}{i}": leaf.grad.numpy() for n, leaf in zip("qkv", leaves, strict=True) if leaf.grad is not None}
    return {f"y{i}": y.detach().numpy(), **grads}


@pytest.fixture(scope="module", params=["float32", "float64"])
def ran(request: pytest.FixtureRequest) -> tuple[str, dict[str, Array], dict[str, Array], dict[str, Array]]:
    dtype = request.param
    options = judged_by_an_oracle(dtype)
    session = ws.build_inference_session(graph(dtype), batch_size=CAPACITY, threads=2, options=options)
    names = [f"{n}{i}" for i in range(len(CASES)) for n in "qkv"]
    state, fed = {n: session.get(n).copy() for n in names}, feeds(dtype)
    return dtype, state, fed, session.step(fed).outputs


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_torch(name: str, ran: Any) -> None:
    dtype, state, fed, outputs = ran
    for key, value in expected(list(CASES).index(name), CASES[name], dtype, state, fed).items():
        exact = np.zeros_like(value) if np.abs(value).max(initial=0) < ROUNDING else value
        error = np.abs(outputs[key] - exact).max()
        assert error <= NEAR[dtype] * np.abs(exact).max(initial=1e-30) + 1e-30, key


def test_a_query_that_looks_nowhere_is_0(ran: Any) -> None:
    _, _, _, outputs = ran
    for name, case in CASES.items():
        if "nowhere" in case.mask:
            y = outputs[f"y{list(CASES).index(name)}"]
            assert not y[:, :, 1::4].any()
            assert y[:, :, 0::4].all()
            assert np.isfinite(outputs[f"dq{list(CASES).index(name)}"]).all()


@pytest.mark.parametrize("second_order", [False, True])
def test_the_interpreter_and_the_definition_agree_there(second_order: bool) -> None:
    g = ws.Graph()
    q, k, v = (g.input(n, (3, 4), "float64") for n in "qkv")
    mask = g.input("mask", (3, 3), "float64")
    gradients = ws.gradients((ws.attention(q, k, v, mask=mask) * q).sum(), [q, k, v, mask])
    if second_order:
        gradients = ws.gradients(sum((d * d).sum() for d in gradients), [q, k, v])
    g.set_outputs({f"d{i}": d for i, d in enumerate(gradients)} | {"y": ws.attention(q, k, v, mask=mask)})
    rng = np.random.default_rng(3)
    inputs = {n: rng.normal(size=(3, 4)) for n in "qkv"}
    inputs["mask"] = np.array([[0.0, 0.5, -np.inf], [-np.inf] * 3, [0.3, -np.inf, 1.0]])
    graph = expand_gradients(g.to_ir())
    with np.errstate(all="ignore"):
        named, written = (interpret(x, inputs=inputs).outputs for x in (graph, decompose(graph)))
    for name, value in named.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(written[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert not named["y"][1].any()


def test_heads_that_do_not_divide_are_refused_at_the_users_line() -> None:
    g = ws.Graph()
    q, k = g.input("q", ("batch", 5, 4, 8)), g.input("k", ("batch", 2, 4, 8))
    with pytest.raises(ShapeError, match=r"query heads \(5\) .* heads \(2\)(?s:.*)test_attention\.py"):
        ws.attention(q, k, k)
