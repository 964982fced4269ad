"""tables.h of an exported step: its programs and tensors as the constant records of program.h."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.backends.cpu.export.block import CALL_BYTES, Block
from wholestep.compiler.backends.cpu.export.spec import BATCH_DIMS, ENTRIES, ExportedEntry, ExportedMetric, ExportedStep
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.backends.cpu.render.language import literal
from wholestep.compiler.backends.cpu.runtime.object_loader import parts_of
from wholestep.compiler.frontend.update_counters import START
from wholestep.compiler.ir.types import Dim, evaluate, float64
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space

KINDS = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32", "int64": "INT64", "uint8": "BYTE", "bool": "BYTE"}
FILE_TYPES = {
    "float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8", "bool": "BOOL",
    "bfloat16": "BF16", "float16": "F16",
}  # fmt: skip
SESSION = "session/"  # counters and runtime scalars in a state dict
UPDATES = f"{SESSION}updates"


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a checkpoint file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    number: int
    bytes: int


def file_tensors(step: ExportedStep) -> list[FileTensor]:
    """What a checkpoint contains, the largest elements first, so that every tensor is aligned."""
    numbers = {name: i for i, name in enumerate(step.states)}
    tensors = [
        FileTensor(f"{SESSION}step", "I64", (), "STEP", 0, 8),
        FileTensor(f"{SESSION}epoch", "I64", (), "EPOCH", 0, 8),
    ]
    counts = [UPDATES, *(f"{UPDATES}/{key}" for key in step.counts)]
    tensors += [FileTensor(name, "I64", (), "COUNT", i, 8) for i, name in enumerate(counts)]
    tensors += [FileTensor(SESSION + name, "F64", (), "SCALAR", i, 8) for i, name in enumerate(step.scalars)]
    for name in step.saved:
        type = step.states[name].user_type
        shape = tuple(int(e) for e in type.shape)
        size = math.prod(shape) * type.dtype.size
        tensors.append(FileTensor(name, FILE_TYPES[type.dtype.name], shape, "STATE", numbers[name], size))
    width = {t.name: t.bytes // max(1, math.prod(t.shape)) for t in tensors}
    return sorted(tensors, key=lambda t: -width[t.name])


def file_header(tensors: Sequence[FileTensor]) -> bytes:
    """The header of a safetensors file with these tensors, padded to 8 bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for t in tensors:
        header[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [end, end + t.bytes]}
        end += t.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def checkpoint_bytes(step: ExportedStep) -> int:
    """The size of a checkpoint file."""
    tensors = file_tensors(step)
    return 8 + len(file_header(tensors)) + sum(t.bytes for t in tensors)


def c_string(text: str | bytes) -> str:
    """Bytes as a C string literal, escaped so that it contains no trigraphs and no hexadecimal escapes."""
    data = text.encode() if isinstance(text, str) else text
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in data) + '"'


def tables(step: ExportedStep, block: Block) -> str:
    """The text of tables.h."""
    header = '/* Offsets and numbers of this step: see program.h. */\n#include "program.h"'
    parts = [header, *_sizes(step, block), *_constants(step), *_programs(step, block), _entries(step, block)]
    parts += [_inputs(step, block), _tensors(step, block), _metrics(step), _files(step)]
    return "\n\n".join(parts) + "\n"


def _sizes(step: ExportedStep, block: Block) -> Iterator[str]:
    parts = {part for plan in step.plans.values() for part in parts_of(plan)}
    values = {
        "WS_COUNTS": 1 + len(step.counts), "WS_PROGRAMS": len(step.plans), "WS_HEAD_BYTES": block.head,
        "WS_CALL_BYTES": CALL_BYTES, "WS_ARENA": block.arena, "WS_WORK_BYTES": block.work_bytes,
        "WS_SEED": f"{step.seed % 2**64}u", "FILE_TENSORS": len(file_tensors(step)),
        "FILLS_OF_TRAINING": len(step.fills[0]), "FILLS_OF_EVALUATION": len(step.fills[1]),
    }  # fmt: skip
    adds = "".join(f"ws_add_{part}(api);" for part in sorted(parts))
    declared = [f"void ws_add_{part}(ws_api *);" for part in sorted(parts)]
    defined = [f"#define {name} {value}" for name, value in values.items()]
    yield "\n".join([*declared, *defined, f"static void add_products(ws_api *api) {{ (void)api; {adds} }}"])
    yield "enum { TRAIN, EVALUATE, EVALUATE_ALL, PREDICT, ENTRIES };"
    scalars = ", ".join(literal(value, float64) for value in step.scalars.values())
    yield f"static const double scalar_defaults[] = {{{scalars or 0}}};"


