"""The C of plans and of the runtime compiles without a warning for machines that are not here."""

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
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, CCompiler
from wholestep.compiler.backends.cpu.runtime.library import build_library
from wholestep.compiler.runtime.cache.content_store import ContentStore

pytestmark = pytest.mark.skipif(find_spec("ziglang") is None, reason="needs the ziglang wheel: pip install ziglang")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-O0", "-Wall", "-Werror")
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

    def compile(self, files: Sequence[Path], folder: Path) -> None:
        """Into object files: for a check of the syntax alone zig would build the system's C library first."""
        command = [*CCompiler((*ZIG, "-target", self.triple), "").call(self.target, ""), *self.flags, "-c"]
        for file in files:
            output = str(folder / f"{file.stem}.o")
            done = subprocess.run([*command, str(file), "-o", output], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")


MACHINES = {
    machine.triple: machine
    for machine in (
        Machine("aarch64-linux-gnu", "cpu/neon", files=ALL),
        Machine("aarch64-macos", "cpu/neon"),
        Machine("x86_64-macos", "cpu/avx2"),
        Machine("x86_64-windows-gnu", "cpu/avx2"),
        Machine("wasm32-freestanding", "cpu/portable", ("-DWS_FREESTANDING", "-msimd128"), (*FREESTANDING, *SHARED)),
    )
}


def plan_text(example: Example) -> str:
    x, y = example.rows()
    half = {"precision": example.precision} if "16" in example.precision else {}
    session = ws.build_session(
        example.network(), inputs=_spec(x), targets=_spec(y), loss="cross_entropy", optimizer=example.optimizer,
        batch_size=ROWS, clip_norm=1.0, device="null:cpu/neon", options=OPTIONS, **half,
    )  # fmt: skip
    return render(session.plan)


@pytest.mark.long
@pytest.mark.parametrize("triple", MACHINES)
def test_the_runtime_compiles(triple: str, tmp_path: Path) -> None:
    MACHINES[triple].compile([NATIVE / name for name in MACHINES[triple].files], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("triple", [name for name, machine in MACHINES.items() if not machine.flags])
def test_the_runtime_is_linked(triple: str, tmp_path: Path) -> None:
    """As Python does it there; zig brings the system's libraries."""
    compiler = CCompiler((*ZIG[:-2], "-target", triple), triple)
    for part in ("", "half", "double"):
        assert build_library(ContentStore(tmp_path), compiler, MACHINES[triple].target, part).stat().st_size > 0


@pytest.mark.parametrize(
    ("triple", "name"),
    [
        pytest.param(t, n, marks=() if (t, n) == ("wasm32-freestanding", "mlp") else pytest.mark.long)
        for t in MACHINES
        for n in EXAMPLES
    ],
)
def test_plans_compile(triple: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "plan.c").write_text(plan_text(EXAMPLES[name]))
    MACHINES[triple].compile([tmp_path / "plan.c"], tmp_path)
