"""An exported LeNet: the example program trains an epoch of MNIST in C, to the bits of `ws.fit` on the same target."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import wholestep as ws
from tests.session.export.library import compile_objects, needed_functions, needs_gcc
from tests.support.mnist import digits_as_mnist, real_mnist
from wholestep.cli import app

pytestmark = pytest.mark.skipif(not needs_gcc, reason="the exported program is compiled by gcc")
SCRIPT = "from tests.session.export.test_lenet import experiment\ndef build(): return experiment({!r})\n"
TARGETS = ["cpu/portable", "cpu/avx2"]


def experiment(folder: str) -> ws.Experiment:
    """LeNet-5 on the training images of a folder."""
    train, _ = ws.data.mnist(folder)
    return ws.Experiment(
        model=ws.models.LeNet5(), data=train, loss="cross_entropy", optimizer=ws.Adam(lr=2e-3), metrics=["accuracy"],
        epochs=1, batch_size=64, seed=5, progress=False,
    )  # fmt: skip


def exported(data: Path, folder: Path, target: str) -> Path:
    """The folder of `wholestep export`."""
    (folder / "lenet.py").write_text(SCRIPT.format(str(data)))
    command = ["export", str(folder / "lenet.py"), str(folder / "out"), "--to", "c", "--target", target]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return folder / "out"


def output_of(
    program: Path, session: ws.Session, run: ws.Experiment, folder: Path, *before: str
) -> dict[str, np.ndarray]:
    """The checkpoint of an epoch by the example program, whose losses and evaluation are those of the session."""
    data = dict(zip(("x", "labels"), run.data))
    for name, array in data.items():
        array.tofile(folder / name)
    files = [program.parent / "weights.safetensors", "1", folder / "trained", *(folder / name for name in data)]
    lines = subprocess.run([*before, program, *files], capture_output=True, text=True, check=True).stdout.splitlines()
    losses = [float(line.split()[1]) for line in lines if line.startswith("loss")]
    np.testing.assert_array_equal(losses, session.run(data))
    evaluation = next(line.split()[1:] for line in lines if line.startswith("evaluation"))
    expected = session.evaluate_all(data)
    assert [float(value) for value in evaluation] == [expected["loss"], expected["accuracy"]]
    trained, states = load_file(folder / "trained"), session.state_dict()
    assert {name for name in states if not name.startswith("evaluate.")} == trained.keys()
    for name, array in trained.items():
        np.testing.assert_array_equal(array, states[name], err_msg=name)
    return trained


def test_an_epoch_of_a_few_images(tmp_path: Path) -> None:
    digits_as_mnist(tmp_path, train=200)
    run = experiment(str(tmp_path)).having({"device": "cpu/portable"})
    session = run.trainer()[0].session
    folder = Path(session.export(tmp_path / "out"))
    objects = compile_objects(folder, "cpu/portable", "-O0")
    assert needed_functions([folder / name for name in objects]) <= {"memcpy", "memset", "memmove"}
    subprocess.run(["gcc", "main.c", *objects, "-o", "train"], cwd=folder, check=True)
    output_of(folder / "train", session, run, tmp_path)


def built(folder: Path) -> Path:
    """The program that the folder's CMake file builds, beside the weights."""
    if shutil.which("cmake") is None:
        pytest.skip("the folder is built by CMake: apt-get install cmake")
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
    return (folder / "build" / "train").rename(folder / "train")


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_an_epoch_of_mnist(tmp_path: Path, target: str) -> None:
    data = real_mnist()
    program = built(exported(data, tmp_path, target))
    first, second = (experiment(str(data)).having({"device": target}) for _ in range(2))
    trained = output_of(program, first.trainer()[0].session, first, tmp_path)
    second.fit()
    for name, array in second.model.state_dict().items():
        np.testing.assert_array_equal(trained[name], array, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_valgrind_finds_nothing(tmp_path: Path, target: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed: apt-get install valgrind")
    digits_as_mnist(tmp_path, train=150)
    program = built(exported(tmp_path, tmp_path, target))
    run = experiment(str(tmp_path)).having({"device": target})
    output_of(program, run.trainer()[0].session, run, tmp_path, "valgrind", "--quiet", "--error-exitcode=9")
