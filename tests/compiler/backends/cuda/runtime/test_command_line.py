"""`--device cuda` of the command and of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

import wholestep as ws
from examples import shakespeare_gpt
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.user.test_cli import run

SCRIPT = """
import wholestep as ws


def build():
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 12), ws.nn.ReLU(), ws.nn.Linear(12, 10))
    return ws.Experiment(model=model, data=(x[:300], y[:300]), loss="cross_entropy", optimizer=ws.Adam(lr=1e-2),
                         metrics=["accuracy"], batch_size=50, epochs=6, options=ws.CompileOptions(egraph=False))
"""


@pytest.fixture(scope="module", autouse=True)
def everywhere(gpu: FakeDriver | None) -> None:
    """Every test here trains on it."""


def test_a_script_trains_and_goes_on_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.py").write_text(SCRIPT)
    code, text = run("train", "digits.py", "--device", "cuda", "--epochs", "3", "--no-progress")
    assert code == 0, text
    first = ws.load_checkpoint("runs/digits")
    assert first.config["device"] == "cuda"
    code, text = run("train", "--resume", "runs/digits", "--epochs", "6", "--no-progress")
    assert code == 0, text
    assert ws.load_checkpoint("runs/digits").logs["accuracy"] > max(0.7, first.logs["accuracy"])


@pytest.mark.long
def test_the_small_gpt_learns_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "song.txt"
    text.write_text("row, row, row your boat, gently down the stream. " * 12, encoding="utf-8")
    size = ["--layers", "1", "--width", "8", "--heads", "2", "--context", "8", "--batch", "16", "--sample", "0"]
    how = ["--epochs", "2", "--lr", "0.03", "--warmup", "4", "--dropout", "0.05", "--device", "cuda"]
    loss = shakespeare_gpt.main(["--text", str(text), *size, *how])
    assert loss < 2.6  # guessing among its 18 characters: 2.9
    assert f"validation loss {loss:.4f}" in capsys.readouterr().out
