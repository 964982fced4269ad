"""Convolutions and pools of few channels: kernels emulated in several orders, against the interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET, Emulated
from tests.compiler.backends.cuda.emulation.fake_gpu import fake_gpu
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, run, together
from wholestep.compiler.backends.cuda.libraries.cudnn import CudnnOp, CudnnTensor, PreparedGraph
from wholestep.compiler.backends.cuda.libraries.cudnn_convolution import OPS, preferred_engine
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.grids.convolution import Shape, best_tile, schedule_weights
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import bfloat16
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.autocast import lower_precision
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Columns, Window
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.models.resnet import BasicBlock, projection
from wholestep.options import CompileOptions
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

CAPACITY, BATCH = 5, 3
UNCHECKED = CompileOptions(egraph=False, verify=False)
# Channels, outputs, size and kernel of convolutions in networks for small images
SMALL = ((1, 6, 28, 5), (6, 16, 14, 5), (16, 16, 32, 3), (32, 64, 16, 3), (3, 16, 224, 3))

# Of an image (channels, rows, columns): its convolutions, each followed by a pool of so many pixels or by none.
Case = tuple[tuple[int, int, int], list[tuple[int, dict[str, Any], int]]]
WIDE = {"kernel": (2, 3), "stride": (2, 1)}
CASES: dict[str, Case] = {
    "lenet": ((1, 12, 12), [(6, {"kernel": 5, "padding": 2}, 2), (16, {"kernel": 3}, 2)]),
    "steps": ((3, 9, 8), [(5, {"kernel": 3, "stride": 2, "padding": 1}, 0), (4, WIDE, 0)]),
    "far": ((4, 11, 7), [(8, {"kernel": 3, "dilation": 2, "padding": (2, 1)}, 0), (7, {"kernel": 1}, 3)]),
    "groups": ((4, 6, 6), [(8, {"kernel": 3, "groups": 2, "padding": 1}, 2), (6, {"kernel": 3, "padding": 1}, 0)]),
}  # fmt: skip
# Of many channels: in half types they are a library's.
MANY: dict[str, Case] = {
    "half": ((8, 9, 7), [(16, {"kernel": 3, "stride": 2, "padding": 1}, 0), (8, {"kernel": 1}, 2)]),
    "half and far": ((16, 9, 8), [(8, {"kernel": 3, "dilation": 2, "padding": 2}, 0), (8, {"kernel": (1, 3)}, 0)]),
    "half and filled up": ((3, 7, 8), [(32, {"kernel": 3, "padding": 1}, 0), (8, {"kernel": 1}, 0)]),
    "half of odd numbers": ((45, 12, 12), [(20, {"kernel": 3, "padding": 1}, 0), (45, {"kernel": 3, "stride": 2}, 0)]),
    "half of pixels": ((40, 40, 40), [(21, {"kernel": 1}, 0)]),
    "half of few": ((3, 8, 8), [(8, {"kernel": 3, "padding": 1}, 2), (24, {"kernel": 2, "groups": 2}, 0)]),
}


def traced(name: str, dtype: str = "float32") -> IRGraph:
    (channels, rows, columns), layers = (CASES | MANY)[name]
    g = ws.Graph()
    x = g.input("x", ("batch", channels, rows, columns), dtype)
    for number, (outputs, options, pool) in enumerate(layers):
        with g.scope(f"layer{number}"):
            x = ws.nn.Conv2d(channels, outputs, **options, dtype=dtype)(x)
        x = ws.relu(ws.nn.MaxPool2d(pool)(x)) if pool else ws.tanh(x)
        channels = outputs
    g.set_outputs({"loss": (x**2).mean()})
    graph = train_graph(g, ws.SGD(lr=0.5))
    return lower_precision(graph, bfloat16) if name in MANY else graph


@cache
def planned() -> dict[str, tuple[IRGraph, Emulated]]:
    """All cases in one compilation."""
    compiler = Compiler(CompileOptions(egraph=False))
    graphs = {name: traced(name) for name in (*CASES, *MANY)} | {"lenet in float64": traced("lenet", "float64")}
    plans = [compiler.plan(graph, {"batch": CAPACITY}, TARGET)[0] for graph in graphs.values()]
    return dict(zip(graphs, zip(graphs.values(), together(plans), strict=True), strict=True))


@pytest.mark.parametrize("name", [*CASES, *MANY, "lenet in float64"])
def test_a_step_is_the_interpreters_in_every_order_of_threads(name: str) -> None:
    graph, emulated = planned()[name]
    rng, (shape, _) = np.random.default_rng(3), (CASES | MANY)[name.removesuffix(" in float64")]
    inputs = {"x": rng.standard_normal((BATCH, *shape)).astype("float64" if "64" in name else "float32")}
    state = {name: first_values(emulated.plan, seed=0)(name) for name, _ in emulated.plan.states}
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": BATCH})
    found = [run(emulated, inputs, state, {"batch": BATCH}, 0, orders) for orders in ORDERS]
    near = {"rtol": 1e-9, "atol": 1e-11} if "64" in name else {"rtol": 2e-5, "atol": 2e-6}
    near = {"rtol": 2e-2, "atol": 2e-3} if name in MANY else near
    for key, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(found[0][key], value, err_msg=key, **near)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0][key], other[key], err_msg="bits depend on an order")


def test_pools_share_the_kernels_of_their_convolutions() -> None:
    """Forward, and both gradients of the second layer; nothing of a pool's input is in memory."""
    _, emulated = planned()["lenet"]
    kernels = {getattr(k.body, "op", ""): k for k in emulated.plan.kernels}
    assert {"conv2d", "pooled_grad_input", "pooled_grad_weight"} <= kernels.keys()
    assert not any("pool2d" in op for op in kernels)
    assert schedule_of(kernels["pooled_grad_weight"]).form == "pooled gradient"


