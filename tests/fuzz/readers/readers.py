"""Files that someone else has written: each reader refuses them with an error of ours, or reads what they say.

`READERS[name](rng, folder)` makes one change to a file of its kind (made once, in the folder) and reads it; an
AssertionError tells which change made the reader misbehave.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import hashlib
import json
import logging
import random
import select
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws
from tests.fuzz.readers.mutations import Tree, changed_bytes, changed_tree
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.content_store import ContentStore, key_of
from wholestep.compiler.spans import OptimizeReport, parse_report
from wholestep.errors import WholestepError
from wholestep.train.checkpoint.format import MANIFEST, manifest_bytes

Reader = Callable[[random.Random, Path], None]

runs_left = {"plan": 1_000_000}  # how many changed plans are compiled and run: the suite has time for a few
HANGS = 20.0  # seconds after which a plan that asks for long loops is left alone


def refused_or(read: Callable[[], Any], what: str) -> Any:
    """What a reader gives, or the error of ours that it raises; anything else is a bug."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("wholestep").disabled = True
        try:
            return read()
        except WholestepError as error:
            return error
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        finally:
            logging.getLogger("wholestep").disabled = False


# -- plans -------------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[ws.nn.Module, ws.Spec, ws.Spec]]:
    """Small ones that together have every kind of kernel."""
    nn, labels = ws.nn, ws.Spec(("batch",), "int32")
    images = ws.Spec(("batch", 3, 8, 8))
    return {
        "dense": (nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), ws.Spec(("batch", 6)), labels),
        "pooled": (
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 3)),
            *(images, labels),
        ),
        "grouped": (
            nn.Sequential(
                *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.MaxPool2d(3, 2, 1)),
                *(nn.Conv2d(8, 8, 1, groups=8), nn.Flatten(), nn.Linear(8, 3)),
            ),
            *(ws.Spec(("batch", 3, 9, 9)), labels),
        ),
        "tiles": (
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 3)
            ),
            *(ws.Spec(("batch", 16, 8, 8)), labels),
        ),
        "attention": (
            nn.Sequential(
                nn.Embedding(11, 8),
                nn.TransformerBlock(8, 2, causal=True),
                nn.LayerNorm(8),
                nn.ReLU(),
                nn.Linear(8, 11),
            ),
            *(ws.Spec(("batch", 5), "int32"), ws.Spec(("batch", 5), "int32")),
        ),
        "steps": (Recurrent(), ws.Spec(("batch", 5, 4)), labels),
    }


class Recurrent(ws.nn.Module):
    def __init__(self) -> None:
        self.lstm, self.head = ws.nn.LSTM(4, 8, batch_first=True), ws.nn.Linear(8, 3)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@functools.cache
def plans() -> dict[str, Plan]:
    return {
        name: ws.compile_training_graph(
            m,
            inputs=x,
            targets=y,
            loss="cross_entropy",
            batch_size=4,
            optimizer=ws.Adam(),
            options=ws.CompileOptions(egraph=False),
        )[0]
        for name, (m, x, y) in networks().items()
    }


@functools.cache
def _trees() -> dict[str, tuple[Tree, str]]:
    """The tree and the C of each plan."""
    return {
        name: (Tree.of(json.loads(serialize.dump(p).partition(b"\n")[2])), render(p)) for name, p in plans().items()
    }


def forged(tree: Any) -> bytes:
    """A plan file whose checksum is right, whatever it says."""
    body = json.dumps(tree).encode()
    header = serialize.Header(serialize.FORMAT, serialize.VERSION, hashlib.sha256(body).hexdigest(), "", "")
    return json.dumps(vars(header)).encode() + b"\n" + body + b"\n"


