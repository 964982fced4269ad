"""The source of a program with the user's names added for reading; the compiled text has ids only."""

from __future__ import annotations

import re

from wholestep.compiler.plan.io.report import describe_kernel, printable
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Plan

_DEFINITION = re.compile(r"^static\b.*_k(\d+)\(")
_CALL = re.compile(r"_k(\d+)\(call\b")


def annotate_source(source: str, plan: Plan) -> str:
    """`source` with a comment over every kernel's function and after every call: the nodes that it computes."""
    by_id = {k.id: k for k in plan.kernels}
    in_order = iter(plan.kernels)
    lines = [_buffer_names(plan)]
    for line in source.splitlines():
        definition = _DEFINITION.match(line)
        if definition:
            lines.append(f"/* {_label(by_id[int(definition[1])], plan)} */")
            lines.append(line)
        elif _CALL.search(line) and (kernel := next(in_order, None)) is not None:
            lines.append(f"{line}  /* {_label(kernel, plan)} */")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _label(kernel: Kernel, plan: Plan) -> str:
    return f"kernel {kernel.id}: {describe_kernel(kernel, plan)}"


def _buffer_names(plan: Plan) -> str:
    named = [
        f" * b{b.id}: {b.space.value} {printable(b.name)}, {b.user_type}, {b.layout.name}{_transposed_note(b)}"
        for b in plan.buffers
        if b.name
    ]
    return "\n".join(["/* buffers", *named, " */"])


def _transposed_note(buffer: Buffer) -> str:
    return " of its transpose" if buffer.user_type != buffer.type else ""
