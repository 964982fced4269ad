"""Files that someone else has written: none of their strings is executed, no number leads native code out of memory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.fuzz.readers import readers
from tests.fuzz.readers.readers import READERS, forged, plans
from wholestep.compiler.backends.cpu.check.convolution import OPERANDS
from wholestep.compiler.backends.cpu.check.routines import ROUTINES
from wholestep.compiler.backends.cpu.render import call, language
from wholestep.compiler.backends.cpu.render.kernels import RENDER_WINDOW as WINDOW_TEXTS
from wholestep.compiler.frontend.initializers import is_valid_for
from wholestep.compiler.plan.check import values
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.lower.convolution_ops import WINDOWS
from wholestep.errors import CheckpointError, DTypeError, InputError, PlanError, UsageError
from wholestep.train.checkpoint.format import MANIFEST, manifest_bytes

CHANGES = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, readers.runs_left["plan"] = readers.runs_left["plan"], 12
    yield tmp_path_factory.mktemp("files")
    readers.runs_left["plan"] = before
    for child in readers._child:
        child.close()


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_with_our_errors_or_reads(name: str, folder: Path) -> None:
    for n in range(CHANGES):
        READERS[name](random.Random(f"{name} {n}"), folder)


# -- plans -------------------------------------------------------------------------------------------------------


def attention_graph() -> ws.Graph:
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 5))
    seen = ws.attention(x, x, x) @ g.parameter("u", (5, 2), init=1.0)
    g.set_outputs({"loss": (seen * seen).mean()})
    return g


INJECTED = 'group = ({{ extern int system(const char *); system("touch {}"); 1L; }}), .queries'


def with_command(data: bytes, pwned: Path) -> bytes:
    """A plan file of attention in which a name of an extent is a piece of C."""
    head, _, body = data.partition(b"\n")
    tree = json.loads(body)
    kernel = next(k for k in tree["kernels"] if k["body"]["kind"] == "call")
    kernel["body"]["extents"][0][0] = INJECTED.format(pwned)
    header = {**json.loads(head), "checksum": json.loads(forged(tree).partition(b"\n")[0])["checksum"]}
    return json.dumps(header).encode() + b"\n" + forged(tree).partition(b"\n")[2]


def test_a_command_in_a_plan_is_not_run_by_load_plan(tmp_path: Path) -> None:
    graph, file, pwned = attention_graph(), tmp_path / "a.plan", tmp_path / "pwned"
    plan, _ = ws.compile_training_graph(graph, batch_size=2)
    ws.save_plan(plan, graph, file)
    assert ws.load_plan(graph, file) == plan
    file.write_bytes(with_command(file.read_bytes(), pwned))
    with pytest.raises(PlanError, match="the call of kernel 0 must have the extents of its axes"):
        ws.load_plan(graph, file)
    assert not pwned.exists()


def test_a_command_in_a_plan_is_not_run_by_build_session_cached(tmp_path: Path) -> None:
    graph, file, pwned = attention_graph(), tmp_path / "a.plan", tmp_path / "pwned"
    ws.build_session_cached(graph, file, batch_size=2)
    file.write_bytes(with_command(file.read_bytes(), pwned))
    with pytest.warns(UserWarning, match="extents of its axes"):
        session = ws.build_session_cached(graph, file, batch_size=2)
    assert float(session.step(x=np.ones((2, 3, 5), np.float32))) == 25.0
    assert not pwned.exists()


def body(tree: Any, kind: str) -> Any:
    return next(k["body"] for k in tree["kernels"] if k["body"]["kind"] == kind)


def inner(tree: Any, kind: str) -> Any:
    return next(k["schedule"]["inner"] for k in tree["kernels"] if k["body"]["kind"] == kind)


def convolution(tree: Any) -> Any:
    return next(k["body"] for k in tree["kernels"] if k["body"].get("op") == "conv2d")


def tiles(tree: Any, op: str = "conv2d") -> Any:
    return next(k["schedule"]["inner"] for k in tree["kernels"] if k["body"].get("op") == op)


def adjoint(tree: Any) -> Any:
    return tiles(tree, "conv2d_grad_input")


def weight_gradient(tree: Any) -> Any:
    return tiles(tree, "conv2d_grad_weight")


def twice(level: Any) -> None:
    level["stores"] = level["stores"] * 2


# Each of them crashed a step, or represents a case that would.
BROKEN: list[tuple[str, Callable[[Any], Any]]] = [
    ("dense", lambda t: inner(t, "dot").update(rows=4800)),
    ("dense", lambda t: inner(t, "dot").update(columns=6400)),
    ("dense", lambda t: inner(t, "dot").update(work=0)),
    ("pooled", lambda t: convolution(t).update(low=[10**6, 1])),
    ("pooled", lambda t: convolution(t).update(low=[-1, -1])),
    ("pooled", lambda t: convolution(t).update(stride=[10**5, 1])),
    ("pooled", lambda t: convolution(t).update(dilation=[1, 99])),
    ("pooled", lambda t: convolution(t).update(pool=[200, 200])),
    ("pooled", lambda t: convolution(t).update(high=[10**6, 1])),
    ("pooled", lambda t: convolution(t).update(middle=[10**6, 1])),
    ("pooled", lambda t: convolution(t).update(middle=[1])),
    ("pooled", lambda t: tiles(t).update(granule=10**6)),
    ("pooled", lambda t: tiles(t)["frame"].update(row=10**6)),
    ("pooled", lambda t: tiles(t)["frame"].update(low=[9, 9])),
    ("tiles", lambda t: tiles(t)["frame"].update(elements=10**6)),
    ("grouped", lambda t: adjoint(t)["down"][0].update(start=10**6)),
    ("grouped", lambda t: adjoint(t)["across"][0].update(taps=[7, 8])),
    ("grouped", lambda t: weight_gradient(t)["runs"].update(length=10**6)),
    ("pooled", lambda t: t["kernels"][0]["schedule"].update(inner={"kind": "blocks"})),
    ("dense", lambda t: t["kernels"][0]["schedule"].pop("inner")),
    ("grouped", lambda t: convolution(t).update(groups=4)),
    ("tiles", lambda t: tiles(t).update(rows=64)),
    ("tiles", lambda t: tiles(t)["work"].reverse()),
    ("tiles", lambda t: tiles(t)["work"][0].__setitem__(0, "block; system()")),
    ("attention", lambda t: body(t, "call")["extents"][2].__setitem__(1, 10**7)),
    ("attention", lambda t: inner(t, "call").update(block=10**4)),
    ("attention", lambda t: body(t, "call").update(routine="attention; system()")),
    ("attention", lambda t: body(t, "call")["operands"][0].update(name="q = 0, .k")),
    ("attention", lambda t: body(t, "call")["numbers"][0].__setitem__(0, "scale = system(), .x")),
    ("attention", lambda t: body(t, "scatter").update(at=1)),
    ("pooled", lambda t: twice(t["kernels"][0]["body"]["levels"][1])),
    ("dense", lambda t: t["kernels"][0]["schedule"].update(granule=0)),
    ("dense", lambda t: t["kernels"][0].update(id=7)),
    ("dense", lambda t: t["inputs"].pop()),
    ("dense", lambda t: t["buffers"][0].update(bytes=10**7)),
    ("dense", lambda t: t["initial"][0].update(kind="whatever")),
]


@pytest.mark.parametrize("case", range(len(BROKEN)))
def test_numbers_and_names_that_native_code_would_follow(case: int) -> None:
    name, change = BROKEN[case]
    tree = json.loads(serialize.dump(plans()[name]).partition(b"\n")[2])
    change(tree)
    with pytest.raises(PlanError, match="the plan is not sound"):
        serialize.load(forged(tree))


@pytest.mark.parametrize("body", [[], {}, None, 3, "x", {"version": 1}, {"kernels": [{}]}])
def test_a_body_that_is_no_plan(body: object) -> None:
    with pytest.raises(PlanError, match="does not have the form"):
        serialize.load(forged(body))


def test_a_bound_holds_at_every_size_and_not_at_the_capacity_alone() -> None:
    """capacity - batch is 0 where memory is measured, and 3 in a step of one row."""
    tree = json.loads(serialize.dump(plans()["dense"]).partition(b"\n")[2])
    load = next(
        i["load"] for k in tree["kernels"] for v in k["body"].get("levels", ()) for i in v["body"] if i.get("load")
    )
    load["index"][-1]["offset"] = {"dim": [[[], 4], [["batch"], -1]]}
    with pytest.raises(PlanError, match="at every size"):
        serialize.load(forged(tree))


def test_what_is_accepted_has_a_text() -> None:
    """The names that a plan may hold are the rows of the renderer's tables."""
    assert values.COMPUTED - {"cast"} == set(language.OPS)
    assert values.HOSTED - {"cast"} == set(language.HOST)
    assert set(ROUTINES) == set(call.HEADERS)
    assert set(OPERANDS) == WINDOWS == set(WINDOW_TEXTS)