def plan_values(rng: random.Random, folder: Path) -> None:
    """A plan with one value changed and its checksum made right is refused, or runs inside of its memory."""
    name = rng.choice(sorted(_trees()))
    tree, text = _trees()[name]
    new, what = changed_tree(rng, tree)
    if rng.random() < 0.2:
        new, more = changed_tree(rng, new)
        what = f"{what}; {more}"
    data, what = forged(new), f"plan of {name}: {what}"
    found = refused_or(lambda: serialize.load(data), what)
    if isinstance(found, WholestepError):
        return
    try:
        made = render(found)
    except Exception as error:
        raise AssertionError(f"{what}: accepted, but not rendered: {error!r}") from error
    same_memory = (found.buffers, found.capacity, found.slots) == (
        plans()[name].buffers,
        plans()[name].capacity,
        plans()[name].slots,
    )
    if (made == text and same_memory) or runs_left["plan"] <= 0:
        return
    runs_left["plan"] -= 1
    path = folder / "changed.plan"
    path.write_bytes(data)
    outcome = child(folder).run(path)
    assert outcome == "ran" or outcome.startswith("refused"), f"{what}: {outcome}"


@functools.cache
def _dumped(name: str) -> bytes:
    return serialize.dump(plans()[name])


def plan_bytes(rng: random.Random, folder: Path) -> None:
    """A damaged plan file is refused."""
    name = rng.choice(sorted(plans()))
    new, what = changed_bytes(rng, _dumped(name))
    found = refused_or(lambda: serialize.load(new), f"plan of {name}: {what}")
    assert isinstance(found, WholestepError) or found == plans()[name], f"plan of {name}: {what}: other values"


class Child:
    """A process that runs plans; where it dies, the next plan gets another."""

    def __init__(self, folder: Path) -> None:
        first = folder / "first.plan"
        first.write_bytes(serialize.dump(plans()["dense"]))
        script = Path(__file__).with_name("plan_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line(120.0) == "ready"

    def run(self, path: Path) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        found = self._line(HANGS)
        if found is None:
            self.close()
            return "refused: it was stopped, since it asked for long loops"
        return found or f"died with {self.process.wait()}"

    def _line(self, seconds: float) -> str | None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().strip() if ready else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # unwritten data is discarded
                if pipe is not None:
                    pipe.close()


_child: list[Child] = []


def child(folder: Path) -> Child:
    if not _child or _child[0].process.poll() is not None:
        _close_children()
        _child[:] = [Child(folder)]
    return _child[0]


@atexit.register
def _close_children() -> None:
    for one in _child:
        one.close()


# -- checkpoints -------------------------------------------------------------------------------------------------


@functools.cache
def _session() -> ws.Session:
    model = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.Linear(4, 2, bias=False))
    return ws.build_session(
        model,
        inputs=ws.Spec(("batch", 3)),
        targets=ws.Spec(("batch", 2)),
        loss="mse",
        optimizer=ws.SGD(lr=0.1, momentum=0.9),
        batch_size=4,
    )


def _run_of_two(folder: Path) -> tuple[Path, Path]:
    """A run with two checkpoints, made once: the folder of the run, and a copy of its newest checkpoint."""
    run, kept = folder / "run", folder / "kept"
    if not kept.exists():
        session, rng = _session(), np.random.default_rng(0)
        for epoch in range(2):
            session.step(x=rng.standard_normal((4, 3)).astype("f4"), labels=np.zeros((4, 2), "f4"))
            history = ws.TrainHistory(
                [ws.EpochStats(e, 0.5, 1, {"loss": 0.5, "accuracy": 0.25}) for e in range(epoch + 1)]
            )
            path = ws.save_checkpoint(
                run, session, history=history, logs={"loss": 0.5}, config={"script": "x.py", "n": [1]}
            )
        shutil.copytree(path, kept)
    return run, kept


def _newest(folder: Path) -> Path:
    run, kept = _run_of_two(folder)
    newest = sorted(run.glob("step-*"))[-1]
    shutil.rmtree(newest)
    shutil.copytree(kept, newest)
    return newest


