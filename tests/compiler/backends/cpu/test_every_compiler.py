"""gcc, clang and `zig cc` compile all of our C without a warning, and a step has the same bits with each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.backends.cpu.compiler_suite import EXAMPLES
from tests.support.compilers import QUICK, WARNINGS
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, TARGET_FLAGS, CCompiler, find_compiler
from wholestep.compiler.backends.cpu.target import NEON, NEONBF16, PORTABLE, available_targets
from wholestep.errors import CompilerError

ROOT = Path(__file__).parents[4]
SUITE = "tests.compiler.backends.cpu.compiler_suite"
ZIG = f"{sys.executable} -m ziglang cc"
COMMANDS = {"gcc": "gcc", "clang": "clang", "zig": ZIG}


def compiler(name: str) -> CCompiler:
    if name == "zig" and importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs the ziglang wheel: pip install ziglang")
    try:
        return find_compiler(COMMANDS[name])
    except CompilerError:
        pytest.skip(f"needs {name}")


def trained(folder: Path, device: str, names: Sequence[str], **environment: str) -> dict[str, np.ndarray]:
    """What the examples of the suite came to in a process of their own."""
    out = folder / f"{device.replace('/', '-')}.npz"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", SUITE, str(out), device, *names]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return dict(arrays)


def assert_same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


# Targets of ARM64 are compiled by test_other_machines.py.
@pytest.mark.parametrize("target", [name for name in TARGET_FLAGS if name not in (NEON.name, NEONBF16.name)])
@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_native_files_compile_without_a_warning(name: str, target: str) -> None:
    files = [str(path) for path in sorted(NATIVE.glob("*.c"))]
    command = [*compiler(name).call(target, ""), *WARNINGS, "-fsyntax-only", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("mlp",), id="one example"),
        pytest.param(tuple(EXAMPLES), id="every example", marks=pytest.mark.long),
    ],
)
def test_the_wheel_alone_trains(names: Sequence[str], tmp_path: Path) -> None:
    """Without any compiler on the PATH: what `pip install "wholestep[cc]"` brings is found and used."""
    compiler("zig")
    device = available_targets()[0].name
    without = trained(tmp_path, device, names, CC="", PATH="")
    assert_same_bits(without, trained(tmp_path, device, names, CC=QUICK))
    expected = trained(tmp_path, "reference", names)
    for name in (key for key in expected if key.endswith("/losses")):
        bound = 5e-3 if "16" in name else 1e-5
        np.testing.assert_allclose(without[name], expected[name], rtol=bound, err_msg=name)


def test_the_wheel_compiles_for_the_target_and_not_for_this_machine(tmp_path: Path) -> None:
    """Products of bfloat16 differ with the instructions that a processor has."""
    compiler("zig")
    with_gcc = trained(tmp_path, PORTABLE.name, ["mlp-bfloat16"], CC=QUICK)
    assert_same_bits(trained(tmp_path, PORTABLE.name, ["mlp-bfloat16"], CC=ZIG), with_gcc)


@pytest.mark.long
@pytest.mark.parametrize("target", available_targets(), ids=str)
@pytest.mark.parametrize("name", ["clang", "zig"])
def test_every_compiler_gives_the_bits_of_gcc(tmp_path: Path, name: str, target: object) -> None:
    compiler(name)
    device = str(target)
    ours = trained(tmp_path, device, [*EXAMPLES], CC=COMMANDS[name])
    assert_same_bits(ours, trained(tmp_path, device, [*EXAMPLES], CC="gcc"))
