"""Steps whose products are of half elements: compiled against interpreted, for any number of threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.native import Loaded, Ran, fenced, lower
from tests.compiler.step_graphs import attention_step, convolution_step, example, mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.layout.stored_layout import PAIRS
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.compiler.passes.lower.cast_fusion import hoist_half_casts, widen_operands
from wholestep.compiler.plan.check.soundness import check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Plan, Space

OPERANDS = {"matmul": (0, 1), "attention": (0, 1, 2), "attention_lse": (0, 1, 2), "attention_grad": (0, 1, 2, -1)}
OPERANDS |= dict.fromkeys(("conv2d", "conv2d_grad_input", "conv2d_grad_weight"), (0, 1))


def halved(graph: IRGraph, dtype: DType) -> IRGraph:
    """The graph with the operands of its products rounded to a half type, forward and backward."""

    def rule(node: Node) -> Node:
        places = [range(len(node.inputs))[p] for p in OPERANDS.get(node.op, ())]
        if not places or any(node.inputs[p].type.dtype != float32 for p in places):
            return node
        inputs = [b.cast(x, dtype) if i in places else x for i, x in enumerate(node.inputs)]
        if node.op == "matmul":
            flags = node.attrs
            return b.matmul(*inputs, flags.transpose_a, flags.transpose_b)  # type: ignore[attr-defined]
        return node.with_inputs(inputs)

    return rewrite(graph, rule)


def planned(graph: IRGraph, capacity: dict[str, int]) -> Plan:
    plan = make_plan(widen_operands(hoist_half_casts(graph)), capacity)
    check(plan)
    return plan


def states_of(plan: Plan) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {name: plan.buffers[i].type.shape for name, i in plan.states}
    return {name: np.abs(rng.normal(scale=0.1, size=shape)).astype(np.float32) for name, shape in shapes.items()}


def assert_near(got: Ran, want: Ran, eps: float) -> None:
    """A value whose float32 differs in the last bit may be rounded to the half next to it: so far a result moves."""
    for name, value in (want.state | want.outputs).items():
        found = (got.state | got.outputs)[name]
        # A step's parameter moves by its learning rate, whatever the gradient: Adam divides by its size.
        floor = 2e-3 if name in want.state and ".adam." not in name else eps * np.abs(value).max()
        np.testing.assert_allclose(found, value, rtol=eps, atol=floor, err_msg=name)


STEPS: dict[str, tuple[Callable[[], IRGraph], int, int]] = {
    "mlp": (lambda: mlp_step(49, 70, 10), 49, 10),
    "blocks of 16": (lambda: mlp_step(64, 128, 32), 64, 32),
    "attention": (attention_step, 320, 10),
    "convolution": (convolution_step, 220, 5),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, bfloat16) for n in STEPS), ("mlp", float16), ("convolution", float16)], ids=str
)
def test_steps_match_the_interpreter_for_any_number_of_threads(name: str, dtype: DType) -> None:
    make, inputs, classes = STEPS[name]
    graph = halved(make(), dtype)
    plan = planned(graph, {"batch": 21})
    state, given = states_of(plan), example(21, inputs, classes)
    want = interpret(graph, inputs=given, state=state, sizes={"batch": 21}, step=3)
    loaded = Loaded(fenced(plan))
    first = loaded.run(given, state, {"batch": 21}, step=3, threads=1)
    assert_near(first, Ran(want.outputs, want.state), dtype.eps)
    for threads in (2, 3, 7):
        ran = loaded.run(given, state, {"batch": 21}, step=3, threads=threads)
        for key, value in (first.state | first.outputs).items():
            assert value.tobytes() == (ran.state | ran.outputs)[key].tobytes(), (key, threads)


def test_a_second_step_reads_the_copies_that_the_first_one_wrote() -> None:
    """One step twice over the same memory is two steps, each with copies made anew from the states."""
    plan = planned(halved(mlp_step(64, 128, 33, 10), bfloat16), {"batch": 21})
    state, given = states_of(plan), example(21, 64, 10)
    loaded = Loaded(plan)
    apart = loaded.run(given, loaded.run(given, state, {"batch": 21}, step=1).state, {"batch": 21}, step=1)
    together = loaded.run(given, state, {"batch": 21}, step=1, times=2)
    for name, value in (apart.state | apart.outputs).items():
        assert value.tobytes() == (together.state | together.outputs)[name].tobytes(), name


def test_weights_have_half_copies_in_pairs_and_nothing_is_cast_by_itself() -> None:
    plan = planned(halved(mlp_step(64, 128, 32), bfloat16), {"batch": 21})
    copies = Counter((c.name, c.transposed, c.layout) for c in plan.buffers if c.space is Space.COPY)
    assert copies == {("w0", False, PAIRS): 1, ("w1", False, PAIRS): 1, ("w1", True, PAIRS): 1}
    assert all(c.type.dtype == bfloat16 for c in plan.buffers if c.space is Space.COPY)
    alone = [k.origin for k in plan.kernels if set(k.origin) == {"cast"}]
    assert alone == [("cast",)]  # the caller's own array
    halves = {c.id for c in plan.buffers if c.type.dtype == bfloat16}
    assert all(k.body.a.buffer in halves for k in plan.kernels if isinstance(k.body, Dot))
    assert load(dump(plan)) == plan


@settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(graphs(), min_size=6, max_size=6), st.integers(0, 2**32), st.sampled_from([bfloat16, float16]))
def test_random_graphs(many: list[IRGraph], seed: int, dtype: DType) -> None:
    sizes, capacity = {"batch": 7, "time": 3}, {"batch": 40, "time": 5}
    halves = [halved(lower(g), dtype) for g in many]
    plans = [fenced(planned(g, capacity)) for g in halves]
    source = "\n".join(render(p, f"g{i}") for i, p in enumerate(plans))
    for i, (graph, plan) in enumerate(zip(halves, plans, strict=True)):
        inputs, state = example_values(graph, sizes, np.random.default_rng(seed))
        want = interpret(graph, inputs=inputs, state=state, sizes=sizes, seed=seed, step=3)
        loaded = Loaded(plan, source, f"g{i}")
        one, three = (loaded.run(inputs, state, sizes, seed=seed, step=3, threads=t) for t in (1, 3))
        for name, value in (one.outputs | one.state).items():
            assert value.tobytes() == (three.outputs | three.state)[name].tobytes(), name
        for name, value in want.outputs.items():
            if value.dtype.kind == "f":
                scale = max(1.0, float(np.abs(value[np.isfinite(value)]).max(initial=0.0)))
                np.testing.assert_allclose(one.outputs[name], value, rtol=4 * dtype.eps, atol=4 * dtype.eps * scale)