def _read_run(newest: Path, what: str) -> None:
    """The newest checkpoint is read, or the one before it is; what is given back fits a session or is refused."""
    run = newest.parent
    stored = refused_or(lambda: ws.load_checkpoint(run), what)
    assert not isinstance(stored, WholestepError), f"{what}: the checkpoint before it is whole; {stored}"
    before = _session().state_dict()
    error = refused_or(lambda: stored.restore(_session()), what)
    if isinstance(error, WholestepError):
        after = _session().state_dict()
        assert all(before[n].tobytes() == after[n].tobytes() for n in before), (
            f"{what}: a refused checkpoint changed numbers"
        )


def manifests(rng: random.Random, folder: Path) -> None:
    """A manifest with one value changed and its checksum made right."""
    newest = _newest(folder)
    file = newest / MANIFEST
    body, what = changed_tree(rng, json.loads(file.read_bytes())["manifest"])
    try:
        file.write_bytes(manifest_bytes(body))
    except (TypeError, ValueError):
        return  # no JSON
    _read_run(newest, f"manifest: {what}")


def checkpoint_bytes(rng: random.Random, folder: Path) -> None:
    """A damaged file of a checkpoint."""
    newest = _newest(folder)
    file = rng.choice(sorted(newest.iterdir()))
    new, what = changed_bytes(rng, file.read_bytes())
    file.write_bytes(new)
    _read_run(newest, f"{file.name}: {what}")


def histories(rng: random.Random, folder: Path) -> None:
    """The text of a history."""
    whole = ws.TrainHistory([ws.EpochStats(e, 1.0 / (e + 1), 7, {"loss": 0.5, "val_accuracy": 0.1}) for e in range(3)])
    if rng.random() < 0.5:
        tree, what = changed_tree(rng, json.loads(whole.to_json()))
        text = json.dumps(tree)
    else:
        data, what = changed_bytes(rng, whole.to_json().encode())
        text = data.decode("utf-8", "replace")
    found = refused_or(lambda: ws.TrainHistory.from_json(text), f"history: {what}")
    if not isinstance(found, WholestepError):
        refused_or(lambda: (str(found), found.rows(), found.last, found.to_json()), f"history: {what}")


# -- weights -----------------------------------------------------------------------------------------------------


@functools.cache
def _model() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.Linear(4, 2))


def weights(rng: random.Random, folder: Path) -> None:
    """A safetensors file, damaged or with other things in its header; a model that refuses it is as it was."""
    file, changed = folder / "weights.safetensors", folder / "changed.safetensors"
    if not file.exists():
        _model().save(file)
    data = file.read_bytes()
    if rng.random() < 0.5:
        new, what = changed_bytes(rng, data)
    else:
        length = struct.unpack("<Q", data[:8])[0]
        tree, what = changed_tree(rng, json.loads(data[8 : 8 + length]))
        header = json.dumps(tree).encode()
        new = struct.pack("<Q", len(header)) + header + data[8 + length :]
    changed.write_bytes(new)
    before = {n: a.copy() for n, a in _model().state_dict().items()}
    found = refused_or(lambda: _model().load(changed), f"weights: {what}")
    if isinstance(found, WholestepError):
        after = _model().state_dict()
        assert all(before[n].tobytes() == after[n].tobytes() for n in before), f"weights: {what}: loaded in part"


# -- data --------------------------------------------------------------------------------------------------------


def _read_changed(rng: random.Random, file: Path, read: Callable[[Path], Any]) -> Any:
    new, what = changed_bytes(rng, file.read_bytes())
    changed = file.with_name(f"changed-{file.name}")
    changed.write_bytes(new)
    return refused_or(lambda: read(changed), f"{file.name}: {what}")


def npy(rng: random.Random, folder: Path) -> None:
    file = folder / "x.npy"
    if not file.exists():
        np.save(file, np.arange(12.0).reshape(6, 2))
    found = _read_changed(rng, file, lambda path: np.array(ws.data.open_npy(path)))
    assert isinstance(found, WholestepError) or found.dtype.kind in "fiub", "not numbers"


