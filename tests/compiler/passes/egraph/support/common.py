"""Graphs written out by hand, and what the tests of the e-graph share."""

from __future__ import annotations

from math import pi, sqrt

from tests.compiler.passes.common import leaf
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import DType, float32, float64
from wholestep.compiler.passes.egraph.egraph import EGraph
from wholestep.compiler.passes.egraph.encode import Encoded, encode
from wholestep.compiler.passes.egraph.rules.composites import composites_with_definition
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for
from wholestep.compiler.passes.egraph.saturate import Budget, saturate


def rows(value: Node, like: Node, axis: int) -> Node:
    return b.restore_axes(value, (axis,), like.type.shape)


def below_maximum(x: Node, axis: int = 1) -> Node:
    return b.sub(x, rows(b.max_axes(x, (axis,)), x, axis))


def softmax(x: Node, axis: int = 1) -> Node:
    e = b.unary("exp", below_maximum(x, axis))
    return b.div(e, rows(b.sum_axes(e, (axis,)), x, axis))


def plain_softmax(x: Node) -> Node:
    e = b.unary("exp", x)
    return b.div(e, rows(b.sum_axes(e, (1,)), x, 1))


def log_softmax(x: Node) -> Node:
    shifted = below_maximum(x)
    return b.sub(shifted, rows(b.unary("log", b.sum_axes(b.unary("exp", shifted), (1,))), x, 1))


def cross_entropy(x: Node, labels: Node) -> Node:
    picked = b.where(b.one_hot_mask(labels, x.type.shape[1]), log_softmax(x), b.zeros_like(x))
    return b.neg(b.sum_axes(picked, (1,)))


def sigmoid(x: Node) -> Node:
    return b.div(b.full_like(x, 1), b.add(b.full_like(x, 1), b.unary("exp", b.neg(x))))


def silu(x: Node) -> Node:
    return b.mul(sigmoid(x), x)


def silu_quotient(x: Node) -> Node:
    return b.div(x, b.shift(b.unary("exp", b.neg(x)), 1))


def gelu(x: Node) -> Node:
    return b.mul(b.scale(x, 0.5), b.shift(b.unary("erf", b.div(x, b.full_like(x, sqrt(2)))), 1))


def gelu_tanh(x: Node) -> Node:
    cube = b.power(x, b.full_like(x, 3))
    bend = b.unary("tanh", b.scale(b.add(x, b.mul(b.full_like(x, 0.044715), cube)), sqrt(2 / pi)))
    return b.mul(b.full_like(x, 0.5), b.mul(x, b.add(b.full_like(x, 1), bend)))


BY_HAND = {
    "softmax": (softmax, "softmax"),
    "softmax-without-maximum": (plain_softmax, "softmax"),
    "log-softmax": (log_softmax, "log_softmax"),
    "log-of-softmax": (lambda x: b.unary("log", softmax(x)), "log_softmax"),
    "log-of-plain-softmax": (lambda x: b.unary("log", plain_softmax(x)), "log_softmax"),
    "relu": (lambda x: b.maximum(x, b.zeros_like(x)), "relu"),
    "sigmoid": (sigmoid, "sigmoid"),
    "silu": (silu, "silu"),
    "silu-quotient": (silu_quotient, "silu"),
    "gelu": (gelu, "gelu"),
    "gelu-tanh": (gelu_tanh, "gelu"),
}
DTYPES: tuple[DType, ...] = (float32, float64)


def example(name: str, dtype: DType = float64) -> Node:
    return BY_HAND[name][0](leaf("x", ("n", 5), dtype))


def saturated(graph: IRGraph, exactness: Exactness = Exactness.REASSOCIATING) -> tuple[Encoded, EGraph]:
    encoded = encode(graph, composites_with_definition(exactness))
    rules = rules_for(graph, exactness, encoded.tables, before_autodiff=False)
    return encoded, saturate(encoded, rules, Budget()).egraph
