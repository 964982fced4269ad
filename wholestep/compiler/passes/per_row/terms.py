"""Terms of a row's contribution to a gradient, and their inner products.

The gradient of a batch is a sum over its rows; the contribution of a row is a sum of terms.  A product that sums over
rows and positions k gives the term Σₖ leftₖ ⊗ rightₖ.  It stays in factors, because ‖Σₖ aₖ ⊗ dₖ‖² = Σₖₗ (aₖ·aₗ)(dₖ·dₗ)
needs two Gram matrices of (k, k) instead of the gradient of every row (arXiv:1510.01799 for one k, arXiv:2009.03106 for
sequences).  All other terms are explicit: tensors whose first axis is the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, float32, float64

View = Callable[[Node], Node]  # maps an explicit term, whose first axis is the batch
EXPLICIT = "explicit rows"
MOVE = 32  # the time to store an element and read it twice, in multiply-adds (measured next to a product)
MOST_MEMORY = 4  # the largest explicit product of a row, as a multiple of its operands' elements
SYMBOLIC = 64  # the assumed number of positions in a row if it is symbolic


@dataclass(frozen=True)
class OneHot:
    """One-hot vectors, stored as positions: the left factor of an embedding's gradient."""

    positions: Node  # (batch, k), integers
    size: Extent

    @property
    def count(self) -> Extent:
        return self.positions.type.shape[1]


@dataclass(frozen=True)
class Dense:
    """Vectors (batch, k, size)."""

    vectors: Node

    @property
    def count(self) -> Extent:
        return self.vectors.type.shape[1]

    @property
    def size(self) -> Extent:
        return self.vectors.type.shape[2]


Factor = OneHot | Dense


@dataclass(frozen=True)
class Outer:
    """Σₖ leftₖ ⊗ rightₖ for each row; `views` permute or reshape the explicit form, so they do not change its norm."""

    left: Factor
    right: Factor
    views: tuple[View, ...] = ()


@dataclass(frozen=True)
class Rows:
    """An explicit contribution, (batch, ...); `stored` has the same elements in the order in which memory has them."""

    values: Node
    stored: Node | None = None


Term = Outer | Rows


def view(term: Term, change: View) -> Term:
    """The term under a permutation or reshape of its explicit form."""
    if isinstance(term, Rows):
        return replace(term, values=change(term.values))
    return replace(term, views=(*term.views, change))


def scale(term: Term, factor: Node) -> Term:
    """The term times a scalar."""
    if isinstance(term, Rows):
        return Rows(_times(term.values, factor))
    if isinstance(term.right, Dense):
        return replace(term, right=Dense(_times(term.right.vectors, factor)))
    assert isinstance(term.left, Dense), "the gradient of a product of two one-hot tensors is not trained"
    return replace(term, left=Dense(_times(term.left.vectors, factor)))


def _times(x: Node, factor: Node) -> Node:
    return b.mul(x, b.expand_to(b.cast(factor, x.type.dtype), x.type.shape, ()))


def form(terms: Sequence[Term]) -> str:
    """The form in which `square_norm` computes the norm of a sum of terms, for reports."""
    if _has_inner_products(terms):
        return "Gram matrices"
    single = terms[0] if len(terms) == 1 else None
    if not isinstance(single, Outer) or _is_explicit(single):
        return EXPLICIT
    dense = isinstance(single.left, Dense) and isinstance(single.right, Dense)
    return "products of norms" if dense and single.left.count == 1 else "Gram matrices"


def _has_inner_products(terms: Sequence[Term]) -> bool:
    return len(terms) > 1 and all(isinstance(t, Outer) and not t.views for t in terms)


def square_norm(terms: Sequence[Term]) -> Node:
    """‖Σ terms‖² of each row: (batch,)."""
    if len(terms) > 1 and not _has_inner_products(terms):
        terms = [Rows(total([explicit(t) for t in terms]))]
    return total([_inner(x, y) if i != j else _square(x) for i, x in enumerate(terms) for j, y in enumerate(terms)])


def total(values: Sequence[Node]) -> Node:
    """The sum of tensors of equal shape."""
    result = values[0]
    for value in values[1:]:
        result = b.add(result, value)
    return result


def _square(term: Term) -> Node:
    if isinstance(term, Rows):
        return _sum_squares(term.values if term.stored is None else term.stored)
    left, right = term.left, term.right
    if isinstance(left, Dense) and isinstance(right, Dense) and left.count == 1:
        return b.mul(_square_of_vector(left), _square_of_vector(right))
    return _sum_squares(explicit(replace(term, views=()))) if _is_explicit(term) else _inner(term, term)


