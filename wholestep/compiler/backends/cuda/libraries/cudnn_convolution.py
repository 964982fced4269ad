"""Convolutions that cuDNN makes: which ones, and what it is told of them.

They have many channels, so that tensor cores have something to multiply, and half types or tf32.  The library reads and
writes images with their channels last where the plan has them; what it rounds, passes of ours round in the graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path

from wholestep.compiler.backends.cuda.libraries.cudnn import CudnnOp, CudnnTensor, Description
from wholestep.compiler.backends.cuda.libraries.cudnn_graphs import LibraryCall, TensorAddress
from wholestep.compiler.backends.cuda.libraries.gemm_library import start_of, stride_of
from wholestep.compiler.backends.cuda.target import uses_tf32
from wholestep.compiler.backends.gpu.convolution.direct import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.kernel_schedule import GRAPH, PRODUCT, CudaSchedule, schedule_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Instr, Kernel, Load, Plan

WORKSPACE = 32 << 20  # bytes that the library may use
COSTS = Path(__file__).parents[1] / "costs"
MANY_IMAGES = 32  # of a call: of fewer, the library knows better which algorithm is fast
LEAST_IN_TF32 = 32  # channels and outputs: of fewer, kernels of ours are as fast
CHANNELS = 8  # that fill 16 bytes of a half type: inputs and outputs of a group are multiples of them
OPS = {  # op of the IR -> the library's, with what it calls operands, and the result
    "conv2d": ("conv_fprop", (("image", "x"), ("weight", "weight")), "y"),
    "conv2d_grad_input": ("conv_dgrad", (("loss", "g"), ("filter", "weight")), "dx"),
    "conv2d_grad_weight": ("conv_wgrad", (("image", "x"), ("loss", "g")), "dw"),
}


def has_many_channels(dtype: DType, channels: Extent, outputs: Extent, groups: int, tf32: bool) -> bool:
    """Is a convolution of so many channels in each of so many groups one for the library?"""
    if not (isinstance(channels, int) and isinstance(outputs, int)) or groups > 1:
        return False
    least = LEAST_IN_TF32 if dtype == float32 else CHANNELS
    known = dtype.is_half or (dtype == float32 and tf32)
    return known and channels % CHANNELS == outputs % CHANNELS == 0 and min(channels, outputs) >= least


def is_for_library(node: Node, tf32: bool = False) -> bool:
    """Is a node a convolution or an adjoint that the library makes, on a target with tf32 or on one without?"""
    if node.op not in OPS:
        return False
    weight = node if node.op == "conv2d_grad_weight" else node.inputs[1]
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    outputs, _, _, channels = weight.type.shape
    return a.last and has_many_channels(node.inputs[0].type.dtype, channels, outputs, a.groups, tf32)


def takes_epilogue_in_tf32(convolution: Node, node: Node, alone: bool) -> bool:
    """The same on a target with tf32."""
    return takes_epilogue(convolution, node, alone, tf32=True)


def takes_epilogue(convolution: Node, node: Node, alone: bool, tf32: bool = False) -> bool:
    """May a node follow a convolution in its kernel?  The library's ends with being rounded, for the only reader."""
    if not is_for_library(convolution, tf32):
        return convolution.op != "conv2d_grad_weight" and convolution.op != "pooled_grad_weight"
    half = convolution.inputs[0].type.dtype
    return alone and node.op == "cast" and node.type.dtype == half and half.is_half


def takes(plan: Plan, kernel: Kernel, window: Window) -> bool:
    """Is a window kernel one that the library makes whole?"""
    return window.op in OPS and why_not_cudnn(plan, kernel, window) is None


def why_not_cudnn(plan: Plan, kernel: Kernel, window: Window) -> str | None:
    """Why a convolution or an adjoint is no call of the library; None: it is one."""
    made = result_of(window)
    if made is None or window.op not in OPS:
        return "something follows them in their kernels"
    of = shape_of(kernel, operand(window, "weight")) if window.op != "conv2d_grad_weight" else kernel.axes[:4]
    dtypes = {plan.buffers[o.load.buffer].type.dtype for o in window.operands}
    tf32 = uses_tf32(plan.target)
    if not all(dtype.is_half or (tf32 and dtype == float32) for dtype in dtypes):
        return f"they multiply {'/'.join(sorted(map(str, dtypes)))}"
    if len(dtypes) > 1 or plan.buffers[made[0].buffer].type.dtype not in dtypes:
        return "their sums are not rounded"  # the library has no good way to leave them as they are
    if not has_many_channels(min(dtypes, key=str), of[3], of[0], window.groups, tf32):
        few = f"channels are few, or no multiples of {CHANNELS}"
        return "they have groups" if window.groups > 1 else few
    if kernel.loop is not None or not _is_symmetric(kernel, window):
        return "they stand in a loop" if kernel.loop is not None else "padding differs from side to side"
    dense = all(stride_of(o.load, o.axes[-1]) == 1 for o in window.operands)
    return None if dense else "their operands do not have channels last"


def notes_of(plan: Plan) -> tuple[str, ...]:
    """Who makes the convolutions of a plan, and why, for people."""
    found: dict[str, int] = {}
    for kernel in plan.kernels:
        window = kernel.body
        if isinstance(window, Window) and "max_pool" not in window.op:
            why = why_not_cudnn(plan, kernel, window)
            form = "products of ours" if schedule_of(kernel).form == PRODUCT else "kernels of ours"
            who = "cuDNN, channels last, adding in a fixed order" if why is None else f"{form}: {why}"
            found[who] = found.get(who, 0) + 1
    return tuple(f"{count} convolutions and adjoints by {who}" for who, count in found.items())


