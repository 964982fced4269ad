"""The type rule of every op: one good case, and bad ones with the text of their error."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.compiler.ir import window_types
from tests.ops.unary import UNARY
from tests.support.complete import assert_equal_rows
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import (
    Dim,
    TensorType,
    TupleType,
    as_shape,
    boolean,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from wholestep.errors import DTypeError, GraphError, OptionError, ShapeError

B, T = Dim.symbol("batch"), Dim.symbol("time")


def t(*shape: object, dtype=float32) -> TensorType:
    return TensorType(as_shape(shape), dtype)


def call() -> at.CallAttrs:
    a = Node("input", (), at.InputAttrs("a", t(3)))
    return at.CallAttrs(IRGraph((Output("x", a), Output("y", Node("exp", [a], at.NONE))), (), (a,)))


def taught(slope: object = None, results: int = 1) -> at.CustomGradientAttrs:
    """y, x, value -> y, with the gradient upstream · value for x."""
    upstream, x, value = (Node("input", (), at.InputAttrs(name, t(3))) for name in ("upstream", "x", "value"))
    made = Node("mul", [upstream, value], at.NONE) if slope is None else Node("input", (), at.InputAttrs("s", slope))
    return at.CustomGradientAttrs(IRGraph((Output("y0", made),), (), (upstream, x, value)), results)


def loop(length: object = 5, wide: int = 4) -> at.ScanAttrs:
    c, x = (Node("input", (), at.InputAttrs(name, t("batch", 4))) for name in ("c", "x"))
    after = Node("add", [c, x], at.NONE)
    if wide != 4:
        after = Node("pad", [after], at.PadAttrs((0, 0), (0, wide - 4), 0.0))
    return at.ScanAttrs(IRGraph((Output("c", after), Output("y", c)), (), (c, x)), 1, 1, as_shape(length)[0], False)


X, N, F = t("batch", 4), t("batch", 4, dtype=int32), t("batch", 4, dtype=boolean)
ZEROS = at.Initializer("zeros")
NO = at.NONE
EPS, LOOK = at.NormAttrs(1e-5), at.AttentionAttrs(causal=True, scale=0.5)

WHOLE_NUMBERS = ("floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
# op: (attributes, input types, result)
GOOD = {
    "input": (at.InputAttrs("x", X), (), X),
    "parameter": (at.StateAttrs("w", X, ZEROS), (), X),
    "state": (at.StateAttrs("w", N, ZEROS), (), N),
    "constant": (at.ConstantAttrs(at.Array(np.ones((2, 3), np.uint8))), (), t(2, 3, dtype=uint8)),
    "scalar": (at.ScalarAttrs("lr", 0.1), (), t(dtype=float64)),
    "size": (at.SizeAttrs(B), (), t(dtype=float64)),
    "iota": (at.IotaAttrs(N, 1), (), N),
    "random": (at.RandomAttrs("k", X), (), X),
    **dict.fromkeys(UNARY, (NO, (X,), X)),
    **dict.fromkeys(("neg", "abs", "sign"), (NO, (N,), N)),
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "mod"), (NO, (N, N), N)),
    **dict.fromkeys(WHOLE_NUMBERS, (NO, (N, N), N)),
    **dict.fromkeys(("div", "pow", "ratio"), (NO, (X, X), X)),
    **dict.fromkeys(("less", "less_equal", "equal", "not_equal"), (NO, (X, X), F)),
    "logical_and": (NO, (F, F), F),
    "logical_or": (NO, (F, F), F),
    "logical_not": (NO, (F,), F),
    "where": (NO, (F, X, X), X),
    "cast": (at.CastAttrs(int64), (X,), t("batch", 4, dtype=int64)),
    "sum": (at.SumAttrs((0,), float32), (X,), t(4)),
    "max": (at.MaxAttrs((0, 1)), (X,), t()),
    "argmax": (at.ArgmaxAttrs(1), (X,), t("batch", dtype=int32)),
    "reshape": (at.ReshapeAttrs((2, B * 2)), (X,), t(2, B * 2)),
    "permute": (at.PermuteAttrs((1, 0)), (X,), t(4, "batch")),
    "expand": (at.ExpandAttrs((2, B, 3, 4), (1, 3)), (X,), t(2, "batch", 3, 4)),
    "slice": (at.SliceAttrs((0, 0), (B, 4), (1, 3)), (X,), t("batch", 2)),
    "pad": (at.PadAttrs((1, 0), (1, 2), 0.0), (X,), t(B + 2, 6)),
    "concat": (at.ConcatAttrs(0), (X, X, t(3, 4)), t(B * 2 + 3, 4)),
    "gather": (at.GatherAttrs(1), (X, t(5, 6, dtype=int64)), t("batch", 5, 6)),
    "scatter_add": (at.ScatterAddAttrs(1, 7), (t("batch", 5, 2), t(5, dtype=int32)), t("batch", 7, 2)),
    "write_rows": (NO, (t(9, 4), X, t(dtype=int64)), t(9, 4)),
    "matmul": (at.MatmulAttrs(True, True, float32), (t(2, 4, "batch"), t(2, 5, 4)), t(2, "batch", 5)),
    "stop_gradient": (NO, (N,), N),
    "by_mode": (NO, (X, X), X),
    "gradient": (NO, (t(), X, t(3)), TupleType((X, t(3)))),
    "item": (at.ItemAttrs(1), (TupleType((X, t(3))),), t(3)),
    "call": (call(), (t(3),), TupleType((t(3), t(3)))),
    "custom_gradient": (taught(), (t(3), t(3), t(3)), TupleType((t(3),))),
    "scan": (loop("time"), (X, t("time", "batch", 4)), TupleType((t(T + 1, "batch", 4), t("time", "batch", 4)))),
    "all_reduce": (at.GroupAttrs(), (X,), X),
    "broadcast": (at.GroupAttrs(), (X,), X),
    "reduce_scatter": (at.GroupAttrs(1), (t(6, 4),), t(6, 4)),
    "all_gather": (at.GroupAttrs(1), (t(3, 4),), t(3, 4)),
    "exchange": (at.ExchangeAttrs("all_reduce"), (X, t(3)), TupleType((X, t(3)))),
    "gelu": (at.GeluAttrs(True), (X,), X),
    "bce_with_logits": (NO, (X, X), X),
    "softmax": (at.SoftmaxAttrs(1), (X,), X),
    "log_softmax": (at.SoftmaxAttrs(0), (X,), X),
    "logsumexp": (at.SoftmaxAttrs(0), (X,), t(4)),
    "cross_entropy": (NO, (X, t("batch", dtype=uint8)), t("batch")),
    "layer_norm": (EPS, (X, t(4), t(4)), X),
    "layer_norm_grad": (EPS, (X, t(4), X), TupleType((X, t(4), t(4)))),
    "rms_norm": (EPS, (X, t(4)), X),
    "rms_norm_grad": (EPS, (X, t(4), X), TupleType((X, t(4)))),
    "group_norm": (at.GroupNormAttrs(2, 1e-5), (X, t(4), t(4)), X),
    "group_norm_grad": (at.GroupNormAttrs(2, 1e-5), (X, X), TupleType((X,))),
    "batch_norm": (EPS, (X, t(4), t(4)), X),
    "batch_norm_grad": (EPS, (X, t(4), X), TupleType((X, t(4), t(4)))),
    "dropout": (at.DropoutAttrs("k"), (X, t(dtype=float64)), X),
    "attention": (LOOK, (t(2, "batch", 4), t(2, 5, 4), t(2, 5, 3)), t(2, "batch", 3)),
    "attention_lse": (LOOK, (t(6, "batch", 4), t(2, 5, 4), t(2, 5, 3)), t(6, "batch")),
    "attention_grad": (LOOK, (t(3, 4), t(5, 4), t(5, 2), t(3), t(3, 2)), TupleType((t(3, 4), t(5, 4), t(5, 2)))),
}

# Leaves and ops whose rule accepts every type.
CANNOT_FAIL = {"input", "parameter", "state", "scalar", "size", "cast", "stop_gradient"}

# op: list of (attributes, input types, error, text)
BAD = {
    "constant": [(at.ConstantAttrs(at.Array(np.ones(2, np.complex64))), (), DTypeError, "complex64.* is not a dtype")],
    "iota": [
        (at.IotaAttrs(N, 2), (), ShapeError, r"iota: axis 2 does not exist in shape \(batch, 4\)"),
        (at.IotaAttrs(X, 0), (), DTypeError, "iota needs an integer dtype; received float32"),
    ],
    "random": [(at.RandomAttrs("k", N), (), DTypeError, r"random needs a float tensor; received int32\[batch, 4\]")],
    **{
        op: [(NO, (N,), DTypeError, rf"{op} needs a float tensor; received int32\[batch, 4\]. Cast it first")]
        for op in UNARY
    },
    **{op: [(NO, (F,), DTypeError, f"{op} needs numbers; received bool")] for op in ("neg", "abs", "sign")},
    **{
        op: [
            (NO, (X, t(4)), ShapeError, rf"{op} needs equal shapes; received \(batch, 4\) and \(4,\)"),
            (NO, (X, N), DTypeError, f"{op} needs equal dtypes; received float32 and int32"),
            (NO, (F, F), DTypeError, f"{op} needs numbers; received bool"),
        ]
        for op in ("add", "sub", "mul", "maximum", "minimum", "mod")
    },
    **{op: [(NO, (N, N), DTypeError, f"{op} needs a float tensor; received int32")] for op in ("div", "pow", "ratio")},
    **{op: [(NO, (X, X), DTypeError, f"{op} needs integers; received float32")] for op in WHOLE_NUMBERS},
    **{
        op: [(NO, (X, N), DTypeError, f"{op} needs equal dtypes")]
        for op in ("less", "less_equal", "equal", "not_equal")
    },
    **{op: [(NO, (X, X), DTypeError, f"{op} needs bool tensors")] for op in ("logical_and", "logical_or")},
    "logical_not": [(NO, (N,), DTypeError, "logical_not needs bool tensors; received int32")],
    "where": [
        (NO, (X, X, X), DTypeError, "where needs a bool condition; received float32.* Compare it first"),
        (NO, (t(4, dtype=boolean), X, X), ShapeError, r"where needs equal shapes; received \(4,\) and \(batch, 4\)"),
    ],
    "by_mode": [(NO, (X, t(4)), ShapeError, "by_mode needs equal shapes")],
    "sum": [
        (at.SumAttrs((2,), float32), (X,), ShapeError, "sum: axis 2 does not exist"),
        (at.SumAttrs((1, 0), float32), (X,), ShapeError, r"sum: axes \(1, 0\) must be distinct and sorted"),
        (at.SumAttrs((), float32), (X,), ShapeError, r"sum: axes \(\) must be"),
        (at.SumAttrs((0,), float64), (X,), DTypeError, "sum of float32 accumulates in float32; received float64"),
        (at.SumAttrs((0,), boolean), (F,), DTypeError, "sum needs numbers"),
    ],
    "max": [(at.MaxAttrs((0, 0)), (X,), ShapeError, "max: axes .* distinct")],
    "argmax": [(at.ArgmaxAttrs(-1), (X,), ShapeError, "argmax: axis -1 does not exist")],
    "reshape": [
        (
            at.ReshapeAttrs((B, 5)),
            (X,),
            ShapeError,
            r"cannot turn \(batch, 4\) \(4\*batch elements\) into \(batch, 5\)",
        ),
        (at.ReshapeAttrs((-2, -2)), (t(4),), ShapeError, "reshape cannot turn"),
    ],
    "permute": [(at.PermuteAttrs((0, 0)), (X,), ShapeError, r"permute: \(0, 0\) is not a permutation of the 2 axes")],
    "expand": [
        (at.ExpandAttrs((B, 4, 2), (1, 0)), (X,), ShapeError, "expand: axes .* do not map the 2 axes"),
        (at.ExpandAttrs((B, 5), (0, 1)), (X,), ShapeError, r"expand: \(batch, 4\) does not fit into \(batch, 5\)"),
    ],
    "slice": [
        (at.SliceAttrs((0,), (1,), (1,)), (X,), ShapeError, "slice needs one start, stop and step per axis"),
        (at.SliceAttrs((0, 0), (B, 5), (1, 1)), (X,), ShapeError, "slice: 0:5 is outside a dimension of 4"),
        (at.SliceAttrs((3, 0), (1, 4), (1, 1)), (X,), ShapeError, "slice: 3:1 is outside a dimension of batch"),
        (at.SliceAttrs((0, 0), (B, 4), (1, 0)), (X,), ShapeError, "slice: steps must be positive; received 0"),
        (at.SliceAttrs((0, 0), (B, 4), (2, 1)), (X,), ShapeError, "a step of 2 along a symbolic dimension"),
    ],
    "pad": [
        (at.PadAttrs((1,), (1,), 0.0), (X,), ShapeError, "pad needs one .low, high. pair per axis"),
        (at.PadAttrs((0, -1), (0, 0), 0.0), (X,), ShapeError, "pad: amounts must not be negative"),
    ],
    "concat": [
        (at.ConcatAttrs(0), (), ShapeError, "concat needs at least one tensor"),
        (at.ConcatAttrs(0), (X, N), DTypeError, "concat needs equal dtypes"),
        (at.ConcatAttrs(0), (X, t("batch", 5)), ShapeError, "concat: shapes differ outside axis 0"),
    ],
    "gather": [(at.GatherAttrs(0), (X, X), DTypeError, "gather needs integer indices; received float32")],
    "scatter_add": [
        (at.ScatterAddAttrs(0, 7), (X, t(5, dtype=int32)), ShapeError, "must contain the indices' shape"),
        (at.ScatterAddAttrs(-1, 7), (X, t(4, dtype=int32)), ShapeError, "scatter_add: axis -1 does not exist"),
        (at.ScatterAddAttrs(0, 7), (X, t("batch")), DTypeError, "scatter_add needs integer indices"),
    ],
    "write_rows": [
        (
            NO,
            (t(9, 5), X, t(dtype=int64)),
            ShapeError,
            r"write_rows needs rows of the same shape; received \(batch, 4\)",
        ),
        (NO, (t(), t(), t(dtype=int64)), ShapeError, "write_rows needs rows of the same shape"),
        (NO, (t(9, 4, dtype=int32), X, t(dtype=int64)), DTypeError, "write_rows needs equal dtypes; received int32"),
        (NO, (t(9, 4), X, t()), DTypeError, "the index of the first row, an integer scalar; received float32"),
        (NO, (t(9, 4), X, t(1, dtype=int64)), ShapeError, "the index of the first row, an integer scalar"),
    ],
    "matmul": [
        (at.MatmulAttrs(False, False, float32), (X, X), ShapeError, "matmul: inner dimensions differ: 4 .* and batch"),
        (at.MatmulAttrs(False, False, float32), (X, t(4)), ShapeError, "matmul needs operands of equal rank"),
        (at.MatmulAttrs(False, False, float64), (X, t(4, 4)), DTypeError, "matmul of float32 accumulates in float32"),
        (at.MatmulAttrs(False, False, int32), (N, N), DTypeError, "matmul needs a float tensor"),
    ],
    "gradient": [(NO, (X, X), ShapeError, r"the loss has shape \(batch, 4\). Reduce it: loss.mean()")],
    "item": [(at.ItemAttrs(2), (TupleType((X, X)),), ShapeError, "item: 2 is outside the 2 results")],
    "call": [(call(), (X,), ShapeError, r"arguments float32\[batch, 4\] do not fit parameters float32\[3\]")],
    "custom_gradient": [
        (taught(), (t(3), t(4), t(3)), ShapeError, "inputs float32.3., float32.4., float32.3. do not fit parameters"),
        (taught(t(4)), (t(3), t(3), t(3)), ShapeError, r"float32\[4\] cannot be gradients of float32\[3\]"),
        (taught(results=0), (t(3), t(3), t(3)), ShapeError, "of 3 inputs, 0 cannot be results"),
        (taught(results=3), (t(3), t(3), t(3)), ShapeError, r"float32\[3\] cannot be gradients of \."),
    ],
    "scan": [
        (loop(5), (X,), ShapeError, "1 carries and 1 sequences need at least that many inputs; received 1"),
        (loop(5), (X, t(6, "batch", 4)), ShapeError, "a sequence of 5 steps was expected"),
        (loop(5), (X, t(5, "batch", 3)), ShapeError, "do not fit the parameters"),
        (loop(5, wide=6), (X, t(5, "batch", 4)), ShapeError, r"carry 0 begins as .*4\] and is .*6\] after a step"),
    ],
    "all_reduce": [
        (at.GroupAttrs(), (t(3, dtype=boolean),), DTypeError, "collectives support float32, .*; received bool"),
        (at.GroupAttrs(axis="time"), (X,), GraphError, "the axes of the mesh are data and model; received 'time'"),
    ],
    "broadcast": [
        (at.GroupAttrs(), (t(3, dtype=boolean),), DTypeError, "collectives support float32, .*; received bool")
    ],
    "reduce_scatter": [
        (at.GroupAttrs(4), (t(6, 4),), ShapeError, "needs a first axis that is divisible by the 4 ranks")
    ],
    "all_gather": [(at.GroupAttrs(2), (t(),), ShapeError, "needs a first axis")],
    "exchange": [
        (at.ExchangeAttrs("gossip"), (X,), GraphError, "'gossip' is not a collective"),
        (at.ExchangeAttrs("all_reduce"), (X, N), DTypeError, "must have the same dtype"),
    ],
    "gelu": [(at.GeluAttrs(False), (N,), DTypeError, "gelu needs a float tensor")],
    "bce_with_logits": [
        (NO, (X, t(4)), ShapeError, "bce_with_logits needs equal shapes"),
        (NO, (N, N), DTypeError, "bce_with_logits needs a float tensor"),
    ],
    "softmax": [(at.SoftmaxAttrs(2), (X,), ShapeError, "softmax: axis 2 does not exist")],
    "log_softmax": [(at.SoftmaxAttrs(0), (N,), DTypeError, "softmax needs a float tensor")],
    "logsumexp": [
        (at.SoftmaxAttrs(2), (X,), ShapeError, "logsumexp: axis 2 does not exist"),
        (at.SoftmaxAttrs(0), (N,), DTypeError, "logsumexp needs a float tensor"),
    ],
    "cross_entropy": [
        (NO, (X, X), DTypeError, "cross_entropy needs class indices of an integer dtype"),
        (NO, (X, t(4, dtype=int32)), ShapeError, r"need labels of shape \(batch,\); received \(4,\)"),
        (NO, (t(), t(dtype=int32)), ShapeError, "cross_entropy needs a class axis"),
    ],
    **{
        op: [
            (EPS, (N, *rest), DTypeError, f"{op} needs a float tensor; received int32"),
            (EPS, (t(), *rest), ShapeError, f"{op} needs an axis to normalise over; received a scalar"),
            (EPS, (X, t(5), *rest), ShapeError, rf"{op}: the weight of .* \(batch, 4\) .* \(4,\); received \(5,\)"),
            (
                EPS,
                (X, t(4, dtype=float64), *rest),
                DTypeError,
                f"{op} needs equal dtypes; received float32 and float64",
            ),
            (at.NormAttrs(-1.0), (X, *rest), OptionError, f"{op}: eps must not be negative; received -1.0"),
        ]
        for op, rest in (("layer_norm", ()), ("layer_norm_grad", (X,)), ("rms_norm", ()), ("rms_norm_grad", (X,)))
    },
    "group_norm": [
        (at.GroupNormAttrs(3, 0.0), (X,), ShapeError, r"4 channels of \(batch, 4\) do not divide into 3 equal groups"),
        (at.GroupNormAttrs(0, 0.0), (X,), ShapeError, "do not divide into 0 equal groups; choose a divisor"),
        (at.GroupNormAttrs(1, 0.0), (t(4, "batch"),), ShapeError, "batch channels"),
        (at.GroupNormAttrs(1, 0.0), (t(4),), ShapeError, r"needs an input of shape \(N, C, ...\); received \(4,\)"),
    ],
    "group_norm_grad": [(at.GroupNormAttrs(2, 0.0), (X, t(4)), ShapeError, "group_norm_grad needs equal shapes")],
    **{
        op: [
            (EPS, (t(4), *rest), ShapeError, rf"{op} needs an input of shape \(N, C, ...\); received \(4,\)"),
            (EPS, (t(1, 4), *rest), ShapeError, r"\(1, 4\) has one value per channel, which has no variance; give it"),
            (EPS, (t(1, 4, 1, 1), *rest), ShapeError, "one value per channel"),
            (EPS, (X, t(3), *rest), ShapeError, r"needs one element per index of axis 1, \(4,\); received \(3,\)"),
        ]
        for op, rest in (("batch_norm", ()), ("batch_norm_grad", (X,)))
    },
    "dropout": [
        (at.DropoutAttrs("k"), (N, t(dtype=float64)), DTypeError, "dropout needs a float tensor"),
        (at.DropoutAttrs("k"), (t(), t(dtype=float64)), ShapeError, "dropout needs a tensor with an axis"),
        (at.DropoutAttrs("k"), (X, t()), ShapeError, r"must be a float64 runtime scalar; received float32\[\]"),
    ],
    "attention_lse": [(LOOK, (X, X, N), DTypeError, "needs a float tensor; received int32")],
    "attention": [
        (LOOK, (X, X, N), DTypeError, "attention needs a float tensor; received int32"),
        (LOOK, (X, X, t("batch", 4, dtype=float64)), DTypeError, "attention needs equal dtypes"),
        (LOOK, (t(4), t(4), t(4)), ShapeError, r"of equal rank \(at least 2\) with equal leading axes"),
        (LOOK, (t(2, 3, 4), t(1, 3, 4), t(2, 3, 4)), ShapeError, r"queries \(2, 3, 4\), keys \(1, 3, 4\)"),
        (
            LOOK,
            (t(5, 3, 4), t(2, 3, 4), t(2, 3, 4)),
            ShapeError,
            r"query heads \(5\) must be a multiple of the number of key and value heads \(2\)",
        ),
        (LOOK, (t(3, 4), t(3, 5), t(3, 5)), ShapeError, "last axes of equal length, not 4 and 5"),
        (LOOK, (t(3, 4), t(3, 4), t(5, 4)), ShapeError, "there are 3 keys and 5 values"),
        (LOOK, (t(3, 4), t(5, 4), t(5, 4), t(5, 3)), ShapeError, r"per query and key, \(3, 5\); received \(5, 3\)"),
    ],
    "attention_grad": [
        (LOOK, (X, X, X, t("batch"), t(4)), ShapeError, r"attention_grad needs equal shapes; .* and \(4,\)"),
        (LOOK, (X, X, X, t(4), X), ShapeError, r"attention_grad needs equal shapes; .*\(batch,\) and \(4,\)"),
    ],
}


GOOD |= window_types.GOOD
BAD |= window_types.BAD


def test_every_op_has_a_good_and_a_bad_case():
    assert_equal_rows(GOOD, OPS, "UNARY of tests/ops/unary.py, or GOOD of tests/compiler/ir/test_types_of_ops.py")
    assert_equal_rows(set(BAD) | CANNOT_FAIL, OPS, "BAD of tests/compiler/ir/test_types_of_ops.py")


@pytest.mark.parametrize("op", OPS)
def test_good(op):
    attrs, inputs, result = GOOD[op]
    assert OPS[op].infer(inputs, attrs) == result


@pytest.mark.parametrize(("op", "case"), [(op, case) for op, cases in BAD.items() for case in cases])
def test_bad(op, case):
    attrs, inputs, error, text = case
    with pytest.raises(error) as raised:
        OPS[op].infer(inputs, attrs)
    assert re.search(text, str(raised.value)), str(raised.value)


def test_host_marks_expressions_of_scalars_alone():
    lr = Node("scalar", (), at.ScalarAttrs("lr", 0.1))
    two = Node("constant", (), at.ConstantAttrs(at.Array(np.float64(2))))
    vector = Node("constant", (), at.ConstantAttrs(at.Array(np.ones(2))))
    product = Node("mul", [lr, two], NO)
    assert product.host
    assert Node("cast", [product], at.CastAttrs(float32)).host
    assert not vector.host
    assert not Node("expand", [product], at.ExpandAttrs((3,), ())).host
    assert not Node("input", (), at.InputAttrs("x", t())).host
