"""Copies of GEMM operands whose rows cannot be padded: inputs, float32 states and outputs belong to the user.

A product of 147 inputs in tf32 reads its operands element by element, and so does its weight gradient.  Where the
arithmetic is large compared with the bytes of an operand, a small kernel copies it into the arena, whose rows can be
padded (`leading_dimension.py`); an output is computed there and copied after the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wholestep.compiler.backends.gpu.grids.gemm_library import is_direct, is_library_gemm
from wholestep.compiler.backends.gpu.leading_dimension import ALIGNED, is_aligned_gemm
from wholestep.compiler.backends.gpu.strides import stride_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Index, Instr, Kernel, Layout, Level, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes

GIVEN = (Space.INPUT, Space.STATE)  # memory that users see, and that kernels of a step read


def copy_unaligned_operands(draft: Draft) -> Draft:
    """Redirects library products to copies of unaligned operands in the arena, if that is worth a copy."""
    products = [k for k in draft.kernels if _is_candidate(draft, k)]
    operands = _operands_worth_a_copy(draft, products)
    results = {k.id for k in products if _has_unaligned_output(draft, k)}
    if not operands and not results:
        return draft
    buffers, kernels, copies = list(draft.buffers), list[Kernel](), dict[Load, int]()

    def copy_of(load: Load) -> int:
        buffers.append(_arena_buffer(draft, len(buffers), load))
        return buffers[-1].id

    def operand(load: Load, kernel: Kernel) -> Load:
        """The operand, or its copy, which a kernel before its first use makes."""
        key = _whole(load)
        if key not in operands or _is_written(draft, load.buffer, kernel.id):
            return load
        if key not in copies:
            copies[key] = copy_of(key)
            kernels.append(_copy(kernel, key, replace(key, buffer=copies[key]), buffers))
        return replace(load, buffer=copies[key])

    for k in draft.kernels:
        dot = k.body
        if k not in products or not isinstance(dot, Dot):
            kernels.append(k)
            continue
        dot = replace(dot, a=operand(dot.a, k), b=operand(dot.b, k))
        (store,) = dot.levels[0].stores
        target = replace(store.load, buffer=copy_of(_whole(store.load))) if k.id in results else store.load
        levels = (replace(dot.levels[0], stores=(Store(target, store.value),)),)
        kernels.append(replace(k, body=replace(dot, levels=levels)))
        if k.id in results:
            kernels.append(_copy(k, _whole(target), _whole(store.load), buffers))
    numbered = tuple(replace(k, id=n) for n, k in enumerate(kernels))
    return replace(draft, buffers=tuple(buffers), kernels=numbered)


def _is_candidate(draft: Draft, kernel: Kernel) -> bool:
    dot = kernel.body
    if not isinstance(dot, Dot) or dot.batch or not is_aligned_gemm(draft, kernel):
        return False
    return is_library_gemm(draft, kernel, draft.sizes) and is_direct(draft, dot)


def _whole(load: Load) -> Load:
    """The access to all of a matrix, with axes numbered in order: what copies are keyed by."""
    return Load(load.buffer, load.shape, tuple(Index.axis(d) for d in range(len(load.shape))))


def _is_matrix(kernel: Kernel, load: Load) -> bool:
    """Does a product access all of a matrix?"""
    axes = [i.plain for i in load.index]
    return len(axes) == 2 and all(a is not None and kernel.axes[a] == e for a, e in zip(axes, load.shape, strict=True))


def _unaligned_axes(kernel: Kernel) -> set[int]:
    """The axes along which the library could load or store vectors, if their extents were aligned."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    loads = (dot.a, dot.b, *dot.stores())
    axes = {a for a in (dot.m, dot.n, dot.k) if any(stride_of(x, a) == 1 for x in loads)}
    return {a for a in axes if isinstance(e := kernel.axes[a], int) and e % ALIGNED}


def _operands_worth_a_copy(draft: Draft, products: list[Kernel]) -> set[Load]:
    """Matrices of the user with unaligned axes, each element of which takes part in many multiplications."""
    multiplications: dict[Load, int] = {}
    for kernel, load, other in _uses(products):
        unaligned = _unaligned_axes(kernel)
        buffer, is_unaligned = draft.buffers[load.buffer], any(i.plain in unaligned for i in load.index)
        if is_unaligned and buffer.space in GIVEN and not buffer.is_part and _is_matrix(kernel, load):
            count = evaluate(kernel.axes[other], draft.sizes)
            multiplications[_whole(load)] = multiplications.get(_whole(load), 0) + count
    least = costs_of(draft).gemm.copied_uses
    return {load for load, count in multiplications.items() if count >= least}


def _uses(products: list[Kernel]) -> Iterator[tuple[Kernel, Load, int]]:
    """Products, an operand of each, and the axis along which the product uses every element of it."""
    for k in products:
        assert isinstance(k.body, Dot)
        yield k, k.body.a, k.body.n
        yield k, k.body.b, k.body.m


def _has_unaligned_output(draft: Draft, kernel: Kernel) -> bool:
    """Is the result an output with unaligned rows, for which the product adds up many multiplications?"""
    dot = kernel.body
    assert isinstance(dot, Dot)
    (store,) = dot.levels[0].stores
    is_output = draft.buffers[store.load.buffer].space is Space.OUTPUT
    depth = evaluate(kernel.axes[dot.k], draft.sizes)
    is_deep = depth >= costs_of(draft).gemm.copied_uses and len(dot.levels[0].body) <= 2
    return is_output and dot.n in _unaligned_axes(kernel) and _is_matrix(kernel, store.load) and is_deep


def _is_written(draft: Draft, buffer: int, before: int) -> bool:
    """Does a kernel before this one write the buffer, so that a copy from the start of the step would be stale?"""
    return any(x.buffer == buffer for k in draft.kernels[:before] for x in k.body.stores())


def _arena_buffer(draft: Draft, id: int, load: Load) -> Buffer:
    type = TensorType(load.shape, draft.buffers[load.buffer].type.dtype)
    return Buffer(id, "", type, Space.ARENA, Layout.ROWS, layout_bytes(type, Layout.ROWS, draft.sizes))


def _copy(near: Kernel, source: Load, target: Load, buffers: Sequence[Buffer]) -> Kernel:
    """A kernel that copies a matrix."""
    body = (Instr(0, "load", buffers[source.buffer].type.dtype, load=source),)
    level = Level(body=body, stores=(Store(target, 0),))
    return replace(near, axes=source.shape, body=Nest((0,), 1, (level,)), origin=("copy of an operand",))
