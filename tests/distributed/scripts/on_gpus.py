"""Run by every rank of test_gpus.py: training on GPUs that are none, over an NCCL that is none.

python -m tests.distributed.scripts.on_gpus FOLDER WHAT     what a rank ends with is in FOLDER; emulated code too
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws
from tests.compiler.backends.cuda.emulation import emulated
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver, fake_gpu
from tests.compiler.backends.cuda.emulation.fake_nccl import FakeNccl, fake_nccl
from tests.compiler.backends.cuda.emulation.models import device_bytes
from wholestep.compiler.backends.cuda.driver.driver import gpu
from wholestep.compiler.backends.cuda.runtime import device
from wholestep.distributed.transport import nccl_group

ROWS = 29  # in batches of 8: the last one has 5, which 2 and 3 ranks divide unevenly
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((ROWS, 64)).astype(np.float32)
WEIGHTS = RNG.uniform(0.5, 2, ROWS).astype(np.float32)
LABELS = RNG.integers(0, 3, ROWS).astype(np.int32)


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(64, 20), ws.nn.ReLU(), ws.nn.Dropout(0.3), ws.nn.Linear(20, 3))


def normalised() -> ws.nn.Module:
    return ws.nn.Sequential(
        ws.nn.Linear(64, 20), ws.nn.BatchNorm1d(20), ws.nn.ReLU(), ws.nn.Dropout(0.3), ws.nn.Linear(20, 3)
    )


CASES: dict[str, tuple[Callable[[], ws.nn.Module], Any, dict[str, Any]]] = {
    "epochs": (
        normalised,
        (VECTORS, LABELS, WEIGHTS),
        {"clip_norm": 0.5, "metrics": ["accuracy", "auc"], "validation": 0.2},
    ),
    "micro-batches": (perceptron, (VECTORS, LABELS), {"accumulate": 2, "nonfinite": "skip", "epochs": 1}),
}
OPTIONS = ws.CompileOptions(verify=False, egraph=False)


def trained(case: str, **where: Any) -> dict[str, Any]:
    """The weights, and what epochs have told."""
    make, data, settings = CASES[case]
    model, optimizer = make(), ws.SGD(lr=0.05, momentum=0.9)
    common = {"loss": "cross_entropy", "epochs": 2, "batch_size": 8, "seed": 3, "progress": False, "options": OPTIONS}
    history = ws.fit(model, data, optimizer=optimizer, **{**common, **settings, **where})
    told = [name for name in history.scalars if not name.endswith("seconds")]
    return {**{n: np.asarray(v) for n, v in model.state_dict().items()}, **{n: np.array(history[n]) for n in told}}


def built(**where: Any) -> ws.Session:
    about = {"inputs": ws.Spec(("batch", 64)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    optimizer = ws.SGD(lr=0.05, momentum=0.9)
    return ws.build_session(perceptron(), **about, optimizer=optimizer, batch_size=8, **{"options": OPTIONS, **where})


def losses(session: ws.Session) -> list[float]:
    """Of batches of 8, 5 and one row: of three ranks, two have nothing to do in the last one."""
    return [float(session.step(x=VECTORS[:rows], labels=LABELS[:rows])) for rows in (8, 5, 1, 8)]


def count(session: ws.Session, before: int, nccl: FakeNccl) -> dict[str, Any]:
    """What a step allocates and sends, beside what its plan says."""
    found = {"losses": losses(session), "held": device_bytes() - before, "told": session.peak_bytes, "sent": nccl.sent}
    return {**found, "collectives": session.report().collectives, "wire": session.report().wire_bytes}


class Noting:
    """In the place of a rank's watch: leaves a file where it begins to wait."""

    def __init__(self, watch: Any, file: Path) -> None:
        self.watch, self.file = watch, file

    def until(self, is_done: Callable[[], bool]) -> None:
        self.file.touch()
        self.watch.until(is_done)


def lose_the_last(session: ws.Session, folder: Path) -> None:
    """The last rank is killed while the others wait for it in a step."""
    group = session.group
    assert group is not None
    files = [folder / f"waiting-{rank}" for rank in range(group.size - 1)]
    if group.rank == group.size - 1:
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    gpu(group.rank).watch = Noting(group, files[group.rank])
    losses(session)


@contextmanager
def machine(folder: Path) -> Iterator[tuple[int, int, FakeNccl]]:
    """GPUs that are none, with their code in a folder: this rank's number, how many there are, and what carries."""
    emulated.folder = lambda: folder
    with fake_gpu(gpus=4) as driver, fake_nccl(driver) as nccl:
        device.nvrtc_version = lambda: "none"  # all ranks have the same version
        control = ws.Workers().join()
        assert control is not None
        for name in ("gather", "broadcast"):  # a GPU makes its steps by itself while its host waits for the others
            setattr(control, name, _behind(driver, getattr(control, name)))
        yield control.rank, control.size, nccl
        for group in nccl_group._joined.values():
            group.close()
        assert nccl.asked[-1] == "destroy"


def main(folder: Path, what: str) -> None:
    with machine(folder) as (rank, _, nccl):
        if what == "train":
            for case in CASES:
                np.savez(folder / f"{case}-{rank}.npz", **trained(case, device="cuda", workers=ws.Workers()))
        else:
            before = device_bytes()
            session = built(device="cuda", workers=ws.Workers())
            (folder / f"count-{rank}.json").write_text(json.dumps(count(session, before, nccl)))
            lose_the_last(session, folder)


def _behind(driver: FakeDriver, call: Callable[..., Any]) -> Callable[..., Any]:
    def made(data: bytes) -> Any:
        driver.run()
        return call(data)

    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