def _constants(step: ExportedStep) -> Iterator[str]:
    for prefix, plan in step.plans.items():
        for id, data in plan.constants:
            words = np.frombuffer(data + bytes(-len(data) % 8), np.uint64)
            text = ", ".join(f"{int(word):#x}u" for word in words)
            yield f"static const uint64_t {prefix}_constant{id}[] __attribute__((aligned(64))) = {{{text}}};"


def _array(type: str, name: str, values: Iterable[object]) -> str:
    text = ", ".join(map(str, values))
    return f"static const {type} {name}[] = {{{text or 0}}};"


def _programs(step: ExportedStep, block: Block) -> Iterator[str]:
    number, inputs = 0, {name: i for i, name in enumerate(step.inputs)}
    for entry_name, entry in step.entries.items():
        prefixes = step.prefixes(entry_name)
        for prefix, plan in zip(prefixes, entry.plans, strict=True):
            yield "\n".join(
                [
                    f"void {prefix}_prologue(const ws_call *);",
                    f"void {prefix}_entry(const ws_call *, int, int);",
                    f"void {prefix}_refresh(const ws_call *);",
                    _array("ws_place", f"{prefix}_places", _places(prefix, plan, block, inputs)),
                    _array("long", f"{prefix}_dims", plan.capacity),
                    _array("int", f"{prefix}_scalars", (_scalar(step, s.name) for s in plan.scalars)),
                    _array("int", f"{prefix}_inputs", (inputs[n] for n in _row_inputs(step, plan))),
                    _array("int", f"{prefix}_slots", (_slot(plan, n) for n in _row_inputs(step, plan))),
                ]
            )
        records = [_program(step, block, entry, p, number + i) for i, p in enumerate(prefixes)]
        number += len(records)
        yield f"static const ws_program {entry_name}_programs[] = {{\n" + ",\n".join(records) + "};"


def _row_inputs(step: ExportedStep, plan: Plan) -> list[str]:
    return [name for name, _ in plan.inputs if name in step.rows]


def _slot(plan: Plan, name: str) -> int:
    id = dict(plan.inputs)[name]
    return next(i for i, b in enumerate(plan.pointer_buffers()) if b.id == id)


def _places(prefix: str, plan: Plan, block: Block, inputs: Mapping[str, int]) -> Iterator[str]:
    names = {id: name for name, id in plan.inputs}
    for b in plan.pointer_buffers():
        if b.space is Space.INPUT:
            yield f"{{WS_IN_INPUT, 0, {inputs[names[b.id]]}, 0}}"
        elif b.space is Space.CONSTANT:
            yield f"{{WS_IN_TABLES, 0, 0, {prefix}_constant{b.id}}}"
        else:
            yield f"{{WS_IN_BLOCK, {block.programs[prefix].of_buffer[b.id]}, 0, 0}}"


def _scalar(step: ExportedStep, name: str) -> str | int:
    if name in ("step", "epoch"):
        return f"WS_SCALAR_{name.upper()}"
    if name in step.scalars:
        return list(step.scalars).index(name)
    starts = [START, *step.counts.values()]  # in the order of the counts
    return f"WS_SCALAR_START - {starts.index(name)}"


def _program(step: ExportedStep, block: Block, entry: ExportedEntry, prefix: str, number: int) -> str:
    plan, place = step.plans[prefix], block.programs[prefix]
    dims = [plan.symbols.index(s) if (s := entry.dims.get(d, "")) in plan.symbols else -1 for d in BATCH_DIMS]
    once = len(entry.plans) > 1 and plan is entry.plans[-1]
    counts = [
        len(plan.pointer_buffers()),
        len(plan.symbols),
        len(plan.scalars),
        len(_row_inputs(step, plan)),
        int(once),
    ]
    arrays = [f"{prefix}_{name}" for name in ("places", "dims", "scalars", "inputs", "slots")]
    offsets = [place.call, place.buffers, place.sizes, place.values, place.derived, block.work]
    functions = [f"{prefix}_{name}" for name in ("prologue", "entry", "refresh")]
    fields = [*functions, number, *counts, *arrays, *dims, *offsets]
    return f"  {{{', '.join(map(str, fields))}}}"


def _entries(step: ExportedStep, block: Block) -> str:
    return "static const ws_entry_point entries[] = {\n" + ",\n".join(_entry(step, block, n) for n in ENTRIES) + "};"


