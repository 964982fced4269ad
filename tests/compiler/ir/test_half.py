"""Half types: the table, what each op does with them, where the interpreter rounds, and text that keeps their bits."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Trait, ops_with
from wholestep.compiler.ir.printer import parse_graph, print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import (
    DTYPES,
    DType,
    TensorType,
    TupleType,
    as_dtype,
    as_shape,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int32,
    letter_of,
)
from wholestep.errors import DTypeError

HALVES = (bfloat16, float16)
RNG = np.random.default_rng(0)


def leaf(name: str, shape: object, dtype: DType) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(as_shape(shape), dtype)))


def run(node: Node, **inputs: np.ndarray) -> np.ndarray:
    leaves = [n for n in IRGraph((Output("y", node),)).nodes if n.op == "input"]
    return interpret(IRGraph((Output("y", node),), (), tuple(leaves)), inputs=inputs).outputs["y"]


def to_torch(array: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float32).to(getattr(torch, dtype.name))


# -- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_table_says_what_numpy_says(dtype: DType):
    assert dtype.numpy.name == dtype.name
    assert dtype.size == dtype.numpy.itemsize
    assert as_dtype(dtype.name) is as_dtype(dtype.numpy) is as_dtype(dtype) is dtype
    assert (letter_of(dtype.numpy) == "f", letter_of(dtype.numpy) in "iu") == (dtype.is_float, dtype.is_integer)
    if dtype.is_float:
        assert (dtype.eps, dtype.largest) == (float(ml_dtypes.finfo(dtype.numpy).eps), ml_dtypes.finfo(dtype.numpy).max)
    assert dtype.accumulate is (float32 if dtype in HALVES else dtype)
    assert dtype.is_half is (dtype in HALVES)


def test_programs_of_float32_never_load_ml_dtypes():
    code = "import sys, wholestep as ws; ws.float32.numpy; ws.bfloat16; assert 'ml_dtypes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- what an op does with half operands ------------------------------------------------------------------------------

ROUNDS, COPIES, ACCUMULATES, EXACT, REFUSES, CARRIES = "rounds", "copies", "accumulates", "exact", "refuses", "carries"
# One row for every op: `rounds` gives a half result, rounded once; `copies` and `carries` (whatever holds graphs or
# several values) change no bit; `accumulates` gives float32; `exact` gives integers or truth values; `refuses` takes
# none.
MEANING: dict[str, str] = {
    **dict.fromkeys(
        (name for name, op in OPS.items() if op.family.value in ("pointwise", "ratio", "composite", "window")), ROUNDS
    ),
    **dict.fromkeys((name for name, op in OPS.items() if op.family.value in ("movement", "control", "loop")), CARRIES),
    **dict.fromkeys(("input", "parameter", "state", "constant"), CARRIES),
    **dict.fromkeys(ops_with(Trait.COPIES), COPIES),
    **dict.fromkeys(ops_with(Trait.PRODUCT), ACCUMULATES),
    **dict.fromkeys(ops_with(Trait.COMPARES), EXACT),
    **dict.fromkeys(("argmax", "max_pool2d_index"), EXACT),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "iota", "random", "scalar", "size"), REFUSES),
    **dict.fromkeys(("floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"), REFUSES),
    **dict.fromkeys((name for name, op in OPS.items() if op.family.value == "collective"), REFUSES),
    "sum": ACCUMULATES,
    "max": ROUNDS,
    "scatter_add": ROUNDS,
    "cast": ROUNDS,
}


def of_half(op: str, half: DType) -> Node:
    """A node of half operands; what cannot be of half types (labels, indices, conditions) is of its own."""
    x, y = leaf("x", (2, 3), half), leaf("y", (2, 3), half)
    image, weight = leaf("i", (2, 4, 4, 3), half), leaf("w", (5, 3, 3, 3), half)
    row, index = leaf("r", (3,), half), leaf("k", (2,), int32)
    conv = at.ConvAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1, True)
    conv_grad = at.ConvGradAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1, True, (4, 4))
    weight_grad = at.ConvGradAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1, True, (3, 3))
    pool = at.PoolAttrs((2, 2), (2, 2), (0, 0), (0, 0), True)
    pool_grad = at.PoolGradAttrs((2, 2), (2, 2), (0, 0), (0, 0), True, (4, 4))
    places = Node("max_pool2d_index", [image], pool)
    pooled, g5 = leaf("p", (2, 2, 2, 3), half), leaf("g", (2, 4, 4, 5), half)
    attend = at.AttentionAttrs(False, 0.5)
    lse = Node("attention_lse", [x, x, x], attend)
    norm, group = at.NormAttrs(1e-5), at.GroupNormAttrs(1, 1e-5)
    made: dict[str, tuple[list[Node], at.Attrs]] = {
        **{op: ([x], at.GroupAttrs(1)) for op in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")},
        "exchange": ([x], at.ExchangeAttrs("all_reduce")),
        "where": ([leaf("c", (2, 3), boolean), x, y], at.NONE),
        "cast": ([leaf("f", (2, 3), float32)], at.CastAttrs(half)),
        "sum": ([x], at.SumAttrs((1,), float32)),
        "max": ([x], at.MaxAttrs((1,))),
        "argmax": ([x], at.ArgmaxAttrs(1)),
        "gather": ([x, index], at.GatherAttrs(0)),
        "scatter_add": ([x, index], at.ScatterAddAttrs(0, 4)),
        "write_rows": ([x, y, leaf("s", (), int32)], at.NONE),
        "matmul": ([x, y], at.MatmulAttrs(False, True, float32)),
        "conv2d": ([image, weight], conv),
        "conv2d_grad_input": ([g5, weight], conv_grad),
        "conv2d_grad_weight": ([image, g5], weight_grad),
        "max_pool2d": ([image], pool),
        "max_pool2d_index": ([image], pool),
        "max_pool2d_grad": ([pooled, places], pool_grad),
        "max_pool2d_pick": ([image, places], pool),
        "pooled_grad_weight": (
            [image, pooled, places],
            at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (4, 4), (3, 3)),
        ),
        "pooled_grad_input": (
            [pooled, places, leaf("w3", (3, 3, 3, 3), half)],
            at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (4, 4), (4, 4)),
        ),
        "gelu": ([x], at.GeluAttrs(False)),
        **{name: ([x], at.SoftmaxAttrs(1)) for name in ("softmax", "log_softmax", "logsumexp")},
        "cross_entropy": ([x, index], at.NONE),
        **{name: ([x, row], norm) for name in ("layer_norm", "rms_norm", "batch_norm")},
        **{f"{name}_grad": ([x, row, y], norm) for name in ("layer_norm", "rms_norm", "batch_norm")},
        "group_norm": ([x, row], group),
        "group_norm_grad": ([x, row, y], group),
        "dropout": ([x, Node("scalar", (), at.ScalarAttrs("rate", 0.5))], at.DropoutAttrs("k")),
        "attention": ([x, x, x], attend),
        "attention_lse": ([x, x, x], attend),
        "attention_grad": ([x, x, x, lse, y], attend),
        "random": ([], at.RandomAttrs("k", TensorType((2,), half))),
        "iota": ([], at.IotaAttrs(TensorType((2,), half), 0)),
    }
    inputs, attrs = made.get(op, ([x, y, y][: OPS[op].arity or 1], at.NONE))
    return Node(op, inputs, attrs)


def test_every_op_says_what_it_does_with_half_types():
    assert MEANING.keys() == OPS.keys()


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("op", sorted(name for name, meaning in MEANING.items() if meaning != CARRIES))
def test_the_type_of_a_result(op: str, half: DType):
    if MEANING[op] == REFUSES:
        if op not in ("scalar", "size"):  # float64, whatever they meet
            with pytest.raises(DTypeError):
                of_half(op, half)
        return
    result = of_half(op, half).result
    items = result.items if isinstance(result, TupleType) else (result,)
    expected = {ROUNDS: half, COPIES: half, ACCUMULATES: float32}
    for item in items:
        assert item.dtype == expected[MEANING[op]] if MEANING[op] != EXACT else not item.dtype.is_float


def test_sums_of_half_terms_are_not_added_in_half():
    x = leaf("x", (2, 3), bfloat16)
    with pytest.raises(DTypeError, match="sum of bfloat16 accumulates in float32; received bfloat16"):
        Node("sum", [x], at.SumAttrs((0,), bfloat16))
    with pytest.raises(DTypeError, match="matmul of float16 accumulates in float32; received float16"):
        Node("matmul", [leaf("x", (2, 3), float16)] * 2, at.MatmulAttrs(False, True, float16))
    with pytest.raises(DTypeError, match="sum of float64 accumulates in float64; received float32"):
        Node("sum", [leaf("x", (2, 3), float64)], at.SumAttrs((0,), float32))
    with pytest.raises(DTypeError, match="random numbers are drawn in float32 or float64; float16 would round some"):
        of_half("random", float16)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_a_cast_rounds_as_torch_does(half: DType):
    x = np.concatenate(
        [
            RNG.normal(size=500) * 10.0 ** RNG.integers(-9, 9, 500),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 65519.0, 65520.0],
        ]
    ).astype(np.float32)
    node = b.cast(b.cast(leaf("x", x.shape, float32), half), float32)
    np.testing.assert_array_equal(run(node, x=x), to_torch(x, half).float().numpy())


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_products_accumulate_in_float32_and_are_rounded_by_a_cast(half: DType):
    x, y = (RNG.normal(size=(8, 300)).astype(np.float32) for _ in "xy")
    product = b.matmul(
        b.cast(leaf("x", x.shape, float32), half), b.cast(leaf("y", y.shape, float32), half), False, True
    )
    assert product.type.dtype == float32
    exact = to_torch(x, half).double() @ to_torch(y, half).double().T
    np.testing.assert_array_equal(run(product, x=x, y=y), exact.numpy())
    np.testing.assert_array_equal(
        run(b.cast(product, half), x=x, y=y), exact.to(getattr(torch, half.name)).double().numpy()
    )


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("op", ["add", "mul", "div", "exp", "tanh", "sqrt", "relu", "sigmoid", "maximum"])
def test_arithmetic_in_half_is_rounded_once(op: str, half: DType):
    x, y = (np.abs(RNG.normal(size=200)).astype(np.float32) + 0.1 for _ in "xy")
    leaves = [leaf("x", x.shape, half), leaf("y", y.shape, half)][: OPS[op].arity]
    got = run(Node(op, leaves, at.NONE), **dict(zip("xy"[: len(leaves)], (x, y))))
    theirs = {"add": torch.add, "mul": torch.mul, "div": torch.div, "exp": torch.exp, "tanh": torch.tanh}
    theirs |= {"sqrt": torch.sqrt, "relu": torch.relu, "sigmoid": torch.sigmoid, "maximum": torch.maximum}
    wanted = theirs[op](*(to_torch(a, half) for a in (x, y)[: len(leaves)])).double().numpy()
    off = np.abs(got - wanted) / np.maximum(np.abs(wanted), 1e-30)
    assert off.max() <= half.eps  # one unit in the last place where torch's own float32 lies at a tie
    assert (off == 0).mean() > 0.97


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_attention_of_half_inputs_rounds_the_weights_too(half: DType):
    q, k, v = (RNG.normal(size=(2, 5, 4)).astype(np.float32) for _ in "qkv")
    leaves = [leaf(n, a.shape, half) for n, a in zip("qkv", (q, k, v))]
    got = run(Node("attention", leaves, at.AttentionAttrs(True, 0.5)), q=q, k=k, v=v)
    tq, tk, tv = (to_torch(a, half).double() for a in (q, k, v))
    scores = (0.5 * tq @ tk.transpose(-1, -2)).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    weights = torch.softmax(scores, -1).to(getattr(torch, half.name)).double()
    np.testing.assert_allclose(got, (weights @ tv).numpy(), rtol=1e-12)


# -- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("size", [5, 40])
def test_text_keeps_every_bit(half: DType, size: int):
    values = np.array([1.5, -0.0, np.inf, 1e-5, 3.0] * (size // 5)).astype(half.numpy)
    for array in (values, np.where(np.arange(size) == 1, np.nan, values).astype(half.numpy)):
        constant = Node("constant", (), at.ConstantAttrs(at.Array(array)))
        x = leaf("x", (size, 3), half)
        graph = IRGraph(
            (Output("c", constant), Output("y", b.matmul(x, x, True)), Output("z", b.cast(x, float64))), (), (x,)
        )
        back = parse_graph(print_graph(graph))
        assert print_graph(back) == print_graph(graph)
        assert fingerprint(back) == fingerprint(graph)
        assert str(half) in print_graph(graph)
        found = back.outputs[0].node.attrs.array.value
        assert found.dtype == half.numpy
        assert found.tobytes() == array.tobytes()
