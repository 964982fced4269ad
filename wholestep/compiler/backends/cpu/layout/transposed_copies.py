"""States that contractions read by rows have their transposes stored too; whoever updates one writes both.

Copies of states, transposed or in a half type, lie as products read them: in panels, those of half elements in pairs.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.cpu.layout.stored_layout import PAIRS, PANELS
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.plan.lower.rewrite_loads import with_stores
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Layout, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes

Copies = dict[tuple[int, DType], int]  # (state, dtype) -> its transpose


def store_transposes(draft: Draft) -> Draft:
    """The draft with a copy of each state whose transpose is a right operand."""
    buffers, copies = (
        [_with_transposed_layout(b, draft) if b.space is Space.COPY else b for b in draft.buffers],
        Copies(),
    )
    for kernel in draft.kernels:
        dot = kernel.body
        if not isinstance(dot, Dot) or _is_by_columns(dot):
            continue
        read = buffers[dot.b.buffer]
        state = buffers[_state(read)]
        if (state.id, read.type.dtype) not in copies:
            copies[state.id, read.type.dtype] = len(buffers)
            type = TensorType(tuple(reversed(state.type.shape)), read.type.dtype)
            copy = Buffer(len(buffers), state.name, type, Space.COPY, Layout.ROWS, 0, source=state.id, turned=True)
            buffers.append(_with_transposed_layout(copy, draft))
    kernels = tuple(_with_copies(k, copies, buffers) for k in draft.kernels) if copies else draft.kernels
    return replace(draft, buffers=tuple(buffers), kernels=kernels)


def _is_by_columns(dot: Dot) -> bool:
    return dot.b.index[-1].plain == dot.n


def _with_transposed_layout(copy: Buffer, draft: Draft) -> Buffer:
    layout = PAIRS if copy.type.dtype.is_half else PANELS
    return replace(copy, layout=layout, bytes=layout_bytes(copy.type, layout, draft.sizes))


def _state(read: Buffer) -> int:
    """The state that a right operand is, or is a copy of."""
    if read.space is Space.COPY:
        assert read.source is not None, "a copy has a source"
        return read.source
    assert read.space is Space.STATE, "prepare() copies any other right operand that is read by rows"
    return read.id


def _with_copies(kernel: Kernel, copies: Copies, buffers: list[Buffer]) -> Kernel:
    def all_of(store: Store) -> list[Store]:
        own = [copy for (state, _), copy in copies.items() if state == store.load.buffer]
        return [store, *(Store(_transpose_load(store.load, copy), store.value) for copy in own)]

    body = with_stores(kernel.body, all_of)
    if isinstance(body, Dot) and not _is_by_columns(body):
        read = buffers[body.b.buffer]
        body = replace(body, b=_transpose_load(body.b, copies[_state(read), read.type.dtype]))
    return kernel if body is kernel.body else replace(kernel, body=body)


def _transpose_load(load: Load, copy: int) -> Load:
    return Load(copy, tuple(reversed(load.shape)), tuple(reversed(load.index)))
