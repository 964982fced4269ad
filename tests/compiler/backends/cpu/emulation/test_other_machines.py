"""The C code of plans and of the runtime compiles without a warning for other machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import wholestep as ws
from tests.compiler.backends.cpu.compiler_suite import EXAMPLES, OPTIONS, ROWS, Example, _spec
from tests.ops.compiled_ops import group_graph
from tests.ops.table import GROUPS
from tests.support.compilers import WARNINGS
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, CCompiler, compile_c, compile_counter
from wholestep.compiler.backends.cpu.runtime.library import build_library
from wholestep.compiler.runtime.cache.content_store import ContentStore

pytestmark = pytest.mark.skipif(find_spec("ziglang") is None, reason="needs the ziglang wheel: pip install ziglang")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-O0", *WARNINGS)
FREESTANDING = ("pool.c", "loop.c", "micro_batches.c", "gemm.c", "gemm_double.c", "gemm_half.c")
SHARED = ("shared_conv.c", "shared_conv_f64.c", "shared_reduce.c")
HOSTED = (*FREESTANDING, *SHARED, "group.c", "draws.c", "copy.c")
ALL = tuple(sorted(path.name for path in NATIVE.glob("*.c")))


@dataclass(frozen=True)
class Machine:
    """A processor and system: zig's name, the target of its plans, further flags, and the files that it can have."""

    triple: str
    target: str
    flags: tuple[str, ...] = ()
    files: tuple[str, ...] = HOSTED

    def __str__(self) -> str:
        return f"{self.triple}, {self.target}"

    def compile(self, files: Sequence[Path], folder: Path) -> None:
        """Into object files: for a check of the syntax alone zig would build the system's C library first."""
        command = [*CCompiler((*ZIG, "-target", self.triple), "").call(self.target, ""), *self.flags, "-c"]
        for file in files:
            output = str(folder / f"{file.stem}.o")
            done = subprocess.run([*command, str(file), "-o", output], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")


_MACHINES = (
    Machine("aarch64-linux-gnu", "cpu/neon", files=ALL),
    Machine("aarch64-linux-gnu", "cpu/neonbf16", files=ALL),
    Machine("aarch64-macos", "cpu/neon"),
    Machine("aarch64-macos", "cpu/neonbf16"),
    Machine("x86_64-macos", "cpu/avx2"),
    Machine("x86_64-windows-gnu", "cpu/avx2"),
    Machine("wasm32-freestanding", "cpu/portable", ("-DWS_FREESTANDING", "-msimd128"), (*FREESTANDING, *SHARED)),
)
MACHINES = {str(machine): machine for machine in _MACHINES}
WITH_BFDOT = [name for name in MACHINES if name.endswith("bf16")]
WASM = next(name for name, machine in MACHINES.items() if machine.flags)


def plan_text(example: Example, target: str = "cpu/neon") -> str:
    x, y = example.rows()
    half = {"precision": example.precision} if "16" in example.precision else {}
    session = ws.build_session(
        example.network(), inputs=_spec(x), targets=_spec(y), loss="cross_entropy", optimizer=example.optimizer,
        batch_size=ROWS, clip_norm=1.0, device=f"null:{target}", options=OPTIONS, **half,
    )  # fmt: skip
    return render(session.plan)


def ops_text(group: str, dtype: str) -> str:
    """A step with every op of a group, and its gradients."""
    graph, _ = group_graph(group, dtype)
    return render(ws.build_session(graph, optimizer=ws.SGD(), device="null:cpu/neon", options=OPTIONS).plan)


@pytest.mark.long
@pytest.mark.parametrize("name", MACHINES)
def test_the_runtime_compiles(name: str, tmp_path: Path) -> None:
    MACHINES[name].compile([NATIVE / file for file in MACHINES[name].files], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in MACHINES if name != WASM])
def test_the_runtime_is_linked(name: str, tmp_path: Path) -> None:
    """As Python does it there; zig brings the system's libraries."""
    machine = MACHINES[name]
    compiler = CCompiler((*ZIG[: -len(WARNINGS)], "-target", machine.triple), machine.triple)
    for part in ("", "half", "double"):
        assert build_library(ContentStore(tmp_path), compiler, machine.target, part).stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "example"),
    [
        pytest.param(name, example, marks=() if (name, example) == (WASM, "mlp") else pytest.mark.long)
        for name in MACHINES
        for example in EXAMPLES
        if name not in WITH_BFDOT or example.endswith("bfloat16")  # the others have the text of cpu/neon
    ],
)
def test_plans_compile(name: str, example: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    (tmp_path / "plan.c").write_text(plan_text(EXAMPLES[example], machine.target))
    machine.compile([tmp_path / "plan.c"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in MACHINES if name not in WITH_BFDOT])
def test_every_op_compiles(name: str, dtype: str, tmp_path: Path) -> None:
    for group in GROUPS:
        (tmp_path / "plan.c").write_text(ops_text(group, dtype))
        MACHINES[name].compile([tmp_path / "plan.c"], tmp_path)


@pytest.mark.long
def test_objects_of_a_machine_are_cached(tmp_path: Path) -> None:
    cache, text, before = ContentStore(tmp_path), plan_text(EXAMPLES["mlp"]), compile_counter.value
    paths = []
    for triple in ("aarch64-linux-gnu", "x86_64-linux-gnu"):
        compiler = CCompiler((*ZIG[: -len(WARNINGS)], "-target", triple), triple)
        target = "cpu/neon" if triple.startswith("aarch64") else "cpu/avx2"
        paths += [compile_c(text, cache=cache, compiler=compiler, target=target) for _ in range(2)]
    assert compile_counter.value == before + 2
    assert (paths[0], paths[2]) == (paths[1], paths[3])
    assert [path.read_bytes()[18] for path in paths[::2]] == [183, 62]  # ELF: ARM64 and x86-64