def test_convolutions_of_many_channels_in_half_types_are_the_librarys() -> None:
    """With its own strides, kernels of one pixel and pools behind; groups and three channels are ours."""
    forms = {name: windows_of(planned()[name][1].plan) for name in MANY}
    assert forms["half"] == forms["half and far"] == forms["half and filled up"] == ["cudnn"] * 5
    assert set(forms["half of odd numbers"]) == {"cudnn", "direct", "gradient"}  # the second layer has little work
    assert forms["half of pixels"] == ["direct", "cudnn"]  # outputs of the weight gradient alone are filled up
    assert set(forms["half of few"]) == {"direct", "gradient", "grouped", "grouped gradient"}


def test_norms_over_pixels_read_their_images_once() -> None:
    """Mean and variance in one pass, far from zero as well; so are gradients."""
    g = ws.Graph()
    x = g.input("x", ("batch", 16, 6, 6))
    first, norm = ws.nn.Conv2d(16, 64, 3, padding=1), ws.nn.BatchNorm2d(64)
    with g.scope("far"):
        y = first(x) + 1000.0
    g.set_outputs({"loss": (ws.relu(norm(y)) ** 2).mean()})
    graph = train_graph(g, ws.SGD(lr=0.5))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": CAPACITY}, TARGET)
    sums = [k.body for k in plan.kernels if isinstance(k.body, Columns) and schedule_of(k).width == 8]
    assert [len(body.levels[0].reduces) for body in sums] == [2, 2, 1]  # forward, backward, and of the bias
    (emulated,) = together([plan])
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    inputs = {"x": np.random.default_rng(3).standard_normal((BATCH, 16, 6, 6)).astype(np.float32)}
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": BATCH})
    found = [run(emulated, inputs, state, {"batch": BATCH}, 0, orders) for orders in ORDERS]
    for key, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(found[0][key], value, rtol=1e-3, atol=1e-4, err_msg=key)
        np.testing.assert_array_equal(found[0][key], found[1][key], err_msg="bits depend on an order")


def test_a_session_in_half_types_trains_as_the_reference_with_any_batch() -> None:
    """Through the driver of the tests: the library's calls are captured for each size of a batch."""

    def trained(device: str) -> tuple[list[float], Any]:
        layers = ws.nn.Conv2d(8, 16, 3, padding=1), ws.nn.BatchNorm2d(16), ws.nn.ReLU(), ws.nn.GlobalAvgPool2d()
        g = ws.Graph()
        x, labels = g.input("x", ("batch", 8, 5, 5)), g.input("labels", ("batch",), "int32")
        scores = ws.nn.Sequential(*layers, ws.nn.Linear(16, 4))(x)
        g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels)})
        session = ws.build_session(
            g, optimizer=ws.SGD(lr=0.1), batch_size=4, precision="bfloat16", device=device, seed=1, options=UNCHECKED
        )
        rng = np.random.default_rng(5)
        images, classes = rng.standard_normal((4, 8, 5, 5)).astype(np.float32), rng.integers(0, 4, 4).astype(np.int32)
        return [float(session.step(x=images[:n], labels=classes[:n])) for n in (4, 3, 4)], session

    with fake_gpu() as fake:
        found, session = trained("cuda")
        assert fake.graphs == 3, "one for each size, and one for the half forms of states"
        report = str(session.report())
    np.testing.assert_allclose(found, trained("reference")[0], rtol=2e-2)
    assert "2 convolutions and adjoints by cuDNN, channels-last, with deterministic algorithms" in report


