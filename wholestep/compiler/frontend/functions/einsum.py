"""`einsum`: sums of products by the letters of their axes, as matrix products between reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.primitives import iota
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["einsum"]


@dataclass(frozen=True)
class Lettered:
    """A tensor and a letter for each of its axes."""

    tensor: Tensor
    letters: str

    def sizes(self) -> dict[str, Extent]:
        return dict(zip(self.letters, self.tensor.shape, strict=True))

    def ordered(self, letters: str) -> Lettered:
        """The axes in another order."""
        return Lettered(self.tensor.permute([self.letters.index(c) for c in letters]), letters)

    def summed(self, kept: set[str]) -> Lettered:
        """Without the letters that nobody else has."""
        gone = [d for d, c in enumerate(self.letters) if c not in kept]
        return Lettered(self.tensor.sum(gone), "".join(c for c in self.letters if c in kept)) if gone else self


def einsum(equation: str, *operands: Operand | Sequence[Operand]) -> Tensor:
    """Σ of products of tensors whose axes have letters: letters that the result lacks are summed over.

    `...` stands for any further axes; without `->` the result has the letters that occur once, in their order.

    Example: `ws.einsum("bhqd,bhkd->bhqk", q, k)` is `q @ k.transpose(-1, -2)`.
    """
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    tensors = [as_tensor(t) for t in given]  # type: ignore[arg-type]
    terms, result = _parse_equation(equation, tensors)
    sizes = _sizes(equation, terms)
    parts = [_diagonal(_without_ones(term, sizes)) for term in terms]
    left = parts[0].summed({*result, *(c for p in parts[1:] for c in p.letters)})
    for i, right in enumerate(parts[1:], 1):
        wanted = {*result, *(c for p in parts[i + 1 :] for c in p.letters)}
        left = _product(left, right.summed({*left.letters, *wanted}), wanted)
    out = left.ordered("".join(c for c in result if c in left.letters)).tensor
    if len(left.letters) == len(result):
        return out
    return out.reshape(tuple(sizes[c] if c in left.letters else 1 for c in result))  # all were 1 there


# -- reading -----------------------------------------------------------------------------------------------------


def _parse_equation(equation: str, tensors: Sequence[Tensor]) -> tuple[list[Lettered], str]:
    text = equation.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    names = inputs.split(",")
    if len(names) != len(tensors) or not tensors:
        fail(OptionError, f"einsum: {equation!r} names {len(names)} tensors; received {len(tensors)}.")
    free = [chr(c) for c in range(0x3B1, 0x3CA)]  # Greek letters for the axes of '...'
    most = 0
    terms = []
    for name, tensor in zip(names, tensors, strict=True):
        letters, extra = name.replace("...", ""), tensor.ndim - len(name.replace("...", ""))
        wrong = extra < 0 or ("..." not in name and extra) or not (letters.isalpha() or not letters)
        if wrong:
            fail(
                ShapeError,
                f"einsum: {name!r} of {equation!r} does not describe {shape_text(tensor.shape)}: one letter for each "
                "axis, '...' for any others.",
            )
        most = max(most, extra)
        terms.append(Lettered(tensor, name.replace("...", "".join(free[len(free) - extra :]) if extra else "")))
    dots = "".join(free[len(free) - most :]) if most else ""
    if not arrow:
        used = "".join(n.replace("...", "") for n in names)
        result = "..." + "".join(sorted(c for c in set(used) if used.count(c) == 1))
    whole = result.replace("...", dots)
    unknown = sorted({*whole} - {c for t in terms for c in t.letters})
    if unknown or len({*whole}) < len(whole):
        what = f"{unknown[0]!r} is in no tensor" if unknown else "a letter comes twice"
        fail(OptionError, f"einsum: the result {result!r} of {equation!r} cannot be: {what}.")
    return terms, whole


def _sizes(equation: str, terms: Sequence[Lettered]) -> dict[str, Extent]:
    sizes: dict[str, Extent] = {}
    for term in terms:
        for letter, size in zip(term.letters, term.tensor.shape, strict=True):
            if sizes.setdefault(letter, size) == 1:
                sizes[letter] = size
            elif size not in (1, sizes[letter]):
                fail(
                    ShapeError,
                    f"einsum: {letter!r} of {equation!r} is {sizes[letter]} in one tensor, {size} in another.",
                )
    return sizes


# -- computing ---------------------------------------------------------------------------------------------------


def _without_ones(term: Lettered, sizes: dict[str, Extent]) -> Lettered:
    """Axes of size 1 that meet larger ones are left out, which is broadcasting."""
    kept = [d for d, c in enumerate(term.letters) if term.tensor.shape[d] != 1 or sizes[c] == 1]
    shape = tuple(term.tensor.shape[d] for d in kept)
    return Lettered(term.tensor.reshape(shape), "".join(term.letters[d] for d in kept))


def _diagonal(term: Lettered) -> Lettered:
    """A letter that comes twice in one tensor walks along its diagonal."""
    for letter in dict.fromkeys(term.letters):
        while term.letters.count(letter) > 1:
            first = term.letters.index(letter)
            second = term.letters.index(letter, first + 1)
            shape = term.tensor.shape
            on = iota(shape, first) == iota(shape, second)
            picked = where(on, term.tensor, 0).sum(second)
            term = Lettered(picked, term.letters[:second] + term.letters[second + 1 :])
    return term


def _product(a: Lettered, b: Lettered, wanted: set[str]) -> Lettered:
    """Two tensors as one: summed over the letters that both have and nobody wants any more."""
    shared = [c for c in a.letters if c in b.letters]
    batch = "".join(c for c in shared if c in wanted)
    inner = "".join(c for c in shared if c not in wanted)
    rows = "".join(c for c in a.letters if c not in shared)
    columns = "".join(c for c in b.letters if c not in shared)
    sizes = {**a.sizes(), **b.sizes()}
    left, right = a.ordered(batch + rows + inner).tensor, b.ordered(batch + inner + columns).tensor
    outer = tuple(sizes[c] for c in batch)
    m, k, n = (product(sizes[c] for c in letters) for letters in (rows, inner, columns))
    left, right = left.reshape((*outer, m, k)), right.reshape((*outer, k, n))
    out = left @ right if inner else left * right  # (…, m, 1) · (…, 1, n)
    shape = tuple(sizes[c] for c in batch + rows + columns)
    return Lettered(out.reshape(shape), batch + rows + columns)


take_their_words(globals(), __all__)
