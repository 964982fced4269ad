"""Collectives in buckets: what goes together, in which order, and that it means the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.semantics.interpret import interpret_on_ranks
from wholestep.compiler.ir.types import TensorType, float32, float64
from wholestep.compiler.passes.distribute import bucket_collectives
from wholestep.compiler.passes.distribute.bucket_collectives import bucket
from wholestep.distributed.estimate import exchanges_of

RNG = np.random.default_rng(2)


def leaf(name: str, *shape: int, dtype: Any = float64) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(shape, dtype)))


def summed(x: Node, axis: str = DATA) -> Node:
    return b.make("all_reduce", (x,), at.GroupAttrs(0, axis))


def graph_of(inputs: list[Node], *results: Node) -> IRGraph:
    return IRGraph(tuple(Output(f"y{i}", node) for i, node in enumerate(results)), (), tuple(inputs))


def buckets_of(graph: IRGraph) -> list[tuple[str, str, list[str]]]:
    """Of each exchange: its kind, its axis, and the inputs that it sends."""
    found = [n for n in graph.nodes if n.op == "exchange"]
    return [(attrs_of(n, at.ExchangeAttrs).kind, attrs_of(n, at.ExchangeAttrs).axis, _leaves(n)) for n in found]


def _leaves(node: Node) -> list[str]:
    if node.op == "input":
        return [attrs_of(node, at.InputAttrs).name]
    return [name for i in node.inputs for name in _leaves(i)]


def test_what_does_not_wait_for_each_other_goes_together() -> None:
    """Not what waits for one of them, nor another kind, dtype or axis."""
    x, y, z, w = leaf("x", 4), leaf("y", 3, 2), leaf("z", 5, dtype=float32), leaf("w", 4)
    first = summed(x)
    gathered = b.make("all_gather", (w,), at.GroupAttrs(2))
    later = summed(b.mul(first, w))
    graph = bucket(graph_of([x, y, z, w], first, summed(y), summed(z), later, summed(w, MODEL), gathered))
    assert sorted(buckets_of(graph)) == sorted(
        [
            ("all_reduce", DATA, ["x", "y"]),
            ("all_reduce", DATA, ["z"]),
            ("all_reduce", MODEL, ["w"]),
            ("all_gather", DATA, ["w"]),
            ("all_reduce", DATA, ["x", "y", "w"]),
        ]
    )


def test_a_bucket_is_full_at_some_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_collectives, "BUCKET_BYTES", 64)
    inputs = [leaf(name, 4) for name in "abcde"]  # 32 bytes each
    graph = bucket(graph_of(inputs, *map(summed, inputs)))
    assert [names for _, _, names in buckets_of(graph)] == [["a", "b"], ["c", "d"], ["e"]]


def test_elements_are_sent_as_they_lie_and_moved_behind() -> None:
    x = leaf("x", 4, 3)
    graph = bucket(graph_of([x], summed(b.reshape(b.permute(x, (1, 0)), (12,)))))
    (sent,) = (n for n in graph.nodes if n.op == "exchange")
    assert sent.inputs[0].op == "input"
    assert [n.op for n in graph.nodes if n.op in ("permute", "reshape")] == ["permute", "reshape"]


def test_buckets_mean_what_single_collectives_mean() -> None:
    x, y = leaf("x", 4), leaf("y", 2, 3)
    shares = [b.mul(x, x), b.permute(y, (1, 0))]
    gathered = b.make("all_gather", (x,), at.GroupAttrs(3))
    plain = graph_of([x, y], *map(summed, shares), gathered, summed(b.mul(summed(x), x)))
    given = [{"x": RNG.standard_normal(4), "y": RNG.standard_normal((2, 3))} for _ in range(3)]
    found, wanted = (
        [run.outputs for run in interpret_on_ranks(g, [{"inputs": i} for i in given])] for g in (bucket(plain), plain)
    )
    for one, other in zip(found, wanted, strict=True):
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value)


def test_gradients_of_the_last_layers_are_sent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there first: the others are made while they are on their way."""
    import wholestep as ws

    monkeypatch.setattr(bucket_collectives, "BUCKET_BYTES", 1)
    widths = (40, 30, 20, 10)
    layers = [ws.nn.Linear(a, c, bias=False) for a, c in pairwise(widths)]
    about = {"inputs": ws.Spec(("batch", 40)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    told = {"optimizer": ws.SGD(lr=0.1), "batch_size": 8, "shards": 2, "device": "null:cuda/sm_90"}
    options = ws.CompileOptions(cache=False)
    plan = ws.build_session(ws.nn.Sequential(*layers), **about, **told, options=options).plan
    sizes = [found.bytes for found in exchanges_of(plan) if found.bytes > 4]  # one number is the loss
    assert sizes == [4 * 20 * 10, 4 * 30 * 20, 4 * 40 * 30]
