"""Attention written as primitives is the op `attention`, with PyTorch's values and gradients; what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Output
from wholestep.compiler.passes.simplify.recognize_attention import recognize_attention
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Call
from wholestep.options import CompileOptions

Array = np.ndarray[Any, Any]
INF = float("inf")
B, H, T, S, D = 2, 3, 5, 4, 6  # sequences, heads, queries, keys, width
RNG = np.random.default_rng(0)
SHAPES = {
    "q": (B, H, T, D),
    "k": (B, H, S, D),
    "v": (B, H, S, D),
    "few": (B, 1, S, D),  # keys or values that all heads share
    "own": (B, H, T, D),  # keys or values of as many rows as queries
    "bias": (H, T, S),
}
SEEN = np.arange(S) < np.array([[2], [4]])  # padding: (B, S)
SHIFT = np.where(RNG.random((B, 1, T, S)) < 0.3, -100.0, 0.0).astype(np.float32)
LOWER = np.tril(np.ones((T, T), np.bool_))
OWN_SEEN = (np.arange(T) < np.array([[3], [5]]))[:, None, None]
LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Row:
    """The same formula in both libraries, and the op after recognition."""

    formula: Callable[[Any], Any]
    masked: bool = False
    causal: bool = False
    key_heads: int = H


def softmax(x: Any) -> Any:
    return ws.softmax(x) if isinstance(x, ws.Tensor) else torch.softmax(x, -1)


def hide(condition: Array, x: Any, value: float) -> Any:
    """Scores, and a value where the condition is false."""
    if isinstance(x, ws.Tensor):
        return ws.where(condition, x, np.float32(value))
    return torch.where(torch.tensor(condition), x, torch.tensor(value))


def shifted(t: Any) -> Any:
    """Shifted windows: a table of biases, then a mask at another shape of the scores."""
    scores = ((t.q * 0.4) @ t.k.transpose(-1, -2) + t.bias).reshape((1, B, H, T, S)) + t.shift
    return softmax(scores.reshape((B, H, T, S))) @ t.v


def merged(t: Any) -> Any:
    """Products with one batch axis, as old networks write them."""
    q, k, v = (x.reshape((B * H, x.shape[2], D)) for x in (t.q, t.k, t.v))
    scores = (q @ k.transpose(-1, -2) / 2.0).reshape((B, H, T, S)) + t.bias
    return (softmax(scores).reshape((B * H, T, S)) @ v).reshape((B, H, T, D))


def shared(t: Any) -> Any:
    """Keys and values repeated for every query head."""
    k, v = (x.reshape((B, 1, 1, S, D)).expand(B, 1, H, S, D).reshape((B, H, S, D)) for x in (t.few, t.few * 2.0))
    return softmax(t.q @ k.transpose(-1, -2)) @ v


def by_einsum(t: Any) -> Any:
    """Products by einsum, and the scale on the keys, as torchvision's MaxViT writes them."""
    einsum = ws.einsum if isinstance(t.q, ws.Tensor) else torch.einsum
    scores = einsum("bhqd,bhkd->bhqk", t.q, t.k * 0.4)
    return einsum("bhqk,bhkd->bhqd", softmax(scores + t.bias), t.v)


def of_own(condition: Array, value: float) -> Callable[[Any], Any]:
    return lambda t: softmax(hide(condition, t.q @ t.own.transpose(-1, -2), value)) @ t.own


ROWS = {
    "plain": Row(lambda t: softmax(t.q @ t.k.transpose(-1, -2)) @ t.v),
    "a bias of each head": Row(lambda t: softmax(t.q @ t.k.transpose(-1, -2) / 2.5 + t.bias) @ t.v, masked=True),
    "padding": Row(
        lambda t: softmax(hide(SEEN[:, None, None], t.q @ t.k.transpose(-1, -2) * 0.4, -INF)) @ t.v, masked=True
    ),
    "shifted windows": Row(shifted, masked=True),
    "merged heads": Row(merged, masked=True),
    "einsum": Row(by_einsum, masked=True),
    "causal values": Row(of_own(LOWER, LEAST), causal=True),
    "causal, with padding": Row(of_own(LOWER & OWN_SEEN, -INF), masked=True),
    "nothing is hidden": Row(of_own(LOWER | ~LOWER, -INF)),
    "shared keys": Row(shared, key_heads=1),
}


class Tensors:
    """The tensors of a formula by name."""

    def __init__(self, values: Mapping[str, Any], shift: Any) -> None:
        self.__dict__.update(values, shift=shift)


def recorded(formula: Callable[[Any], Any]) -> ws.Graph:
    g = ws.Graph()
    tensors = {name: g.parameter(name, shape) for name, shape in SHAPES.items()}
    weight = g.input("weight", SHAPES["q"])
    g.set_outputs({"loss": (formula(Tensors(tensors, SHIFT)) * weight).sum()})
    return g


