"""Which operands the CPU's kernels can read in place, without a copy: contiguous rows, or complete panels."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PANELS, state_layout
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.lower.materialize import ReadableViews, is_state
from wholestep.compiler.plan.lower.routine_ops import has_contiguous_columns
from wholestep.compiler.plan.model.access import Access, Indices, linear


class CpuOperands(ReadableViews):
    """States are stored in panels; a slice of a panel has no constant stride along its columns."""

    def is_dense(self, type: TensorType) -> bool:
        return state_layout(type) != PANELS

    def has_steps(self, access: Access) -> bool:
        return super().has_steps(access) and not (is_paneled(access) and access.index[-1].plain is None)

    def takes_right(self, access: Access, column: int, row: int) -> bool:
        """Are the columns of an operand, or of a state's stored transpose, contiguous in memory?"""
        plain = [i.plain for i in access.index]
        if plain[-1:] == [column]:
            return True
        return is_state(access.base) and access.shape == access.base.type.shape and plain == [column, row]

    def takes_window(self, access: Access, fixed: Sequence[int]) -> bool:
        """The stride between images may depend on a symbolic size; the others are literals in the generated tile."""
        if not super().takes_window(access, fixed) or is_paneled(access):
            return False
        steps = dict(linear(access.index, access.shape).terms)
        return all(isinstance(steps.get(a, 0), int) for a in fixed)

    def takes_call(self, access: Access, rank: int) -> bool:
        """A routine reads contiguous rows, or panels of them."""
        return keeps_panels(access.index, rank - 1) if is_paneled(access) else super().takes_call(access, rank)

    def takes_half_rows(self) -> bool:
        """Half-precision copies are stored in panels, as matrices are."""
        return False


def is_paneled(access: Access) -> bool:
    return is_state(access.base) and state_layout(access.base.type) == PANELS


def keeps_panels(index: Indices, column: int) -> bool:
    """Does each matrix begin at a panel boundary, if the indexed value is stored in panels?"""
    *_, columns = index
    others = [c for a, c in columns.terms if a != column]
    aligned = all(isinstance(e, int) and e % LANES == 0 for e in (*others, columns.offset))
    return has_contiguous_columns(index, column) and aligned
