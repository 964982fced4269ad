"""A plan for readers: the table of its kernels with flops, traffic and memory, and its source with the user's names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from wholestep.compiler.ir.attrs import AXES, DATA, MODEL
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.plan.io.traffic import SENT, collectives_of, stores
from wholestep.compiler.plan.memory.peak_memory import Footprint
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Plan, Space
from wholestep.compiler.plan.model.target_formats import footprint

NAMES_WIDTH = 56  # characters of a kernel's list of nodes in the table
_DEFINITION = re.compile(r"^static\b.*_k(\d+)\(")
_CALL = re.compile(r"_k(\d+)\(call\b")


@dataclass(frozen=True)
class PlanReport:
    """The work of a plan in a step and the memory that it needs; `str()` is the table."""

    plan: Plan
    threads: int
    footprint: Footprint
    heading: str = ""
    ranks: int = 0  # data-parallel ranks, each of which runs this plan on its own rows; 0: not distributed
    verdict: str = ""  # the result of the check against the interpreter, or why there was none
    model_ranks: int = 1  # tensor-parallel ranks, which have the same rows
    predicted: float | None = None  # seconds of a step by the prices of the target
    measured: float | None = None  # seconds of a step in the fastest slice of a run; None before one

    @property
    def flops(self) -> int:
        """Floating-point operations of a step at capacity."""
        return self.plan.flops

    @property
    def bytes_moved(self) -> int:
        """Memory traffic at capacity: per kernel, each distinct region that it reads or writes counts once."""
        return self.plan.bytes_moved

    @property
    def wire_bytes(self) -> int:
        """The bytes that a rank sends in a step: for a sum over n ranks 2(n - 1)/n of its bytes; rounded up."""
        return ceil(sum(self.wire_bytes_along(axis) for axis in AXES))

    def wire_bytes_along(self, axis: str) -> Fraction:
        """The bytes that a rank sends along one axis of the device mesh, "data" or "model"."""
        ranks = {DATA: self.ranks, MODEL: self.model_ranks}[axis]
        sent = (
            size * SENT[kind](ranks)
            for kind, size, mesh_axis in collectives_of(self.plan, self.ranks)
            if mesh_axis == axis
        )
        return sum(sent, Fraction(0)) if ranks > 1 else Fraction(0)

    @property
    def collectives(self) -> tuple[tuple[str, int], ...]:
        """The collectives of a step, in order, and the bytes of each, over the parts of all ranks."""
        return tuple((kind, size) for kind, size, _ in collectives_of(self.plan, self.ranks))

    @property
    def parted(self) -> tuple[int, int]:
        """The fusion that collectives prevent: the sums and products whose results they send, and the bytes of these.

        An update can be fused into the kernel of any other gradient, which then is never stored.
        """
        products = [k for k in self.plan.kernels if k.kind in (Kind.DOT, Kind.WINDOW, Kind.COLUMNS)]
        computed = {load.buffer for kernel in products for load in stores(kernel)}
        bodies = [k.body for k in self.plan.kernels if isinstance(k.body, Exchange)]
        sent = {load.buffer for body in bodies for load in body.operands} & computed
        return len(sent), sum(self.plan.buffers[buffer].type.bytes(self.plan.sizes) for buffer in sent)

    @property
    def gathers(self) -> int:
        """All-gathers of divided layers; many of them mean that `split=` marks the wrong layers."""
        return sum(kind == "all_gather" and axis == MODEL for kind, _, axis in collectives_of(self.plan, self.ranks))

    @property
    def peak_bytes(self) -> int:
        """All bytes that are mapped to run the plan."""
        return self.footprint.peak_bytes

    @property
    def fusions(self) -> dict[str, int]:
        """Named functions that share a kernel, and how many kernels compute exactly these: {"group_norm + silu": 3}."""
        fused = (functions(k) for k in self.plan.kernels)
        return dict(Counter(" + ".join(names) for names in fused if len(names) > 1))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that the table does not contain: the plan's own, and the verdict of its check."""
        return (*self.plan.notes, *([self.verdict] if self.verdict else []))

    def _repr_html_(self) -> str:
        """The table below its totals, for notebooks."""
        from wholestep.notebook import text_html

        return text_html(
            f"{self.heading or 'plan'}: {len(self.plan.kernels)} kernels, {self.flops:,} operations, "
            f"{self.bytes_moved:,} bytes moved, {self.peak_bytes:,} bytes at the peak",
            str(self),
        )

    def __str__(self) -> str:
        sizes = ", ".join(f"{s}={n}" for s, n in self.plan.sizes.items()) or "fixed shapes"
        title = f"{self.heading or 'plan'}: {sizes}, target {self.plan.target}, {self.threads} threads"
        shared = [f"in one kernel: {names}: {count}" for names, count in self.fusions.items()]
        notes = [f"note: {n}" for n in self.notes]
        return "\n".join(
            [title, "", *self._kernels(), *shared, "", *self._memory(), *self._wire(), *self._times(), *notes]
        )

    def _times(self) -> list[str]:
        if self.predicted is None or self.measured is None:
            return []
        return [f"step: predicted {1e3 * self.predicted:,.3f} ms, measured {1e3 * self.measured:,.3f} ms"]

    def _wire(self) -> list[str]:
        if not self.ranks:
            return []
        count, total = len(self.collectives), sum(n for _, n in self.collectives)
        in_mesh = self.model_ranks > 1
        rank_text = f"{self.ranks} x {self.model_ranks}" if in_mesh else f"{self.ranks}"
        sent = {axis: ceil(self.wire_bytes_along(axis)) for axis in AXES}
        along = [f"of these, {sent[DATA]:,} along the data axis and {sent[MODEL]:,} along the model axis"] * in_mesh
        rows = f"{self.plan.whole // self.ranks} rows or one more" if self.plan.divided else "all rows"
        return [
            f"{rank_text} ranks, each with {rows}: {count} collectives of "
            f"{total:,} bytes, of which each rank sends {self.wire_bytes:,} per step",
            *along,
            *self._unfused_by_collectives(),
            *(
                [f"{self.gathers} of them gather parts of layers, because an op needs the complete value"]
                * bool(self.gathers)
            ),
        ]

    def _unfused_by_collectives(self) -> list[str]:
        products, size = self.parted
        if not products:
            return []
        return [
            f"they send the results of {products} sums and products, into which no update can be fused: {size:,} bytes "
            "are written and read once more"
        ]

    def _kernels(self) -> list[str]:
        heading = next((k.schedule.heading for k in self.plan.kernels), "")
        lines = [f"{'kernel':>6}  {'kind':<8}{heading}{'flops':>14}{'bytes':>12}  nodes -> results"]
        lines += [_kernel_line(k, self.plan) for k in self.plan.kernels]
        total = f"{len(self.plan.kernels)} kernels"
        return [
            *lines,
            f"{'total':>6}  {total:<14}{self.plan.regions:>2} regions{self.flops:>12,}{self.bytes_moved:>12,}",
        ]

    def _memory(self) -> list[str]:
        rows = [f"  {name:<16}{size:>14,}" for name, size in self.footprint.rows() if size]
        return ["memory (bytes)", *rows, f"  {'peak':<16}{self.peak_bytes:>14,}"]


