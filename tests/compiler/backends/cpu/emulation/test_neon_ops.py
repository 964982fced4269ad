"""ARM64 under qemu against the interpreter and torch: every op, random networks, products of bfloat16 by `bfdot`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cpu.compiler_suite import EXAMPLES, OPTIONS
from tests.compiler.backends.cpu.emulation.emulated import ARM64, Emulated, emulated_cpu
from tests.compiler.backends.cpu.emulation.test_neon import assert_equal_bytes, assert_losses_match
from tests.compiler.targets import make_plan
from tests.fuzz import networks
from tests.ops.compiled_ops import group_graph
from tests.ops.table import GROUPS
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.target import NEON, NEONBF16
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import TensorType, bfloat16, float32
from wholestep.compiler.passes.lower.cast_fusion import hoist_half_casts, widen_operands

pytestmark = [ARM64.needed, pytest.mark.long]
Array = np.ndarray
NETWORKS = 24
HALVES = [name for name in EXAMPLES if name.endswith("bfloat16")]
SHAPES = [(1, 1, 1), (5, 33, 7), (13, 16, 64), (50, 70, 129), (49, 20, 2100)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_op_matches_the_interpreter(group: str, dtype: str) -> None:
    """Values and gradients of the table of ops, convolutions and loops among them."""
    graph, inputs = group_graph(group, dtype)
    with emulated_cpu(NEON) as device:
        ours, expected = (_outputs(graph, inputs, where) for where in (device, "reference"))
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        exact = "exact" if value.dtype.kind in "iub" else dtype
        assert_close(ours[name], value, exact)


def _outputs(graph: ws.Graph, inputs: dict[str, Array], device: str) -> dict[str, Array]:
    session = ws.build_session(graph, optimizer=ws.SGD(lr=0.0), device=device, threads=2, options=OPTIONS, seed=0)
    return {name: np.asarray(value) for name, value in session.step(inputs).outputs.items()}


@pytest.mark.parametrize("index", range(NETWORKS))
def test_random_networks_train_as_torch_and_the_interpreter(index: int) -> None:
    """`verify`: their steps are compared with the interpreter too."""
    network = networks.at_once(networks.draw(Random(f"arm64 {index}"), 4))
    with emulated_cpu(NEON) as device:
        networks.check(replace(network, device=device, verify=True))


@pytest.mark.parametrize("name", HALVES)
def test_half_networks_with_bfdot_have_the_same_bits_for_any_number_of_threads(name: str) -> None:
    with emulated_cpu(NEONBF16) as device:
        there, on_one = (EXAMPLES[name].results(device, threads) for threads in (2, 1))
    assert_equal_bytes(there, on_one)
    assert_losses_match(name, there)
    with emulated_cpu(NEON) as device:  # where halves are widened, sums are rounded otherwise
        assert there["losses"].tobytes() != EXAMPLES[name].results(device)["losses"].tobytes()


def test_networks_of_floats_have_the_bits_of_neon_where_there_is_bfdot() -> None:
    with emulated_cpu(NEONBF16) as device:
        there = EXAMPLES["mlp"].results(device)
    with emulated_cpu(NEON) as device:
        assert_equal_bytes(there, EXAMPLES["mlp"].results(device))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_bfloat16_are_chains_of_bfdot(shape: tuple[int, int, int]) -> None:
    """To the bit, for any number of threads; `bfdot` rounds the sum of two products, and then the sum, to odd."""
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    inputs = {"x": _half(rng, m, k), "y": _half(rng, k, n)}
    x, y = (Node("input", (), at.InputAttrs(name, TensorType(a.shape, float32))) for name, a in inputs.items())
    product = b.matmul(b.cast(x, bfloat16), b.cast(y, bfloat16), False, False)
    graph = IRGraph((Output("product", product),), inputs=(x, y))
    step = Emulated(make_plan(widen_operands(hoist_half_casts(graph)), {}, target=NEONBF16))
    expected = chains_of_bfdot(inputs["x"].astype(np.float64), inputs["y"].astype(np.float64))
    for threads in (1, 3):
        got = step.run(inputs, {}, {}, threads=threads).outputs["product"]
        np.testing.assert_array_equal(got, expected)


def _half(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers that bfloat16 has, of few magnitudes, so that their sums in float64 are exact."""
    return (rng.integers(-255, 256, shape) * 2.0 ** rng.integers(-2, 3, shape)).astype(np.float32)


def chains_of_bfdot(x: Array, y: Array) -> Array:
    """The definition of BFDOT in the architecture's manual, over pairs of k; a missing last element is zero."""
    total = np.zeros((len(x), y.shape[1]))
    for k in range(0, x.shape[1], 2):
        pair = rounded_to_odd(x[:, k : k + 2] @ y[k : k + 2])
        total = rounded_to_odd(total + pair)
    return total.astype(np.float32)


def rounded_to_odd(exact: Array) -> Array:
    """The float32 towards zero, with its last bit set if that is not exact."""
    bits = exact.view(np.uint64)
    rest = np.uint64((1 << 29) - 1)
    odd = np.where(bits & rest, np.uint64(1 << 29), np.uint64(0))
    return ((bits & ~rest) | odd).view(np.float64)
