"""Horizontally fused launches: each kernel is a device function of its block index; shared memory is one union.

    extern "C" __global__ void l4(const ws_step *step, const ws_given<23> given) {
      __shared__ __align__(16) char memory[20480];
      if (blockIdx.x < 392) return b5(step, memory, blockIdx.x, ..., given.at);

Identical kernels share one call site, with different buffers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.render.language import STORED
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import target_of
from wholestep.compiler.plan.model.kernel import Kernel, Plan

SHARED = re.compile(r"^(\s*)__shared__ (?:__align__\(16\) )?(.+?) (\w+)((?:\[\d+\])+);$")
NEXT = ", const ws_step *next, const ws_data *data"  # additional parameters of a launch that gathers
SIZES = {"float": 4, "double": 8, "int": 4, "long long": 8, "ws_byte": 1, "ws_half": 2}
# CUDA's block coordinates -> the variables that replace them in a kernel with a part of the launch's blocks.
OWN = (
    ("blockIdx.x", "block"),
    ("blockIdx.y", "chunk"),
    ("gridDim.x", "blocks"),
    ("gridDim.y", "all_chunks"),
    ("blockDim.x", "threads"),
)


def size_of(type: str) -> int:
    """Bytes of a type in shared memory."""
    if type.startswith("ws_best<"):  # a struct of a value and a position
        return 2 * max(4, SIZES[type.removeprefix("ws_best<").removesuffix(">")])
    return SIZES[type]


@dataclass(frozen=True)
class Body:
    """A kernel as a device function named NAME: its text, its bytes of shared memory, the buffers of its parameters."""

    text: str
    bytes: int
    buffers: tuple[int, ...]


def own_memory(lines: Sequence[str]) -> tuple[list[str], int]:
    """Replaces shared memory declarations by offsets into the launch's memory; returns the lines and their bytes."""
    result, end = [], 0
    for line in lines:
        match = SHARED.match(line)
        if match is None:
            result.append(line)
            continue
        indent, type, name, dims = match.groups()
        result.append(f"{indent}{type} (&{name}){dims} = *({type} (*){dims})(memory + {end});")
        end += -(-size_of(type) * prod(int(d) for d in re.findall(r"\d+", dims)) // 16) * 16
    return result, end


def device_function_of(writer: GpuWriter) -> Body:
    """A written kernel as a device function of its block index."""
    schedule = writer.schedule
    assert not schedule.ahead, "kernels with row prefetch use dynamic shared memory and cannot be fused"
    lines, bytes = own_memory(writer.lines)
    buffers = writer.buffers
    parameters = [("char", "scratch"), ("int", "counters")] if schedule.scratch else []
    parameters += [(STORED[writer.plan.buffers[b].type.dtype], writer.params[b]) for b in buffers]
    step = "" if writer.kernel.loop is None else "int turn, "
    head = [
        f"static __device__ __forceinline__ void NAME(const ws_step *step, {step}char *memory, const int block, "
        "const int chunk, void *const *given) {",
        f"  const int blocks = {schedule.blocks}, all_chunks = {schedule.chunks}, threads = {schedule.threads};",
    ]
    head += [f"  {type} *const {name} = ({type} *)given[{i}];" for i, (type, name) in enumerate(parameters)]
    text = "\n".join([*head, *writer.size_declarations(), *lines, "}"])
    for cuda, own in OWN:
        text = text.replace(cuda, own)
    return Body(text, bytes, buffers)


@dataclass(frozen=True)
class KernelCall:
    """A kernel, and the device function that computes it."""

    kernel: Kernel
    function: str
    body: Body

    @property
    def address_count(self) -> int:
        """The number of addresses that the kernel takes from the table."""
        return len(self.body.buffers) + 2 * bool(schedule_of(self.kernel).scratch)


Part = tuple[KernelCall, ...]  # a range of blocks, in each of which these kernels run one after the other


def launch_text(plan: Plan, name: str, parts: Sequence[Part], threads: int, gathers: int = 0) -> str:
    """The global function of a launch, which dispatches on the block index; extra blocks may gather the next rows."""
    first = parts[0][0].kernel
    loop, step = ("", "step") if first.loop is None else (", int turn", "step, turn")
    count = sum(call.address_count for part in parts for call in part)
    grids = [schedule_of(part[0].kernel) for part in parts]
    # Limit the registers so that all blocks can be co-resident, if there are few.
    target, blocks = target_of(plan), sum(s.blocks * s.chunks for s in grids)
    resident = max(1, min(target.cost_model.fusion.resident_blocks, -(-blocks // target.multiprocessors)))
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {resident}) {name}(const ws_step *step{loop}, '
        f"const __grid_constant__ ws_given<{count}> given{NEXT if gathers else ''}) {{",
        f"  __shared__ __align__(16) char memory[{max(16, *(c.body.bytes for part in parts for c in part))}];",
        "  ws_wait_for_others();",
        "  int block = blockIdx.x;",
    ]
    lines += dispatch(parts, step, "given.at")
    if gathers:
        lines.append(f"  ws_gather_rows(next, data, block, {gathers});")
    return "\n".join([*lines, "}"])


def dispatch(parts: Sequence[Part], step: str, table: str) -> list[str]:
    """Lines that dispatch a block to its kernel."""
    lines, at = list[str](), 0
    for run in group_equal_parts(parts):
        schedule, each = schedule_of(run[0][0].kernel), sum(call.address_count for call in run[0])
        blocks = schedule.blocks * schedule.chunks
        which = "" if len(run) == 1 else f" + block / {blocks} * {each}"
        inside = "block" if len(run) == 1 else f"block % {blocks}"
        block_and_chunk = (
            f"{inside}, 0" if schedule.chunks == 1 else f"{inside} % {schedule.blocks}, {inside} / {schedule.blocks}"
        )
        lines.append(f"  if (block < {blocks * len(run)}) {{")
        offset = at
        for call in run[0]:
            if offset > at:
                lines.append("    __syncthreads();")
            lines.append(f"    {call.function}({step}, memory, {block_and_chunk}, {table} + {offset}{which});")
            offset += call.address_count
        lines += ["    return;", "  }", f"  block -= {blocks * len(run)};"]
        at += each * len(run)
    return lines


def group_equal_parts(parts: Sequence[Part]) -> list[list[Part]]:
    """Groups parts with the same functions and equal grids."""
    runs: dict[tuple[tuple[str, ...], int, int], list[Part]] = {}
    for part in parts:
        s = schedule_of(part[0].kernel)
        runs.setdefault((tuple(c.function for c in part), s.blocks, s.chunks), []).append(part)
    return list(runs.values())
