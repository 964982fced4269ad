"""The op table: one row per op, with its family, arity, attributes, type rule and traits."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.type_rules import arithmetic, collectives, convolution, layers, movement, scan
from wholestep.compiler.ir.type_rules.require import need, need_axis, need_float, need_same
from wholestep.compiler.ir.types import TensorType, TupleType, Type, as_dtype, float64, shape_text
from wholestep.errors import DTypeError
from wholestep.records import dataclass

__all__ = ["LEAVES", "OPS", "Attrs", "Family", "Op", "Trait", "ops_with"]


class Family(enum.Enum):
    LEAF = "leaf"
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    MOVEMENT = "movement"
    INDEX = "index"
    CONTRACTION = "contraction"
    WINDOW = "window"  # convolution, pooling and their adjoints
    RATIO = "ratio"
    CONTROL = "control"  # gradient, item, stop_gradient, by_mode, call, custom_gradient: eliminated before planning
    LOOP = "loop"  # scan: its body graph runs once per step of the loop
    COLLECTIVE = "collective"  # communication between the ranks of a distributed step
    COMPOSITE = "composite"  # has a decomposition into ops of the other families


class Trait(enum.Flag):
    """Properties that passes query in addition to the family: `ops_with(Trait.VIEW)` instead of a list of op names."""

    NONE = 0
    STATE = enum.auto()  # a leaf whose values persist across steps
    GIVEN = enum.auto()  # a leaf that is a dense array in memory, owned by the caller or by the program
    STEADY = enum.auto()  # a leaf that does not depend on the caller's data: cheap to duplicate
    DRAWS = enum.auto()  # draws random numbers, by key and element index
    HOLDS_GRAPH = enum.auto()
    VIEW = enum.auto()  # reindexes its input: elements may move, repeat or be omitted; no arithmetic
    GATHERS = enum.auto()  # an element is read from a computed position, one of several operands, or is padding
    ELEMENTWISE = enum.auto()  # each result element is a function of the operands' elements at the same index
    COMMUTES = enum.auto()  # bitwise commutative; not maximum and minimum, whose zero or NaN depends on the order
    COMPARES = enum.auto()
    QUOTIENT = enum.auto()  # a quotient, which may be a mean: users write means as divisions, too
    EXACT = enum.auto()  # rewrite rules for floats hold for integers and bools as well
    TRANSCENDENTAL = enum.auto()  # evaluated by a polynomial or longer code: worth wide vectors
    PRODUCT = enum.auto()  # reads half operands directly; accumulates in, and returns, the wider type
    COPIES = enum.auto()  # no arithmetic: half operands keep their bits, and a cast rounds once
    LAYER = enum.auto()  # counts as a layer in functional models, too: observers look at its output


@dataclass(frozen=True)
class Op:
    name: str
    family: Family
    arity: int | None  # None: one or more
    attrs: type[Attrs]
    rule: Callable[..., Type]
    traits: Trait = Trait.NONE

    def infer(self, inputs: tuple[Type, ...], attrs: Attrs) -> Type:
        """Infer the result's type; raises ShapeError or DTypeError if the inputs do not fit."""
        assert type(attrs) is self.attrs, f"{self.name} takes {self.attrs.__name__}, not {type(attrs).__name__}"
        assert self.arity is None or len(inputs) == self.arity, (
            f"{self.name} takes {self.arity} inputs, not {len(inputs)}"
        )
        expected = TupleType if self.name == "item" else TensorType
        for input_type in inputs:
            assert isinstance(input_type, expected), f"{self.name} takes a {expected.__name__}; received {inputs}"
        if self.family in (Family.LEAF, Family.CONTROL, Family.LOOP):
            return self.rule(attrs, *inputs)
        return _apply_type_rule(self.rule, attrs, inputs)


@lru_cache(maxsize=16384)  # equal layers have equal types, and every pass rebuilds nodes
def _apply_type_rule(rule: Callable[..., Type], attrs: Attrs, inputs: tuple[Type, ...]) -> Type:
    return rule(attrs, *inputs)


# -- leaves and control ------------------------------------------------------------------------------------------


