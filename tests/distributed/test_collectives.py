"""Collectives in the IR: values on ranks side by side, gradients, and steps that are divided among ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.distributed.test_shards import CASES, ROWS
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.semantics.interpret import interpret, interpret_on_ranks
from wholestep.compiler.ir.type_rules.collectives import OWN, tree_sum
from wholestep.compiler.ir.type_rules.collectives import ROWS as WHOLE
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.bucket_collectives import bucket
from wholestep.compiler.passes.distribute.data_parallel import partition_batch
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.runtime.process_group import rows_of_rank

RANKS = (1, 2, 3, 4)
RNG = np.random.default_rng(3)


def leaf(name: str, *shape: int) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(shape, float32)))


def on_ranks(graph: IRGraph, given: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return [r.outputs for r in interpret_on_ranks(graph, [{"inputs": inputs} for inputs in given])]


@pytest.mark.parametrize("ranks", RANKS)
def test_every_collective_has_its_value_on_every_rank(ranks: int) -> None:
    x, y = leaf("x", 2 * ranks, 3), leaf("y", 2, 3)
    group = at.GroupAttrs(ranks)
    made = {
        "all_reduce": b.make("all_reduce", (x,), at.GroupAttrs()),
        "reduce_scatter": b.make("reduce_scatter", (x,), group),
        "all_gather": b.make("all_gather", (y,), group),
        "broadcast": b.make("broadcast", (y,), at.GroupAttrs()),
    }
    graph = IRGraph(tuple(Output(name, node) for name, node in made.items()), (), (x, y))
    xs, ys = RNG.standard_normal((ranks, 2 * ranks, 3)), RNG.standard_normal((ranks, 2, 3))
    given = [{"x": xs[r], "y": ys[r]} for r in range(ranks)]
    for tried in (graph, bucket(graph)):
        for rank, found in enumerate(on_ranks(tried, given)):
            total = tree_sum(list(xs))
            np.testing.assert_array_equal(found["all_reduce"], total)
            np.testing.assert_array_equal(found["reduce_scatter"], total[2 * rank : 2 * rank + 2])
            np.testing.assert_array_equal(found["all_gather"], ys.reshape(2 * ranks, 3))
            np.testing.assert_array_equal(found["broadcast"], ys[0])
    assert any(n.op == "exchange" for n in bucket(graph).nodes)


def test_the_sum_of_ranks_is_a_tree() -> None:
    parts = [np.float32(v) for v in (1e8, 1.0, -1e8, 1.0)]
    assert tree_sum([np.array(p) for p in parts]) == (parts[0] + parts[1]) + (parts[2] + parts[3])
    assert tree_sum([np.array(p) for p in parts[:3]]) == (parts[0] + parts[1]) + parts[2]


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_gradient_is_that_of_the_losses_of_all_ranks(op: str) -> None:
    """Against finite differences of the sum of what every rank computes, the upstream gradient not 1."""
    ranks, shape = 2, (4, 3)
    x, c = leaf("x", *shape), leaf("c", *{"all_gather": (8, 3), "reduce_scatter": (2, 3)}.get(op, shape))
    y = b.make(op, (x,), at.GroupAttrs(0 if op == "all_reduce" else ranks))
    loss = b.sum_axes(b.mul(b.mul(y, y), c), (0, 1))
    gradient = b.make("item", (b.make("gradient", (loss, x)),), at.ItemAttrs(0))
    graph = expand_gradients(IRGraph((Output("loss", loss), Output("g", gradient)), (), (x, c)))
    xs = RNG.standard_normal((ranks, *shape))
    cs = RNG.standard_normal((ranks, *(int(e) for e in c.type.shape)))

    def losses(values: np.ndarray) -> float:
        return sum(float(f["loss"]) for f in on_ranks(graph, [{"x": values[r], "c": cs[r]} for r in range(ranks)]))

    found = on_ranks(graph, [{"x": xs[r], "c": cs[r]} for r in range(ranks)])
    for rank, place in ((0, (1, 2)), (1, (3, 0))):
        step = np.zeros_like(xs)
        step[(rank, *place)] = 1e-5
        slope = (losses(xs + step) - losses(xs - step)) / 2e-5
        np.testing.assert_allclose(found[rank]["g"][place], slope, rtol=1e-6)


# -- whole steps -------------------------------------------------------------------------------------------------


def traced(case: str, ranks: int) -> tuple[IRGraph, list[np.ndarray]]:
    """A training step with its gradients expanded: as it is, or that of one of several ranks."""
    import wholestep as ws
    from wholestep.steps.definition import as_graph, define_step
    from wholestep.steps.options import StepOptions

    make, data, settings = CASES[case]
    model = make()
    specs = [ws.Spec(("batch", *a.shape[1:]), str(a.dtype)) for a in data[:2]]
    graph = as_graph(model, specs[0], specs[1], settings["loss"])
    options = StepOptions(clip_norm=0.5)
    definition = define_step(graph, ws.AdamW(lr=1e-2), ROWS, None, options, ranks)
    expanded = strip_stop_gradients(expand_gradients(inline_calls(definition.trace("train"))))
    return (bucket(partition_batch(expanded)) if ranks else expanded), list(data[:2])


@pytest.mark.parametrize("case", [name for name in CASES if name != "micro-batches"])
def test_a_divided_step_means_what_the_whole_one_means(case: str) -> None:
    """In float64, on 3 ranks of which the first has fewer rows: every state, and every output."""
    whole, data = traced(case, 0)
    part, _ = traced(case, 3)
    names = [n.attrs.name for n in whole.inputs]  # type: ignore[attr-defined]
    rng = np.random.default_rng(5)
    state: dict[str, Any] = {}
    for name, node in whole.states().items():
        shape = tuple(int(e) for e in node.type.shape)
        drawn = rng.uniform(0.2, 0.9, shape)
        state[name] = drawn if node.type.dtype.is_float else np.zeros(shape, node.type.dtype.numpy)
    inputs = dict(zip(names, data, strict=True))
    expected = interpret(whole, inputs=inputs, state=state, sizes={"batch": ROWS}, seed=4, step=6)
    ranks = []
    for rank in range(3):
        first, count = rows_of_rank(ROWS, rank, 3)
        own = {name: a[first : first + count] for name, a in inputs.items()}
        sizes = {
            s: n for s, n in {"batch": count, OWN: first, WHOLE: ROWS}.items() if s == "batch" or s in part.symbols
        }
        ranks.append({"inputs": own, "sizes": sizes})
    for found in interpret_on_ranks(part, ranks, state=state, seed=4, step=6):
        for name, value in found.outputs.items():
            np.testing.assert_allclose(value, expected.outputs[name], rtol=1e-10, err_msg=name)
        for name, value in found.state.items():
            np.testing.assert_allclose(value, expected.state[name], rtol=1e-9, atol=1e-12, err_msg=name)