def test_every_plan_of_ours_is_accepted() -> None:
    for plan in plans().values():
        assert serialize.load(serialize.dump(plan)) == plan


@pytest.mark.parametrize("init", [ws.init.zeros(), ws.init.normal(), ws.init.uniform(), ws.init.values([1.0, 2.0])])
def test_initialisers_of_vectors(init: Any) -> None:
    assert is_valid_for(init, (2,))
    assert not is_valid_for(type(init)(init.kind, (*init.args, 1.0)), (2,))


@pytest.mark.parametrize("init", [ws.init.xavier_normal(), ws.init.kaiming_uniform(), ws.init.orthogonal()])
def test_initialisers_of_matrices(init: Any) -> None:
    assert is_valid_for(init, (2, 3))
    assert not is_valid_for(init, (2,))


def test_every_field_of_an_epoch_is_looked_at() -> None:
    from dataclasses import fields

    from wholestep.train.history import _FITS

    assert {str(f.type) for f in fields(ws.EpochStats)} <= _FITS.keys()
    whole = ws.TrainHistory([ws.EpochStats(0, 0.5, 7, {"loss": 0.5, "matrix": [[1, 2], [3, 4]]})], "patience")
    assert ws.TrainHistory.from_json(whole.to_json()) == whole


# -- checkpoints and weights -------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two checkpoints."""
    model = ws.nn.Linear(3, 2)
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch", 2)), loss="mse", batch_size=4
    )
    for _ in range(2):
        session.step(x=np.ones((4, 3), "f4"), labels=np.ones((4, 2), "f4"))
        ws.save_checkpoint(tmp_path / "run", session)
    return tmp_path / "run"


