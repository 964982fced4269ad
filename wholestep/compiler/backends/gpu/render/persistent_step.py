"""Persistent training step: `native/persistent_step.h` around the epilogues of products.

for each step:
  partial sums of one chunk of features, all rows, eight columns                     | grid barrier
  rows: add the chunks, epilogue of the product, then the row chain and later kernels | grid barrier
  weight gradient and update; other blocks run the other updates and copy the rows of the other inputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.backends.gpu.fusion.launches import parts_of
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.persistent import eligibility
from wholestep.compiler.backends.gpu.persistent.eligibility import APART, DEEP, RECORDS, WIDE, PersistentStep
from wholestep.compiler.backends.gpu.program_memory import record_words
from wholestep.compiler.backends.gpu.render.horizontal_fusion import (
    Body,
    KernelCall,
    device_function_of,
    dispatch,
    group_equal_parts,
)
from wholestep.compiler.backends.gpu.render.language import LOCAL
from wholestep.compiler.backends.gpu.render.source import work_of_a_block, write_kernel
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.io.report import origin_comment
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Load, Plan

NAME = "many_steps"


@dataclass(frozen=True)
class PersistentStepText:
    """The source, the bytes of shared memory per block, and the kernels with their buffers, in table order."""

    text: str
    bytes: int
    calls: tuple[tuple[Kernel, tuple[int, ...], bool], ...]  # kernel, its buffers; does it use scratch memory?


class UpdateWriter(GpuWriter):
    """Writes an update whose states are in registers of the thread."""

    register_states: tuple[int, ...] = ()

    def element(self, load: Load) -> str:
        if load.buffer in self.register_states:
            return f"kept[{self.register_states.index(load.buffer)}][which]"
        return super().element(load)


def assemble_text(plan: Plan, step: PersistentStep) -> tuple[str, GpuWriter]:
    """Source for a row of the first product: adds the chunks and computes the epilogue."""
    w, dot = GpuWriter(plan, step.forward), step.forward.body
    assert isinstance(dot, Dot)
    (level,) = dot.levels
    acc = next(i for i in level.body if i.op == "acc")
    w.axes |= {dot.m: "i", dot.n: "j"}
    w.emit(f"if (i >= {w.axis_extent(dot.m)}) return;")
    with w.block(f"for (int j = threadIdx.x; j < {step.columns}; j += 256)"):
        first = "0" if step.chunks > 1 else f"partial[i*{step.columns} + j]"
        w.emit(f"{LOCAL[acc.dtype]} v{acc.id} = {first};")
        if step.chunks > 1:
            w.emit("#pragma unroll")
            at = f"(c*{step.rows} + i)*{step.columns} + j"
            w.emit(f"for (int c = 0; c < {step.chunks}; c++) v{acc.id} += partial[{at}];")
        w.instructions((*level.row, *level.body))
        w.stores((*level.row_stores, *level.stores))
    head = f"void {NAME}_row(const ws_step *step, const float *partial, const int i, void *const *given)"
    return w.device_function(head), w


def update_text(plan: Plan, step: PersistentStep) -> tuple[str, UpdateWriter]:
    """Source for an element of the weights: its gradient contribution per row, and the update by the sum."""
    dot = step.gradient.body
    assert isinstance(dot, Dot)
    feature, _, output_gradient = eligibility.feature_axis(step.forward, step.gradient)
    column = dot.n if feature == dot.m else dot.m
    w = UpdateWriter(plan, step.gradient)
    w.axes |= {dot.k: "row", column: "column"}
    w.emit(f"return row < {w.axis_extent(dot.k)} && column < {step.columns} ? {w.element(output_gradient)} : 0.0f;")
    head = f"float {NAME}_slope(const ws_step *step, const int row, const int column, void *const *given)"
    slope = w.device_function(head)
    w = UpdateWriter(plan, step.gradient)
    w.register_states = step.states
    (level,) = dot.levels
    acc = next(i for i in level.body if i.op == "acc")
    w.axes |= {feature: "feature", column: "column"}
    w.instructions(level.body)
    w.stores(level.stores)
    head = (
        f"void {NAME}_update(const ws_step *step, const int feature, const int column, const float v{acc.id}, "
        f"float (&kept)[{len(step.states)}][4], const int which, void *const *given)"
    )
    return f"{slope}\n{w.device_function(head)}", w


@dataclass(frozen=True)
class PersistentPhase:
    """Work of the blocks between two grid barriers."""

    function: str
    blocks: int
    calls: tuple[KernelCall, ...]
    text: str


def phase(plan: Plan, kernels: Sequence[Kernel], name: str) -> PersistentPhase:
    """Kernels as one device function of the block index."""
    names: dict[str, str] = {}
    texts, parts = [], []
    for part in sorted(parts_of(kernels), key=work_of_a_block, reverse=True):
        calls = []
        for kernel in part:
            body: Body = device_function_of(write_kernel(plan, kernel))
            if body.text not in names:
                names[body.text] = f"{name}_{len(names)}"
                texts.append(f"{origin_comment(kernel)}\n{body.text.replace('NAME', names[body.text])}")
            calls.append(KernelCall(kernel, names[body.text], body))
        parts.append(tuple(calls))
    ordered = [part for run in group_equal_parts(parts) for part in run]
    parameters = "const ws_step *step, char *memory, int block, void *const *given"
    head = f"static __device__ __forceinline__ void {name}({parameters}) {{"
    text = "\n".join([*texts, head, *dispatch(ordered, "step", "given"), "}"])
    return PersistentPhase(name, eligibility.others_blocks(kernels), tuple(c for part in ordered for c in part), text)


def render_persistent_step(plan: Plan, step: PersistentStep) -> PersistentStepText:
    """The persistent kernel, named `many_steps`."""
    row, first = assemble_text(plan, step)
    update, last = update_text(plan, step)
    between = [phase(plan, kernels, f"{NAME}_{n}") for n, kernels in enumerate(step.between)]
    other_updates = phase(plan, step.other_updates, f"{NAME}_beside")
    calls: list[tuple[Kernel, tuple[int, ...], bool]] = [
        (step.forward, first.buffers, False),
        (step.gradient, last.buffers, False),
    ]
    starts = []
    for each in (*between, other_updates):
        starts.append(count_of(calls))
        calls += [(c.kernel, c.body.buffers, bool(schedule_of(c.kernel).scratch)) for c in each.calls]
    work = max([step.work_bytes, *(c.body.bytes for each in (*between, other_updates) for c in each.calls)])
    count, record = count_of(calls), 8 * record_words(plan)
    bytes = step.own_bytes + work + 16 * count + RECORDS * record + 4 * step.rows
    loss = plan.outputs[0][1]
    loss_addresses = [i for i, b in enumerate(addresses(calls)) if b == loss]
    update_start = len(first.buffers)
    main = MAIN.format(
        name=NAME,
        rows=step.rows,
        work=work,
        count=count,
        record=record,
        tiles=step.tiles,
        across=-(-step.columns // WIDE),
        features=step.features,
        columns=step.columns,
        states=len(step.states),
        weights=step.states.index(step.weights),
        update=update_start,
        kept=", ".join(str(update_start + last.buffers.index(b)) for b in step.states),
        place=_weight_offset(step),
        losses=" ".join(f"given[{i}] = losses + 16*s;" for i in loss_addresses),
        middle="".join(_middle(n, each, start) for n, (each, start) in enumerate(zip(between, starts, strict=False))),
        others=other_updates.blocks,
        beside=f"{other_updates.function}(step, memory, block, given + {starts[-1]});" if other_updates.calls else "",
        deep=DEEP,
        wide=WIDE,
        apart=APART,
        records=RECORDS,
    )
    texts = [row, update, *(each.text for each in (*between, other_updates)), main]
    return PersistentStepText("\n".join(texts), bytes, tuple(calls))


def count_of(calls: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> int:
    return sum(len(buffers) + 2 * scratch for _, buffers, scratch in calls)


def addresses(calls: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> list[int]:
    """The buffer at each address of the table; -1 for scratch memory and its counters."""
    return [b for _, buffers, scratch in calls for b in (*((-1, -1) if scratch else ()), *buffers)]


def _weight_offset(step: PersistentStep) -> str:
    """Expression of the element offset of a weight."""
    dot = step.forward.body
    assert isinstance(dot, Dot)
    along, across = eligibility.strides(dot.b, dot.k, dot.n) or (0, 0)
    return f"(first + feature)*{along} + (n0 + column)*{across}"


def _middle(number: int, each: PersistentPhase, start: int) -> str:
    """Emits one phase of the step; the first phase starts with the epilogue of the first product."""
    row = "" if number else f"{NAME}_row(step, partial, block, given);\n      __syncthreads();\n      "
    return f"""    for (int block = blockIdx.x; block < {each.blocks}; block += gridDim.x) {{
      {row}{each.function}(step, memory, block, given + {start});
      __syncthreads();
    }}
    ws_arrive(come);
    {"" if number else "bring(s + 1);"}
    ws_await(come, ++met * gridDim.x);
