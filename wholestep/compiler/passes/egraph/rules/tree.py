"""The two sides of a law: trees over tensor variables, constants, attributes and types.

Laws are written as Python expressions and parsed by `parse`:

    x * sigmoid(x)                    operators and calls are ops; lower-case names are tensors
    permute(x, P), matmul(a, b, F, G) upper-case names are attributes, after the tensors, packed as in terms.py
    reshape(x, T), expand(x, A, T)    one more argument names the result's type, if it cannot be inferred
    1 + exp(-x), x * const(c)         a literal, or the variable c, broadcast to the shape of its context
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, head_of
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.terms import TERMS


@dataclass(frozen=True)
class Variable:
    """Any tensor."""

    name: str


@dataclass(frozen=True)
class Number:
    """A tensor filled with one value; on a left side, values within the relative `tolerance` match too."""

    value: Expression
    tolerance: float = 0.0
    type: str = ""


@dataclass(frozen=True)
class Apply:
    """An op over subtrees.  `type`: the name of its type, if the law has one; else it is inferred.

    An opaque op (a gradient with several results, a size) is matched by the number of its attributes alone.
    """

    op: str
    children: tuple[Tree, ...]
    slots: tuple[Expression, ...] = ()
    type: str = ""
    opaque: bool = False

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.children, self.slots, self.type, self.opaque))

    def __hash__(self) -> int:
        return self._hash  # cached, since emitting a rule looks up subtrees many times

    @cached_property
    def head(self) -> str:
        return f"{OPAQUE}_{len(self.children)}" if self.opaque else head_of(self.op, len(self.children))


Tree = Variable | Number | Apply

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
}


def parse(text: str) -> Tree:
    """The tree of one side of a law."""
    return _tree(ast.parse(text, mode="eval").body)


def _tree(e: ast.expr) -> Tree:
    match e:
        case ast.Name(id=name):
            assert name[0].islower(), f"{name} is an attribute; a tensor was expected"
            return Variable(name)
        case ast.Constant(value=int() | float() as value):
            return Number(Expression(ast.Constant(float(value))))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return Number(Expression(ast.Constant(-float(value))))
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return Apply("neg", (_tree(x),))
        case ast.BinOp(left=x, op=op, right=y):
            return Apply(_OPERATORS[type(op)], (_tree(x), _tree(y)))
        case ast.Call(func=ast.Name(id="const"), args=[value, *rest]):
            return Number(Expression(value), type=_type_name(rest))
        case ast.Call(func=ast.Name(id=op), args=args):
            return _call(op, args)
    raise AssertionError(
        f"expected a tensor, a number, an operator or a call of an op in a law; received {ast.unparse(e)}"
    )


def _call(op: str, args: list[ast.expr]) -> Apply:
    assert op in OPS, f"there is no op {op!r}"
    slots = len(TERMS[op].slots)
    arity = OPS[op].arity
    tensors = arity if arity is not None else sum(_is_tensor(a) for a in args)
    attributes = tuple(Expression(a) for a in args[tensors : tensors + slots])
    assert len(attributes) == slots, f"{op} has the attributes {TERMS[op].slots}"
    return Apply(op, tuple(_tree(a) for a in args[:tensors]), attributes, _type_name(args[tensors + slots :]))


def _is_tensor(e: ast.expr) -> bool:
    return (isinstance(e, ast.Name) and e.id[0].islower()) or (
        isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in OPS
    )


def _type_name(args: list[ast.expr]) -> str:
    if not args:
        return ""
    (name,) = args
    assert isinstance(name, ast.Name), ast.unparse(name)
    return name.id


def subtrees(tree: Tree) -> Iterator[Tree]:
    """All distinct subtrees in post-order."""
    seen: dict[Tree, None] = {}

    def walk(t: Tree) -> None:
        if isinstance(t, Apply):
            for child in t.children:
                walk(child)
        seen.setdefault(t)

    walk(tree)
    return iter(seen)


def tree_text(tree: Tree) -> str:
    """A side of a law as readable text."""
    match tree:
        case Variable(name):
            return name
        case Number(value):
            return str(value)
        case Apply(op, children, slots):
            return f"{op}({', '.join([*map(tree_text, children), *map(str, slots)])})"


__all__ = ["FULL", "Apply", "Number", "Tree", "Variable", "parse", "subtrees", "tree_text"]