def _leaf(a: Any) -> Type:
    return a.type  # type: ignore[no-any-return]


def _constant(a: at.ConstantAttrs) -> Type:
    return TensorType(a.array.value.shape, as_dtype(a.array.value.dtype))


def _host_scalar(_: Attrs) -> Type:
    return TensorType((), float64)


def _iota(a: at.IotaAttrs) -> Type:
    need_axis("iota", a.axis, a.type)
    need(a.type.dtype.is_integer, f"iota needs an integer dtype; received {a.type.dtype}.", DTypeError)
    return a.type


def _random(a: at.RandomAttrs) -> Type:
    need_float("random", a.type)
    need(
        not a.type.dtype.is_half,
        f"random numbers are drawn in float32 or float64; {a.type.dtype} would round some up to 1. Cast the result: "
        f".astype('{a.type.dtype}').",
        DTypeError,
    )
    return a.type


def _gradient(_: Attrs, loss: TensorType, *params: TensorType) -> Type:
    need(
        loss.shape == (),
        f"gradients are taken of a scalar; the loss has shape {shape_text(loss.shape)}. Reduce it: loss.mean().",
    )
    need_float("gradient", loss, *params)
    return TupleType(params)


def _item(a: at.ItemAttrs, x: TupleType) -> Type:
    need(0 <= a.index < len(x.items), f"item: {a.index} is outside the {len(x.items)} results of its input.")
    return x.items[a.index]


def _call(a: at.CallAttrs, *xs: TensorType) -> Type:
    expected = tuple(i.type for i in a.graph.inputs)
    need(
        xs == expected,
        f"call: arguments {', '.join(map(str, xs))} do not fit parameters {', '.join(map(str, expected))}.",
    )
    return TupleType(tuple(o.node.type for o in a.graph.outputs))


def _custom_gradient(a: at.CustomGradientAttrs, *xs: TensorType) -> Type:
    expected = tuple(i.type for i in a.graph.inputs)
    need(
        xs == expected,
        f"custom_gradient: inputs {', '.join(map(str, xs))} do not fit parameters {', '.join(map(str, expected))}.",
    )
    need(0 < a.results <= len(xs), f"custom_gradient: of {len(xs)} inputs, {a.results} cannot be results.")
    gradients = tuple(o.node.type for o in a.graph.outputs)
    arguments = tuple(xs[i] for i in a.arguments if i < len(xs))
    need(
        gradients == arguments,
        f"custom_gradient: {', '.join(map(str, gradients))} cannot be gradients of {', '.join(map(str, arguments))}.",
    )
    need_float("custom_gradient", *xs[: a.results], *arguments)
    return TupleType(xs[: a.results])


def _same(_: Attrs, x: TensorType) -> Type:
    return x


def _by_mode(_: Attrs, training: TensorType, evaluating: TensorType) -> Type:
    need_same("by_mode", training, evaluating)
    return training


# -- the table ---------------------------------------------------------------------------------------------------

