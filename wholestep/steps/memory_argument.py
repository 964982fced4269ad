"""What `memory=` may be: bytes, a text such as "5.5GB", or a part of what a step takes without a limit."""

from __future__ import annotations

import re

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def bytes_of(memory: object) -> int:
    """`"2GB"`, `"512 MiB"` or a number as bytes."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", memory.upper()) if isinstance(memory, str) else None
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found is not None else 0
    except (ValueError, KeyError):
        size = 0
    if size < 1:
        raise OptionError(f"memory={memory!r}: expected a number of bytes, or a text such as '2GB' or '512MiB'.")
    return size


def as_memory(given: object) -> int | float | None:
    """A limit in bytes, or as a part of what a step takes without one; None where there is none."""
    if given is None:
        return None
    part = given
    if isinstance(given, str) and (found := re.fullmatch(r"\s*(0?\.[0-9]+|1\.0*|[0-9.]+\s*%)\s*", given)):
        text = found[1]
        part = float(text.rstrip("% ")) / 100 if text.endswith("%") else float(text)
    if isinstance(part, float):
        if not 0 < part <= 1:
            fail(OptionError, f"memory={given!r}: a part of what a step takes is above 0 and at most 1.0.")
        return part
    try:
        return bytes_of(given)
    except OptionError:
        fail(
            OptionError,
            f"memory={given!r}: expected a number of bytes, a text such as '5.5GB' or '512 MiB', or a part of what the "
            "step takes without a limit: 0.7.",
        )
