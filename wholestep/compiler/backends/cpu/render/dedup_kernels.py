"""Kernels that differ in sizes alone are one function, which is given the sizes.

Batch norms of every layer are the same sums over other numbers of rows and columns: of the 144 kernels of a ResNet-50
that have no tiles 51 remain.  Where nobody would share it a kernel keeps its numbers, and so does everything that gcc
makes use of: the length of a vector loop, a divisor, the size of an array, and whatever is at most a vector's lanes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.plan.model.kernel import Kernel, Kind

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
INDEX = re.compile(r"\[[^][]*\]")
VECTOR_LOOP = re.compile(r"#pragma omp simd[^\n]*\n\s*for \([^;]*;[^;]*< (\d+);")
SLOT = re.compile(r"(?<=call->derived\[)\d+")
DECLARATION = re.compile(r"\s*(?:float|double|u?int\d+_t|int|long) \w+\[")


@dataclass(frozen=True)
class KernelTemplate:
    """The text of a kernel with names in the place of sizes, and the sizes."""

    text: str
    sizes: tuple[str, ...]


def may_share(kernel: Kernel) -> bool:
    """Loops without tiles or calls of the library, which are made for their sizes."""
    return kernel.kind in (Kind.NEST, Kind.COLUMNS)


def form_of(text: str) -> KernelTemplate:
    """Sizes are numbers in indices and in the heads of loops, and the places of scalars."""
    kept, names = set(VECTOR_LOOP.findall(text)), dict[str, str]()

    def named(number: re.Match[str]) -> str:
        size, before = number.group(), number.string[: number.start()].rstrip()
        if int(size) <= LANES or size in kept or before.endswith(("/", "%")):
            return size
        return names.setdefault(size, f"size{len(names)}")

    def placed(slot: re.Match[str]) -> str:
        return names.setdefault(f"slot {slot.group()}", f"size{len(names)}")

    lines = []
    for line in text.split("\n"):
        if SLOT.search(line):
            line = SLOT.sub(placed, line)
        elif line.lstrip().startswith("for ("):
            line = NUMBER.sub(named, line)
        elif not DECLARATION.match(line):
            line = INDEX.sub(lambda index: NUMBER.sub(named, index.group()), line)
        lines.append(line)
    return KernelTemplate("\n".join(lines), tuple(size.removeprefix("slot ") for size in names))


def find_templates(texts: Iterable[str]) -> Mapping[str, KernelTemplate]:
    """Those of some different kernels that others share, and how."""
    forms = {text: form_of(text) for text in texts}
    users = Counter(form.text for form in forms.values())
    return {text: KernelTemplate(_with_sizes(form), form.sizes) for text, form in forms.items() if users[form.text] > 1}


def _with_sizes(form: KernelTemplate) -> str:
    head, bracket, rest = form.text.partition(") {")
    return "".join([head, *(f", const long size{i}" for i in range(len(form.sizes))), bracket, rest])
