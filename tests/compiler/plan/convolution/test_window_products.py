"""Large weights, small images: convolutions by products, gradients in place; who owns what, and the bits of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.ir.random_graphs import example_values
from tests.compiler.native import Loaded, fenced, lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.convolution import implicit_gemm, weight_gradient, winograd
from wholestep.compiler.backends.cpu.convolution.implicit_gemm import ConvolutionGeometry
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of, tiles_of
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.plan.check.soundness import check_file
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan
from wholestep.errors import PlanError
from wholestep.steps.train import train_graph

CAPACITY = {"batch": 11}

# (channels, outputs, rows, columns, kernel, stride, padding, dilation)
CASES = {
    "edges on all sides": (64, 33, 2, 2, (3, 3), 1, 1, 1),
    "several blocks of images": (32, 50, 5, 7, (3, 3), 1, 1, 1),
    "strides": (48, 37, 5, 6, (3, 2), (2, 3), (1, 0), 1),
    "dilation": (32, 40, 5, 4, (2, 3), 1, 2, (1, 2)),
    "one tap": (80, 34, 3, 3, (1, 1), 2, 0, 1),
    "taps that meet nothing": (32, 32, 1, 2, (3, 3), 1, 1, 1),
}


def convolution(case: str) -> IRGraph:
    """The updates of a weight and of one before it, so that the convolution's images have a gradient."""
    channels, outputs, rows, columns, kernel, stride, padding, dilation = CASES[case]
    g = ws.Graph()
    x, one = g.input("x", ("batch", 3, rows, columns)), g.parameter("one", (channels, 3, 1, 1))
    weight, bias = g.parameter("w", (outputs, channels, *kernel)), g.parameter("b", (outputs, 1, 1))
    y = ws.conv2d(ws.conv2d(x, one), weight, stride=stride, padding=padding, dilation=dilation) + bias
    g.set_outputs({"loss": (y * y).mean()})
    return lower(train_graph(g, ws.SGD(lr=0.1)))


def by_products(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.WINDOW and tiles_of(k).images]


def in_place(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.WINDOW and tiles_of(k).in_place]


@contextmanager
def computed(least: int) -> Iterator[None]:
    """Weights from so many bytes on are multiplied as products, a few images at a time; 0: their gradients in place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(implicit_gemm, "LEAST_BYTES", least)
        patch.setattr(implicit_gemm, "PIXELS", 64)
        patch.setattr(winograd, "MOST_BYTES", 0)
        patch.setattr(weight_gradient, "SMALL_IMAGE", 0 if least else 64)
        yield


def planned(case: str, least: int) -> Plan:
    with computed(least):
        return make_plan(convolution(case), CAPACITY)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {case: planned(case, 0) for case in CASES}


@pytest.fixture(scope="module")
def loaded(plans: dict[str, Plan]) -> dict[str, tuple[Loaded, Loaded]]:
    """Each case by products, between fences, and pixel by pixel."""
    found = {f"p{i}": fenced(plan) for i, plan in enumerate(plans.values())}
    found |= {f"q{i}": planned(case, 1 << 40) for i, case in enumerate(CASES)}
    with computed(0):
        source = "\n".join(render(plan, prefix) for prefix, plan in found.items())
    ready = {prefix: Loaded(plan, source, prefix) for prefix, plan in found.items()}
    return {case: (ready[f"p{i}"], ready[f"q{i}"]) for i, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_products_give_the_bits_of_tiles_on_any_number_of_threads(loaded: dict, case: str) -> None:
    fast, plain = loaded[case]
    assert len(by_products(fast.plan)) == 2
    assert not by_products(plain.plan)
    assert [len(in_place(of.plan)) for of in (fast, plain)] == [1, 0]
    for rows, threads in ((11, 2), (4, 3), (1, 2)):
        graph, sizes = convolution(case), {"batch": rows}
        inputs, state = example_values(graph, sizes, np.random.default_rng(rows))
        got, same = fast.run(inputs, state, sizes, threads=threads), plain.run(inputs, state, sizes, threads=1)
        for name in ("one", "w", "b"):
            assert got.state[name].tobytes() == same.state[name].tobytes(), name
    expected = interpret(graph, inputs=inputs, state=state, sizes=sizes, scalars={})
    for name in ("one", "w", "b"):
        assert_close(got.state[name], expected.state[name], "float32")


@pytest.mark.parametrize("case", CASES)
def test_every_byte_has_one_owner(plans: dict[str, Plan], case: str) -> None:
    assert violations(plans[case], {"batch": 5}, 2) == []


def test_threads_share_images_or_channels_and_nothing_else(plans: dict[str, Plan]) -> None:
    plan = plans["strides"]
    kernel = by_products(plan)[0]
    for split, granule in ((0, 1), (3, 16), (1, 16)):
        changed = replace(kernel, schedule=replace(schedule_of(kernel), split=split, granule=granule))
        other = replace(plan, kernels=tuple(changed if k is kernel else k for k in plan.kernels))
        refused = pytest.raises(PlanError, match="must be split along an axis") if split == 1 else nullcontext()
        with computed(0), refused:
            check_file(other)


def test_threads_share_the_channels_of_a_large_weight_and_another_number_of_images_is_refused() -> None:
    g = ws.Graph()
    x, weight = g.input("x", ("batch", 3, 4, 4)), g.parameter("w", (114, 128, 3, 3))
    images = ws.conv2d(x, g.parameter("one", (128, 3, 1, 1)))
    g.set_outputs({"loss": (ws.conv2d(images, weight, padding=1) ** 2).mean()})
    plan = make_plan(lower(train_graph(g, ws.SGD(lr=0.1))), CAPACITY)
    kernel, adjoint = by_products(plan)
    assert schedule_of(kernel).split == 3  # each thread packs its own part of the weight
    assert load(dump(plan)) == plan
    more = replace(tiles_of(kernel), images=tiles_of(kernel).images + 1)
    changed = replace(kernel, schedule=replace(schedule_of(kernel), inner=more))
    with pytest.raises(PlanError, match="its tiles must be"):
        check_file(replace(plan, kernels=tuple(changed if k is kernel else k for k in plan.kernels)))
    assert adjoint.body.work == kernel.body.work == 2 * 11 * (10 * 10) * 128 * 114  # of 12 x 12 taps


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("low", [0, 2])
def test_spans_meet_every_pixel_of_a_window_once(adjoint: bool, stride: int, dilation: int, low: int) -> None:
    size, kernel = (5, 7), (3, 2)
    windows = [(s + 2 * low - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(size, kernel, strict=True)]
    m = ConvolutionGeometry(adjoint, size, windows, kernel, (stride, stride), (low, low), (dilation, dilation))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            met = [(s.output + n, s.input + n) for s in m.spans(i, j) for n in range(s.count)]
            expected = []
            for y in range(windows[0]):
                for x in range(windows[1]):
                    row, column = y * stride + i * dilation - low, x * stride + j * dilation - low
                    if 0 <= row < size[0] and 0 <= column < size[1]:
                        pair = y * windows[1] + x, row * m.line + m.place(column)
                        expected.append(pair[::-1] if adjoint else pair)
            assert met == expected
