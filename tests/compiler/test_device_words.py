"""What one kind of machine is like stands in its backend; the rest of the package does not speak of it."""

from __future__ import annotations

import re
from pathlib import Path

import wholestep

PACKAGE = Path(wholestep.__file__).parent
CPU = PACKAGE / "compiler" / "backends" / "cpu"

# Instruction sets, layouts, how threads share kernels, cache sizes: as identifiers, in comments and in texts.
WORDS = re.compile(
    r"\b(avx\w*|sse\d\w*|simd\w*|amx)\b"
    r"|panel"
    r"|\bgranules?\b|\bsplit_(kernels|with_loops)\b|\bcrossing|\bdealt out\b",
    re.IGNORECASE,
)
# Of every machine with caches: in backends.
CACHES = re.compile(r"\b(first|second|third)-level cache|\bcache lines?\b|\bL[123] cache", re.IGNORECASE)
# Not of processors: the panels of a figure.
OTHER_MEANING = {"train/history.py"}
# How an operating system names the features of its processor.
PLATFORMS = PACKAGE / "platforms"


def offending(text: str, caches: bool = True) -> list[str]:
    return [m.group() for words in ((WORDS, CACHES) if caches else (WORDS,)) for m in words.finditer(text)]


def test_only_the_cpu_speaks_of_the_cpu() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        words = offending(path.read_text(), caches=not path.is_relative_to(CPU.parent))
        if not path.is_relative_to(CPU) and not path.is_relative_to(PLATFORMS) and name not in OTHER_MEANING and words:
            found[name] = sorted(set(words))
    assert not found, f"these belong to backends/cpu: {found}"


def test_the_words_are_found() -> None:
    assert offending("a vector of AVX-512, PANEL_COLUMNS, its granule, a cache line, the second-level cache") == [
        "AVX", "PANEL", "granule", "cache line", "second-level cache"
    ]  # fmt: skip
    assert not offending("a split of the data, a barrier, text.split(), threads, lanes, the plan cache, L2 regression")


def test_nobody_but_a_backend_an_engine_or_a_platform_knows_an_address() -> None:
    """Others bind arrays, launch and read; one file maps memory, one holds OpenBLAS back, one reads Arrow's columns."""
    found = [p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if "ctypes" in p.read_text()]
    outside = sorted(
        name for name in found if not name.startswith(("compiler/backends/", "distributed/", "platforms/"))
    )
    assert outside == ["compiler/runtime/blas_threads.py", "compiler/runtime/memory.py", "data/tables/arrow.py"]