"""


MAIN = """
extern "C" __global__ void __launch_bounds__(256) {name}(const char *records, int steps, void *const *tables, \
const ws_data *data, float *partial, char *losses, int *come) {{
  float *const x = (float *)ws_shared_memory(), *const w = x + 2*{rows}*{apart};
  char *const memory = (char *)(w + {wide}*{apart});
  void **const table = (void **)(memory + {work});
  char *const told = (char *)(table + 2*{count});
  int *const places = (int *)(told + {records}*{record});
  const int t = threadIdx.x, chunk = blockIdx.x / {across}, first = chunk * {deep}, n0 = blockIdx.x % {across} * {wide};
  const bool owns = blockIdx.x < {tiles};
  const int states[{states}] = {{{kept}}};
  int met = 0;
  float kept[{states}][4];
  for (int i = t; i < 2*{count}; i += 256) table[i] = tables[i];
  for (int i = t; i < 2*{record}/8 && i < steps*{record}/8; i += 256)
    ((long long *)told)[i] = ((const long long *)records)[i];
  __syncthreads();
  auto each = [&](auto f) {{
#pragma unroll
    for (int which = 0; which < 4; which++) {{
      const int feature = (which*256 + t) % {deep}, column = (which*256 + t) / {deep};
      const bool inside = owns && first + feature < {features} && n0 + column < {columns};
      f(which, feature, column, inside, {place});
    }}
  }};
  each([&](int which, int feature, int column, bool inside, int at) {{
#pragma unroll
    for (int i = 0; i < {states}; i++) kept[i][which] = inside ? ((const float *)table[states[i]])[at] : 0.0f;
    w[column*{apart} + feature] = kept[{weights}][which];
  }});
  auto told_of = [&](int s) {{ return (const ws_step *)(told + s % {records}*{record}); }};
  auto bring = [&](int s) {{ /* the rows of a step, and the record of the one after it */
    if (s < steps && owns)
      ws_bring_rows<{rows}, {features}>(x + s % 2*{rows}*{apart}, places, told_of(s), data + 2, first);
    if (s + 1 < steps && s && t < {record}/8)
      ws_copy<8>(told + (s + 1) % {records}*{record} + 8*t, records + (s + 1)*{record} + 8*t, true);
    ws_copy_commit();
  }};
  ws_find_rows(places, told_of(0), data + 2);
  __syncthreads();
  bring(0);
  if (blockIdx.x == {tiles}) ws_bring_others(places, told_of(0), data);
  for (int s = 0; s < steps; s++) {{
    const ws_step *const step = told_of(s), *const next = told_of(s + 1);
    void **const given = table + s % 2*{count};
    if (t == 0) {{ {losses} }}
    ws_copy_wait<0>();
    __syncthreads();
    if (owns)
      ws_chunk_of_rows<{rows}>((float *)memory, x + s % 2*{rows}*{apart}, w, [&](int row, int column, float sum) {{
        if (row < step->rows && n0 + column < {columns})
          partial[(chunk*{rows} + row)*{columns} + n0 + column] = sum;
      }});
    ws_arrive(come);
    if (s + 1 < steps) ws_find_rows(places, next, data + 2);
    ws_await(come, ++met * gridDim.x);
{middle}    if (owns) {{
      ws_gradient_of_weights<{rows}>(
          (float *)memory, x + s % 2*{rows}*{apart},
          [&](int row, int column) {{ return {name}_slope(step, row, n0 + column, given + {update}); }},
          [&](int feature, int column, float sum, int which) {{
            if (first + feature < {features} && n0 + column < {columns}) {{
              {name}_update(step, first + feature, n0 + column, sum, kept, which, given + {update});
              w[column*{apart} + feature] = kept[{weights}][which];
            }}
          }});
    }} else {{
      for (int block = blockIdx.x - {tiles}; block < {others} + 1; block += gridDim.x - {tiles}) {{
        if (block < {others}) {{ {beside} }}
        else if (s + 1 < steps) ws_bring_others(places, next, data + (s + 1) % 2);
        __syncthreads();
      }}
    }}
  }}
  ws_copy_wait<0>();
  each([&](int which, int feature, int column, bool inside, int at) {{
#pragma unroll
    for (int i = 0; i < {states}; i++)
      if (inside) ((float *)table[states[i]])[at] = kept[i][which];
  }});
}}
"""