def csv(rng: random.Random, folder: Path) -> None:
    file = folder / "x.csv"
    if not file.exists():
        file.write_text("a,b,kind\n1,2.5,cat\n-3,4e2,dog\n5,0,cat\n", encoding="utf-8")
    found = _read_changed(rng, file, lambda path: ws.data.read_csv(path, target="kind"))
    assert isinstance(found, WholestepError) or len(found[0]) == len(found[1]), "rows are missing"


def idx(rng: random.Random, folder: Path) -> None:
    file = folder / rng.choice(("x.idx", "x.idx.gz"))
    if not file.exists():
        data = b"\0\0\x08\x03" + struct.pack(">3I", 4, 3, 2) + bytes(range(24))
        file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    _read_changed(rng, file, ws.data.read_idx)


def settings(rng: random.Random, folder: Path) -> None:
    """The settings of an experiment, as a manifest keeps them."""
    experiment = ws.Experiment(model=_model(), data=(np.ones((4, 3), "f4"), np.ones((4, 2), "f4")), loss="mse")
    new, what = changed_tree(rng, {"settings": {"epochs": 3, "optimizer.lr": 0.1, "batch_size": 2, "seed": 1}})
    given = new.get("settings") if isinstance(new, dict) else None
    if isinstance(given, dict):
        refused_or(lambda: experiment.having(given), f"settings: {what}")


# -- configurations, caches, reports -----------------------------------------------------------------------------


def configurations(rng: random.Random, folder: Path) -> None:
    """What `from_config` reads."""
    described: list[tuple[Mapping[str, Any], Callable[[Any], Any]]] = [
        (ws.AdamW(lr=1e-3, groups=[ws.Group("*.bias", weight_decay=0.0)]).to_config(), ws.Optimizer.from_config),
        (ws.SGD(lr=0.1, momentum=0.9).to_config(), ws.Optimizer.from_config),
        (ws.schedules.Cosine(0.1, 100).to_config(), ws.schedules.Schedule.from_config),
        (ws.losses.Loss("cross_entropy", label_smoothing=0.1).to_config(), ws.losses.Loss.from_config),
        (ws.metrics.TopKAccuracy(k=5).to_config(), ws.metrics.Metric.from_config),
    ]
    config, read = rng.choice(described)
    new, what = changed_tree(rng, json.loads(json.dumps(config)))
    refused_or(lambda: read(new), f"{config['kind']}: {what}")


def cached(rng: random.Random, folder: Path) -> None:
    """A damaged entry of a cache is a miss."""
    store, key, data = ContentStore(folder / "cache"), key_of("x"), b"the machine code" * 20
    path = store.put(key, data, ".so")
    new, what = changed_bytes(rng, data)
    path.write_bytes(new)
    found = refused_or(lambda: store.get(key, ".so"), f"cache: {what}")
    assert found is None or found.read_bytes() == data, f"cache: {what}: a damaged entry is used"
    store.discard(key)


def reports(rng: random.Random, folder: Path) -> None:
    """The report of a build, as it is kept beside a plan."""
    whole = OptimizeReport(10, 8, ("a", "b"), (), exactness="bitwise")
    tree, what = changed_tree(rng, json.loads(whole.to_json()))
    found = refused_or(lambda: parse_report(json.dumps(tree)), f"report: {what}")
    if not isinstance(found, WholestepError):
        refused_or(lambda: str(found), f"report: {what}")


READERS: dict[str, Reader] = {
    "plan": plan_values,
    "plan bytes": plan_bytes,
    "manifest": manifests,
    "checkpoint bytes": checkpoint_bytes,
    "history": histories,
    "weights": weights,
    "npy": npy,
    "csv": csv,
    "idx": idx,
    "configuration": configurations,
    "settings": settings,
    "cache": cached,
    "report": reports,
}
