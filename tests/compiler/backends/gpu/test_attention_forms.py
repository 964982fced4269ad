"""Attention in the forms that people write is planned as one fast kernel for each direction, in every precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Plan

BATCH, HEADS = 8, 4
WIDTHS = (16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)  # of heads
LENGTHS = (1, 49, 197, 577)


@dataclass(frozen=True)
class Operands:
    g: ws.Graph
    q: ws.Tensor
    k: ws.Tensor
    v: ws.Tensor

    @property
    def pairs(self) -> tuple[int, int]:
        rows: Any = self.q.shape[-2]
        columns: Any = self.k.shape[-2]
        return rows, columns

    def scores(self) -> ws.Tensor:
        return self.q @ self.k.transpose(-1, -2) * 0.125

    def lower(self) -> np.ndarray[Any, Any]:
        return np.tril(np.ones(self.pairs, np.bool_))

    def bias(self) -> ws.Tensor:
        return self.g.parameter("bias", (HEADS, *self.pairs))


@dataclass(frozen=True)
class Case:
    attend: Callable[[Operands], ws.Tensor]
    length: int = 64
    keys: int | None = None  # as many as queries, unless given
    width: int = 64
    key_heads: int = HEADS


def with_alibi(t: Operands) -> ws.Tensor:
    """Scores fall with the distance, by a slope of each head (Press et al., 2022)."""
    rows, columns = t.pairs
    distance = np.abs(np.arange(rows)[:, None] - np.arange(columns)).astype(np.float32)
    slopes = np.float32(2.0) ** -np.arange(1, HEADS + 1, dtype=np.float32)
    return ws.attention(t.q, t.k, t.v, causal=True, mask=-slopes[:, None, None] * distance)


def with_swin_table(t: Operands) -> ws.Tensor:
    """A bias for each offset in windows of 7 x 7 pixels."""
    at = np.arange(7)
    offsets = (at[:, None] - at + 6).astype(np.int32)
    index = (offsets[:, None, :, None] * 13 + offsets[None, :, None, :]).reshape(-1)
    bias = ws.take(t.g.parameter("table", (169, HEADS)), index).reshape((49, 49, HEADS)).permute(2, 0, 1)
    return ws.softmax(t.scores() + bias) @ t.v


def with_padding(t: Operands) -> ws.Tensor:
    seen = t.g.input("seen", ("batch", t.pairs[1]), "bool")
    return ws.attention(t.q, t.k, t.v, mask=seen.reshape((seen.shape[0], 1, 1, t.pairs[1])))


def causal(t: Operands) -> ws.Tensor:
    return ws.attention(t.q, t.k, t.v, causal=True)


CASES: dict[str, Case] = {
    "plain": Case(lambda t: ws.attention(t.q, t.k, t.v)),
    "causal": Case(causal),
    "a causal mask": Case(lambda t: ws.attention(t.q, t.k, t.v, mask=t.lower())),
    "a causal formula": Case(lambda t: ws.softmax(ws.where(t.lower(), t.scores(), float("-inf"))) @ t.v),
    "padding": Case(with_padding, 128),
    "a bias with its gradient": Case(lambda t: ws.attention(t.q, t.k, t.v, mask=t.bias())),
    "a bias in a formula": Case(lambda t: ws.softmax(t.scores() + t.bias()) @ t.v),
    "ALiBi": Case(with_alibi),
    "the table of a Swin": Case(with_swin_table, 49, width=32),
    "grouped heads": Case(causal, key_heads=2),
    "multi-query": Case(causal, key_heads=1),
    "cross": Case(lambda t: ws.attention(t.q, t.k, t.v), 50, 77),
    **{f"heads of {width}": Case(causal, 32, width=width) for width in WIDTHS},
    **{f"{length} tokens": Case(lambda t: ws.attention(t.q, t.k, t.v), length) for length in LENGTHS},
}


def planned(cases: dict[str, Case], precision: str, target: str) -> Plan:
    """A training step of all cases."""
    g = ws.Graph()
    loss = ws.constant(0.0)
    for number, case in enumerate(cases.values()):
        with g.scope(f"case{number}"):
            keys = case.length if case.keys is None else case.keys
            shapes = {"q": (HEADS, case.length), "k": (case.key_heads, keys), "v": (case.key_heads, keys)}
            x = g.input(f"x{number}", ("batch", 1, 1, 1))
            q, k, v = (x * g.parameter(name, (*shape, case.width)) for name, shape in shapes.items())
            loss = loss + case.attend(Operands(g, q, k, v)).astype("float32").square().mean()
    g.set_outputs({"loss": loss})
    options = ws.CompileOptions(verify=False, egraph=False, cache=False)
    return ws.build_session(
        g,
        optimizer=ws.SGD(lr=0.1),
        batch_size=BATCH,
        precision=precision,
        device=f"null:cuda/{target}",
        options=options,
    ).plan


def attention_forms(plan: Plan) -> list[str]:
    calls = [k for k in plan.kernels if isinstance(k.body, Call) and k.body.routine.startswith("attention")]
    return [schedule_of(k).form for k in calls]


@pytest.mark.parametrize(
    ("precision", "target"),
    [
        ("bfloat16", "sm_90"),
        pytest.param("bfloat16", "sm_80", marks=pytest.mark.long),
        pytest.param("float16", "sm_90", marks=pytest.mark.long),
    ],
)
def test_every_form_has_two_kernels_that_use_tensor_cores(precision: str, target: str) -> None:
    forms = attention_forms(planned(CASES, precision, target))
    assert len(forms) == 2 * len(CASES)
    assert set(forms) <= {Form.ATTENTION_MMA, Form.GRAPH}


NARROW = {name: case for name, case in CASES.items() if case.width <= 128}


@pytest.mark.parametrize(
    ("precision", "form"),
    [("tf32", Form.ATTENTION_MMA), pytest.param("float32", Form.ATTENTION, marks=pytest.mark.long)],
)
def test_float32_has_them_up_to_heads_of_128(precision: str, form: Form) -> None:
    """Exact products are those of ordinary cores."""
    assert attention_forms(planned(NARROW, precision, "sm_90")) == [form] * (2 * len(NARROW))


def with_capped_scores(t: Operands) -> ws.Tensor:
    return ws.softmax(ws.tanh(t.scores() / 30.0) * 30.0) @ t.v


@pytest.mark.parametrize(
    ("precision", "case"),
    [
        ("bfloat16", Case(lambda t: ws.attention(t.q, t.k, t.v, causal=True, dropout=0.1), 512)),
        ("bfloat16", Case(with_capped_scores, 512)),
        ("tf32", Case(causal, 512, width=160)),
    ],
    ids=["dropout", "soft capping", "wide heads in float32"],
)
def test_other_forms_are_products_around_a_softmax(precision: str, case: Case) -> None:
    """No kernel of attention computes these.  The scores are stored."""
    plan = planned({"only": case}, precision, "sm_90")
    assert attention_forms(plan) == []
    products = [k for k in plan.kernels if schedule_of(k).form == Form.LIBRARY]
    assert len(products) == 6, "two forwards, four backwards"