def is_shared_product(*sizes: Extent) -> bool:
    """Is computing the product of every row, and the batch's gradient as their sum, cheaper than Gram matrices?

    The products replace the batch's own gradient, while Gram matrices are computed in addition to it; but they need
    memory for every row.
    """
    k, m, n = (e if isinstance(e, int) else SYMBOLIC for e in sizes)
    return k > 1 and k * k * (m + n) > MOVE * m * n and m * n <= MOST_MEMORY * k * (m + n)


def _is_explicit(term: Outer) -> bool:
    """Does the explicit contribution take fewer operations than the Gram matrices?"""
    left, right = term.left, term.right
    if not isinstance(left, Dense) or not isinstance(right, Dense) or left.count == 1:
        return False
    k, m, n = (e if isinstance(e, int) else SYMBOLIC for e in (left.count, left.size, right.size))
    return k * (m + n) > m * n


def _square_of_vector(factor: Dense) -> Node:
    """‖v‖² if each row has one vector, computed from the shape (batch, size) that the layer itself uses."""
    return _sum_squares(b.reshape(factor.vectors, (factor.vectors.type.shape[0], factor.size)))


def _sum_squares(x: Node) -> Node:
    return b.sum_axes(b.mul(x, x), range(1, x.type.rank))


def _inner(x: Term, y: Term) -> Node:
    """⟨x, y⟩ of each row, by Gram matrices."""
    assert isinstance(x, Outer)
    assert isinstance(y, Outer)
    left, right = _gram(x.left, y.left), _gram(x.right, y.right)
    wide = float64 if float64 in (left.type.dtype, right.type.dtype) else float32
    return b.sum_axes(b.mul(b.cast(left, wide), b.cast(right, wide)), (1, 2))


def _gram(x: Factor, y: Factor) -> Node:
    """The inner products (batch, k, l) of vectors k of x and l of y."""
    if isinstance(x, OneHot) and isinstance(y, Dense):
        return b.transpose(_gram(y, x))
    if isinstance(x, Dense) and isinstance(y, Dense):
        return b.matmul(x.vectors, y.vectors, transpose_b=True)
    shape = (x_positions(x).type.shape[0], x.count, y.count)
    if isinstance(x, OneHot):
        assert isinstance(y, OneHot)
        rows = b.expand_to(x.positions, shape, (0, 1))
        return b.cast(b.equal(rows, b.expand_to(y.positions, shape, (0, 2))), float32)
    assert isinstance(y, OneHot)
    return _pick(x.vectors, y.positions, shape)


def x_positions(x: Factor) -> Node:
    return x.positions if isinstance(x, OneHot) else x.vectors


def _pick(vectors: Node, positions: Node, shape: Sequence[Extent]) -> Node:
    """(batch, k, l): vectors[b, k, positions[b, l]], by a gather from the flattened vectors."""
    batch, count, size = vectors.type.shape
    integers = positions.type.dtype
    vector = b.add(
        b.mul(b.iota((batch, count), 0, integers), b.expand_to(b.count(count, integers), (batch, count), ())),
        b.iota((batch, count), 1, integers),
    )
    start = b.mul(vector, b.expand_to(b.count(size, integers), (batch, count), ()))
    flat = b.add(b.expand_to(start, tuple(shape), (0, 1)), b.expand_to(positions, tuple(shape), (0, 2)))
    return b.gather(b.reshape(vectors, (batch * count * size,)), flat, 0)


def explicit(term: Term) -> Node:
    """The contribution of each row as a tensor."""
    if isinstance(term, Rows):
        return term.values
    dense = term.right if isinstance(term.right, Dense) else term.left
    dtype = dense.vectors.type.dtype if isinstance(dense, Dense) else float32
    left, right = (_vectors(factor, dtype) for factor in (term.left, term.right))
    value = b.matmul(left, right, transpose_a=True)
    for change in term.views:
        value = change(value)
    return value


def _vectors(factor: Factor, dtype: DType) -> Node:
    if isinstance(factor, Dense):
        return factor.vectors
    return b.cast(b.one_hot_mask(factor.positions, factor.size), dtype)


def in_float(x: Node) -> Node:
    """Half types cast to float32, since squares of half numbers overflow and underflow."""
    return x if x.type.dtype == float64 else b.cast(x, float32)


def static_size(shape: Sequence[Extent]) -> int:
    """The number of elements, with a guess for symbolic extents."""
    return prod(e if isinstance(e, int) else SYMBOLIC for e in shape)