def _entry(step: ExportedStep, block: Block, name: str) -> str:
    if name not in step.entries:
        return "  {0}"
    entry = step.entries[name]
    plan, prefix = entry.plans[-1], step.prefixes(name)[-1]
    offsets, outputs = block.programs[prefix].of_buffer, dict(plan.outputs)
    loss = None if name == "predict" else plan.buffers[plan.outputs[0][1]]
    refused = -1 if entry.refused is None else offsets[outputs[entry.refused]]
    batch = "0x7fffffffL" if name == "evaluate_all" else entry.batch
    fields = [
        *(f"{name}_programs", len(entry.plans), batch, entry.part, entry.least, int(entry.is_fixed)),
        *(-1 if loss is None else offsets[loss.id], refused),
        *(int(loss is not None and loss.type.dtype.size == 8), int(entry.stops)),
    ]
    return f"  {{{', '.join(map(str, fields))}}}"


def _inputs(step: ExportedStep, block: Block) -> str:
    rows = []
    for name, b in step.inputs.items():
        has_rows, bounds = name in step.rows, step.bounds(name)
        elements = row_elements(step, name)
        below = min((evaluate(bound.size, {}) for bound in bounds), default=0)
        excused = {bound.excused for bound in bounds}
        exempt = next(iter(excused)) if len(excused) == 1 else None  # 0 is in bounds anyway
        index_bytes = b.type.dtype.size if bounds else 0
        row_bytes = elements * b.type.dtype.size if has_rows else 0
        fields = [row_bytes, block.staging.get(name, 0), int(has_rows), index_bytes, f"{below}u"]
        rows.append(f"  {{{', '.join(map(str, fields))}, {(exempt or 0) % 2**64}u, {elements}}}")
    return "static const ws_input_info inputs[] = {\n" + ",\n".join(rows) + "};"


def row_elements(step: ExportedStep, name: str) -> int:
    """The elements of a row of an input; of an input without rows, all of them."""
    type = step.inputs[name].type
    return math.prod(evaluate(e, {}) for e in (type.shape[1:] if name in step.rows else type.shape))


def _tensor(b: Buffer, offset: int) -> str:
    type = b.user_type if b.space is Space.STATE else b.type
    extents = [-1 if isinstance(e, Dim) else int(e) for e in type.shape]  # -1: the rows of the batch
    *lead, rows, columns = (1, 1, *extents) if type.rank != 1 else (1, *extents, 1)
    kind = f"WS_{KINDS.get(type.dtype.name, 'OTHER')}"
    fields = [offset, math.prod(lead), rows, columns, type.dtype.size, kind]
    transposed = b.transposed and b.space is Space.STATE
    return f"  {{{', '.join(map(str, fields))}, {int(b.layout == PANELS)}, {int(transposed)}}}"


def _tensors(step: ExportedStep, block: Block) -> str:
    states = [_tensor(b, block.states[name]) for name, b in step.states.items()]
    outputs = [_tensor(b, block.programs["ws_predict"].of_buffer[b.id]) for b in step.outputs.values()]
    return "\n\n".join(
        f"static const ws_tensor {name}[] = {{\n" + ",\n".join(rows or ["  {0}"]) + "};"
        for name, rows in (("states", states), ("outputs", outputs))
    )


def _metrics(step: ExportedStep) -> str:
    numbers = {name: i for i, name in enumerate(step.states)}

    def ratio(metric: ExportedMetric) -> str:
        if metric.ratio is None or not numbers.keys() >= set(metric.ratio):
            return "{-1, -1, 0}"
        return f"{{{numbers[metric.ratio[0]]}, {numbers[metric.ratio[1]]}, {int(metric.root)}}}"

    count = max(1, *map(len, step.metrics))
    rows = ["{" + ", ".join(map(ratio, entry)) + "}" if entry else "{{-1, -1, 0}}" for entry in step.metrics]
    lines = [f"static const ws_ratio metrics[2][{count}] = {{{', '.join(rows)}}};"]
    for name, fills in zip(("training", "evaluation"), step.fills, strict=True):
        values = (f"{{{numbers[state]}, {literal(value, float64)}}}" for state, value in fills.items())
        lines.append(_array("ws_fill", f"fills_of_{name}", [*values] or ["{0, 0}"]))
    return "\n".join(lines)


def _files(step: ExportedStep) -> str:
    tensors = file_tensors(step)
    rows = []
    for t in tensors:
        name = c_string(json.dumps(t.name, ensure_ascii=False))
        texts = (name, c_string(f'"{t.dtype}"'), c_string(json.dumps(t.shape, separators=(",", ":"))))
        rows.append(f"  {{{', '.join(texts)}, WS_FILE_{t.kind}, {t.number}, {t.bytes}}}")
    starts = [START, *step.counts.values()]
    return "\n".join(
        [
            "static const ws_file_tensor file_tensors[] = {\n" + ",\n".join(rows) + "};",
            f"static const char file_header[] = {c_string(file_header(tensors))};",
            "/* The first count with the same runtime scalar: they have to be equal. */",
            _array("int", "cohorts", (starts.index(start) for start in starts)),
        ]
    )