_FLOAT_UNARY = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "recip", "erf", "floor", "atan")
_NUMBER_UNARY = ("neg", "abs", "sign")
_NUMBER_BINARY = ("add", "sub", "mul", "maximum", "minimum", "mod")
_FLOAT_BINARY = ("div", "pow")
_INTEGER_BINARY = ("floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
_COMPARE = ("less", "less_equal", "equal", "not_equal")
_ACTIVATIONS = ("relu", "sigmoid", "tanh", "silu", "softplus")
P, L, M, C = Family.POINTWISE, Family.LEAF, Family.MOVEMENT, Family.CONTROL

_ROWS = [
    Op("input", L, 0, at.InputAttrs, _leaf),
    Op("parameter", L, 0, at.StateAttrs, _leaf),
    Op("state", L, 0, at.StateAttrs, _leaf),
    Op("constant", L, 0, at.ConstantAttrs, _constant),
    Op("scalar", L, 0, at.ScalarAttrs, _host_scalar),
    Op("size", L, 0, at.SizeAttrs, _host_scalar),
    Op("iota", L, 0, at.IotaAttrs, _iota),
    Op("random", L, 0, at.RandomAttrs, _random),
    *(Op(n, P, 1, Attrs, arithmetic.float_unary(n)) for n in _FLOAT_UNARY),
    *(Op(n, P, 1, Attrs, arithmetic.number_unary(n)) for n in _NUMBER_UNARY),
    *(Op(n, P, 2, Attrs, arithmetic.binary(n)) for n in _NUMBER_BINARY),
    *(Op(n, P, 2, Attrs, arithmetic.binary(n, floats_only=True)) for n in _FLOAT_BINARY),
    *(Op(n, P, 2, Attrs, arithmetic.binary(n, integers_only=True)) for n in _INTEGER_BINARY),
    *(Op(n, P, 2, Attrs, arithmetic.compare(n)) for n in _COMPARE),
    Op("logical_and", P, 2, Attrs, arithmetic.logic("logical_and")),
    Op("logical_or", P, 2, Attrs, arithmetic.logic("logical_or")),
    Op("logical_not", P, 1, Attrs, arithmetic.logic("logical_not")),
    Op("where", P, 3, Attrs, arithmetic.where),
    Op("cast", P, 1, at.CastAttrs, arithmetic.cast),
    Op("sum", Family.REDUCE, 1, at.SumAttrs, arithmetic.sum_),
    Op("max", Family.REDUCE, 1, at.MaxAttrs, arithmetic.max_),
    Op("argmax", Family.REDUCE, 1, at.ArgmaxAttrs, arithmetic.argmax),
    Op("reshape", M, 1, at.ReshapeAttrs, movement.reshape),
    Op("permute", M, 1, at.PermuteAttrs, movement.permute),
    Op("expand", M, 1, at.ExpandAttrs, movement.expand),
    Op("slice", M, 1, at.SliceAttrs, movement.slice_),
    Op("pad", M, 1, at.PadAttrs, movement.pad),
    Op("concat", M, None, at.ConcatAttrs, movement.concat),
    Op("gather", Family.INDEX, 2, at.GatherAttrs, movement.gather),
    Op("scatter_add", Family.INDEX, 2, at.ScatterAddAttrs, movement.scatter_add),
    Op("write_rows", Family.INDEX, 3, Attrs, movement.write_rows),
    Op("matmul", Family.CONTRACTION, 2, at.MatmulAttrs, arithmetic.matmul),
    Op("conv2d", Family.WINDOW, 2, at.ConvAttrs, convolution.conv2d),
    Op("conv2d_grad_input", Family.WINDOW, 2, at.ConvGradAttrs, convolution.conv2d_grad_input),
    Op("conv2d_grad_weight", Family.WINDOW, 2, at.ConvGradAttrs, convolution.conv2d_grad_weight),
    Op("max_pool2d", Family.WINDOW, 1, at.PoolAttrs, convolution.max_pool2d),
    Op("max_pool2d_index", Family.WINDOW, 1, at.PoolAttrs, convolution.max_pool2d_index),
    Op("max_pool2d_grad", Family.WINDOW, 2, at.PoolGradAttrs, convolution.max_pool2d_grad),
    Op("max_pool2d_pick", Family.WINDOW, 2, at.PoolAttrs, convolution.max_pool2d_pick),
    Op("pooled_grad_weight", Family.WINDOW, 3, at.PooledConvAttrs, convolution.grad_weight_through_pool),
    Op("pooled_grad_input", Family.WINDOW, 3, at.PooledConvAttrs, convolution.grad_input_through_pool),
    Op("ratio", Family.RATIO, 2, Attrs, arithmetic.binary("ratio", floats_only=True)),
    Op("stop_gradient", C, 1, Attrs, _same),
    Op("by_mode", C, 2, Attrs, _by_mode),
    Op("gradient", C, None, Attrs, _gradient),
    Op("item", C, 1, at.ItemAttrs, _item),
    Op("call", C, None, at.CallAttrs, _call),
    Op("custom_gradient", C, None, at.CustomGradientAttrs, _custom_gradient),
    Op("scan", Family.LOOP, None, at.ScanAttrs, scan.scan),
    *(Op(n, Family.COLLECTIVE, 1, at.GroupAttrs, rule) for n, rule in collectives.RULES.items()),
    Op("exchange", Family.COLLECTIVE, None, at.ExchangeAttrs, collectives.exchange),
    *(Op(n, Family.COMPOSITE, 1, Attrs, arithmetic.float_unary(n)) for n in _ACTIVATIONS),
    Op("gelu", Family.COMPOSITE, 1, at.GeluAttrs, arithmetic.float_unary("gelu")),
    Op("bce_with_logits", Family.COMPOSITE, 2, Attrs, arithmetic.binary("bce_with_logits", floats_only=True)),
    Op("softmax", Family.COMPOSITE, 1, at.SoftmaxAttrs, arithmetic.softmax),
    Op("log_softmax", Family.COMPOSITE, 1, at.SoftmaxAttrs, arithmetic.softmax),
    Op("logsumexp", Family.COMPOSITE, 1, at.SoftmaxAttrs, arithmetic.logsumexp),
    Op("cross_entropy", Family.COMPOSITE, 2, Attrs, arithmetic.cross_entropy),
    Op("layer_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("layer_norm", 2)),
    Op("layer_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("layer_norm_grad", 2)),
    Op("rms_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("rms_norm", 1)),
    Op("rms_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("rms_norm_grad", 1)),
    Op("group_norm", Family.COMPOSITE, None, at.GroupNormAttrs, layers.norm("group_norm", 2)),
    Op("group_norm_grad", Family.COMPOSITE, None, at.GroupNormAttrs, layers.norm_grad("group_norm_grad", 2)),
    Op("batch_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("batch_norm", 2)),
    Op("batch_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("batch_norm_grad", 2)),
    Op("dropout", Family.COMPOSITE, 2, at.DropoutAttrs, layers.dropout),
    Op("attention", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention),
    Op("attention_lse", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention_lse),
    Op("attention_grad", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention_grad),
]

# The column of traits, grouped by trait because most ops have none.
_TRAITS = {
    Trait.STATE: ("parameter", "state"),
    Trait.GIVEN: ("input", "constant"),
    Trait.STEADY: ("constant", "iota", "size"),
    Trait.DRAWS: ("random", "dropout"),
    Trait.HOLDS_GRAPH: ("call", "scan", "custom_gradient"),
    Trait.VIEW: ("reshape", "permute", "expand", "slice"),
    Trait.GATHERS: ("gather", "pad", "concat"),
    Trait.ELEMENTWISE: (*(r.name for r in _ROWS if r.family is P), *_ACTIVATIONS, "gelu", "bce_with_logits"),
    Trait.COMMUTES: (
        *("add", "mul", "equal", "not_equal", "logical_and", "logical_or"),
        *("bitwise_and", "bitwise_or", "bitwise_xor"),
    ),
    Trait.COMPARES: _COMPARE,
    Trait.QUOTIENT: ("ratio", "div"),
    Trait.EXACT: (*_COMPARE, "logical_and", "logical_or", "logical_not", "where", "cast", "max"),
    Trait.TRANSCENDENTAL: (
        *("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "erf", "pow", "tanh", "sigmoid", "atan"),
    ),
    Trait.PRODUCT: (
        *("matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_weight", "pooled_grad_weight", "pooled_grad_input"),
        *("attention", "attention_lse", "attention_grad"),
    ),
    Trait.COPIES: ("cast", "where", "gather", "write_rows"),
    Trait.LAYER: (
        *(*_ACTIVATIONS, "gelu", "softmax", "matmul", "conv2d", "attention", "max_pool2d", "gather"),
        *("layer_norm", "rms_norm", "group_norm", "batch_norm"),
    ),
}


def _traits_of(name: str) -> Trait:
    return functools.reduce(operator.or_, (t for t, names in _TRAITS.items() if name in names), Trait.NONE)


OPS: dict[str, Op] = {row.name: replace(row, traits=_traits_of(row.name)) for row in _ROWS}
LEAVES = frozenset(row.name for row in _ROWS if row.family is Family.LEAF)


@lru_cache
def ops_with(trait: Trait) -> frozenset[str]:
    """The names of all ops that have the trait, or any trait of a union."""
    return frozenset(name for name, op in OPS.items() if op.traits & trait)
