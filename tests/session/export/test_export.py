"""`session.export("...", to="c")`: a C program has the bits of Python, and continues its checkpoints."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import wholestep as ws
from tests.session.export.library import CLASSES, FEATURES, CStep, needed_functions, needs_gcc, network_session, rows

pytestmark = pytest.mark.skipif(not needs_gcc, reason="the exported program is compiled by gcc")


def exported(folder: Path, target: str = "cpu/portable", **options: Any) -> tuple[ws.Session, CStep, dict[str, Any]]:
    """A session, and the C step with its weights and the data bound."""
    session, data = network_session(target, **options), rows()
    session.export(folder)
    step = CStep(folder, target)
    assert step.load((folder / "weights.safetensors").read_bytes()) > 0
    step.bind(data)
    return session, step, data


def assert_equal_states(file: bytes, session: ws.Session) -> None:
    expected = {name: a for name, a in session.state_dict().items() if not name.startswith("evaluate.")}
    arrays = load(file)
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ws.Session, CStep, dict[str, Any]]:
    return exported(tmp_path_factory.mktemp("step"))


def test_training_evaluation_and_prediction_have_the_bits_of_python(pair: Any) -> None:
    session, step, data = pair
    np.testing.assert_array_equal(step.run(len(data["x"]), epochs=2, steps=2), session.run(data, epochs=2))
    assert step.call("metric", 0, 0) == session.metrics()["accuracy"]
    assert_equal_states(step.save(), session)
    for count in (len(data["x"]), 7):  # in parts, and at once
        expected = session.evaluate_all({name: array[:count] for name, array in data.items()})
        assert step.call("evaluate", count) == 0
        assert step.call("loss") == expected["loss"]
        assert step.call("metric", 1, 0) == expected["accuracy"]
    assert step.call("predict", 9) == 0
    out = np.empty((9, CLASSES), np.float32)
    assert step.call("output_bytes", 0) == out.nbytes
    assert step.call("read_output", 0, out.ctypes.data) == 0
    np.testing.assert_array_equal(out, session.predict(x=data["x"][:9]))


def test_a_checkpoint_continues_on_either_side(pair: Any) -> None:
    session, step, data = pair
    step.run(len(data["x"]))
    other = network_session()
    other.load_state_dict(load(step.save()))
    np.testing.assert_array_equal(step.run(len(data["x"])), other.run(data))
    other.run(data)
    assert step.load(save(other.state_dict())) > 0
    np.testing.assert_array_equal(step.run(len(data["x"])), other.run(data))
    assert_equal_states(step.save(), other)
    session.load_state_dict(load(step.save()))


def test_single_updates_scalars_and_states(pair: Any, tmp_path: Path) -> None:
    session, step, data = pair
    session.load_state_dict(load(step.save()))
    manifest = json.loads((Path(step.dll._name).parent / "manifest.json").read_text())
    scalars = [scalar["name"] for scalar in manifest["scalars"]]
    assert step.call("set_scalar", scalars.index("optimizer.beta1"), 0.5) == 0
    session.optimizer.betas = (0.5, session.optimizer.betas[1])
    assert step.call("update", 5) == 0
    few = {name: array[:5] for name, array in data.items()}
    assert step.call("loss") == session.step(few).loss
    assert_equal_states(step.save(), session)
    for i, state in enumerate(manifest["states"]):
        if not state["saved"]:
            continue
        array = np.empty(state["shape"], state["dtype"])
        assert step.call("read_state", i, array.ctypes.data) == 0
        np.testing.assert_array_equal(array, session.get(state["name"]), err_msg=state["name"])
    i = [state["name"] for state in manifest["states"]].index("0.weight")
    weight = np.arange(24 * FEATURES, dtype=np.float32).reshape(24, FEATURES)
    assert step.call("write_state", i, weight.ctypes.data) == 0
    np.testing.assert_array_equal(load(step.save())["0.weight"], weight)
    step.load(save(session.state_dict()))


def test_wrong_calls_are_refused(pair: Any) -> None:
    _, step, data = pair
    losses = (ctypes.c_double * 4)()
    before = step.save()
    for rows_, batch, position in ((0, 0, 0), (75, 33, 0), (75, 32, 5), (75, 32, 76), (75, -1, 0)):
        assert step.call("run", rows_, batch, 1, position, 4, losses) == -2
    bad = data["labels"].copy()
    bad[70] = CLASSES
    step.call("bind", 1, bad.ctypes.data)
    assert step.call("run", 75, 0, 1, 0, 4, losses) == -3
    step.call("bind", 1, None)
    assert step.call("evaluate", 75) == -1
    assert step.call("bind", 2, None) == step.call("set_scalar", 0, float("nan")) == step.call("predict", 33) == -2
    assert b"not bound" in step.dll.ws_error(-1)
    step.bind(data)
    assert step.save() == before


def test_files_from_strangers_are_refused(pair: Any) -> None:
    _, step, _ = pair
    good = step.save()
    (length,) = struct.unpack("<Q", good[:8])
    header = good[8 : 8 + length]
    assert step.load(save({"0.weight": np.zeros((24, FEATURES), np.float32), "other": np.zeros(3)})) == 1
    step.load(good)
    cases = [good[:n] for n in (0, 7, 8, 100, len(good) - 1)] + [struct.pack("<Q", 2**63) + good[8:]]
    for old, new in ((b'"data_offsets":[0,', b'"data_offsets":[9,'), (b"{", b"["), (b":", b";"), (b"]}", b"]]")):
        cases.append(good[:8] + header.replace(old, new, 1) + good[8 + length :])
    for case in cases:
        assert step.load(case) in (-4, -5)
    assert step.load(save({"0.weight": np.zeros((FEATURES, 24), np.float32)})) == -5
    assert step.load(save({"0.weight": np.zeros((24, FEATURES), np.float64)})) == -5
    rng = np.random.default_rng(0)
    for _ in range(300):  # nothing is written unless the whole header is right
        damaged = bytearray(good)
        damaged[rng.integers(8, 8 + length)] = rng.integers(256)
        if step.load(bytes(damaged)) > 0:
            step.load(good)
    assert step.save() == good


def test_the_objects_need_no_library_and_allocate_nothing(pair: Any) -> None:
    _, step, _ = pair
    folder = Path(step.dll._name).parent
    assert needed_functions(sorted(folder.glob("*.o"))) <= {"memcpy", "memset", "memmove"}
    header = (folder / "step.h").read_text()
    assert f"#define WS_BYTES {step.dll.ws_bytes()}L\n" in header
    assert f"#define WS_CHECKPOINT_BYTES {step.dll.ws_checkpoint_bytes()}L\n" in header


def test_the_example_trains(pair: Any, tmp_path: Path) -> None:
    folder, data = Path(pair[1].dll._name).parent, rows()
    for name, array in data.items():
        array.tofile(tmp_path / name)
    session = network_session()
    subprocess.run(["gcc", "main.c", *sorted(folder.glob("*.o")), "-o", "train"], cwd=folder, check=True)
    command = [
        folder / "train",
        folder / "weights.safetensors",
        "2",
        tmp_path / "out",
        tmp_path / "x",
        tmp_path / "labels",
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    losses = [float(line.split()[1]) for line in lines if line.startswith("loss")]
    np.testing.assert_array_equal(losses, session.run(data, epochs=2))
    assert_equal_states((tmp_path / "out").read_bytes(), session)


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    session = network_session()
    with pytest.raises(ws.errors.OptionError, match="expected one of 'c', 'wasm'"):
        session.export(tmp_path, to="cuda")
    with pytest.raises(ws.errors.OptionError, match="expected one of 'cpu/"):
        session.export(tmp_path, target="cpu/mips")
    with ws.build_session(
        ws.nn.Embedding(5, 3), inputs=ws.Spec(("batch", "length"), "int32"), targets=ws.Spec(("batch", "length", 3)),
        loss="mse", capacity={"batch": 2, "length": 4},
    ) as several, pytest.raises(ws.errors.UsageError, match="length besides the batch"):  # fmt: skip
        several.export(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("target", ["cpu/portable", "cpu/avx2"])
@pytest.mark.parametrize(
    "options", [{"accumulate": 3}, {"optimizer": ws.SGD(momentum=0.9), "schedule": None, "nonfinite": "skip"}]
)
def test_micro_batches_and_skipped_updates(tmp_path: Path, target: str, options: dict[str, Any]) -> None:
    session, step, data = exported(tmp_path, target, **options)
    batch = 32 * options.get("accumulate", 1)
    np.testing.assert_array_equal(step.run(len(data["x"]), epochs=3, batch=batch), session.run(data, epochs=3))
    assert_equal_states(step.save(), session)


@pytest.mark.long
def test_cmake_and_valgrind(tmp_path: Path) -> None:
    session, data = network_session(), rows()
    session.export(tmp_path)
    for name, array in data.items():
        array.tofile(tmp_path / name)
    for tool in ("cmake", "valgrind"):
        if subprocess.run(["which", tool], capture_output=True, check=False).returncode:
            pytest.skip(f"{tool} is not installed: apt-get install {tool}")
    subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    files = [tmp_path / name for name in ("weights.safetensors", "1", "out", "x", "labels")]
    command = ["valgrind", "--error-exitcode=9", tmp_path / "build" / "train", files[0], "1", *files[2:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss")]
    np.testing.assert_array_equal(losses, session.run(data))
