"""cuDNN convolutions: which convolutions the library computes, and their operation graphs.

They have many channels, so that tensor cores are used, and half types or tf32.  The library reads and writes the plan's
channels-last images in place; the rounding it does is explicit in the graph, inserted by our passes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path

from wholestep.compiler.backends.cuda.libraries.cudnn import (
    CudnnOp,
    CudnnTensor,
    Description,
    LibraryCall,
    TensorAddress,
)
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.kernel_schedule import Form, GpuSchedule
from wholestep.compiler.backends.gpu.strides import start_of, stride_of
from wholestep.compiler.backends.gpu.target import GpuTarget, costs_of, gpu_target, target_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Draft, Instr, Kernel, Load

COSTS = Path(__file__).parents[1] / "costs"
CHANNELS = 8  # channels per 16 bytes of a half type: input and output channels of a group must be multiples
OPS = {  # op of the IR -> the library's function, its argument names for our operands, and the result
    "conv2d": ("conv_fprop", (("image", "x"), ("weight", "weight")), "y"),
    "conv2d_grad_input": ("conv_dgrad", (("loss", "g"), ("filter", "weight")), "dx"),
    "conv2d_grad_weight": ("conv_wgrad", (("image", "x"), ("loss", "g")), "dw"),
}


def has_many_channels(
    op: str, dtype: DType, channels: Extent, outputs: Extent, groups: int, tf32_channels: int | None
) -> bool:
    """Is a convolution or adjoint with this many channels and outputs per group one for the library?

    Of groups, images in half types: for a weight gradient its first deterministic proposal may be slow (063).

    Args:
        tf32_channels: fewest channels of a float32 convolution; None if these are not computed in tf32.
    """
    if not (isinstance(channels, int) and isinstance(outputs, int)):
        return False
    if groups > 1 and not (dtype.is_half and op != "conv2d_grad_weight"):
        return False
    least = CHANNELS if dtype.is_half else tf32_channels if dtype == float32 else None
    return least is not None and channels % CHANNELS == outputs % CHANNELS == 0 and min(channels, outputs) >= least


def tf32_channels_of(target: GpuTarget) -> int | None:
    """Fewest channels of a float32 convolution that the library computes; None if the target computes none in tf32."""
    return target.cost_model.library.tf32_channels if target.tf32_convolutions else None


def is_for_library(node: Node, target: GpuTarget) -> bool:
    """Is a node a convolution or an adjoint that the library computes?"""
    return _is_for_library(node, tf32_channels_of(target))


def computes_half(node: Node) -> bool:
    """Is a node a convolution or an adjoint of half-precision operands that the library computes?"""
    return _is_for_library(node, None)


def is_grouped_half(node: Node) -> bool:
    """Is a node a grouped convolution or adjoint of half-precision images, which our kernels compute?"""
    if node.op not in OPS:
        return False
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    return a.last and a.groups > 1 and node.inputs[0].type.dtype.is_half and not computes_half(node)


def _is_for_library(node: Node, tf32_channels: int | None) -> bool:
    if node.op not in OPS:
        return False
    weight = node if node.op == "conv2d_grad_weight" else node.inputs[1]
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    outputs, _, _, channels = weight.type.shape
    each = static_extent(outputs) // a.groups
    return a.last and has_many_channels(node.op, node.inputs[0].type.dtype, channels, each, a.groups, tf32_channels)


def takes_epilogue(convolution: Node, node: Node, alone: bool, target: str) -> bool:
    """May a node be fused into a convolution's kernel?  With half images only the rounding, if it is the only reader.

    The library fuses nothing else, and our grouped kernels would store float32 images for the ops after them.
    """
    if not is_for_library(convolution, gpu_target(target)) and not _rounds_image(convolution):
        return convolution.op != "conv2d_grad_weight" and convolution.op != "pooled_grad_weight"
    half = convolution.inputs[0].type.dtype
    return alone and node.op == "cast" and node.type.dtype == half and half.is_half


def _rounds_image(node: Node) -> bool:
    return is_grouped_half(node) and node.op != "conv2d_grad_weight"


def why_not_cudnn(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
    """Why a convolution or an adjoint is not computed by the library; None if it is."""
    window = kernel.body
    assert isinstance(window, Window)
    result = result_of(window)
    if result is None or window.op not in OPS:
        return "they have a fused epilogue"
    weight = shape_of(kernel, operand(window, "weight")) if window.op != "conv2d_grad_weight" else kernel.axes[:4]
    dtypes = {plan.buffers[o.load.buffer].type.dtype for o in window.operands}
    tf32_channels = tf32_channels_of(target_of(plan))
    if not all(dtype.is_half or (tf32_channels is not None and dtype == float32) for dtype in dtypes):
        return f"they multiply {'/'.join(sorted(map(str, dtypes)))}"
    if len(dtypes) > 1 or plan.buffers[result[0].buffer].type.dtype not in dtypes:
        return "their sums are not rounded"  # the library's algorithms with float32 results are slow
    outputs = static_extent(weight[0]) // window.groups
    if not has_many_channels(window.op, min(dtypes, key=str), weight[3], outputs, window.groups, tf32_channels):
        few = f"their channels are few, or not multiples of {CHANNELS}"
        return "they have groups" if window.groups > 1 else few
    if kernel.loop is not None or not _is_symmetric(kernel, window):
        return "they are in a loop" if kernel.loop is not None else "their padding is asymmetric"
    dense = all(stride_of(o.load, o.axes[-1]) == 1 for o in window.operands)
    return None if dense else "their operands are not channels-last"


def _is_symmetric(kernel: Kernel, window: Window) -> bool:
    """Is the padding the same on both sides, or is a difference never covered by a window?"""
    images, weight, results = _shapes(kernel, window)
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
    return counts == list(results[1:3])


def _shapes(kernel: Kernel, window: Window) -> tuple[tuple[Extent, ...], tuple[Extent, ...], tuple[Extent, ...]]:
    """Shapes of the convolution's images, weights and results."""

    def of(name: str) -> tuple[Extent, ...]:
        return shape_of(kernel, operand(window, name))

    computed = tuple(kernel.axes[:4])
    if window.op == "conv2d":
        return of("x"), of("weight"), computed
    return (computed, of("weight"), of("g")) if window.op == "conv2d_grad_input" else (of("x"), computed, of("g"))