def test_large_passes_have_launches_of_their_own() -> None:
    """Two norms that are added, one after the other by images: too many bytes for one block an image."""
    g = ws.Graph()
    x = g.input("x", ("batch", 64, 16, 16))
    block = BasicBlock(64, 128, 2, projection, "float32")
    g.set_outputs({"loss": (block(x) ** 2).mean()})
    options = CompileOptions(egraph=False, verify=False)
    session = ws.build_session(
        g, optimizer=ws.SGD(lr=0.1), batch_size=256, precision="bfloat16", device="null:cuda/sm_90", options=options
    )
    large = [k for k in session.plan.kernels if k.bytes > 8 << 20]
    assert large
    assert all(schedule_of(k).chained == 0 for k in large)


def test_a_measured_algorithm_is_taken_where_the_library_proposes_it() -> None:
    """Of many images on the GPU that was measured; else the first that can be built, which the library finds."""

    class Proposals:
        def __init__(self, *names: str) -> None:
            self.names, self.built = names, list[str]()

        def get_execution_plan_count(self) -> int:
            return len(self.names)

        def get_plan_name_at_index(self, number: int) -> str:
            return self.names[number]

        def build_plan_at_index(self, number: int) -> None:
            self.built.append(self.names[number])

        def build_plans(self) -> None:
            self.built.append("first")

    def wanted(images: int, target: str = "cuda/sm_90") -> str:
        shapes = ((images, 512, 4, 4), (512, 512, 3, 3), (images, 512, 4, 4))
        named = zip(("x", "weight", "y"), shapes, strict=True)
        arrays = [CudnnTensor(name, shape, (1, 1, 1, 1), bfloat16) for name, shape in named]
        options = tuple((name, (1, 1)) for name in ("dilation", "padding", "stride"))
        return preferred_engine(target, CudnnOp("conv_fprop", (), ("y",), options), arrays)

    name = wanted(256)
    assert name.startswith("eng")
    assert wanted(8) == wanted(256, "cuda/sm_80") == ""
    for proposed, prefers, built in ((("a", name), name, name), (("a", "b"), name, "first"), (("a",), "", "first")):
        prepared = PreparedGraph.__new__(PreparedGraph)
        prepared._graph = Proposals(*proposed)
        number = prepared._build_engine(prefers)
        assert (prepared._graph.built, number) == ([built], proposed.index(name) if built == name else None)


def test_in_tf32_convolutions_of_many_channels_are_the_librarys() -> None:
    """Weights and what is given lie channels last for it; without tf32, float32 is multiplied by kernels of ours."""
    g = ws.Graph()
    layers = ws.nn.Conv2d(32, 40, 3, padding=1), ws.nn.ReLU(), ws.nn.MaxPool2d(2), ws.nn.Conv2d(40, 32, 1), ws.nn.Tanh()
    g.set_outputs({"loss": (ws.nn.Sequential(*layers)(g.input("x", ("batch", 32, 4, 4))) ** 2).mean()})
    graph, compiler = train_graph(g, ws.SGD(lr=0.5)), Compiler(UNCHECKED)
    plain, _ = compiler.plan(graph, {"batch": CAPACITY}, TARGET)
    assert "cudnn" not in windows_of(plain)
    plan, _ = compiler.plan(graph, {"batch": CAPACITY}, TARGETS["cuda/sm_90+tf32"])
    assert windows_of(plan) == ["cudnn"] * 5
    (emulated,) = together([plan])
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    inputs = {"x": np.random.default_rng(3).standard_normal((BATCH, 32, 4, 4)).astype(np.float32)}
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": BATCH})
    found = run(emulated, inputs, state, {"batch": BATCH}, 0, (0, 0))
    for key, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


def windows_of(plan: Plan) -> list[str]:
    """The forms of convolutions and their adjoints."""
    return [schedule_of(k).form for k in plan.kernels if isinstance(k.body, Window) and k.body.op in OPS]


def test_every_convolution_of_few_channels_has_a_tile_that_fits() -> None:
    """Of networks for small images; one of many channels has none and is a product."""
    costs = TARGET.cost_model.convolution
    for channels, outputs, size, kernel in (
        (1, 6, 28, 5),
        (6, 16, 14, 5),
        (16, 16, 32, 3),
        (32, 64, 16, 3),
        (3, 16, 224, 3),
    ):
        shape = Shape(kernel, kernel, (1, 1), (1, 1), channels, outputs, size, size, (1, 1))
        tile = best_tile(shape, 64, 4, TARGET)
        assert tile is not None
        assert sum(tile.elements(shape)) * 4 <= costs.shared_bytes
        assert tile.blocks(shape) * tile.groups * tile.each * tile.band * tile.across >= outputs * size**2 // 4
        assert channels == 3 or schedule_weights(shape, 64, 4, costs) is not None
    many = Shape(3, 3, (1, 1), (1, 1), 512, 512, 7, 7, (1, 1))
    assert best_tile(many, 64, 4, TARGET) is None
    assert schedule_weights(many, 64, 4, costs) is None
