"""`wholestep init` looks at data and writes a script; each script trains, and learns what its data has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.output


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(data: Path, *options: str, epochs: int = 3) -> ws.TrainHistory:
    """Write a script for some data and train it."""
    code, text = run("init", data, "-o", "run.py", *options)
    assert code == 0, text
    assert "wholestep train run.py" in text
    compile(Path("run.py").read_text(), "run.py", "exec")
    code, text = run(
        "train", "run.py", "--epochs", epochs, "--no-progress", "--device", "reference", "--folder", "runs/r"
    )
    assert code == 0, text
    return ws.load_checkpoint("runs/r").history


def striped(rng: np.random.Generator, count: int, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Images of horizontal (0) and vertical (1) stripes."""
    y = rng.integers(0, 2, count)
    stripes = np.indices((side, side)) % 2  # rows, columns
    x = 200 * stripes[y] + rng.integers(0, 55, (count, side, side))
    return x.astype(np.uint8), y


def test_a_table_of_classes(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b},{'yes' if a > 0 else 'no'}" for a, b in zip(rng.normal(size=300), rng.integers(0, 9, 300))]
    Path('people\'s "data".csv').write_text("\n".join(["size,count,known", *rows]))
    history = train(Path('people\'s "data".csv'))
    assert history["val_accuracy"][-1] > 0.9


def test_a_table_of_numbers(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{2 * a + b:.4f},{a:.4f},{b:.4f}" for a, b in rng.normal(size=(400, 2))]
    Path("t.csv").write_text("\n".join(["price,a,b", *rows]))
    history = train(Path("t.csv"), "--target", "price", epochs=8)
    assert history["val_mae"][-1] < history["val_mae"][0] < 3
    code, text = run("init", "t.csv", "--target", "nothing", "-o", "u.py")
    assert code == 1
    assert "has no column 'nothing'; it has: price, a, b" in text
    code, text = run("init", "t.csv", "-o", "run.py")
    assert code == 1
    assert "run.py exists; replace it with --force" in text
    assert json.loads(run("init", "t.csv", "-o", "run.py", "--force", "--json")[1])["script"] == "run.py"


@pytest.mark.parametrize("form", ["npy", "png", "npz", "pair", "channels_last"])
def test_images(form: str, folder: Path) -> None:
    x, y = striped(np.random.default_rng(0), 240)
    data = Path("images.npz" if form in ("npz", "channels_last") else "images")
    if form == "npz":
        np.savez(data, x=x, y=3 * y + 5)
    elif form == "channels_last":
        np.savez(data, images=np.repeat(x[..., None], 3, 3), labels=y)
    elif form == "pair":
        data.mkdir()
        np.save(data / "x.npy", x[:, None])
        np.save(data / "y.npy", y)
    else:
        for i, (image, label) in enumerate(zip(x, y, strict=True)):
            place = data / ("across", "down")[label]
            place.mkdir(parents=True, exist_ok=True)
            if form == "npy":
                np.save(place / f"{i:03d}.npy", image)
            else:
                pytest.importorskip("PIL.Image").fromarray(image).save(place / f"{i:03d}.png")
        (data / ".hidden").mkdir()
    history = train(data)
    assert history["val_accuracy"][-1] > 0.9


def test_a_text(folder: Path) -> None:
    Path("text.txt").write_text("to be or not to be, that is the question. " * 60)
    history = train(Path("text.txt"), epochs=3)
    assert history["val_loss"][-1] < history["val_loss"][0]


def test_what_no_script_can_be_written_for(folder: Path) -> None:
    Path("empty").mkdir()
    Path("short.txt").write_text("short")
    Path("a.bin").write_bytes(b"x")
    Path("one.csv").write_text("a,b\n" + "1,2\n" * 20)
    Path("bad.npz").write_bytes(b"PK nothing")
    np.savez("other.npz", a=np.zeros(3), b=np.zeros(3))
    np.savez("floats.npz", x=np.zeros((9, 8, 8)), y=np.zeros(9))
    for data, message in {
        "nothing.csv": "there is nothing at", "empty": "is no folder of images: expected at least two subfolders",
        "short.txt": "a starter needs at least", "a.bin": "expected a table (.csv), a text",
        "one.csv": "has one value only", "bad.npz": "cannot be read as .npz", "other.npz": "expected x and y",
        "floats.npz": "expected a class for each image",
    }.items():  # fmt: skip
        code, text = run("init", data, "-o", "run.py")
        assert code == 1, data
        assert message in text, data
    assert not Path("run.py").exists()


def test_a_shell_completes_commands() -> None:
    environment = {"_WHOLESTEP_COMPLETE": "complete_bash", "COMP_WORDS": "wholestep checkpoint ver", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, [], env=environment, prog_name="wholestep")
    assert done.output.split() == ["verify"]
