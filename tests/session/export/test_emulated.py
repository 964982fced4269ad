"""Exported programs on other machines: ARM64 under qemu and Windows under Wine have the bits of Python here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cpu.emulation.emulated import ARM64, WINDOWS, EmulatedMachine, call
from tests.session.export.library import network_session, rows
from tests.session.export.test_export import assert_equal_states
from wholestep.compiler.backends.cpu.export.sources import compile_flags
from wholestep.compiler.backends.cpu.target import TARGETS, available_targets

pytestmark = pytest.mark.long
# The machine, the target that Python runs here, and the exported target.
CASES = [
    pytest.param(ARM64, "cpu/portable", "cpu/portable", marks=ARM64.needed, id="arm64-portable"),
    pytest.param(ARM64, "cpu/avx2", "cpu/neon", marks=ARM64.needed, id="arm64-neon"),
    pytest.param(WINDOWS, "cpu/avx2", "cpu/avx2", marks=WINDOWS.needed, id="windows-avx2"),
]


def lenet_session(target: str) -> ws.Session:
    shape = {"inputs": ws.Spec(("batch", 1, 28, 28)), "targets": ws.Spec(("batch",), "int32")}
    options = {**shape, "loss": "cross_entropy", "optimizer": "adam", "metrics": ["accuracy"], "batch_size": 16}
    return ws.build_session(ws.models.LeNet5(), **options, device=target, threads=1)


def image_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"x": rng.random((40, 1, 28, 28), np.float32), "labels": rng.integers(0, 10, 40).astype(np.int32)}


def compile_program(machine: EmulatedMachine, folder: Path, target: str) -> Path:
    """The example of an exported folder; bits do not depend on the level of optimization."""
    assert machine.compiler is not None
    command = [*machine.compiler.command, *compile_flags(target), "-O1", "-Wall", "-Werror", f"-iquote{folder}/native"]
    objects = []
    for source in sorted(folder.rglob("*.c")):
        objects.append(folder / f"{len(objects)}.o")
        call([*command, "-c", str(source), "-o", str(objects[-1])])
    machine.link(objects, folder / "train.exe")
    return folder / "train.exe"


@pytest.mark.parametrize("network", ["mlp", "lenet"])
@pytest.mark.parametrize(("machine", "here", "there"), CASES)
def test_the_example_has_the_bits_of_python(
    tmp_path: Path, network: str, machine: EmulatedMachine, here: str, there: str
) -> None:
    if TARGETS[here] not in available_targets():
        pytest.skip(f"needs a processor that is {here}")
    session, data = (network_session(here), rows()) if network == "mlp" else (lenet_session(here), image_rows())
    session.export(tmp_path, target=there)
    for name, array in data.items():
        array.tofile(tmp_path / name)
    program = compile_program(machine, tmp_path, there)
    weights, trained = tmp_path / "weights.safetensors", tmp_path / "out"
    lines = machine.run(program, weights, "2", trained, tmp_path / "x", tmp_path / "labels").splitlines()
    losses = [float(line.split()[1]) for line in lines if line.startswith("loss")]
    np.testing.assert_array_equal(losses, session.run(data, epochs=2))
    assert_equal_states(trained.read_bytes(), session)
    (evaluation,) = [line.split() for line in lines if line.startswith("evaluation")]
    expected = session.evaluate_all(data)
    assert [float(text) for text in evaluation[1:]] == [expected["loss"], expected["accuracy"]]
