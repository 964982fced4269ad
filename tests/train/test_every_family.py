"""Every row of the tables of losses, metrics, optimizers, schedules, augmentations, samplers, pruning and quantization:
fit, resume, the command line, and one program for all scalars.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.train.families import FAMILIES
from wholestep.cli import app
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:the schedule of"),  # most are longer than two epochs
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_the_command_line_resumes_with_every_bit(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(f"from tests.train.families import {family} as build\n")
    run("train", "own.py", "--epochs", "2", "--folder", "whole", "--no-progress")
    run("train", "own.py", "--epochs", "1", "--folder", "parts", "--no-progress")
    run("train", "--resume", "parts", "--epochs", "2", "--exact", "--no-progress")
    whole, parts = (ws.load_checkpoint(folder) for folder in ("whole", "parts"))
    assert whole.arrays.keys() == parts.arrays.keys()
    for name, value in whole.arrays.items():
        np.testing.assert_array_equal(parts.arrays[name], value, err_msg=name)
    assert run("evaluate", "whole") == run("evaluate", "parts").replace("parts", "whole")


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_on_two_devices_and_no_recompile_for_another_scalar(family: str) -> None:
    found = {}
    for device in ("reference", "cpu"):
        experiment = FAMILIES[family]()
        history = experiment.fit(device=device, progress=False)
        found[device] = {n: history[n] for n in history.names if not n.endswith("seconds")}
    for name, values in found["reference"].items():
        for one, other in zip(found["cpu"][name], values, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4, err_msg=name)
    count = compile_counter.value
    FAMILIES[family](scale=0.5).fit(device="cpu", progress=False)
    assert compile_counter.value == count