def _kernel_line(kernel: Kernel, plan: Plan) -> str:
    prefix = f"{kernel.id:>6}  {kernel.kind.value:<8}{kernel.schedule.text}"
    return f"{prefix}{kernel.flops:>14,}{kernel.bytes:>12,}  {describe_kernel(kernel, plan)}"


def describe_kernel(kernel: Kernel, plan: Plan) -> str:
    """The ops of a kernel and the user's tensors that it writes, as text: 'matmul, add, relu -> logits'."""
    counts = Counter(kernel.origin)
    nodes = printable(", ".join(f"{n} x{counts[n]}" if counts[n] > 1 else n for n in dict.fromkeys(kernel.origin)))
    if len(nodes) > NAMES_WIDTH:
        nodes = nodes[: NAMES_WIDTH - 3] + "..."
    written = [plan.buffers[access.buffer] for access in stores(kernel)]
    results = dict.fromkeys(b.name for b in written if b.space in (Space.STATE, Space.OUTPUT))
    return f"{nodes} -> {printable(', '.join(results))}" if results else nodes


def functions(kernel: Kernel) -> list[str]:
    """The named functions (matmul, gelu, group_norm) that a kernel computes at least a part of."""
    named = (Family.COMPOSITE, Family.CONTRACTION, Family.WINDOW)
    return [n for n in dict.fromkeys(kernel.origin) if n in OPS and OPS[n].family in named]


def printable(text: str) -> str:
    """A user's text escaped to one line that cannot end a C comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text).replace("*/", "*\\/")


def origin_comment(kernel: Kernel) -> str:
    """A line comment of C++ that names what a kernel computes; a user's text in it can neither end nor continue it."""
    text = printable(" ".join(kernel.origin))
    return f"// {text}{'.' if text.endswith(chr(92)) else ''}"  # a backslash would join the next line to it


def plan_report(
    plan: Plan, threads: int, heading: str = "", verdict: str = "", ranks: int = 0, model_ranks: int = 1
) -> PlanReport:
    """The report of a plan on `threads` threads; of one rank, if several compute a step together."""
    return PlanReport(plan, threads, footprint(plan, threads), heading, ranks, verdict, model_ranks)


def annotate_source(source: str, plan: Plan) -> str:
    """A program's source, which has ids only, with names: over every kernel's function and after every call."""
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
