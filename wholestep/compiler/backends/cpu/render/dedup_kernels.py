"""Kernel deduplication: kernels whose C texts differ only in sizes become one function that takes the sizes.

The batch norms of every layer are the same sums over different numbers of rows and columns: of the 144 kernels of a
ResNet-50 without tiles 51 remain.  A kernel that no other one would share keeps its literals.  So does everything that
gcc optimizes by: the length of a vector loop, a divisor, the size of an array, and any number up to a vector's lanes.
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
    """The C text of a kernel with parameter names in place of sizes, and the sizes."""

    text: str
    sizes: tuple[str, ...]


def may_share(kernel: Kernel) -> bool:
    """May a kernel be shared?  Only one without tiles and library calls, which are specialized for their sizes."""
    return kernel.kind in (Kind.NEST, Kind.COLUMNS)


def template_of(text: str) -> KernelTemplate:
    """Replace sizes by parameters: numbers in indices and in loop headers, and slots of derived scalars."""
    literals, names = set(VECTOR_LOOP.findall(text)), dict[str, str]()

    def name_size(number: re.Match[str]) -> str:
        size, before = number.group(), number.string[: number.start()].rstrip()
        if int(size) <= LANES or size in literals or before.endswith(("/", "%")):
            return size
        return names.setdefault(size, f"size{len(names)}")

    def name_slot(slot: re.Match[str]) -> str:
        return names.setdefault(f"slot {slot.group()}", f"size{len(names)}")

    lines = []
    for line in text.split("\n"):
        if SLOT.search(line):
            line = SLOT.sub(name_slot, line)
        elif line.lstrip().startswith("for ("):
            line = NUMBER.sub(name_size, line)
        elif not DECLARATION.match(line):
            line = INDEX.sub(lambda index: NUMBER.sub(name_size, index.group()), line)
        lines.append(line)
    return KernelTemplate("\n".join(lines), tuple(size.removeprefix("slot ") for size in names))


def find_templates(texts: Iterable[str]) -> Mapping[str, KernelTemplate]:
    """The texts that share a template with another one of these distinct kernels, each with its template."""
    forms = {text: template_of(text) for text in texts}
    users = Counter(form.text for form in forms.values())
    return {text: KernelTemplate(_with_sizes(form), form.sizes) for text, form in forms.items() if users[form.text] > 1}


def _with_sizes(form: KernelTemplate) -> str:
    head, bracket, rest = form.text.partition(") {")
    return "".join([head, *(f", const long size{i}" for i in range(len(form.sizes))), bracket, rest])
