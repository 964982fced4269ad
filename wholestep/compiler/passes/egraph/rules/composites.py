"""Recognition of composites (idiom recognition): a decomposition from passes/lower/decompose.py becomes its composite.

The other direction is not a rule: the encoder adds the definition of each composite of a program as terms.  A
definition depends on the rank, axis and dtype of its operands, so there is one rule per instance that a program can
contain: INSTANCES lists them, one row per composite.  Types inside a rule are variables, and constants are rounded to
the dtype; if types are attributes of the composite (the shape of a reshape, the results of a gradient), the rule has
exact types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import Dim, DType, Shape, TensorType, TupleType, float32, float64
from wholestep.compiler.passes.autodiff.composites import attention_rule
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.rules.from_nodes import exact_types, fold_sizes, leaf, side
from wholestep.compiler.passes.egraph.rules.instances import InstanceProfile, Scores
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, RuleScope
from wholestep.compiler.passes.egraph.rules.spellings import NEVER_AS_DEFINED, SPELLINGS
from wholestep.compiler.passes.egraph.rules.tree import Tree
from wholestep.compiler.passes.lower.decompose import decomposition_of


@dataclass(frozen=True)
class Instance:
    """A composite over leaves.  `exact`: its rules hold for exactly these types."""

    label: str
    node: Node
    exact: bool = False


Instances = Callable[[InstanceProfile], Iterator[Instance]]


# -- one axis, or none -------------------------------------------------------------------------------------------


def _tensor(name: str, rank: int, dtype: DType, width: int | None = None) -> Node:
    """A leaf whose dimensions are distinct symbols, so that only types that must be equal are equal."""
    shape: Shape = tuple(Dim.symbol(f"{name}{d}") for d in range(rank))
    return leaf(name, TensorType(shape if width is None else (*shape[:-1], width), dtype))


def _elementwise(op: str, *choices: at.Attrs) -> Instances:
    def instances(p: InstanceProfile) -> Iterator[Instance]:
        for dtype in p.dtypes:
            for attrs in choices or (at.NONE,):
                yield Instance(f"{dtype} {attrs}", b.make(op, (_tensor("x", 1, dtype),), attrs))

    return instances


def _bce(p: InstanceProfile) -> Iterator[Instance]:
    for dtype in p.dtypes:
        x = _tensor("x", 1, dtype)
        yield Instance(f"{dtype}", b.make("bce_with_logits", (x, leaf("y", x.type))))


def _along_axis(op: str) -> Instances:
    def instances(p: InstanceProfile) -> Iterator[Instance]:
        for rank, axis in p.reduced:
            x = _tensor("x", rank, (p.dtypes or (float32,))[0])  # no constants inside: one rule holds for all dtypes
            yield Instance(f"rank {rank} axis {axis}", b.make(op, (x,), at.SoftmaxAttrs(axis)))

    return instances


def _cross_entropy(p: InstanceProfile) -> Iterator[Instance]:
    for rank, axis in p.reduced:
        if axis == rank - 1 and p.labels:
            x = _tensor("x", rank, (p.dtypes or (float32,))[0])
            labels = leaf("y", TensorType(x.type.shape[:-1], p.labels[0]))
            yield Instance(f"rank {rank}", b.make("cross_entropy", (x, labels)))


def _dropout(p: InstanceProfile) -> Iterator[Instance]:
    for i, draw in enumerate(d for d in p.draws if d.type.rank > 0):
        inputs = leaf("x", draw.type), leaf("rate", TensorType((), float64))
        yield Instance(f"draw {i}", b.make("dropout", inputs, at.DropoutAttrs(draw.key)), exact=True)


# -- norms -------------------------------------------------------------------------------------------------------

SMALLEST_EPS, LARGEST_EPS = 1e-12, 1e-2  # constants in this range may be the eps of a norm


def _eps(p: InstanceProfile) -> list[float]:
    """The constants of a program that may be the eps of a norm, which is added to a variance."""
    return [n for n in p.added if SMALLEST_EPS <= n <= LARGEST_EPS]


def _norm(op: str, most: int) -> Instances:
    """The norms over rows whose width the program divides by."""

    def instances(p: InstanceProfile) -> Iterator[Instance]:
        for dtype in p.dtypes:
            for rank, width in p.rows:
                for eps in _eps(p) if float(width) in p.numbers else ():
                    for affine in range(most + 1):
                        x = _tensor("x", rank, dtype, width)
                        others = [_tensor(name, 1, dtype, width) for name in ("weight", "bias")[:affine]]
                        label = f"{dtype} rank {rank} width {width} eps {eps:g} inputs {affine + 1}"
                        yield Instance(label, b.make(op, (x, *others), at.NormAttrs(eps)))

    return instances


def _norm_grad(op: str) -> Instances:
    def instances(p: InstanceProfile) -> Iterator[Instance]:
        for type in p.projected:
            for eps in _eps(p):
                for weights in (0, 1):
                    x, g = leaf("x", type), leaf("g", type)
                    weight = [leaf("weight", TensorType(type.shape[-1:], type.dtype))] * weights
                    label = f"{type} eps {eps:g} weights {weights}"
                    yield Instance(label, b.make(op, (x, *weight, g), at.NormAttrs(eps)), exact=True)

    return instances


def _group_norm(p: InstanceProfile) -> Iterator[Instance]:
    for type, groups in p.grouped:
        for eps in _eps(p):
            for affine in range(3):
                others = [leaf(n, TensorType(type.shape[1:2], type.dtype)) for n in ("weight", "bias")[:affine]]
                node = b.make("group_norm", (leaf("x", type), *others), at.GroupNormAttrs(groups, eps))
                yield Instance(f"{type} groups {groups} eps {eps:g} inputs {affine + 1}", node, exact=True)


def _group_norm_grad(p: InstanceProfile) -> Iterator[Instance]:
    for type, groups in p.grouped:
        for eps in _eps(p):
            for weights in (0, 1):
                weight = [leaf("weight", TensorType(type.shape[1:2], type.dtype))] * weights
                inputs = leaf("x", type), *weight, leaf("g", type)
                node = b.make("group_norm_grad", inputs, at.GroupNormAttrs(groups, eps))
                yield Instance(f"{type} groups {groups} eps {eps:g} weights {weights}", node, exact=True)


def _batch_norm(p: InstanceProfile) -> Iterator[Instance]:
    for type in p.batched:
        for eps in _eps(p):
            for affine in range(3):
                others = [leaf(n, TensorType(type.shape[1:2], type.dtype)) for n in ("weight", "bias")[:affine]]
                node = b.make("batch_norm", (leaf("x", type), *others), at.NormAttrs(eps))
                yield Instance(f"{type} eps {eps:g} inputs {affine + 1}", node, exact=True)


def _batch_norm_grad(p: InstanceProfile) -> Iterator[Instance]:
    for type in p.batched:
        for eps in _eps(p):
            for weights in (0, 1):
                weight = [leaf("weight", TensorType(type.shape[1:2], type.dtype))] * weights
                node = b.make("batch_norm_grad", (leaf("x", type), *weight, leaf("g", type)), at.NormAttrs(eps))
                yield Instance(f"{type} eps {eps:g} weights {weights}", node, exact=True)


# -- attention ---------------------------------------------------------------------------------------------------


def _attention(p: InstanceProfile) -> Iterator[Instance]:
    """Attention with every scale of a product in the program, causal or not, with a mask if something is added."""
    for dtype in p.dtypes:
        for rank in sorted({rank for rank, axis in p.reduced if axis == rank - 1 and rank >= 2}):
            lead = tuple(Dim.symbol(f"d{d}") for d in range(rank - 2))
            t, k, w, u = map(Dim.symbol, "tkwu")
            for scores in (Scores(lead, t, k, w, u, dtype), Scores(lead, t, t, w, u, dtype)):
                yield from _attentions(p, scores, scores.queries == scores.keys)


def _attentions(p: InstanceProfile, s: Scores, causal: bool) -> Iterator[Instance]:
    for scale in p.scales:
        for masked in (False, True) if p.biased else (False,):
            label = f"{s.dtype} rank {len(s.lead) + 2} scale {scale:g} causal {causal} masked {masked}"
            yield Instance(label, b.make("attention", _attention_operands(s, masked), at.AttentionAttrs(causal, scale)))


def _attention_operands(s: Scores, masked: bool) -> list[Node]:
    shapes = {"q": (s.queries, s.width), "k": (s.keys, s.width), "v": (s.keys, s.value_width)}
    if masked:
        shapes["mask"] = s.queries, s.keys
    return [leaf(name, TensorType((*s.lead, *shape), s.dtype)) for name, shape in shapes.items()]


def _attention_grad(p: InstanceProfile) -> Iterator[Instance]:
    for i, s in enumerate(p.scores):
        g = leaf("g", TensorType((*s.lead, s.queries, s.value_width), s.dtype))
        for causal in (False, True) if s.queries == s.keys else (False,):
            for forward in _attentions(p, s, causal):
                gradient = attention_rule(forward.node, g)[0]
                assert gradient is not None, "queries have a gradient"
                yield Instance(f"{i} {forward.label}", gradient.inputs[0], exact=True)


def _all(*several: Instances) -> Instances:
    return lambda p: chain.from_iterable(instances(p) for instances in several)


INSTANCES: dict[str, Instances] = {
    "relu": _elementwise("relu"),
    "sigmoid": _elementwise("sigmoid"),
    "tanh": _elementwise("tanh"),
    "silu": _elementwise("silu"),
    "softplus": _elementwise("softplus"),
    "gelu": _elementwise("gelu", at.GeluAttrs(False), at.GeluAttrs(True)),
    "bce_with_logits": _bce,
    "softmax": _along_axis("softmax"),
    "log_softmax": _along_axis("log_softmax"),
    "logsumexp": _along_axis("logsumexp"),
    "cross_entropy": _cross_entropy,
    "layer_norm": _norm("layer_norm", 2),
    "layer_norm_grad": _norm_grad("layer_norm_grad"),
    "rms_norm": _norm("rms_norm", 1),
    "rms_norm_grad": _norm_grad("rms_norm_grad"),
    "group_norm": _group_norm,
    "group_norm_grad": _group_norm_grad,
    "batch_norm": _batch_norm,
    "batch_norm_grad": _batch_norm_grad,
    "dropout": _dropout,
    "attention": _attention,
    "attention_grad": _attention_grad,
}
# Composites that cannot be recognized alone, since their definition does not read all inputs.
UNNAMED = frozenset({"attention_lse"})  # this one does not read the values; it is recognized as part of a gradient
_LAYERS = frozenset(
    f"{name}{part}"
    for name in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "attention")
    for part in ("", "_grad")
)
# Decomposed, these would store intermediates in memory, which the cost model does not see: they stay composites.
_NEVER_DECOMPOSED = _LAYERS | {"dropout"}

# Composites with a kernel may differ from their definitions in the last bit; other composites are lowered.
_WITH_KERNEL = _LAYERS | {"relu", "sigmoid", "tanh"}
# At 0, max(x, 0) splits its gradient between both operands, relu has gradient 0: recognition before autodiff would
# change it.
_OTHER_GRADIENT = frozenset({"relu"})


def composite_rules(op: str, p: InstanceProfile, exactness: Exactness, tables: Tables) -> Iterator[Rule]:
    """The rules definition = composite of all instances, without duplicates, with attribute numbers of `tables`."""
    emitted: set[tuple[Tree, Tree]] = set()
    for instance in INSTANCES[op](p):
        for rule in recognition_rules(op, instance, exactness, tables):
            if (rule.left, rule.right) not in emitted:
                emitted.add((rule.left, rule.right))
                yield rule


def composites_with_definition(exactness: Exactness) -> frozenset[str]:
    """The composites that may be replaced by their definition; the encoder adds it for each in a program."""
    return frozenset(INSTANCES) - _NEVER_DECOMPOSED - (_WITH_KERNEL if exactness is Exactness.BITWISE else frozenset())


_CACHE_CAPACITY = 4096  # entries of the cache below; it is cleared when full
_rule_cache: dict[
    object, tuple[Rule, ...]
] = {}  # instance -> its rules, if all programs share them; empty if they contain attribute numbers of a program


def recognition_rules(op: str, instance: Instance, exactness: Exactness, tables: Tables) -> Iterator[Rule]:
    """The rules of one instance; cached if they contain no type or attribute numbers of a program."""
    node = instance.node
    key = op, instance.label, exactness, repr(node.attrs), tuple(leaf.attrs for leaf in node.inputs)
    if not instance.exact and key not in _rule_cache:
        if len(_rule_cache) >= _CACHE_CAPACITY:
            _rule_cache.clear()
        local_tables = Tables()
        rules = tuple(rules_of_instance(op, instance, exactness, local_tables))
        _rule_cache[key] = () if local_tables.attributes else rules
    cached_rules = () if instance.exact else _rule_cache[key]
    return iter(cached_rules or rules_of_instance(op, instance, exactness, tables))


def rules_of_instance(op: str, instance: Instance, exactness: Exactness, tables: Tables) -> Iterator[Rule]:
    """One rule per result and spelling whose definition reads all inputs."""
    node = instance.node
    has_several_results = isinstance(node.result, TupleType)
    definitions = [
        *(() if op in NEVER_AS_DEFINED else (decomposition_of(node),)),
        *SPELLINGS.get(op, lambda _: ())(node),
    ]
    for s, results in enumerate(definitions):
        for i, definition in enumerate(results):
            name = b.make("item", (node,), at.ItemAttrs(i)) if has_several_results else node
            label = (
                f"{op}@{instance.label}{f' result {i}' if has_several_results else ''}{f' spelled {s}' if s else ''}"
            )
            bits = op not in _WITH_KERNEL | NEVER_AS_DEFINED and s == 0
            rule = _recognition_rule(op, label, fold_sizes(definition), name, instance.exact, bits, exactness, tables)
            if _leaves(name) <= _leaves(definition):
                yield rule
            elif has_several_results:  # a result that does not read all inputs: recognized if another result was
                yield replace(rule, second_left=side(node, tables))


def _leaves(node: Node) -> set[Node]:
    return {n for n in toposort([node]) if n.op == "input"}


def _recognition_rule(
    op: str, label: str, definition: Node, name: Node, exact: bool, bits: bool, exactness: Exactness, tables: Tables
) -> Rule:
    dtype = definition.type.dtype
    # Users may round a constant such as 1/√2 differently.
    tolerance = 0.0 if exactness is Exactness.BITWISE else 4 * dtype.eps
    left, right = side(definition, tables, tolerance), side(name, tables)
    return Rule(
        f"name-{label}",
        "composites",
        left,
        right,
        "its definition",
        Exactness.BITWISE if bits and not tolerance else Exactness.REASSOCIATING,
        scope=RuleScope.STEP if op in _OTHER_GRADIENT else RuleScope.ANYWHERE,
        replaces=op in _NEVER_DECOMPOSED,
        types=exact_types((definition, name), tables) if exact else (),
    )
