"""Depthwise and grouped convolutions: kernels emulated in several orders, against the interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET, Emulated
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, run, together
from tests.compiler.backends.cuda.kernels.test_machine_code import ARCHITECTURES, compiled
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import as_dtype
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.autocast import lower_precision
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.options import CompileOptions
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

CAPACITY, BATCH = 5, 3
HALVES = ("bfloat16", "float16")
# Layer, channels and size of its images, dtype of its products.
CASES: dict[str, tuple[ws.nn.Module, tuple[int, ...], str]] = {
    "3x3": (ws.nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 9, 8), "float32"),
    "stride 2": (ws.nn.Conv2d(24, 24, 5, stride=2, padding=2, groups=24), (24, 9, 15), "bfloat16"),
    "7x7": (ws.nn.Conv2d(40, 40, 7, padding=3, groups=40), (40, 9, 10), "bfloat16"),
    "odd and dilated": (ws.nn.Conv2d(7, 7, 3, padding=1, dilation=2, groups=7), (7, 6, 9), "float16"),
    "in float64": (ws.nn.Conv2d(6, 6, (2, 3), 2, padding=(0, 2), groups=6, dtype="float64"), (6, 7, 9), "float64"),
    "multiplier 3": (ws.nn.Conv2d(6, 18, 3, stride=3, groups=6), (6, 5, 9), "float32"),
    "multiplier 2": (ws.nn.Conv2d(8, 16, (1, 4), padding=(0, 2), groups=8), (8, 5, 9), "float16"),
    "groups of 4": (ws.nn.Conv2d(32, 32, 3, padding=1, groups=8), (32, 5, 9), "bfloat16"),
    "groups of 8": (ws.nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=2), (16, 5, 9), "bfloat16"),
    "two groups": (ws.nn.Conv2d(20, 30, 3, stride=2, padding=1, groups=2), (20, 7, 9), "float32"),
    "stride 11": (ws.nn.Conv2d(8, 8, 3, stride=11, padding=1, groups=8), (8, 20, 25), "float32"),
    "31 wide": (ws.nn.Conv1d(8, 8, 31, padding=15, groups=8), (8, 25), "float32"),
    "3-d": (ws.nn.Conv3d(4, 4, 3, padding=1, groups=4), (4, 3, 4, 5), "bfloat16"),
    "transposed": (ws.nn.ConvTranspose2d(12, 12, 3, stride=2, padding=1, groups=12), (12, 4, 5), "float32"),
}  # fmt: skip


def traced(layer: ws.nn.Module, shape: tuple[int, ...], dtype: str) -> IRGraph:
    """A sum, so that gradients are as large as values, over the layer of a function of parameters and inputs."""
    stored = "float64" if dtype == "float64" else "float32"
    g = ws.Graph()
    x, factor = g.input("x", ("batch", *shape), stored), g.parameter("factor", shape, dtype=stored)
    with g.scope("layer"):
        y = layer(ws.tanh(x) + factor)
    g.set_outputs({"loss": (ws.sin(y) * y).sum()})
    graph = train_graph(g, ws.SGD(lr=0.125))
    return lower_precision(graph, as_dtype(dtype)) if dtype in HALVES else graph


@cache
def planned() -> dict[str, tuple[IRGraph, Emulated]]:
    """All cases in one compilation."""
    compiler = Compiler(CompileOptions(egraph=False))
    graphs = {name: traced(*case) for name, case in CASES.items()}
    plans = [compiler.plan(graph, {"batch": CAPACITY}, TARGET)[0] for graph in graphs.values()]
    return dict(zip(graphs, zip(graphs.values(), together(plans), strict=True), strict=True))


def example(plan: Plan, shape: tuple[int, ...], dtype: str, rows: int = BATCH) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(3)
    inputs = {"x": rng.standard_normal((rows, *shape)).astype("float64" if dtype == "float64" else "float32")}
    return inputs, {state: first_values(plan, seed=0)(state) for state, _ in plan.states}


def assert_the_interpreters_step(
    graph: IRGraph, emulated: Emulated, shape: tuple[int, ...], dtype: str, rows: int = BATCH
) -> None:
    """The change of every state, and the same bits in every order of threads."""
    inputs, state = example(emulated.plan, shape, dtype, rows)
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": rows})
    results = [run(emulated, inputs, state, {"batch": rows}, 0, orders) for orders in ORDERS]
    near = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 2e-5, "float64": 1e-10}[dtype]
    for key, value in {**want.outputs, **want.state}.items():
        change = value - state[key] if key in state else value
        step = results[0][key] - state[key] if key in state else results[0][key]
        np.testing.assert_allclose(step, change, rtol=near, atol=near * np.abs(change).max(), err_msg=key)
        for other in results[1:]:
            np.testing.assert_array_equal(results[0][key], other[key], err_msg="bits depend on an order")


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_interpreters_in_every_order_of_threads(name: str) -> None:
    graph, emulated = planned()[name]
    assert_the_interpreters_step(graph, emulated, *CASES[name][1:])


def windows_of(plan: Plan) -> dict[str, str]:
    """Op -> form of a plan's convolutions and adjoints."""
    return {k.body.op: schedule_of(k).form for k in plan.kernels if isinstance(k.body, Window)}


@pytest.mark.parametrize("name", CASES)
def test_they_have_forms_of_their_own_and_half_images(name: str) -> None:
    plan = planned()[name][1].plan
    forms = windows_of(plan)
    assert forms.pop("conv2d_grad_weight") == "grouped gradient"
    assert set(forms.values()) == {"cudnn" if name == "groups of 8" else "grouped"}
    for kernel in plan.kernels:
        if isinstance(kernel.body, Window) and kernel.body.op != "conv2d_grad_weight":
            stored = {plan.buffers[store.buffer].type.dtype.name for store in kernel.body.stores()}
            assert stored == {CASES[name][2]}, kernel.body.op


