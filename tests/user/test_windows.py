"""One process on Windows, as far as a stand-in can show it: it imports everything, trains, saves, stops and resumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORTS = """
from tests.support.windows import import_everything
failed = import_everything()
assert not failed, failed
"""

TRAINS = """
import os, signal, subprocess, sys
from pathlib import Path
import tests.support.windows
import wholestep as ws
from wholestep import platforms
from wholestep.compiler.runtime.cache.content_store import ContentStore

assert (platforms.cores(), platforms.processor_features()) == (os.cpu_count(), {"avx2", "fma"})
assert platforms.physical_bytes() == 2 * platforms.available_bytes() == 8 << 30
folder, device = Path(sys.argv[1]), sys.argv[2]
(folder / "cache").mkdir()
(folder / "cache").chmod(0o777)  # the mode of every folder there
assert ContentStore(folder / "cache").folder == folder / "cache"

OTHER = '''
import sys
from pathlib import Path
import tests.support.windows
from wholestep.train.checkpoint.lock import need_free
need_free(Path(sys.argv[1]))
'''

class Stop(ws.Callback):
    def on_epoch_end(self, epoch, logs):
        if epoch == 1:
            other = subprocess.run([sys.executable, "-c", OTHER, str(folder / "run")], capture_output=True, text=True)
            assert f"process {os.getpid()} on host" in other.stderr, other.stderr
            signal.raise_signal(signal.SIGBREAK)

x, y = ws.datasets.digits()

def train(run, *callbacks):
    model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.ReLU(), ws.nn.Linear(16, 10))
    options = dict(loss="cross_entropy", epochs=3, device=device, seed=1, callbacks=list(callbacks))
    history = ws.fit(model, (x[:64], y[:64]), checkpoint=run, resume=True, **options)
    model.save(folder / "weights.safetensors")
    return history["loss"]

try:
    train(folder / "run", Stop())
except ws.errors.TrainingInterrupted as stopped:
    assert stopped.code == 128 + signal.SIGBREAK
else:
    raise AssertionError("the run was not stopped")
resumed, whole = train(folder / "run"), train(folder / "whole")
assert resumed == whole and len(whole) == 3 and whole[-1] < whole[0]
"""


def assert_runs_on_windows(program: str, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-X", "warn_default_encoding", "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_every_module_of_one_process_is_imported() -> None:
    assert_runs_on_windows(IMPORTS)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu/portable", marks=pytest.mark.long)])
def test_a_run_is_locked_stopped_and_resumed(tmp_path: Path, device: str) -> None:
    said = assert_runs_on_windows(TRAINS, str(tmp_path), device, CC="cc -O1")
    assert "the current steps are finished and saved" in said
