"""`einsum`: contractions by index labels, lowered pairwise from left to right to batched matmuls between reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.frontend.functions.primitives import iota
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["einsum"]


@dataclass(frozen=True)
class LabelledTensor:
    """A tensor with one label (a letter) per axis."""

    tensor: Tensor
    letters: str

    def sizes(self) -> dict[str, Extent]:
        return dict(zip(self.letters, self.tensor.shape, strict=True))

    def permute_to(self, letters: str) -> LabelledTensor:
        """The axes in another order; the tensor itself if that is their order."""
        if letters == self.letters:
            return self
        return LabelledTensor(self.tensor.permute([self.letters.index(c) for c in letters]), letters)

    def sum_except(self, labels: set[str]) -> LabelledTensor:
        """The tensor with only these labels: the axes of all other labels are summed over."""
        summed_axes = [d for d, c in enumerate(self.letters) if c not in labels]
        if not summed_axes:
            return self
        return LabelledTensor(self.tensor.sum(summed_axes), "".join(c for c in self.letters if c in labels))


def einsum(equation: str, *operands: Operand | Sequence[Operand]) -> Tensor:
    """Sums of products of tensors whose axes are labelled by letters: letters missing in the result are summed over.

    `...` stands for any further axes; without `->` the result has the letters that occur once, in their order.

    Example: `ws.einsum("bhqd,bhkd->bhqk", q, k)` is `q @ k.transpose(-1, -2)`.
    """
    arguments = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    tensors = [as_tensor(t) for t in arguments]  # type: ignore[arg-type]
    terms, result = _parse_equation(equation, tensors)
    sizes = _sizes(equation, terms)
    parts = [_diagonal(_without_ones(term, sizes)) for term in terms]
    partial = parts[0].sum_except({*result, *(c for p in parts[1:] for c in p.letters)})
    for i, right in enumerate(parts[1:], 1):
        needed = {*result, *(c for p in parts[i + 1 :] for c in p.letters)}
        partial = _product(partial, right.sum_except({*partial.letters, *needed}), needed)
    out = partial.permute_to("".join(c for c in result if c in partial.letters)).tensor
    if len(partial.letters) == len(result):
        return out
    # The missing labels have size 1 in every operand.
    return out.reshape(tuple(sizes[c] if c in partial.letters else 1 for c in result))


# -- parsing -----------------------------------------------------------------------------------------------------


def _parse_equation(equation: str, tensors: Sequence[Tensor]) -> tuple[list[LabelledTensor], str]:
    text = equation.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    names = inputs.split(",")
    if len(names) != len(tensors) or not tensors:
        fail(OptionError, f"einsum: {equation!r} names {len(names)} tensors; received {len(tensors)}.")
    free = [chr(c) for c in range(0x3B1, 0x3CA)]  # Greek letters for the axes of '...'
    most_extra = 0
    terms = []
    for name, tensor in zip(names, tensors, strict=True):
        letters, extra = name.replace("...", ""), tensor.ndim - len(name.replace("...", ""))
        wrong = extra < 0 or ("..." not in name and extra) or not (letters.isalpha() or not letters)
        if wrong:
            fail(
                ShapeError,
                f"einsum: {name!r} of {equation!r} does not fit {shape_text(tensor.shape)}: write one letter per "
                "axis, and '...' for any others.",
            )
        most_extra = max(most_extra, extra)
        terms.append(LabelledTensor(tensor, name.replace("...", "".join(free[len(free) - extra :]) if extra else "")))
    dots = "".join(free[len(free) - most_extra :]) if most_extra else ""
    if not arrow:
        used = "".join(n.replace("...", "") for n in names)
        result = "..." + "".join(sorted(c for c in set(used) if used.count(c) == 1))
    labels = result.replace("...", dots)
    unknown = sorted({*labels} - {c for t in terms for c in t.letters})
    if unknown or len({*labels}) < len(labels):
        what = f"{unknown[0]!r} is in no tensor" if unknown else "a letter occurs twice"
        fail(OptionError, f"einsum: invalid result {result!r} of {equation!r}: {what}.")
    return terms, labels


def _sizes(equation: str, terms: Sequence[LabelledTensor]) -> dict[str, Extent]:
    sizes: dict[str, Extent] = {}
    for term in terms:
        for letter, size in zip(term.letters, term.tensor.shape, strict=True):
            if sizes.setdefault(letter, size) == 1:
                sizes[letter] = size
            elif size not in (1, sizes[letter]):
                fail(ShapeError, f"einsum: {letter!r} of {equation!r} has the sizes {sizes[letter]} and {size}.")
    return sizes


# -- contraction -------------------------------------------------------------------------------------------------


def _without_ones(term: LabelledTensor, sizes: dict[str, Extent]) -> LabelledTensor:
    """Broadcasting: removes axes of size 1 whose label is larger in another operand."""
    axes = [d for d, c in enumerate(term.letters) if term.tensor.shape[d] != 1 or sizes[c] == 1]
    shape = tuple(term.tensor.shape[d] for d in axes)
    return LabelledTensor(term.tensor.reshape(shape), "".join(term.letters[d] for d in axes))


def _diagonal(term: LabelledTensor) -> LabelledTensor:
    """A label that occurs twice in one tensor selects the diagonal of these axes."""
    for letter in dict.fromkeys(term.letters):
        while term.letters.count(letter) > 1:
            first = term.letters.index(letter)
            second = term.letters.index(letter, first + 1)
            shape = term.tensor.shape
            on_diagonal = iota(shape, first) == iota(shape, second)
            diagonal = where(on_diagonal, term.tensor, 0).sum(second)
            term = LabelledTensor(diagonal, term.letters[:second] + term.letters[second + 1 :])
    return term


def _product(a: LabelledTensor, b: LabelledTensor, needed: set[str]) -> LabelledTensor:
    """The contraction of two tensors over the labels that both have and that are not in `needed`."""
    shared = [c for c in a.letters if c in b.letters]
    batch = "".join(c for c in shared if c in needed)
    inner = "".join(c for c in shared if c not in needed)
    rows = "".join(c for c in a.letters if c not in shared)
    columns = "".join(c for c in b.letters if c not in shared)
    sizes = {**a.sizes(), **b.sizes()}
    left, right = a.permute_to(batch + rows + inner).tensor, b.permute_to(batch + inner + columns).tensor
    outer = tuple(sizes[c] for c in batch)
    m, k, n = (product(sizes[c] for c in letters) for letters in (rows, inner, columns))
    left, right = left.reshape((*outer, m, k)), right.reshape((*outer, k, n))
    out = left @ right if inner else left * right  # (…, m, 1) · (…, 1, n)
    shape = tuple(sizes[c] for c in batch + rows + columns)
    return LabelledTensor(out.reshape(shape), batch + rows + columns)