def _is_symmetric(kernel: Kernel, window: Window) -> bool:
    """Is there as much around an image below and behind as above and before it, or nothing that windows would see?"""
    images, weight, made = _shapes(kernel, window)
    counts = [
        (size + 2 * low - dilation * (tap - 1) - 1) // stride + 1
        for size, low, dilation, tap, stride in zip(
            map(static_extent, images[1:3]),
            window.low,
            window.dilation,
            map(static_extent, weight[1:3]),
            window.stride,
            strict=True,
        )
    ]
    return counts == list(made[1:3])


def _shapes(kernel: Kernel, window: Window) -> tuple[tuple[Extent, ...], tuple[Extent, ...], tuple[Extent, ...]]:
    """Of the convolution's images, weights and results."""

    def of(name: str) -> tuple[Extent, ...]:
        return shape_of(kernel, operand(window, name))

    made = tuple(kernel.axes[:4])
    if window.op == "conv2d":
        return of("x"), of("weight"), made
    return (made, of("weight"), of("g")) if window.op == "conv2d_grad_input" else (of("x"), made, of("g"))


def result_of(window: Window) -> tuple[Load, tuple[int, ...]] | None:
    """Where the library writes, and over which axes; None where something follows the convolution in its kernel."""
    if window.results:
        (result,) = window.results
        return result.load, result.axes
    if window.pooled is not None or len(window.levels) != 1:
        return None
    (level,) = window.levels
    if level.row or level.reduces or len(level.stores) != 1:
        return None
    (store,) = level.stores
    made = {i.id: i for i in level.body}
    if len(made) > 2 or not _is_rounded_sum(made[store.value], made):
        return None
    return store.load, (0, 1, 2, 3)


def _is_rounded_sum(instr: Instr, made: Mapping[int, Instr]) -> bool:
    if instr.op == "cast" and instr.dtype.is_half:
        return made[instr.args[0]].op == "acc"
    return instr.op == "acc"


def schedule(kernel: Kernel) -> CudaSchedule:
    return CudaSchedule(GRAPH, 1, 1, workspace=WORKSPACE)


def describe_call(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The call of a convolution: tensors as the library names their axes, with steps that say how they lie."""
    window = kernel.body
    assert isinstance(window, Window)
    result = result_of(window)
    assert result is not None, "what a library takes has one result"
    function, given, name = OPS[window.op]
    loads = {**{o.name: (o.load, o.axes) for o in window.operands}, name: result}
    arrays = tuple(_array(plan, kernel, name, *of, sizes) for name, of in loads.items())
    places = tuple(_place(plan, name, load, sizes) for name, (load, _) in loads.items())
    options = (("dilation", window.dilation), ("padding", window.low), ("stride", window.stride))
    op = CudnnOp(function, given, (name,), options)
    return LibraryCall(Description((op,), arrays, WORKSPACE, prefers=preferred_engine(plan.target, op, arrays)), places)


@cache
def algorithms(kind: str) -> Mapping[str, str]:
    """Convolution -> the algorithm that was measured to be the fastest on a kind of GPU, where it is not the first."""
    path = COSTS / f"convolutions_{kind}.json"
    found: Mapping[str, str] = json.loads(path.read_text())["algorithms"] if path.is_file() else {}
    return found


def preferred_engine(target: str, op: CudnnOp, arrays: Sequence[CudnnTensor]) -> str:
    """The algorithm for a convolution of many images; "": the library's first."""
    if arrays[0].shape[0] < MANY_IMAGES or not arrays[0].dtype.is_half:
        return ""
    shapes = [a.shape if a.name in ("weight", "dw") else a.shape[1:] for a in arrays]
    options = [f"{name} {'x'.join(map(str, value))}" for name, value in op.options[::-1] if isinstance(value, tuple)]
    key = " ".join([op.function, *("x".join(map(str, shape)) for shape in shapes), *options])
    return algorithms(target.partition("/")[2].partition("+")[0]).get(key, "")


def _array(
    plan: Plan, kernel: Kernel, name: str, load: Load, axes: tuple[int, ...], sizes: Mapping[str, int]
) -> CudnnTensor:
    """(N, rows, columns, channels) as the library has it: (N, channels, rows, columns)."""
    shape = [evaluate(kernel.axes[a], sizes) for a in axes]
    steps = [evaluate(stride_of(load, a), sizes) for a in axes]
    # The step of an axis of one is not looked at by us, but by the library: as if it were dense.
    dense = [prod(shape[d + 1 :]) for d in range(4)]
    steps = [step if extent > 1 else whole for step, extent, whole in zip(steps, shape, dense, strict=True)]
    n, rows, columns, channels = range(4)
    order = (n, channels, rows, columns)
    dtype = plan.buffers[load.buffer].type.dtype
    return CudnnTensor(name, tuple(shape[d] for d in order), tuple(steps[d] for d in order), dtype)


def _place(plan: Plan, name: str, load: Load, sizes: Mapping[str, int]) -> TensorAddress:
    return TensorAddress(name, load.buffer, evaluate(start_of(load), sizes) * plan.buffers[load.buffer].type.dtype.size)