WRONG_MANIFESTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("files is", lambda b: b["files"].update({"../../x.safetensors": "0" * 64})),
    ("files is", lambda b: b.update(files={})),
    ("position is", lambda b: b["position"].update(epoch="x")),
    ("other fields", lambda b: b.pop("logs")),
    ("logs is", lambda b: b.update(logs={"loss": "x"})),
    ("have different numbers of steps", lambda b: b.update(step=7)),
    ("this is not a history", lambda b: b.update(history={})),
    ("nowhere", lambda b: b.update(callbacks={"EarlyStopping.0": {"$array": "nowhere"}})),
]


@pytest.mark.parametrize(("text", "change"), WRONG_MANIFESTS)
def test_a_wrong_manifest_falls_back_to_the_checkpoint_before(
    run: Path, text: str, change: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = run / "step-00000002" / MANIFEST
    body = json.loads(file.read_bytes())["manifest"]
    change(body)
    file.write_bytes(manifest_bytes(body))
    with pytest.raises(CheckpointError, match=text):
        ws.load_checkpoint(file.parent)
    assert ws.load_checkpoint(run).step == 1
    assert "The checkpoint before it is used" in caplog.text


def test_callbacks_that_cannot_go_on_change_nothing(run: Path) -> None:
    from dataclasses import replace

    from wholestep.callbacks.list import CallbackList

    model = ws.nn.Linear(3, 2)
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch", 2)), loss="mse", batch_size=4
    )
    before = session.state_dict()
    stored = replace(ws.load_checkpoint(run), callbacks={"EarlyStopping.0": {"wait": "x", "best": []}})
    with pytest.raises(CheckpointError, match="has a state that a callback cannot restore"):
        stored.restore(session, CallbackList([ws.EarlyStopping("loss")]))
    assert all(np.array_equal(before[n], a) for n, a in session.state_dict().items())


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.ones((2, 3), complex), DTypeError, "'weight' takes an array of numbers"),
        (np.full((2, 3), "1"), DTypeError, "'weight' takes an array of numbers"),
        (np.full((2, 3), None), DTypeError, "which NumPy reads as objects"),
        ([[1.0], [2.0, 3.0]], InputError, "rows of equal length"),
        (np.full((2, 3), 1e300), InputError, r"float32 in the model, which cannot hold 1e\+300 at \[0, 0\]"),
        (np.ma.masked_less(np.ones((2, 3)), 2), InputError, r"6 masked values.*array\.filled"),
    ],
)
def test_arrays_that_are_no_weights_change_nothing(value: object, error: type[Exception], text: str) -> None:
    model = ws.nn.Linear(3, 2)
    before = {n: a.copy() for n, a in model.state_dict().items()}
    with pytest.raises(error, match=text):
        model.load_state_dict({"bias": np.ones(2), "weight": value})
    assert all(np.array_equal(before[n], a) for n, a in model.state_dict().items())


