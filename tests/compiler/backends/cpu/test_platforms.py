"""Code for operating systems and instruction sets is only in their own headers and modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import wholestep
from wholestep import platforms
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE

PACKAGE = Path(wholestep.__file__).parent
INSTRUCTIONS = re.compile(r"__asm__|__builtin_ia32_|__builtin_aarch64_|immintrin|arm_neon")
SYSTEM = re.compile(
    r"\b(pthread_|clock_gettime|nanosleep|sched_yield|sched_get|syscall\(|sysconf|sigfillset|unistd\.h)"
)
PYTHON = re.compile(r"import fcntl|sched_getaffinity|os\.sysconf|/proc/(meminfo|cpuinfo)|register_at_fork|setpriority")
# Ranks as processes need Linux.
OWN_SYSTEM = ("distributed/", "backends/cuda/", "platforms/")
SYSTEMS = ("linux", "macos", "windows")


def outside(pattern: re.Pattern[str], folders: tuple[str, ...]) -> list[str]:
    files = [path for path in NATIVE.rglob("*.[ch]") if path.relative_to(NATIVE).parts[0] not in folders]
    return [path.name for path in files if pattern.search(path.read_text())]


def test_instructions_are_in_the_folders_of_processors() -> None:
    assert outside(INSTRUCTIONS, ("x86", "arm64", "portable")) == []


def test_calls_of_a_system_are_in_its_header() -> None:
    assert outside(SYSTEM, ("platform",)) == []


def test_arrays_that_python_passes_have_elements_of_one_size_everywhere() -> None:
    """`long` has 32 bits on Windows, and NumPy has no name for it that all its versions share."""
    exported = re.compile(r"^(?:WS_)?EXPORT [^;{]*", re.MULTILINE)
    found = [text for path in NATIVE.glob("*.[ch]") for text in exported.findall(path.read_text())]
    assert len(found) > 15
    assert [text for text in found if re.search(r"\blong \*", text)] == []


def test_python_asks_a_system_in_one_place() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert [n for n, p in files.items() if not any(o in n for o in OWN_SYSTEM) and PYTHON.search(p.read_text())] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_every_function(system: str) -> None:
    tree = ast.parse((PACKAGE / "platforms" / f"{system}.py").read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    listed = re.findall(r"^(\w+) = system\.", Path(platforms.__file__).read_text(), re.M)
    assert len(listed) > 10
    assert set(listed) - names == set()


@pytest.mark.parametrize("header", ["posix", "windows", "none"])
def test_every_system_has_every_function_of_the_runtime(header: str) -> None:
    text = (NATIVE / "platform" / f"{header}.h").read_text()
    text += "".join((NATIVE / "platform" / f"{name}.h").read_text() for name in ("linux",) if header == "posix")
    listed = set(re.findall(r"\bws_\w+", (NATIVE / "platform.h").read_text()))
    assert len(listed) > 15
    missing = {name for name in listed if not re.search(rf"\b{name}\b", text)}
    assert missing <= ({"ws_has_ended"} if header == "none" else set())  # it has no processes
