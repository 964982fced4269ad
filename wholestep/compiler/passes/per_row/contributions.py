"""The terms that each row of a batch contributes to a sum over the batch, such as a gradient or a loss.

The placement analysis of data parallelism (`distribute/placement/`) finds where rows are reduced: a `Partial` value is
a sum over rows.  From a gradient the search goes back through linear ops to the sums, products and scatters over rows,
whose operands give the terms.  A sum that is used nonlinearly (a count that divides, the statistics of a batch norm) is
treated as a constant, so that the contributions of all rows add up to the gradient of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, rewrite, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Dim, Extent, TensorType, divide, product
from wholestep.compiler.passes.distribute.placement.contractions import contracted_axis
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Partial,
    Placement,
    Replicated,
    Sharded,
    TuplePlacement,
    is_refused,
    placement_of_shape,
)
from wholestep.compiler.passes.distribute.placement.rules import placement_of
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decomposition_of
from wholestep.compiler.passes.per_row import terms as t
from wholestep.compiler.passes.per_row.terms import Dense, OneHot, Outer, Rows, Term
from wholestep.compiler.passes.per_row.windows import image_gradients, weight_gradient_term
from wholestep.errors import GraphError

ROW_NORM_OF, LOOP = "row norm of ", "explicit rows in a loop, as `{}` has no rule"  # node names that reports show


class Contributions:
    """The contributions of rows to values of a graph whose batch has a symbolic size."""

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._axis = MeshAxis.of_batch(batch)
        self._placements: dict[Node, Placement] = {}
        self._decomposed: dict[Node, tuple[Node, ...]] = {}
        self.looped: list[str] = []  # ops without a rule
        self.explicit: dict[Node, Node] = {}  # sums over rows whose explicit contributions are computed anyway

    # -- placements ------------------------------------------------------------------------------------------------

    def placement(self, node: Node) -> Placement:
        """The placement of a node along the batch."""
        for each in toposort([node]):
            if each not in self._placements:
                self._placements[each] = self._place(each)
        return self._placements[node]

    def _place(self, node: Node) -> Placement:
        if node.op == "item" and node.inputs[0] in self._decomposed:
            return self.placement(self._decomposed[node.inputs[0]][attrs_of(node, at.ItemAttrs).index])
        if node.op == "size":
            return Replicated()
        if node.op == "iota":
            return placement_of_shape(node, node.type.shape, self._axis)
        inputs = [self._placements[i] for i in node.inputs]
        placed = placement_of(node, inputs, self._axis)
        if not is_refused(placed):
            return placed
        if node.op in ("add", "sub") and set(inputs) == {Partial(), Replicated()}:
            return Partial()
        if node.op in ops_with(Trait.QUOTIENT) and inputs == [Partial(), Partial()]:
            return Partial()
        placed = placement_of(node, [Replicated() if i == Partial() else i for i in inputs], self._axis)
        if is_refused(placed) and node.op in DECOMPOSITIONS:
            return self._decompose(node)
        return placed

    def _decompose(self, node: Node) -> Placement:
        parts = self._decomposed[node] = decomposition_of(node)
        placements = tuple(self.placement(part) for part in parts)
        return placements[0] if isinstance(node.result, TensorType) else TuplePlacement(placements)

    def is_affected(self, node: Node) -> bool:
        """Does a value depend on the rows of the batch, possibly through a sum over them?"""
        self.placement(node)
        return any(self._placements[each] != Replicated() for each in toposort([node]))

    # -- terms -----------------------------------------------------------------------------------------------------

    def terms(self, node: Node) -> list[Term]:
        """The terms of each row's contribution to a value; none if the value is independent of the batch."""
        placement = self.placement(node)
        if placement == Replicated():
            return []
        if placement != Partial():
            self.refuse(node)
        if node in self._decomposed:
            return self.terms(self._decomposed[node][0])
        if node.op == "item":
            return self._terms_of_item(node)
        with b.origin(node):
            return RULES.get(node.op, Contributions._loop)(self, node)

    def _terms_of_item(self, node: Node) -> list[Term]:
        return self.terms(self.parts_of(node.inputs[0])[attrs_of(node, at.ItemAttrs).index])

    def parts_of(self, composite: Node) -> tuple[Node, ...]:
        """The primitives of a composite, one for each of its results."""
        if composite.op == "custom_gradient":
            return composite.inputs[: attrs_of(composite, at.CustomGradientAttrs).results]
        if composite.op not in DECOMPOSITIONS:
            self.refuse(composite)
        if composite not in self._decomposed:
            self._decomposed[composite] = decomposition_of(composite)
        return self._decomposed[composite]

    def mixing_node(self, root: Node) -> Node | None:
        """The node that makes row i of a value depend on other rows, such as a batch norm; None if there is none."""
        for node in toposort([root]):
            placement = self.placement(node)
            if placement == Partial() or is_refused(placement):
                return node
            if node in self._decomposed and any(self.mixing_node(part) is not None for part in self._decomposed[node]):
                return node
        return None

    def refuse(self, node: Node) -> NoReturn:
        """Raise GraphError for a node whose rows have no separate contributions."""
        line = "" if node.line is None else node.line.error_note
        raise GraphError(
            f"per_row: the rows of the batch have no separate contributions to `{node.op}`: it mixes them, or has no "
            f"rule. Leave this parameter out of training (model.freeze), or train without per_row=.{line}"
        )

    def _sum(self, node: Node) -> list[Term]:
        (x,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
        placement = self.placement(x)
        if not isinstance(placement, Sharded):  # Partial: the sum of every term
            shifted = [d + 1 for d in axes]
            return [Rows(b.sum_axes(t.explicit(term), shifted)) for term in self.terms(x)]
        if x.op == "max_pool2d_grad" and {2, 3} <= set(axes):
            x = x.inputs[0]  # the pool moves every element to one pixel of its image
        if x.type.shape[0] == Dim.symbol(self._batch):
            values = b.sum_axes(x, [d for d in axes if d])
        else:
            rows, origin = self.rows_first(x)
            values = b.sum_axes(rows, [d for d in range(1, rows.type.rank) if origin[d] in axes])
        if len(axes) > 1:
            self.explicit[node] = values
        return [Rows(values)]

    def _matmul(self, node: Node) -> list[Term]:
        placements = [self.placement(i) for i in node.inputs]
        if not all(isinstance(p, Sharded) for p in placements):
            return self._product_of_partial(node)
        left, right = (self._vectors(node, operand) for operand in (0, 1))
        if left.type.rank > 3:
            return [Rows(b.matmul(left, right, transpose_a=True))]
        if t.is_shared_product(*left.type.shape[1:], right.type.shape[-1]):
            rows = self.explicit[node] = b.matmul(left, right, transpose_a=True)
            batch, *shape = rows.type.shape
            return [Rows(rows, b.reshape(rows, (batch, product(shape))))]  # the squares are not stored
        return [Outer(Dense(left), Dense(right))]

    def _vectors(self, node: Node, operand: int) -> Node:
        """An operand as (batch, leading axes, k, other axis), where k are the positions of a row to sum over."""
        x = node.inputs[operand]
        rows, origin = self.rows_first(x)
        k_axis = contracted_axis(node, operand)
        other = 2 * node.type.rank - 3 - k_axis  # the last two axes are k and the other one
        summed = [d for d in range(1, rows.type.rank) if origin[d] == k_axis]
        leading = [d for d in range(1, rows.type.rank) if origin[d] not in (k_axis, other)]
        last = origin.index(other, 1)
        moved = b.permute(rows, (0, *leading, *summed, last))
        shape = rows.type.shape
        count = product(shape[d] for d in summed)
        return t.in_float(b.reshape(moved, (shape[0], *(shape[d] for d in leading), count, shape[last])))

    def _product_of_partial(self, node: Node) -> list[Term]:
        """A product of one sum over rows with a constant matrix: every explicit term times the matrix."""
        attrs = attrs_of(node, at.MatmulAttrs)
        which = next(i for i, x in enumerate(node.inputs) if self.placement(x) == Partial())
        other = node.inputs[1 - which]

        def multiply(value: Node) -> Node:
            shape = (value.type.shape[0], *other.type.shape)
            constant = b.expand_to(t.in_float(other), shape, range(1, len(shape)))
            operands = (value, constant) if which == 0 else (constant, value)
            return b.matmul(*operands, attrs.transpose_a, attrs.transpose_b)

        return [Rows(multiply(t.explicit(term))) for term in self.terms(node.inputs[which])]

    def _scatter(self, node: Node) -> list[Term]:
        updates, index = node.inputs
        attrs = attrs_of(node, at.ScatterAddAttrs)
        if attrs.axis != 0 or updates.type.rank != index.type.rank + 1:
            return self._loop(node)
        if self.placement(updates) == Partial():  # every row has the same positions, as with a table of positions
            values = self._total(updates)
            if _is_range(index):
                return [Rows(b.pad(values, (0, 0, 0), (0, _integer(attrs.size - index.type.shape[0]), 0)))]
            positions = b.expand_to(index, values.type.shape[:-1], range(1, index.type.rank + 1))
        elif isinstance(self.placement(index), Sharded):
            (values, _), (positions, _) = self.rows_first(updates), self.rows_first(index)
        else:
            return self._loop(node)
        batch, count = positions.type.shape[0], product(positions.type.shape[1:])
        vectors = b.reshape(values, (batch, count, values.type.shape[-1]))
        return [Outer(OneHot(b.reshape(positions, (batch, count)), attrs.size), Dense(t.in_float(vectors)))]

    def _weight_gradient(self, node: Node) -> list[Term]:
        if Partial() in map(self.placement, node.inputs):
            return self._loop(node)
        images, gradients = (self._row_images(x) for x in node.inputs)
        term = weight_gradient_term(node, images, gradients)
        if t.form([term]) == t.EXPLICIT and images.type.shape[1] == 1 and (rows := image_gradients(node)) is not None:
            self.explicit[node] = rows.values
            return [rows]
        return [term]

    def _row_images(self, x: Node) -> Node:
        """Images as (batch, images per row, ...): in a three-dimensional convolution a row has several images."""
        rows, _ = self.rows_first(x)
        batch, outer, inner, *rest = rows.type.shape
        return b.reshape(rows, (batch, outer * inner, *rest))

    def _expand(self, node: Node) -> list[Term]:
        attrs = attrs_of(node, at.ExpandAttrs)
        values = self._total(node.inputs[0])
        return [Rows(b.expand_to(values, (values.type.shape[0], *attrs.shape), (0, *(d + 1 for d in attrs.axes))))]

    def _total(self, node: Node) -> Node:
        """The explicit contribution of each row to a sum over rows: (batch, ...)."""
        return t.total([t.explicit(term) for term in self.terms(node)])

    def _loop(self, node: Node) -> list[Term]:
        """The fallback for ops without a rule: a loop over the rows that computes the op and stores the results."""
        self.looped.append(node.op)
        has_rows = [self.placement(x) != Replicated() for x in node.inputs]
        operands = [self._row_operand(x) if rows else x for x, rows in zip(node.inputs, has_rows, strict=True)]
        return [Rows(t.in_float(map_over_rows(node, operands, has_rows, Dim.symbol(self._batch))))]

    def _row_operand(self, x: Node) -> Node:
        """An operand as (batch, ...), where row i has the axes that the operand has for a batch of one row."""
        placement = self.placement(x)
        if not isinstance(placement, Sharded):
            return b.cast(self._total(x), x.type.dtype)
        rows, _ = self.rows_first(x)
        batch, *shape = rows.type.shape
        axis = placement.axis
        return b.reshape(rows, (batch, *shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))

    def _add(self, node: Node) -> list[Term]:
        return [term for x in node.inputs for term in self.terms(x)]

    def _sub(self, node: Node) -> list[Term]:
        minus = b.constant(-1, node.type.dtype)
        return [*self.terms(node.inputs[0]), *(t.scale(term, minus) for term in self.terms(node.inputs[1]))]

    def _neg(self, node: Node) -> list[Term]:
        return [t.scale(term, b.constant(-1, node.type.dtype)) for term in self.terms(node.inputs[0])]

    def _cast(self, node: Node) -> list[Term]:
        return self.terms(node.inputs[0])

    def _scale(self, node: Node) -> list[Term]:
        """`mul`, `div` and `ratio` of a sum over rows with a constant."""
        which = next(i for i, x in enumerate(node.inputs) if self.placement(x) == Partial())
        other = node.inputs[1 - which]
        if node.op != "mul":
            assert which == 0, "a divisor is constant"
            other = b.unary("recip", t.in_float(other))
        scalar = _scalar_of(other)
        if scalar is not None:
            return [t.scale(term, scalar) for term in self.terms(node.inputs[which])]
        values = [t.explicit(term) for term in self.terms(node.inputs[which])]
        return [Rows(b.mul(v, b.expand_to(t.in_float(other), v.type.shape, range(1, v.type.rank)))) for v in values]

    def _permute(self, node: Node) -> list[Term]:
        order = attrs_of(node, at.PermuteAttrs).order
        terms = self.terms(node.inputs[0])
        if order == (1, 0):
            return [_transpose(term) for term in terms]
        return [t.view(term, lambda x: b.permute(x, (0, *(d + 1 for d in order)))) for term in terms]

    def _reshape(self, node: Node) -> list[Term]:
        shape = node.type.shape
        return [t.view(term, lambda x: b.reshape(x, (x.type.shape[0], *shape))) for term in self.terms(node.inputs[0])]

    def _slice(self, node: Node) -> list[Term]:
        attrs = attrs_of(node, at.SliceAttrs)

        def change(x: Node) -> Node:
            return b.slice_axes(x, (0, *attrs.starts), (x.type.shape[0], *attrs.stops), (1, *attrs.steps))

        return [Rows(change(t.explicit(term))) for term in self.terms(node.inputs[0])]

    def _pad(self, node: Node) -> list[Term]:
        attrs = attrs_of(node, at.PadAttrs)
        low, high = (0, *attrs.low), (0, *attrs.high)
        return [Rows(b.pad(t.explicit(term), low, high)) for term in self.terms(node.inputs[0])]

    def _concat(self, node: Node) -> list[Term]:
        """Every operand of a concatenation, padded with zeros to the shape of the result."""
        axis = attrs_of(node, at.ConcatAttrs).axis
        result: list[Term] = []
        start: Extent = 0
        for x in node.inputs:
            stop = start + x.type.shape[axis]
            low, high = [0] * node.type.rank, [0] * node.type.rank
            low[axis], high[axis] = _integer(start), _integer(node.type.shape[axis] - stop)
            result += [Rows(b.pad(t.explicit(term), (0, *low), (0, *high))) for term in self.terms(x)]
            start = stop
        return result

    def share_sums(self, graph: IRGraph) -> IRGraph:
        """The graph with sums over rows computed from explicit contributions, where these are computed anyway."""
        sums = {node: b.cast(b.sum_axes(rows, (0,)), node.type.dtype) for node, rows in self.explicit.items()}
        return rewrite(graph, lambda node: sums.get(node, node)) if sums else graph

    # -- rows ------------------------------------------------------------------------------------------------------

    def rows_first(self, x: Node) -> tuple[Node, list[int]]:
        """x with the batch as its first axis, and for each axis of the result the axis of x that it comes from.

        If the batch is merged with other axes, (outer · batch · inner), the merged axis is split.
        """
        placement = self.placement(x)
        assert isinstance(placement, Sharded)
        at_axis, shape = placement.axis, x.type.shape
        batch = Dim.symbol(self._batch)
        inner = divide(shape[at_axis], placement.outer * batch)
        assert inner is not None, f"{x!r} has no whole number of rows"
        split = [placement.outer, batch, inner]
        whole = b.reshape(x, (*shape[:at_axis], *split, *shape[at_axis + 1 :]))
        source = [*range(at_axis), at_axis, at_axis, at_axis, *range(at_axis + 1, len(shape))]
        order = [at_axis + 1, *(d for d in range(len(source)) if d != at_axis + 1)]
        return b.permute(whole, order), [source[d] for d in order]


def _transpose(term: Term) -> Term:
    if isinstance(term, Rows) or term.views:
        return t.view(term, lambda x: b.permute(x, (0, 2, 1)))
    return Outer(term.right, term.left)


def _scalar_of(x: Node) -> Node | None:
    """The scalar that was broadcast to a tensor; None for other tensors."""
    while x.op in ("expand", "reshape", "cast") and x.type.rank:
        (x,) = x.inputs
    return x if x.type.rank == 0 else None


def _is_range(index: Node) -> bool:
    """Are the positions 0, 1, 2, ...?"""
    while index.op in ("cast", "reshape"):
        (index,) = index.inputs
    return index.op == "iota" and index.type.rank == 1


def _integer(extent: Extent) -> int:
    assert isinstance(extent, int), "parameters have integer sizes"
    return extent


RULES: dict[str, Callable[[Contributions, Node], list[Term]]] = {
    "sum": Contributions._sum,
    "matmul": Contributions._matmul,
    "scatter_add": Contributions._scatter,
    "conv2d_grad_weight": Contributions._weight_gradient,
    "add": Contributions._add,
    "sub": Contributions._sub,
    "neg": Contributions._neg,
    "stop_gradient": Contributions._cast,
    "cast": Contributions._cast,
    "mul": Contributions._scale,
    "div": Contributions._scale,
    "ratio": Contributions._scale,
    "permute": Contributions._permute,
    "reshape": Contributions._reshape,
    "slice": Contributions._slice,
    "pad": Contributions._pad,
    "concat": Contributions._concat,
    "expand": Contributions._expand,
}


def gradient_square_norms(gradients: Mapping[str, Node], rows: Contributions) -> Node:
    """The square of the norm of each row's contribution to the gradients of all parameters: (batch,)."""
    squares = []
    for name, gradient in gradients.items():
        rows.looped.clear()
        if terms := rows.terms(gradient):
            form = LOOP.format(rows.looped[0]) if rows.looped else t.form(terms)
            with b.origin(gradient, f"{ROW_NORM_OF}{name}: {form}"):
                squares.append(t.square_norm(terms))
    if not squares:
        raise GraphError("per_row: no gradient depends on the rows of the batch, so they have no contributions.")
    return t.total(squares[::-1])  # the backward pass computes the last layers' squares first


def row_forms(names: Iterable[str]) -> dict[str, list[str]]:
    """Form of computation -> the parameters whose row norms are computed in it, read from the node names of a step."""
    forms: dict[str, list[str]] = {}
    for name in reversed(list(dict.fromkeys(names))):  # the norms are added from the last parameter to the first
        if name.startswith(ROW_NORM_OF):
            parameter, _, form = name.removeprefix(ROW_NORM_OF).partition(": ")
            forms.setdefault(form, []).append(parameter)
    return forms


# -- ops without a rule: a `scan` that computes the op for one row at a time --------------------------------------
# For an op that sums over the batch, an iteration computes it from one row of its operands; for a linear op over such a
# sum, from the contribution of one row.  The stacked results are explicit contributions.


def map_over_rows(node: Node, operands: Sequence[Node], has_rows: Sequence[bool], batch: Extent) -> Node:
    """(batch, ...): iteration i computes the node from row i of its row-wise operands and from its other operands."""
    sequences = [i for i, each in enumerate(has_rows) if each]
    order = [*sequences, *(i for i, each in enumerate(has_rows) if not each)]
    parameters = {i: _parameter(i, operands[i].type, is_sliced=has_rows[i]) for i in order}
    result = node.with_inputs([parameters[i] for i in range(len(operands))])
    body = IRGraph((Output("row", result),), (), tuple(parameters.values()))
    attrs = at.ScanAttrs(body, 0, len(sequences), batch, reverse=False)
    (rows,) = b.results("scan", [operands[i] for i in order], attrs)
    return rows


def _parameter(index: int, type: TensorType, *, is_sliced: bool) -> Node:
    one = TensorType(type.shape[1:], type.dtype) if is_sliced else type
    return Node("input", (), at.InputAttrs(f"operand{index}", one))