def test_infinities_and_integers_are_weights() -> None:
    model = ws.nn.Linear(3, 2)
    model.load_state_dict({"weight": np.full((2, 3), 2), "bias": np.array([np.inf, np.nan])})
    assert (model.state_dict()["weight"] == 2).all()
    assert np.array_equal(model.state_dict()["bias"], [np.inf, np.nan], equal_nan=True)


def test_brain_floats_are_read_exactly(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    weight = torch.randn(2, 3).bfloat16()
    save_file({"weight": weight, "bias": torch.arange(2.0)}, tmp_path / "b.safetensors")
    model = ws.nn.Linear(3, 2)
    model.load(tmp_path / "b.safetensors")
    assert np.array_equal(model.state_dict()["weight"], weight.float().numpy())
    assert np.array_equal(model.state_dict()["bias"], [0.0, 1.0])
    save_file({"weight": torch.zeros(2, 3).to(torch.float8_e4m3fn), "bias": torch.zeros(2)}, tmp_path / "8.safetensors")
    with pytest.raises(CheckpointError, match="holds 'weight' as F8_E4M3"):
        model.load(tmp_path / "8.safetensors")


def test_weights_on_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: in a process of its own, since it cannot be lifted."""
    import subprocess
    import sys

    script = """
import resource, signal, sys
import wholestep as ws
model = ws.nn.Linear(300, 300)
model.save("w.safetensors")
before = open("w.safetensors", "rb").read()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    model.save("w.safetensors")
except ws.errors.CheckpointError as error:
    print("refused", error)
print(open("w.safetensors", "rb").read() == before)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "refused the weights could not be written to w.safetensors" in done.stdout, done.stderr
    assert done.stdout.rstrip().endswith("True")
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


# -- data --------------------------------------------------------------------------------------------------------


def test_files_of_data(tmp_path: Path) -> None:
    file = tmp_path / "x"
    cases: list[tuple[bytes, Callable[[Path], Any], str]] = [
        (b"\x93NUMPY\x01\x00\x06\x00(((((\n", ws.data.open_npy, "is not a complete .npy file"),
        (b"a,b\n\xff,2\n", ws.data.read_csv, "is not text in UTF-8: byte 0xff"),
        (b"a,b\n1_0,2\n", ws.data.read_csv, "'1_0' is not a number"),
        (b"\x1f\x8bxxxx", ws.data.read_idx, "gzip cannot unpack it"),
        (b"\0\0\x08\xff", ws.data.read_idx, "its header has 255 axes"),
        (b"\0\0\x08\x02" + b"\x80\0\0\0" * 2, ws.data.read_idx, "is damaged"),
        (b"a,b\n1,3000000000\n", lambda path: ws.data.read_csv(path, target="b"), "the range of class indices"),
    ]
    for data, read, text in cases:
        file.write_bytes(data)
        with pytest.raises(InputError, match=text):
            read(file)
    np.savez(tmp_path / "many.npz", a=np.ones(2))
    np.save(tmp_path / "words.npy", np.array(["a"]))
    for name, text in (("many.npz", "holds several arrays, a"), ("words.npy", "it holds <U1")):
        with pytest.raises(InputError, match=text):
            ws.data.open_npy(tmp_path / name)


@pytest.mark.parametrize("state", [{}, {"seed": 1, "epoch": "x", "batch": 0}, {"seed": 1, "epoch": 0, "batch": 99}])
def test_a_loader_that_cannot_go_on_stays_where_it_is(state: Any) -> None:
    loader = ws.DataLoader(np.ones((8, 2), "f4"), np.ones(8, "f4"), batch_size=4, seed=5)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=r"its seed, epoch and batch|an epoch has 2 batches"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_masks_are_refused_wherever_arrays_come_in() -> None:
    masked = np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 4)
    model = ws.nn.Linear(3, 2)
    entries: list[Callable[[], object]] = [
        lambda: ws.fit(model, (masked, np.ones((2, 2))), loss="mse", epochs=1),
        lambda: model.predict(masked),
        lambda: ws.DataLoader(masked, np.ones(2)),
        lambda: ws.metrics.Accuracy().update(masked, masked),
        lambda: ws.losses.value_and_grad("mse", masked, masked),
        lambda: ws.Graph().input("x", (2, 3)) + masked,
    ]
    for enter in entries:
        with pytest.raises(InputError, match=r"1 masked values.*array\.filled"):
            enter()


def test_ragged_lists_are_refused_in_our_words() -> None:
    with pytest.raises(UsageError, match=r"sequences of different lengths are packed.*to one length"):
        ws.nn.Linear(3, 2).predict([[1.0, 2.0], [3.0]])
