"""Transposed copies of a state: written block by block, after the corresponding block of the state itself.

Written element by element, a row of 16 elements would touch 16 cache lines (docs/rejected.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PANELS
from wholestep.compiler.backends.cpu.render.language import SUFFIX, cast_text
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.types import float32
from wholestep.compiler.plan.model.kernel import Load, Store

Span = tuple[str, str]


def transposes(w: CWriter) -> dict[Store, Store]:
    """Stores into a state's transposed copy, each with the store into the state itself."""
    level = w.kernel.levels[0]
    into = {s.load.buffer: s for s in level.stores}
    source = {s: w.plan.buffers[s.load.buffer].source for s in level.stores}
    return {s: into[state] for s, state in source.items() if state is not None}


def render_transpose(w: CWriter, copy: Load, state: Load, spans: Mapping[int, Span]) -> None:
    """Copy the part of a state that was just written into its second layout, one line of 16 copied rows at a time.

    `spans` maps the kernel's axes to the part's rows and columns; both begin at multiples of 16.
    """
    rows, columns = state.shape
    (m, row_span), (n, column_span) = ((i.plain, spans[i.plain]) for i in state.index if i.plain is not None)
    saved_axes = w.axes.copy()
    dtype = w.plan.buffers[copy.buffer].type.dtype
    if has_whole_blocks(w, state) and not dtype.is_half:
        w.axes[m], w.axes[n] = "i", "j"
        with w.loop("i", *row_span, str(LANES)), w.loop("j", *column_span, str(LANES)):
            w.emit(f"ws_turn_16x16({w.address(copy)}, {w.address(state)}, {LANES});")
        w.axes = saved_axes
        return
    if dtype.is_half and w.plan.buffers[state.buffer].layout == PANELS:
        w.axes[m], w.axes[n] = "i", "j"
        routine = f"ws_pair_some_{'plain' if copy.index == state.index else 'transposed'}_{SUFFIX[dtype]}"
        with w.loop("i", *row_span, str(LANES)), w.loop("j", *column_span, str(LANES)):
            to, left = block_of_pairs(copy, state), f"{row_span[1]} - i, {column_span[1]} - j"
            w.emit(f"{routine}({w.params[copy.buffer]} + {to}, {w.address(state)}, {left});")
        w.axes = saved_axes
        return
    if dtype.is_half:
        w.axes[m], w.axes[n] = "i", "j"
        with w.loop("i", *row_span), w.loop("j", *column_span):
            value = cast_text(w.element(state), w.plan.buffers[state.buffer].type.dtype, dtype)
            w.emit(f"{w.element(copy)} = {value};")
        w.axes = saved_axes
        return
    w.axes[m], w.axes[n] = "(i + l)", "j"
    source = f"{w.params[state.buffer]}[{w.offset(state)}]"
    with w.loop("i", *row_span, str(LANES)), w.loop("j", *column_span):
        w.emit(f"const long w = {rows} - i < {LANES} ? {rows} - i : {LANES};")
        target = f"{w.params[copy.buffer]}[(i/{LANES})*{columns}*{LANES} + j*{LANES} + l]"
        w.emit(f"for (long l = 0; l < w; l++) {target} = {source};")
    w.axes = saved_axes


def block_of_pairs(copy: Load, state: Load) -> str:
    """Offset in the pairs layout of the 16 x 16 block that begins at (i, j) of the state."""
    rows, _ = copy.shape
    assert isinstance(rows, int), f"a state has a constant number of rows, not {rows}"
    row, column = ("i", "j") if copy.index == state.index else ("j", "i")
    return f"{column}*{-(-rows // 2) * 2} + {row}*{LANES}"


def has_whole_blocks(w: CWriter, state: Load) -> bool:
    """Does the state consist of complete 16 x 16 blocks, each contiguous in memory?"""
    buffer = w.plan.buffers[state.buffer]
    multiples = all(isinstance(extent, int) and extent % LANES == 0 for extent in state.shape)
    return multiples and buffer.layout == PANELS and buffer.type.dtype == float32
