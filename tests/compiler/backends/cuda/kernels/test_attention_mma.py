"""Flash attention with tensor cores, emulated: every form that people write, compared with the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.attention_graphs import Shape, attention
from tests.compiler.backends.cuda.emulation.emulated import Emulated
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from tests.compiler.backends.cuda.kernels.test_machine_code import compiled
from tests.compiler.ir.random_graphs import example_values
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.passes.simplify.inline import inline_calls
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.options import CompileOptions
from wholestep.session.verify.trials import rounding_graph

CAPACITY = {"batch": 2, "time": 37}
HALF, TF32 = "cuda/sm_90", "cuda/sm_90+tf32"


def same(*shape: int | str) -> tuple[Shape, Shape, Shape]:
    return shape, shape, shape


def forms(dtype: DType) -> dict[str, IRGraph]:
    """Causal, masked, grouped, of unequal lengths and widths, and of widths that are no multiple of 16."""
    heads: Shape = ("batch", 2)
    return {
        "causal": attention(*same(*heads, "time", 16), causal=True, dtype=dtype),
        "a bias shared by the batch": attention(*same(2, 1, 49, 32), mask=(1, 49, 49), dtype=dtype),
        "padding": attention(*same(*heads, "time", 8), mask=("batch", "time"), axes=(0, 3), dtype=dtype),
        "shared keys, causal, with a mask": attention(
            ("batch", 4, "time", 24), *same(*heads, "time", 24)[1:], mask=("time", "time"), causal=True, dtype=dtype
        ),
        "a memory, odd widths": attention((*heads, 5, 33), (*heads, "time", 33), (*heads, "time", 12), dtype=dtype),
        "more queries than keys": attention(
            (*heads, "time", 20), (*heads, 18, 20), (*heads, 18, 20), causal=True, dtype=dtype
        ),
        "65 queries": attention(*same(1, 1, 65, 16), causal=True, dtype=dtype),
        "more than a tile": attention(
            (1, 2, 70, 16), *same(1, 1, 83, 16)[1:], mask=(2, 83), axes=(1, 3), dtype=dtype
        ),
    }  # fmt: skip


def planned(graph: IRGraph, target: str, capacity: dict[str, int] = CAPACITY) -> Plan:
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, capacity, TARGETS[target])
    calls = [schedule_of(k).form for k in plan.kernels if isinstance(k.body, Call)]
    assert calls == [Form.ATTENTION_MMA] * 2
    return plan


def beside_the_interpreter(graph: IRGraph, emulated: Emulated, sizes: dict[str, int], rounding: float) -> None:
    """The values, and the same bits in several orders of threads and blocks."""
    inputs, _ = example_values(graph, sizes, np.random.default_rng(0))
    expected = interpret(graph, inputs=inputs, state={}, sizes=sizes, seed=0, step=STEP).outputs
    first, *others = [run(emulated, inputs, {}, sizes, 0, orders) for orders in ORDERS]
    for key, value in expected.items():
        largest = np.abs(value[np.isfinite(value)]).max(initial=1.0)
        np.testing.assert_allclose(first[key], value, rtol=0, atol=rounding * largest, err_msg=f"{key} at {sizes}")
        for other in others:
            np.testing.assert_array_equal(first[key], other[key], err_msg=f"bits of {key} depend on an order")


@pytest.mark.parametrize(
    ("dtype", "target", "rounding"),  # the probabilities and score gradients are rounded, too
    [(bfloat16, HALF, 2**-6), (float16, HALF, 2**-9), (float32, TF32, 2**-9)],
    ids=["bfloat16", "float16", "tf32"],
)
def test_forms_beside_the_interpreter(dtype: DType, target: str, rounding: float) -> None:
    graphs = forms(dtype)
    emulated = together([planned(g, target) for g in graphs.values()])
    for graph, one in zip(graphs.values(), emulated, strict=True):
        for capacity in (CAPACITY, {"batch": 1, "time": 1}) if graph.symbols else (CAPACITY,):
            beside_the_interpreter(graph, one, {s: capacity[s] for s in graph.symbols}, rounding)


def test_bits_do_not_depend_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block for all gradients or several, 16 or 32 rows per warp, one or two buffers: the sums have one order."""
    graph = forms(bfloat16)["shared keys, causal, with a mask"]
    plans = [planned(graph, HALF)]
    for costs in (
        {"mma_short_columns": 0},
        {"mma_short_columns": 0, "mma_backward_row": 0, "mma_others": 16},
        {"mma_short_columns": 0, "mma_columns": 16, "mma_warps": 2, "mma_forward_row": 128},
    ):
        set_costs(monkeypatch, "attention", **costs)
        plans.append(planned(graph, HALF))
    assert len({tuple(schedule_of(k).tile for k in plan.kernels if isinstance(k.body, Call)) for plan in plans}) == 4
    sizes = {s: CAPACITY[s] for s in graph.symbols}
    inputs, _ = example_values(graph, sizes, np.random.default_rng(0))
    first, *others = [run(one, inputs, {}, sizes, 0, ORDERS[0]) for one in together(plans)]
    for other in others:
        for key, value in first.items():
            np.testing.assert_array_equal(other[key], value, err_msg=key)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_kernels_keep_their_values_in_registers(width: int, architecture: str) -> None:
    """The forms that need the most: a mask with its gradient, shared keys, causal comparisons."""
    keys = same(2, 2, 197, width)[1:]
    graph = attention((2, 4, 197, width), *keys, mask=(197, 197), causal=width == 64, dtype=bfloat16)
    for used in compiled(planned(graph, f"cuda/{architecture}"), architecture):
        assert used.stores + used.loads == 0, used


def test_the_self_check_counts_the_roundings_of_routines() -> None:
    """The gradient of a key's bias is 0 but for roundings, of results and of their gradients, too."""
    g = ws.Graph()
    x = g.input("x", ("batch", 24, 16))
    q, k, v = (x @ g.parameter(name, (16, 16)) + g.parameter(f"{name}.bias", (16,)) for name in "qkv")
    g.set_outputs({"loss": (ws.attention(q, k, v) ** 2).mean()})
    options = CompileOptions(verify=False, cache=False, egraph=False)
    given = {"optimizer": ws.SGD(lr=0.1), "batch_size": 4, "precision": "bfloat16", "options": options}
    session = ws.build_session(g, device="null:cuda/sm_90", **given)
    compiled_session = session._programs.compiled
    assert compiled_session is not None
    trace = compiled_session.definition.trace("train")
    plain = decompose(expand_gradients(inline_calls(trace)))

    def is_rounded(node: Node) -> bool:
        return node.type.dtype.is_half or (node.op in ("reshape", "cast", "sum") and is_rounded(node.inputs[0]))

    def half_sums(graph: IRGraph) -> int:
        """The sums of values that were rounded to the half type."""
        return sum(n.op == "sum" and is_rounded(n) for n in graph.nodes)

    counted = rounding_graph(trace, session.plan)
    assert (half_sums(counted), half_sums(plain)) == (3, 0), "of the gradients of three biases"
    inputs, state = example_values(counted, {"batch": 2}, np.random.default_rng(0))
    once, twice = (interpret(step, inputs=inputs, state=state, sizes={"batch": 2}).state for step in (counted, plain))
    for name, value in once.items():
        np.testing.assert_allclose(value, twice[name], atol=2e-2)