@pytest.mark.parametrize("name", ROWS)
def test_a_formula_is_the_op_with_the_values_and_gradients_of_pytorch(name: str) -> None:
    row, rng = ROWS[name], np.random.default_rng(1)
    values = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    weight = rng.standard_normal(SHAPES["q"], dtype=np.float32)
    options, unused = CompileOptions(egraph=False), list(SHAPES)
    session = ws.build_session(
        recorded(row.formula), optimizer=ws.SGD(lr=1.0), device="reference", options=options, unused=unused
    )
    calls = [k.body for k in session.plan.kernels if isinstance(k.body, Call)]
    assert [c.routine for c in calls] == ["attention", "attention_grad"]
    for call in calls:
        extents = dict(call.extents)
        assert any(o.name == "mask" for o in call.operands) is row.masked
        assert (bool(extents["causal"]), extents["group"]) == (row.causal, H // row.key_heads)
    for parameter in session.state.names:
        session.set(parameter, values[parameter])
    loss = float(session.step(weight=weight))
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
    expected = (row.formula(Tensors(leaves, torch.tensor(SHIFT))) * torch.tensor(weight)).sum()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for parameter in session.state.names:
        gradient = values[parameter] - session.get(parameter)
        np.testing.assert_allclose(gradient, leaves[parameter].grad.numpy(), atol=1e-5, err_msg=parameter)


def ops_of(formula: Callable[[Any], Any]) -> list[str]:
    g = recorded(formula)
    return [n.op for n in recognize_attention(IRGraph(tuple(Output(n, t.node) for n, t in g.outputs.items()))).nodes]


def test_what_is_not_attention_stays_as_it_is() -> None:
    def read_twice(t: Any) -> Any:
        weights = ws.softmax(t.q @ t.k.transpose(-1, -2))
        return weights @ t.v + weights.sum()

    for formula in (
        read_twice,
        lambda t: ws.softmax(ws.tanh(t.q @ t.k.transpose(-1, -2))) @ t.v,
        lambda t: ws.softmax(t.q @ t.k.transpose(-1, -2), axis=-2) @ t.v,
        lambda t: ws.softmax(t.bias) @ t.v[0],
    ):
        assert "attention" not in ops_of(formula)


def test_a_mask_that_changes_scores_is_not_causal() -> None:
    """Ones below the diagonal are added; so are values above it that hide nothing."""
    for mask in (np.where(LOWER, 1.0, -INF), np.where(LOWER, 0.0, -100.0)):
        ops = recognize_attention(
            IRGraph((Output("y", ws.attention(*of_graph(ws.Graph()), mask=mask.astype(np.float32)).node),))
        ).nodes
        (node,) = (n for n in ops if n.op == "attention")
        assert len(node.inputs) == 4
        assert not attrs_of(node, at.AttentionAttrs).causal


def packed(g: ws.Graph, per_row: bool) -> ws.Tensor:
    """Queries see keys of the same packed sequence; one sequence per row, or as many as there are rows before."""
    batch = g.input("rows", ("batch", T)).shape[0]
    row = ws.iota((batch, 1), 0)
    number = ws.constant(np.zeros((T,), np.int32)).expand(batch, T) if per_row else row.expand(batch, T) // T
    position = row * T + ws.iota((batch, T), 1)
    found = ws.gather(number.reshape((batch * T,)), position)
    return found.reshape((batch, 1, T, 1)).expand(batch, 1, T, T) == found.reshape((batch, 1, 1, T)).expand(
        batch, 1, T, T
    )


@pytest.mark.parametrize("per_row", [True, False])
def test_values_along_a_symbolic_axis_are_known_only_if_all_are_equal(per_row: bool) -> None:
    """Transformers numbers packed sequences, of which a row without a mask has one."""
    g = ws.Graph()
    mask = packed(g, per_row)
    q, k, v = (g.input(name, (mask.shape[0], H, T, D)) for name in "qkv")
    y = ws.attention(q, k, v, mask=mask)
    (node,) = (n for n in recognize_attention(IRGraph((Output("y", y.node),))).nodes if n.op == "attention")
    assert len(node.inputs) == (3 if per_row else 4)


def of_graph(g: ws.Graph) -> list[ws.Tensor]:
    return [g.parameter(name, SHAPES["q"]) for name in "qkv"]


def test_options_leave_the_formula_as_it_is() -> None:
    graph = IRGraph(tuple(Output(n, t.node) for n, t in recorded(ROWS["plain"].formula).outputs.items()))
    for options in (CompileOptions(exactness="bitwise"), CompileOptions(optimize=False)):
        stage = Compiler(options).run_stages(graph, REFERENCE, until="optimize_forward")
        assert not any(n.op == "attention" for n in stage.nodes)