def result_of(window: Window) -> tuple[Load, tuple[int, ...]] | None:
    """The access and axes of the library's result; None if the kernel has a fused epilogue."""
    if window.results:
        (result,) = window.results
        return result.load, result.axes
    if window.pooled is not None or len(window.levels) != 1:
        return None
    (level,) = window.levels
    if level.row or level.reduces or len(level.stores) != 1:
        return None
    (store,) = level.stores
    instructions = {i.id: i for i in level.body}
    if len(instructions) > 2 or not _is_rounded_sum(instructions[store.value], instructions):
        return None
    return store.load, (0, 1, 2, 3)


def _is_rounded_sum(instr: Instr, instructions: Mapping[int, Instr]) -> bool:
    if instr.op == "cast" and instr.dtype.is_half:
        return instructions[instr.args[0]].op == "acc"
    return instr.op == "acc"


def schedule(plan: Draft, kernel: Kernel) -> GpuSchedule:
    return GpuSchedule(Form.GRAPH, 1, 1, workspace=costs_of(plan).library.convolution_workspace)


def describe_call(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The library call of a convolution: tensors in the library's axis order, with strides for their layout."""
    window = kernel.body
    assert isinstance(window, Window)
    result = result_of(window)
    assert result is not None, "a library call has one result"
    function, operands, name = OPS[window.op]
    loads = {**{o.name: (o.load, o.axes) for o in window.operands}, name: result}
    arrays = tuple(_array(plan, kernel, name, *of, sizes) for name, of in loads.items())
    addresses = tuple(_address(plan, name, load, sizes) for name, (load, _) in loads.items())
    options = (("dilation", window.dilation), ("padding", window.low), ("stride", window.stride))
    op = CudnnOp(function, operands, (name,), options)
    workspace, engine = costs_of(plan).library.convolution_workspace, preferred_engine(plan.target, op, arrays)
    return LibraryCall(Description((op,), arrays, workspace, prefers=engine), addresses)


@cache
def algorithms(kind: str) -> Mapping[str, str]:
    """Convolution -> the fastest algorithm measured on an architecture, if it is not the library's first proposal."""
    path = COSTS / f"convolutions_{kind}.json"
    measured: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))["algorithms"] if path.is_file() else {}
    return measured


def preferred_engine(target: str, op: CudnnOp, arrays: Sequence[CudnnTensor]) -> str:
    """The measured algorithm for a convolution of many images; "" for the library's first proposal."""
    if arrays[0].shape[0] < gpu_target(target).cost_model.library.table_images or not arrays[0].dtype.is_half:
        return ""
    shapes = [a.shape if a.name in ("weight", "dw") else a.shape[1:] for a in arrays]
    options = [f"{name} {'x'.join(map(str, value))}" for name, value in op.options[::-1] if isinstance(value, tuple)]
    key = " ".join([op.function, *("x".join(map(str, shape)) for shape in shapes), *options])
    return algorithms(target.partition("/")[2].partition("+")[0]).get(key, "")


def _array(
    plan: Draft, kernel: Kernel, name: str, load: Load, axes: tuple[int, ...], sizes: Mapping[str, int]
) -> CudnnTensor:
    """A tensor (N, rows, columns, channels) in the library's axis order (N, channels, rows, columns)."""
    shape = [evaluate(kernel.axes[a], sizes) for a in axes]
    steps = [evaluate(stride_of(load, a), sizes) for a in axes]
    # The stride of an axis of extent 1 is arbitrary for us, but the library checks it: use the dense one.
    dense = [prod(shape[d + 1 :]) for d in range(4)]
    steps = [step if extent > 1 else packed for step, extent, packed in zip(steps, shape, dense, strict=True)]
    n, rows, columns, channels = range(4)
    order = (n, channels, rows, columns)
    dtype = plan.buffers[load.buffer].type.dtype
    return CudnnTensor(name, tuple(shape[d] for d in order), tuple(steps[d] for d in order), dtype)


def _address(plan: Draft, name: str, load: Load, sizes: Mapping[str, int]) -> TensorAddress:
    return TensorAddress(name, load.buffer, evaluate(start_of(load), sizes) * plan.buffers[load.buffer].type.dtype.size)
