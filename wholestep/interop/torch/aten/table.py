"""The table of ATen ops: names of ops and the functions that record them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.records import dataclass

Function = Callable[..., Any]
INTERRUPTED = (TimeoutError, MemoryError)  # raised by a user's alarm or limit: not retried
F = TypeVar("F", bound=Function)

ROW_FILES = (
    "functions pointwise arithmetic creation reductions cumulative_sort shape indexing scatter layers spatial pooling "
    "recurrent special"
)
ALGEBRA_FILES = "complex complex_functions linear_algebra eigen"
FAMILIES = (
    *(f"rows.{name}" for name in ROW_FILES.split()),
    *(f"algebra.{name}" for name in ALGEBRA_FILES.split()),
    *("backwards", "control"),
)


@dataclass(frozen=True)
class AtenRow:
    """The row of an op: its name (without an overload: all of them), the function that records it, what it refuses."""

    name: str
    record: Function
    refuses: str = ""
    whole: bool = True  # is the op kept although torch could decompose it?


ROWS: dict[str, AtenRow] = {}
_SHAPE = (
    "has a shape that depends on the data, and those of a step are fixed: keep all elements, and a mask beside them"
)
_EIGEN = "has complex results; of symmetric matrices linalg.eigh has real ones"
# Ops that cannot be supported, and why.
REFUSED = {
    **dict.fromkeys(("nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"), _SHAPE),
    "repeat_interleave.Tensor": _SHAPE + " (repeats that are numbers of Python are fixed)",
    **dict.fromkeys(("_local_scalar_dense", "item"), "makes a number of Python of the data, which a step never sees"),
    **dict.fromkeys(("linalg_eig", "_linalg_eigvals", "linalg_eigvals"), _EIGEN),
    **dict.fromkeys(("_pack_padded_sequence", "_ctc_loss"), "reads lengths from the data: mask what is padded instead"),
}
OWN: dict[str, AtenRow] = {}  # rows registered by users, which take precedence


def row(*names: str, refuses: str = "", whole: bool = True) -> Callable[[F], F]:
    """Register a function that records ops by their names in `torch.ops.aten`: `add` for all overloads, or
    `add.Tensor`.

    The function takes the recorder, then the op's own arguments.
    """

    def register(function: F) -> F:
        for name in names:
            assert name not in ROWS, f"{name} has two rows"
            ROWS[name] = AtenRow(name, function, refuses, whole)
        return function

    return register


def load_table() -> dict[str, AtenRow]:
    """All rows; their modules are loaded once."""
    for family in FAMILIES:
        import_module(f"wholestep.interop.torch.aten.{family}")
    return ROWS


def find_row(target: str) -> AtenRow | None:
    """The row of an op by its full name, e.g. `aten.add.Tensor` or `transformers.grouped_mm.default`."""
    short = target.removeprefix("aten.")
    for table in (OWN, ROWS):
        for name in (target, target.rpartition(".")[0], short, short.rpartition(".")[0]):
            if name and name in table:
                return table[name]
    return None


def why_missing(target: str) -> str:
    """The reason why an op has no row."""
    short = target.removeprefix("aten.").removeprefix("complex.")
    return REFUSED.get(short) or REFUSED.get(short.rpartition(".")[0], "has no row here")


def torch_op(name: str) -> Callable[[F], F]:
    """Register a function that records a PyTorch op, for networks that `ws.from_torch` imports from then on.

    The function is given the op's arguments: tensors, numbers, lists.  It returns a tensor, or a tuple of them where
    the op has several results.  It takes precedence over the library's own row for the op, and the op is not
    decomposed.

    Args:
        name: as errors name it: "aten.hypot", with all its overloads; "aten.hypot.default"; "mylib.op" of your own.

    Example::

        @ws.torch_op("aten.hypot")
        def hypot(x, y):
            return ws.sqrt(x * x + y * y)
    """
    if not isinstance(name, str) or name.count(".") not in (1, 2):
        fail(UsageError, f"torch_op takes the name of an op, 'aten.hypot' or 'mylib.op'; received {name!r}.")

    def register(function: F) -> F:
        if not callable(function):
            fail(UsageError, f"@ws.torch_op({name!r}) stands before a function; received {function!r}.")
        OWN[name] = AtenRow(name, lambda r, *args, **named: r.apply(function, args, named))
        return function

    return register
