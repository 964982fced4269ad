from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.support.sessions import mlp
from wholestep.cli import app
from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.compiler.backends.cpu.target import available_targets
from wholestep.options import CompileOptions


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_version() -> None:
    assert run("--version") == (0, f"wholestep {ws.__version__}\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "wholestep", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"wholestep {ws.__version__}\n")


def test_doctor_finds_a_working_installation() -> None:
    code, text = run("doctor")
    assert code == 0, text
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert rows["self-test"] == "ok"
    assert {
        "wholestep",
        "platform",
        "python",
        "numpy",
        "processor",
        "cores",
        "memory",
        "compiler",
        "cache",
    } <= rows.keys()
    assert rows["compiler"].startswith(f"{' '.join(find_compiler(CompileOptions().compiler_command).command)}: ")
    assert re.search(r"\d+\.\d+", rows["compiler"].partition(": ")[2])  # its version, as it tells it
    assert rows["device"].startswith("cpu")
    best, *others = available_targets()
    assert rows["target"] == f"{best.name} (also {', '.join(t.name for t in others)})" if others else best.name


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    code, text = run("doctor")
    assert code == 1
    assert "compiler    FAILED: the C compiler 'no-such-compiler' was not found" in text


def test_plan_show(tmp_path) -> None:
    plan, _ = ws.compile_training_graph(mlp(), batch_size=8)
    ws.save_plan(plan, mlp(), tmp_path / "mlp.plan")
    code, text = run("plan", "show", str(tmp_path / "mlp.plan"))
    assert code == 0
    assert "mlp.plan: batch=8" in text
    assert f"{plan.flops:,}" in text
    (tmp_path / "damaged").write_bytes(b"x")
    code, text = run("plan", "show", str(tmp_path / "damaged"))
    assert code == 1
    assert "not a plan file" in text


# -- training ----------------------------------------------------------------------------------------------------

SCRIPT = '''
"""The digits, for the command line."""
import wholestep as ws


def build(hidden: int = 16, rows: int = 200) -> ws.Experiment:
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, hidden), ws.nn.ReLU(), ws.nn.Dropout(0.1), ws.nn.Linear(hidden, 10))
    return ws.Experiment(
        model=model,
        data=(x[:rows], y[:rows]),
        validation=(x[rows : rows + 100], y[rows : rows + 100]),
        test=(x[-120:], y[-120:]),
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=1e-2),
        metrics=["accuracy"],
        epochs=2,
    )
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text(SCRIPT)
    return path


def weights(folder: Path) -> dict[str, Any]:
    return dict(ws.load_checkpoint(folder).arrays)


def test_a_run_on_the_reference_device_goes_on_and_is_evaluated_on_the_cpu(script: Path) -> None:
    code, text = run("train", "small.py", "--device", "reference", "--epochs", "1", "--set", "hidden=8")
    assert code == 0, text
    assert ws.load_checkpoint("runs/small").position.epoch == 1
    code, text = run("train", "--resume", "runs/small", "--device", "cpu", "--epochs", "2")
    assert code == 0, text
    assert ws.load_checkpoint("runs/small").position.epoch == 2
    found = [run("evaluate", "runs/small", "--device", device)[1] for device in ("cpu", "reference")]
    accuracies = [re.search(r"accuracy +(0\.\d+)", text) for text in found]
    assert accuracies[0] and accuracies[1], found  # noqa: PT018
    assert accuracies[0][1] == accuracies[1][1]


CONFIG = """
epochs = 1
hidden = 8
metrics = ["accuracy", "f1"]
limit_batches = 2

[optimizer]
lr = 3e-3
weight_decay = 0.5
"""


def test_a_file_of_settings(script: Path) -> None:
    Path("run.toml").write_text(CONFIG)
    given = ("--device", "reference", "--no-progress", "--set", "optimizer.lr=0.125")
    code, text = run("train", "small.py", "--config", "run.toml", *given)
    assert code == 0, text
    Path("run.toml").unlink()  # the run has its values
    stored = ws.load_checkpoint("runs/small")
    assert (stored.config["optimizer"]["lr"], stored.config["optimizer"]["weight_decay"]) == (0.125, 0.5)
    assert stored.config["settings"]["hidden"] == 8
    assert stored.arrays["0.weight"].shape == (8, 64)
    assert stored.history.epochs[0].steps == 2
    assert "f1" in stored.logs
    code, text = run("train", "--resume", "runs/small", "--epochs", "2", "--exact", "--no-progress")
    assert code == 0, text
    assert [e.steps for e in ws.load_checkpoint("runs/small").history.epochs] == [2, 2]
    assert run("evaluate", "runs/small")[0] == 0


def test_what_the_command_line_sets_is_set_after_the_file(script: Path) -> None:
    """A whole optimizer, and then its rate, which the file says too."""
    Path("run.toml").write_text("epochs = 9\nfast_dev_run = true\ndevice = 'cpu'\n[optimizer]\nlr = 1e30\n")
    whole = ("--set", "optimizer=sgd", "--set", "optimizer.lr=0.5", "--epochs", "1", "--device", "reference")
    code, text = run("train", "small.py", "--config", "run.toml", "--no-progress", *whole)
    assert code == 0, text
    names, numbers = (line.split() for line in text.splitlines()[:2])
    assert dict(zip(names, numbers, strict=True))["lr"] == "0.5"


@pytest.mark.parametrize(
    ("file", "arguments", "expected"),
    [
        ("epoch = 1", [], "run.toml, epoch: 'epoch' cannot be set: Experiment has no 'epoch'. Did you mean 'epochs'?"),
        ("[optimizer]\nlr = 'fast'", [], "run.toml, optimizer.lr: AdamW: lr must be a number; received 'fast'."),
        ("optimizer.rate = 1", [], "run.toml, optimizer.rate: 'optimizer.rate' cannot be set: AdamW has no 'rate'"),
        ("epochs = -1", [], "run.toml, epochs: epochs=-1: expected an integer, 0 or more"),
        ("precision = 'half'", [], "run.toml, precision: precision='half': expected one of"),
        ("epochs = 5", ["--epochs", "-1"], "error: epochs=-1: expected"),  # not the file's
        ("hidden = 'wide'", [], "run.toml says hidden = 'wide'"),
        ("epochs: 5", [], "error: run.toml is not valid TOML: Expected '=' after a key in a key/value pair (at line 1"),
        ("seed = 2026-11-16", [], "error: run.toml: seed is 2026-11-16; expected numbers, texts, true, false or lists"),
        ("'optimizer.lr' = 1\n[optimizer]\nlr = 2", [], "run.toml sets optimizer.lr twice"),
        ("loss_weights.kl = 0.1", [], "loss_weights={'kl': 0.1} is for a loss of several parts"),
        ("", ["--config", "absent.toml"], "error: absent.toml: No such file or directory"),
    ],
)
def test_mistakes_in_a_file_of_settings_are_one_line(
    script: Path, file: str, arguments: list[str], expected: str
) -> None:
    Path("run.toml").write_text(file)
    code, text = run("train", "small.py", "--config", "run.toml", "--device", "reference", *arguments)
    assert code == 1
    assert expected in text.replace("\n", " ")
    assert "hidden" in expected or len(text.strip().splitlines()) == 1
    assert not Path("runs").exists() or not ws.train.checkpoint.folder.checkpoints_in("runs/small")


CONTROLS = {
    "batch_size": 16,
    "limit_batches": 8,  # four updates of two batches each
    "limit_validation": 1,
    "validate_every": 2,
    "validate_every_steps": 2,
    "drop_last": True,
    "min_epochs": 2,
    "clip_value": 0.5,
    "accumulate": 2,
    "per_micro_batch": True,
}


def test_the_controls_of_a_loop(script: Path) -> None:
    given = [text for name, value in CONTROLS.items() for text in ("--set", f"{name}={json.dumps(value)}")]
    code, text = run("train", str(script), "--epochs", "3", "--device", "reference", "--no-progress", *given)
    assert code == 0, text
    kept = ws.load_checkpoint("runs/small")
    assert {name: kept.config[name] for name in CONTROLS} == CONTROLS
    assert [e.steps for e in kept.history.epochs] == [4, 4, 4]
    assert ["val_loss" in e.logs for e in kept.history.epochs] == [False, True, True]
    assert [(v.epoch, v.steps) for v in kept.history.validations] == [(0, 2), (1, 2), (2, 2)]
    code, text = run("train", str(script), "--set", "overfit_batches=1", "--set", "limit_batches=1", "--folder", "b")
    assert code == 1
    assert "overfit_batches= limits the data itself" in text


def test_a_fast_run_keeps_nothing_and_needs_no_folder(script: Path) -> None:
    code, text = run("train", str(script), "--device", "reference", "--no-progress", "--set", "fast_dev_run=true")
    assert code == 0, text
    assert text.endswith("everything runs; nothing was kept\n")
    assert not Path("runs").exists()


def test_folds(script: Path) -> None:
    given = ("--device", "reference", "--no-progress", "--epochs", "1", "--set", "limit_batches=1", "--set", "rows=80")
    code, text = run("train", str(script), "--folds", "2", *given)
    assert code == 0, text
    lines = [line.split()[0] for line in text.splitlines()]
    assert lines == ["fold", "0", "1", "mean", "std"]
    assert ws.load_checkpoint("runs/small/fold-1").position.epoch == 1


def test_a_run_with_a_limit_of_memory(script: Path) -> None:
    code, text = run("train", "small.py", "--memory", "1kB", "--set", "hidden=8", "--device", "null")
    assert code == 1
    assert "a step takes at least" in text
    assert "memory= allows 1,000" in text
    code, text = run("train", "small.py", "--memory", "much")
    assert code == 1
    assert "memory='much': expected a number of bytes, a text such as '5.5GB' or '512 MiB', or a fraction" in text


def test_a_run_in_half_precision(script: Path) -> None:
    code, text = run("train", "small.py", "--precision", "float16", "--epochs", "1", "--set", "hidden=8")
    assert code == 0, text
    assert "loss_scale 65536" in text.replace(",", ""), text
    stored = ws.load_checkpoint("runs/small")
    assert stored.config["precision"] == "float16"
    assert stored.arrays["loss_scale.scale"] == 65536.0
    code, text = run("train", "--resume", "runs/small", "--epochs", "2")
    assert code == 0, text
    code, text = run("train", "--resume", "runs/small", "--precision", "float32")
    assert code == 1
    assert "a resumed run uses its own script and settings" in text
    code, text = run("train", "small.py", "--precision", "half", "--folder", "runs/other")
    assert code == 1
    assert "precision='half': expected one of 'float32', 'tf32', 'bfloat16', 'float16'" in text


def test_train_evaluate_predict(script: Path, tmp_path: Path) -> None:
    code, text = run("train", "small.py", "--epochs", "3", "--set", "optimizer.lr=3e-3", "--set", "hidden=8")
    assert code == 0, text
    assert "epoch" in text
    assert "checkpoints: runs/small" in text
    taken = ws.load_checkpoint("runs/small")
    assert taken.config["optimizer"]["lr"] == 3e-3
    assert taken.position.epoch == 3
    assert taken.arrays["0.weight"].shape == (8, 64)

    code, text = run("evaluate", "runs/small")
    assert code == 0, text
    assert "on 120 rows of test data" in text
    assert re.search(r"accuracy +0\.\d+", text)
    code, text = run("evaluate", "runs/small", "--best", "val_acc")  # the largest: it is an accuracy
    assert code == 0, text
    assert text.startswith(f"{ws.load_checkpoint('runs/small', best='val_accuracy', mode='max').path} on ")

    x, _ = ws.datasets.digits()
    np.save(tmp_path / "x.npy", x[:7])
    code, text = run("predict", "runs/small", "x.npy", "-o", "y.npy", "--best", "val_loss")
    assert code == 0, text
    twin = ws.nn.Sequential(ws.nn.Linear(64, 8), ws.nn.ReLU(), ws.nn.Dropout(0.1), ws.nn.Linear(8, 10))
    best = ws.load_checkpoint("runs/small", best="val_loss")
    assert best.path is not None
    twin.load(best.path / "weights.safetensors")
    assert np.array_equal(np.load(tmp_path / "y.npy"), twin.predict(x[:7]))


def test_a_loss_that_is_not_finite_is_one_line(script: Path) -> None:
    arguments = ["train", "small.py", "--epochs", "2", "--no-progress", "--set", "optimizer.lr=1e30"]
    code, text = run(*arguments)
    assert code == 1
    assert text.startswith("error: the loss of step ")
    assert "Lower the learning rate (it is 1e+30)" in text
    for policy in ("skip", "ignore"):
        assert run(*arguments, "--set", f"nonfinite={policy}", "--folder", policy)[0] == 0
    assert ws.load_checkpoint("skip").config["nonfinite"] == "skip"
    assert all(np.isfinite(a).all() for a in ws.load_checkpoint("skip").arrays.values())


def test_questions_that_a_run_cannot_answer(script: Path) -> None:
    assert run("train", "small.py", "--epochs", "1", "--no-progress")[0] == 0
    Path("text.npy").write_text("no numbers")
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    for arguments, expected in (
        (["evaluate", "--best", "val_acuracy"], "has logged 'val_acuracy'; they have logged loss, accuracy, val_loss"),
        (["evaluate", "--best", "val_loss", "--mode", "up"], "mode must be 'min' or 'max'; received 'up'"),
        (["predict", "absent.npy"], "absent.npy: No such file or directory"),
        (["predict", "text.npy"], "text.npy is not a complete .npy file of numbers: "),
        (["predict", "two.npz"], "two.npz holds several arrays, a, b"),
    ):
        code, text = run(arguments[0], "runs/small", *arguments[1:])
        assert code == 1
        assert expected in text.replace("\n", " ")
    code, text = run("train", "--resume", "runs/small", "--no-progress")
    assert code == 0
    assert "all 1 epochs are done; to go on give more: --resume runs/small --epochs 2" in text


def test_a_run_that_could_not_be_kept_is_an_error(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("wholestep.train.checkpoint.write.write_tensors", full)
    code, text = run("train", "small.py", "--epochs", "1", "--no-progress")
    assert code == 1
    told = " ".join(text.split())
    assert "training has finished, but its last checkpoint was not saved: the checkpoint of step" in told
    assert "could not be written to runs/small: [Errno 28] No space left on device" in told
    assert "epoch" in text.split("error:")[0], "the history is printed"


def test_resuming_from_the_command_line(script: Path) -> None:
    seeded = ["--set", "seed=0", "--no-progress"]  # otherwise each command is a separate process
    assert run("train", "small.py", "--epochs", "3", "--folder", "whole", *seeded)[0] == 0
    assert run("train", "small.py", "--epochs", "2", "--folder", "part", *seeded)[0] == 0
    code, text = run("train", "--resume", "part", "--epochs", "3", "--exact")
    assert code == 0, text
    whole, resumed = weights(Path("whole")), weights(Path("part"))
    assert whole.keys() == resumed.keys()
    assert all(whole[n].tobytes() == resumed[n].tobytes() for n in whole)


def test_replicas_are_resumed_from_the_command_line(script: Path) -> None:
    seeded = ["--set", "seed=0", "--set", "hidden=8", "--set", "replicas=2", "--device", "reference", "--no-progress"]
    assert run("train", "small.py", "--epochs", "2", "--folder", "whole", *seeded)[0] == 0
    code, text = run("train", "small.py", "--epochs", "1", "--folder", "part", *seeded)
    assert code == 0, text
    assert "one folder for each of 2 replicas, such as replica-0" in text.replace("\n", " ")
    code, text = run("train", "small.py", "--epochs", "1", "--folder", "part", *seeded)
    assert code == 1
    assert "part holds a run. Resume it: --resume part" in text.replace("\n", " ")
    shutil.rmtree("part/replica-1")  # as after an interruption before its first checkpoint
    code, text = run("train", "--resume", "part", "--epochs", "2", "--no-progress")
    assert code == 0, text
    for name in ("replica-0", "replica-1"):
        whole, resumed = weights(Path("whole") / name), weights(Path("part") / name)
        assert all(whole[n].tobytes() == resumed[n].tobytes() for n in whole)
    code, text = run("evaluate", "part/replica-1")
    assert code == 0, text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train"], "nothing to train. Name a script, examples/mnist.py, or a run, --resume"),
        (["train", "absent.py"], "there is no script absent.py"),
        (["train", "small.py", "--set", "optimizer"], "expected name=value, for example optimizer.lr=3e-4"),
        (["train", "small.py", "--set", "optimizer.rate=1"], "AdamW has no 'rate'"),
        (["train", "small.py", "--set", "epoch=1"], "Did you mean 'epochs'?"),
        (["train", "small.py", "--resume", "runs/x"], "a resumed run uses its own script and settings"),
        (["train", "--resume", "runs/x", "--config", "a.toml"], "a resumed run uses its own script and"),
        (["train", "--resume", "runs/x"], "there is no checkpoint in runs/x"),
        (["evaluate", "runs/x"], "there is no checkpoint in runs/x"),
        (["train", "empty.py"], "has no function build()"),
        (["train", "other.py"], "returned dict; expected a ws.Experiment"),
        (["plan", "show", "."], "there are no plans in ."),
        (["plan", "show", "nothing"], "there is nothing at nothing; expected a plan file, or the folder of a run"),
        (["train", "small.py", "--set", "optimizer.lr=fast"], "AdamW: lr must be a number; received 'fast'."),
        (["train", "small.py", "--epochs", "-1"], "epochs=-1: expected an integer, 0 or more"),
        (
            ["train", "small.py", "--folder", "small.py"],
            "cannot write to small.py: File exists. Name a folder that can",
        ),
        (["train", "syntax.py"], "syntax.py failed:   File "),
        (["train", "failing.py"], 'failing.py", line 2, in build     return 1 / 0'),
        (["bench", "small.py", "--seconds", "-1"], "--seconds must be above 0; received -1"),
        (["trace", "small.py", "--steps", "0"], "steps must be an integer of at least 1; received 0"),
    ],
)
def test_mistakes_are_one_line(script: Path, arguments: list[str], expected: str) -> None:
    Path("empty.py").write_text("")
    Path("other.py").write_text("def build():\n    return {}\n")
    Path("syntax.py").write_text("def build(:\n")
    Path("failing.py").write_text("def build():\n    return 1 / 0\n")
    code, text = run(*arguments)
    assert code == 1
    assert expected in text.replace("\n", " ")
    for no_line_of_the_users in ("Traceback", "typer", "dataclasses.py"):
        assert no_line_of_the_users not in text


def test_a_run_is_not_overwritten(script: Path) -> None:
    assert run("train", "small.py", "--epochs", "1", "--no-progress")[0] == 0
    code, text = run("train", "small.py", "--epochs", "1")
    assert code == 1
    assert "runs/small holds a run. Resume it: --resume runs/small" in text.replace("\n", " ")


# -- runs of somebody else ---------------------------------------------------------------------------------------

EVIL = 'open("executed", "w").close()\n'


def changed_manifests(run: Path, **config: Any) -> None:
    """The manifests of a run with other configurations, and right checksums."""
    from wholestep.train.checkpoint.format import MANIFEST, manifest_bytes

    for file in run.glob(f"step-*/{MANIFEST}"):
        body = json.loads(file.read_bytes())["manifest"]
        body["config"] |= config
        file.write_bytes(manifest_bytes(body))


COMMANDS = (["evaluate", "runs/small"], ["predict", "runs/small", "x.npy"], ["train", "--resume", "runs/small"])


def test_a_script_that_only_a_file_names_is_not_run(script: Path, tmp_path: Path) -> None:
    assert run("train", "small.py", "--epochs", "1", "--no-progress")[0] == 0
    np.save("x.npy", ws.datasets.digits()[0][:3])
    mine = Path("runs/small")
    (mine / "evil.py").write_text(EVIL + SCRIPT)
    for named in ("evil.py", "runs/small/evil.py", str((mine / "evil.py").resolve())):
        changed_manifests(mine, script=named)
        for command in COMMANDS:
            code, text = run(*command)
            assert code == 1
            assert f"names the script {named}, but you did not start this run" in text.replace("\n", " ")
    changed_manifests(mine, script=str(script), settings={"options.compiler": "sh evil"})
    assert run("evaluate", "runs/small")[0] == 1
    code, text = run("evaluate", "runs/small", "--script", "small.py")
    assert code == 1
    assert "sets options.compiler to 'sh evil': compiler settings are not taken from" in text.replace("\n", " ")
    assert not Path("executed").exists()


def test_a_run_from_elsewhere_needs_its_script_said(script: Path) -> None:
    assert run("train", "small.py", "--epochs", "1", "--no-progress", "--set", "hidden=8")[0] == 0
    Path("runs/small").rename("runs/theirs")
    code, text = run("evaluate", "runs/theirs")
    assert code == 1
    assert f"If you trust it, name it: --script {script}" in text.replace("\n", " ")
    code, text = run("evaluate", "runs/theirs", "--script", "small.py")
    assert code == 0, text
    code, text = run("train", "--resume", "runs/theirs", "--script", "small.py", "--epochs", "2", "--no-progress")
    assert code == 0, text
    assert run("evaluate", "runs/theirs")[0] == 0  # said once, it is this user's run
    assert run("train", "--resume", "runs/theirs", "--epochs", "3", "--no-progress")[0] == 0


def test_plans_of_runs(script: Path) -> None:
    for name, hidden in (("a", 16), ("b", 16), ("c", 8)):
        assert run("train", "small.py", "--epochs", "1", "--folder", name, "--set", f"hidden={hidden}")[0] == 0
    code, text = run("plan", "show", "a")
    assert code == 0
    assert "batch=32" in text
    assert run("plan", "diff", "a", "b") == (0, "the plans have the same kernels and memory\n")
    code, text = run("plan", "diff", "a", "c")
    assert code == 1
    assert "--- a" in text
    assert "+++ c" in text


def test_plan_explain(script: Path) -> None:
    code, text = run("plan", "explain", "small.py", "0.weight.grad")
    assert code == 0, text
    assert "0.weight.grad" in text
    code, text = run("plan", "explain", "small.py", "nothing")
    assert code == 1
    assert "nothing" in text


def test_trace_and_bench(script: Path, tmp_path: Path) -> None:
    code, text = run("trace", "small.py", "-o", "t.json", "--steps", "2", "--layers")
    assert code == 0, text
    assert "GFLOP/s" in text
    assert "layer" in text
    assert "\n(loss) " in text
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"build_session", "train_epoch"} <= {e["name"] for e in events}
    assert any(e.get("cat") == "kernel" for e in events)
    code, text = run("bench", "small.py", "--seconds", "0.05")
    assert code == 0, text
    assert "steps/s" in text


def test_the_commands_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written, on a fresh clone: the folder of examples is there, nothing else is."""
    root = Path(__file__).parents[2]
    blocks = (root / "README.md").read_text().split("```sh\n")[1:]
    block = next(b for b in blocks if b.startswith("wholestep train")).partition("```")[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[:2] for words in commands] == [["wholestep", "train"]] * 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(root / "examples")
    for words in commands:
        code, text = run(*words[1:], "--no-progress")
        assert code == 0, text
    assert ws.load_checkpoint("runs/digits").logs["val_accuracy"] > 0.9
    code, text = run("train", "examples/mnist.py")
    assert code != 0
    assert "download the four files of MNIST there (they are at https://" in text
    assert len(text.strip().splitlines()) == 1


def test_the_mnist_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.mnist import digits_as_mnist

    example = Path(__file__).parents[2] / "examples" / "mnist.py"
    digits_as_mnist(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "optimizer.lr=3e-4", "--set", f"data={tmp_path}", "--set", "hidden=16", "--no-progress"]
    code, text = run("train", str(example), "--epochs", "1", *settings)
    assert code == 0, text
    assert ws.load_checkpoint("runs/mnist").config["optimizer"]["lr"] == 3e-4


def test_export_writes_a_step(script: Path, tmp_path: Path) -> None:
    code, text = run("export", str(script), str(tmp_path / "out"), "--target", "cpu/portable", "--set", "batch_size=16")
    assert code == 0, text
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["target"], manifest["experiment"]["batch_size"]) == ("cpu/portable", 16)
    assert manifest["has"] == ["train", "evaluate", "predict"]
    assert (tmp_path / "out" / "main.c").exists()
    code, text = run("export", str(script), str(tmp_path / "other"), "--to", "fortran")
    assert code == 1
    assert "expected one of 'c', 'wasm'" in text


def test_export_says_what_it_cannot_do(script: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases = (
        (["file"], "file: ", "Name a new folder"),
        (["out", "--image", "8x8"], "--image 8x8: only a page, run.html, has example rows", "Leave the option out"),
        (["run.html", "--target", "cpu/avx2"], "a page computes the bits of cpu/portable", "Leave the option out"),
        (["out", "--to", "wasm", "--target", "cpu/avx2"], "computes the bits of 'cpu/portable'", "leave target= out"),
    )
    for (name, *options), says, advice in cases:
        code, text = run("export", str(script), str(tmp_path / name), *options)
        assert code == 1, text
        words = " ".join(text.split())
        assert says in words
        assert advice in words
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html"] == []
