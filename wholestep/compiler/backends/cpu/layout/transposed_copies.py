"""Transposed copies of states that contractions read by rows; the kernel that updates such a state writes the state and
the copy.

Copies of states, transposed or in a half type, are stored as products read them: in panels, half elements in pairs.
A copy belongs to one program.  If another program writes the state, the copy is refreshed before the next step.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.cpu.layout.stored_layout import PAIRS, PANELS
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.plan.lower.rewrite_loads import with_stores
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Layout, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes

Copies = dict[tuple[int, DType], int]  # (state, dtype) -> buffer of its transpose


def store_transposes(draft: Draft) -> Draft:
    """The draft with a copy of each state whose transpose is the right operand of a product."""
    buffers, copies = (
        [_with_transposed_layout(b, draft) if b.space is Space.COPY else b for b in draft.buffers],
        Copies(),
    )
    for kernel in draft.kernels:
        dot = kernel.body
        if not isinstance(dot, Dot) or _is_by_columns(dot):
            continue
        operand = buffers[dot.b.buffer]
        state = buffers[_state(operand)]
        if (state.id, operand.type.dtype) not in copies:
            copies[state.id, operand.type.dtype] = len(buffers)
            type = TensorType(tuple(reversed(state.type.shape)), operand.type.dtype)
            copy = Buffer(len(buffers), state.name, type, Space.COPY, Layout.ROWS, 0, source=state.id, transposed=True)
            buffers.append(_with_transposed_layout(copy, draft))
    kernels = tuple(_with_copies(k, copies, buffers) for k in draft.kernels) if copies else draft.kernels
    return replace(draft, buffers=tuple(buffers), kernels=kernels)


def _is_by_columns(dot: Dot) -> bool:
    return dot.b.index[-1].plain == dot.n


def _with_transposed_layout(copy: Buffer, draft: Draft) -> Buffer:
    layout = PAIRS if copy.type.dtype.is_half else PANELS
    return replace(copy, layout=layout, bytes=layout_bytes(copy.type, layout, draft.sizes))


def _state(operand: Buffer) -> int:
    """The state that a right operand is, or is a copy of."""
    if operand.space is Space.COPY:
        assert operand.source is not None, "a copy has a source"
        return operand.source
    assert operand.space is Space.STATE, "ReadableViews.prepare() copies other right operands that are read by rows"
    return operand.id


def _with_copies(kernel: Kernel, copies: Copies, buffers: list[Buffer]) -> Kernel:
    def with_transposes(store: Store) -> list[Store]:
        transposes = [copy for (state, _), copy in copies.items() if state == store.load.buffer]
        return [store, *(Store(_transpose_load(store.load, copy), store.value) for copy in transposes)]

    body = with_stores(kernel.body, with_transposes)
    if isinstance(body, Dot) and not _is_by_columns(body):
        operand = buffers[body.b.buffer]
        body = replace(body, b=_transpose_load(body.b, copies[_state(operand), operand.type.dtype]))
    return kernel if body is kernel.body else replace(kernel, body=body)


def _transpose_load(load: Load, copy: int) -> Load:
    return Load(copy, tuple(reversed(load.shape)), tuple(reversed(load.index)))
