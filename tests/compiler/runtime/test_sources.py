"""Cached plans are keyed by the content of the compiler's sources, not by where and when these were written."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wholestep as ws
from wholestep.compiler.runtime.sources import COMPILER, content_version, source_files

FAMILIES = ("cpu", "cuda", "reference")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same compiler, installed elsewhere, with other times."""
    folder = tmp_path_factory.mktemp("site-packages") / "compiler"
    shutil.copytree(COMPILER, folder, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def copy(installed: Path) -> Iterator[Path]:
    """The installed compiler, whose files are afterwards as they were."""
    names = {path.relative_to(COMPILER) for path in COMPILER.rglob("*") if path.suffix in (".py", ".c", ".h")}
    yield installed
    for path in [p for p in installed.rglob("*") if p.suffix in (".py", ".c", ".h")]:
        if path.relative_to(installed) not in names:
            path.unlink()
    for name in names:
        text = (COMPILER / name).read_bytes()
        if not (installed / name).exists() or (installed / name).read_bytes() != text:
            (installed / name).write_bytes(text)


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiler_that_is_installed_elsewhere_finds_the_same_plans(family: str, copy: Path) -> None:
    assert content_version(family, copy) == content_version(family)


def test_a_touched_file_keeps_the_key(copy: Path) -> None:
    before = content_version("cpu", copy)
    os.utime(copy / "plan" / "fusion" / "clusters.py", (1, 1))
    assert content_version("cpu", copy) == before


@pytest.mark.parametrize(
    "file", ["plan/memory/first_fit.py", "passes/simplify/fold.py", "backends/cpu/schedule.py", "pipeline.py"]
)
def test_a_new_line_of_code_changes_the_key(file: str, copy: Path) -> None:
    before = content_version("cpu", copy)
    edit(copy / file, lambda text: text + "\nADDED = 1\n")
    added = content_version("cpu", copy)
    edit(copy / file, lambda text: text.replace("ADDED = 1", "ADDED = 2"))  # of the same size
    changed = content_version("cpu", copy)
    assert len({before, added, changed}) == 3


def test_an_edit_that_keeps_size_and_modification_time_is_noticed(copy: Path) -> None:
    """Installers may restore the times of an archive, whose files may all have the same."""
    path = copy / "plan" / "memory" / "first_fit.py"
    path.write_text(path.read_text() + "\nADDED = 1\n")
    status = path.stat()
    before = content_version("cpu", copy)
    edit(path, lambda text: text.replace("ADDED = 1", "ADDED = 2"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert content_version("cpu", copy) != before


def test_c_sources_and_files_that_come_and_go_change_the_key(copy: Path) -> None:
    versions = [content_version("cpu", copy)]
    edit(copy / "backends" / "cpu" / "native" / "loop.c", lambda text: text + "static int added;\n")
    versions.append(content_version("cpu", copy))
    (copy / "passes" / "added.py").write_text("")
    versions.append(content_version("cpu", copy))
    (copy / "passes" / "simplify" / "dead_code.py").unlink()
    versions.append(content_version("cpu", copy))
    assert len(set(versions)) == len(versions)


def test_a_backend_does_not_invalidate_another_ones_plans(copy: Path) -> None:
    before = {family: content_version(family, copy) for family in (*FAMILIES, "own")}
    edit(copy / "backends" / "gpu" / "schedule.py", lambda text: text + "\nADDED = 1\n")
    edit(copy / "frontend" / "functions" / "primitives.py", lambda text: text + "\nADDED = 1\n")
    after = {family: content_version(family, copy) for family in (*FAMILIES, "own")}
    assert [family for family in before if before[family] != after[family]] == ["cuda", "own"]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(module: str) -> list[str]:
    """The source files below the compiler that a dotted name may lead to."""
    inner = module.removeprefix("wholestep.compiler.").replace(".", "/")
    candidates = (f"{inner}.py", f"{Path(inner).parent}.py", f"{inner}/__init__.py")
    return [name for name in candidates if (COMPILER / name).is_file()][:1]


# Run-time helpers of the host, whose objects are keyed by their own text; they decide no plan.
HELPERS = {
    "cuda": tuple(
        f"backends/cpu/{name}.py" for name in ("runtime/compiler", "runtime/library", "target", "runtime/profiler")
    ),
    "reference": ("backends/cpu/target.py",),  # of the null device, which takes plans of every family
}


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_a_source_imports_is_a_source_too(family: str) -> None:
    own = source_files(family)
    outside = {
        (name, file)
        for name in own
        if name.endswith(".py") and not name.startswith("frontend/")  # whose imports serve tracing
        for module in imports(COMPILER / name)
        if module.startswith("wholestep.compiler.")
        for file in files_of(module)
        if file not in own and file not in HELPERS.get(family, ())
    }
    assert outside == set()


def test_a_second_checkout_starts_from_the_first_ones_cache(tmp_path: Path) -> None:
    package = Path(ws.__file__).parent
    shutil.copytree(package, tmp_path / "clone" / "wholestep", copy_function=shutil.copyfile)
    program = (
        "import json, wholestep as ws\n"
        "g = ws.Graph()\n"
        "x = g.input('x', ('batch', 4))\n"
        "g.set_outputs([(x @ g.parameter('w', (4, 3))).sum()])\n"
        "_, report = ws.build_session_with_report(g, batch_size=8, device='reference')\n"
        "print(json.dumps([report.cached, ws.__file__]))\n"
    )
    seen = []
    for folder in (package.parent, tmp_path / "clone"):
        environment = {**os.environ, "PYTHONPATH": str(folder), "WHOLESTEP_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        seen.append(json.loads(done.stdout))
    (first, here), (second, there) = seen
    assert Path(here).parent != Path(there).parent
    assert [first, second] == [False, True]
