"""Tensor types: element types, symbolic dimensions (integer polynomials over named symbols), and shapes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache, lru_cache
from math import prod
from typing import Any, NoReturn

import numpy as np

from wholestep.errors import DTypeError, ShapeError, UsageError
from wholestep.records import dataclass


class DKind(enum.Enum):
    """The category of an element type, independent of NumPy's `kind`."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOL = "bool"


@dataclass(frozen=True)
class DType:
    """An element type: an entry of `DTYPES`.  Its name is NumPy's (for bfloat16, the name in `ml_dtypes`)."""

    name: str
    bits: int = field(compare=False)
    kind: DKind = field(compare=False)
    eps: float = field(compare=False, default=0.0)  # machine epsilon; 0 for exact types
    largest: float = field(compare=False, default=0.0)  # the largest finite number
    wider: DType | None = field(compare=False, default=None, repr=False)  # accumulation dtype of a half type

    @property
    def numpy(self) -> np.dtype[Any]:
        return _numpy(self.name)

    @property
    def size(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind is DKind.FLOAT

    @property
    def is_half(self) -> bool:
        """A 16-bit float, whose sums are accumulated in a wider type."""
        return self.wider is not None

    @property
    def accumulate(self) -> DType:
        """The dtype in which sums and matrix products of this type accumulate."""
        return self.wider or self

    @property
    def is_integer(self) -> bool:
        return self.kind is DKind.INTEGER

    def __str__(self) -> str:
        return self.name


@cache
def _numpy(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # registers the name with NumPy; imported only by programs that use it

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)


float32 = DType("float32", 32, DKind.FLOAT, 2.0**-23, float.fromhex("0x1.fffffep127"))
float64 = DType("float64", 64, DKind.FLOAT, 2.0**-52, float.fromhex("0x1.fffffffffffffp1023"))
bfloat16 = DType("bfloat16", 16, DKind.FLOAT, 2.0**-7, float.fromhex("0x1.fep127"), float32)
float16 = DType("float16", 16, DKind.FLOAT, 2.0**-10, 65504.0, float32)
int32, int64 = DType("int32", 32, DKind.INTEGER), DType("int64", 64, DKind.INTEGER)
uint8, boolean = DType("uint8", 8, DKind.INTEGER), DType("bool", 8, DKind.BOOL)
DTYPES = {d.name: d for d in (float32, float64, int32, int64, uint8, boolean, bfloat16, float16)}


def as_dtype(value: object) -> DType:
    """The element type named by a string, a NumPy dtype or a DType."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    try:
        return DTYPES[np.dtype(value).name]  # type: ignore[call-overload]
    except (TypeError, KeyError):
        library, _, name = str(value).partition(".")
        if library == "torch" and name in DTYPES:  # torch.float32
            return DTYPES[name]
        raise DTypeError(f"{value!r} is not a dtype Wholestep computes with; use one of {', '.join(DTYPES)}.") from None


def letter_of(dtype: np.dtype[Any]) -> str:
    """NumPy's letter for the kind of an array's dtype; bfloat16, which NumPy calls "V", is an "f" as well."""
    return "f" if dtype.kind == "V" and dtype.name == "bfloat16" else dtype.kind


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension: a polynomial in named symbols with integer coefficients.

    `terms` lists (sorted tuple of symbol names, coefficient) in canonical order.  A constant is never a Dim: `Dim.of`
    returns a plain int.
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim((((name,), 1),))

    @staticmethod
    def of(terms: Mapping[tuple[str, ...], int]) -> Extent:
        nonzero = {k: c for k, c in terms.items() if c}
        if not nonzero:
            return 0
        if set(nonzero) == {()}:
            return nonzero[()]
        return Dim(tuple(sorted(nonzero.items())))

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(s for names, _ in self.terms for s in names)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        return sum(c * prod(sizes[s] for s in names) for names, c in self.terms)

    def __add__(self, other: Extent) -> Extent:
        if not isinstance(other, int | Dim):
            return NotImplemented
        out = dict(self.terms)
        for k, c in _terms(other).items():
            out[k] = out.get(k, 0) + c
        return Dim.of(out)

    def __mul__(self, other: Extent) -> Extent:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _times(self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: Extent) -> Extent:
        return self + other * -1 if isinstance(other, int | Dim) else NotImplemented

    def __rsub__(self, other: int) -> Extent:
        return self * -1 + other

    def __int__(self) -> NoReturn:
        raise UsageError(
            f"the dimension {self} has no value while the program is recorded, only at run time. Use it in tensor "
            "arithmetic (it becomes a size node), pass it on as a shape, or give the dimension a fixed size."
        )

    __index__ = __int__

    def __str__(self) -> str:
        parts = []
        for names, c in self.terms:
            factors = ([str(c)] if c != 1 or not names else []) + list(names)
            parts.append("*".join(factors))
        return "+".join(parts)

    __repr__ = __str__


Extent = int | Dim
Shape = tuple[Extent, ...]


def _terms(x: Extent) -> dict[tuple[str, ...], int]:
    return dict(x.terms) if isinstance(x, Dim) else {(): int(x)}


@lru_cache(maxsize=4096)  # programs multiply the same few dimensions repeatedly
def _times(a: Dim, b: Extent) -> Extent:
    out: dict[tuple[str, ...], int] = {}
    for k, c in a.terms:
        for k2, c2 in _terms(b).items():
            key = tuple(sorted(k + k2))
            out[key] = out.get(key, 0) + c * c2
    return Dim.of(out)


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The value of an extent for given symbol sizes."""
    return extent.evaluate(sizes) if isinstance(extent, Dim) else int(extent)


def product(extents: Iterable[Extent]) -> Extent:
    out: Extent = 1
    for e in extents:
        out = out * e
    return out


def symbols_of(shape: Iterable[Extent]) -> frozenset[str]:
    return frozenset().union(*(e.symbols for e in shape if isinstance(e, Dim)))


def divide(a: Extent, b: Extent) -> Extent | None:
    """a / b if it is exact and b is an int or a single monomial; None otherwise."""
    terms = _terms(b)
    if len(terms) != 1:
        return 1 if a == b else None
    ((names, coefficient),) = terms.items()
    out: dict[tuple[str, ...], int] = {}
    for k, c in _terms(a).items():
        rest = list(k)
        for s in names:
            if s not in rest:
                return None
            rest.remove(s)
        if coefficient == 0 or c % coefficient:
            return None
        out[tuple(rest)] = c // coefficient
    return Dim.of(out)


def as_shape(value: object) -> Shape:
    """The shape for a user's argument: an int, a symbol name or a Dim, or a sequence of these."""
    items = value if isinstance(value, tuple | list) else (value,)
    out: list[Extent] = []
    for item in items:
        if isinstance(item, str):
            if not item:
                raise ShapeError("a symbolic dimension needs a name, e.g. 'batch'; received an empty string.")
            out.append(Dim.symbol(item))
        elif isinstance(item, Dim):
            out.append(item)
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            if item < 0:
                raise ShapeError(f"a dimension cannot be negative; received {item} in shape {value!r}.")
            out.append(int(item))
        else:
            raise ShapeError(
                f"a shape consists of ints and names of symbolic dimensions; received {item!r} in {value!r}."
            )
    return tuple(out)


def shape_text(shape: Shape) -> str:
    return "(" + ", ".join(str(e) for e in shape) + ("," if len(shape) == 1 else "") + ")"


@dataclass(frozen=True)
class TensorType:
    """Shape and element type."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Extent:
        return product(self.shape)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        return evaluate(self.elements, sizes) * self.dtype.size

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(str(e) for e in self.shape)}]"


def transpose_type(t: TensorType) -> TensorType:
    """The type of a matrix's transpose."""
    return TensorType(tuple(reversed(t.shape)), t.dtype)


def adjoint_type(t: TensorType) -> TensorType:
    """The type of a tensor's gradient inside a backward pass: the accumulation dtype, since gradients are sums."""
    return TensorType(t.shape, t.dtype.accumulate)


@dataclass(frozen=True)
class TupleType:
    """The type of a node with several results; `item` selects one."""

    items: tuple[TensorType, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.items)) + ")"


Type = TensorType | TupleType


def without(t: TensorType, axes: tuple[int, ...], dtype: DType | None = None) -> TensorType:
    """The type without these axes."""
    return TensorType(tuple(e for d, e in enumerate(t.shape) if d not in axes), dtype or t.dtype)