def test_bits_do_not_depend_on_the_capacity() -> None:
    """The slices of a weight gradient follow from the sizes of the call."""
    name = "stride 2"
    graph, emulated = planned()[name]
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": 64}, TARGET)
    assert max(schedule_of(k).chunks for k in plan.kernels) > max(schedule_of(k).chunks for k in emulated.plan.kernels)
    (larger,) = together([plan])
    inputs, state = example(plan, *CASES[name][1:])
    first, second = (run(e, inputs, state, {"batch": BATCH}, 0, (0, 0)) for e in (emulated, larger))
    for key in first:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_of_large_networks_need_no_spills(architecture: str) -> None:
    """As those of MobileNetV3, ConvNeXt and ResNeXt, with every lane of a warp at work."""
    g = ws.Graph()
    loss: Any = 0.0
    for number, (channels, size, kernel, stride, groups) in enumerate(
        ((64, 112, 3, 2, 64), (960, 7, 5, 1, 960), (96, 56, 7, 1, 96), (128, 56, 3, 1, 32), (1024, 7, 3, 1, 256))
    ):
        x = g.input(f"x{number}", ("batch", channels, 1, 1))
        with g.scope(f"layer{number}"):
            factor = g.parameter("factor", (channels, size, size))
            layer = ws.nn.Conv2d(channels, channels, kernel, stride=stride, padding=kernel // 2, groups=groups)
            loss = loss + (layer(x + factor) ** 2).sum()
    g.set_outputs({"loss": loss})
    options = CompileOptions(egraph=False, verify=False)
    device = "null:cuda/sm_90"
    session = ws.build_session(
        g, optimizer=ws.SGD(lr=0.1), batch_size=32, precision="bfloat16", device=device, options=options
    )
    grouped = [k for k in session.plan.kernels if schedule_of(k).form in ("grouped", "grouped gradient")]
    assert len(grouped) == 15
    names = {f"k{k.id}" for k in grouped}
    for used in compiled(session.plan, architecture):
        assert used.function not in names or (used.stores, used.loads, used.stack) == (0, 0, 0), used
    for kernel in grouped:
        schedule = schedule_of(kernel)
        strip, together_, inputs, outputs, lanes = schedule.tile[:5]
        assert together_ * inputs >= 4, "loads are vectors"
        assert schedule.threads // lanes * lanes >= 0.9 * schedule.threads, "lanes are idle"
        assert schedule.blocks * schedule.chunks >= 132, "multiprocessors are idle"
        assert strip * together_ * outputs <= 64, "sums do not fit registers"


def inverted_residual(g: ws.Graph, x: Any, channels: int, act: Any) -> Any:
    """A block of MobileNetV3: expansion, depthwise convolution, squeeze-excitation, projection."""
    wide = 3 * channels
    layers = {
        "expand": (ws.nn.Conv2d(channels, wide, 1, bias=False), ws.nn.BatchNorm2d(wide)),
        "depthwise": (ws.nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), ws.nn.BatchNorm2d(wide)),
        "project": (ws.nn.Conv2d(wide, channels, 1, bias=False), ws.nn.BatchNorm2d(channels)),
        "excite": (ws.nn.Conv2d(wide, 8, 1), ws.nn.Conv2d(8, wide, 1)),
    }
    y = x
    for name in ("expand", "depthwise"):
        with g.scope(name):
            y = act(ws.nn.Sequential(*layers[name])(y))
    with g.scope("excite"):
        squeeze, spread = layers["excite"]
        with g.scope("squeeze"):
            z = ws.relu(squeeze(y.mean((2, 3), keepdims=True)))
        with g.scope("spread"):
            y = y * ws.sigmoid(spread(z))
    with g.scope("project"):
        return x + ws.nn.Sequential(*layers["project"])(y)


@pytest.mark.parametrize("act", [ws.hardswish, ws.silu])
def test_the_passes_around_a_depthwise_convolution_load_half_images_only(act: Any) -> None:
    """Gradients before batch norms, and masks, are computed again by the kernels that read them."""
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 8, 6))
    with g.scope("stem"):
        y = ws.nn.Conv2d(3, 16, 3, padding=1)(x)
    for number in range(2):
        with g.scope(f"block{number}"):
            y = inverted_residual(g, y, 16, act)
    g.set_outputs({"loss": (y.mean((2, 3)) ** 2).sum()})
    graph = lower_precision(train_graph(g, ws.SGD(lr=0.01)), as_dtype("bfloat16"))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": CAPACITY}, TARGET)
    wide = [b.type.dtype.name for b in plan.buffers if b.type.rank == 4 and str(b.type).endswith("8, 6, 48]")]
    assert set(wide) == {"bfloat16"}
    (emulated,) = together([plan])
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    inputs = {"x": np.random.default_rng(3).standard_normal((BATCH, 3, 8, 6)).astype(np.float32)}
    want = interpret(
        strip_stop_gradients(expand_gradients(inline_calls(graph))), inputs=inputs, state=state, sizes={"batch": BATCH}
    )
    results = [run(emulated, inputs, state, {"batch": BATCH}, 0, orders) for orders in ORDERS]
    for key, value in {**want.outputs, **want.state}.items():
        near = 0.05 * np.abs(value - state.get(key, 0.0)).max()
        np.testing.assert_allclose(results[0][key], value, rtol=1e-3, atol=near, err_msg=key)
        np.testing.assert_array_equal(results[0][key], results[1][key], err_msg="bits depend on an order")
