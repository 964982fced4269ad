"""What `python -m benchmarks cuda-zoo` says about its rows, and how it survives contenders that fail, without a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from benchmarks.contender import BenchmarkError, Contender
from benchmarks.frameworks import OURS
from benchmarks.gpu import run, wide, zoo, zoo_table
from benchmarks.gpu.wide_networks import Architecture, architectures
from tests.benchmarks.test_gpu import Answering


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contenders that answer; torch.compile does not compile a swin_t, and does not train a bert."""
    asked = list[str]()

    class Failing(Answering):
        def ask(self, do: str, **given: Any) -> dict[str, Any]:
            asked.append(f"{do} {self.case} {self.name}")
            if do == "compile" and self.name == "torch_compile" and self.case == "swin_t_b32":
                raise BenchmarkError("torch_compile: out of memory")
            if do == "compile" and self.name == OURS and self.case == "llama_b8":
                raise BenchmarkError("wholestep: no such op")
            if do == "start" and self.name == "torch_compile" and self.case == "bert_base_b32":
                return {"losses": [2.3, 9.9, 9.9, 9.9, 9.9]}
            return super().ask(do, **given)

    monkeypatch.setattr(run, "Contender", Failing)
    monkeypatch.setattr(run, "clocks", lambda: {"name": "a GPU"})
    return asked


HOW = run.Rounds(rounds=2, peers=("torch_graph", "torch_compile"), at_once=2, alone=False)


def test_contenders_of_several_rows_compile_before_one_of_them_is_measured(rows: list[str]) -> None:
    zoo_table.run(["swin", "vit", "resnet"], HOW, None)
    asked = [tuple(request.split()[:2]) for request in rows]
    first_start = next(i for i, (do, _) in enumerate(asked) if do == "start")
    compiled = [name for do, name in asked[:first_start] if do == "compile"]
    assert sorted(compiled) == ["swin_t_b32"] * 3 + ["vit_b_16_b32"] * 3
    prepared = [i for i, each in enumerate(asked) if each == ("prepare", "resnet50_tv_b64")]
    assert len(prepared) == 3
    assert asked.index(("compile", "vit_b_16_b32")) < min(prepared)
    assert max(prepared) < asked.index(("compile", "resnet50_tv_b64")), "beside the measurements of the others"


def test_a_first_step_without_an_end_is_left_out() -> None:
    """The worker is killed, and its peers are measured."""
    worker = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdin.readline()"]
    contender = Contender("torch_compile", "swin_t_b32", 1, Path("unused"), launcher=worker)
    started = run.Started(zoo.ZOO["swin_t_b32"], [contender])
    run.compile_all([started], replace(HOW, limit=0.5))
    assert started.contenders == []
    assert started.left_out == {"torch_compile": "torch_compile: the worker ended with exit code -9"}
    gone = Contender("torch_compile", "swin_t_b32", 1, Path("unused"), launcher=[sys.executable, "-c", ""])
    gone.process.wait()
    with pytest.raises(BenchmarkError, match="the worker ended with exit code 0"):
        gone.ask("prepare")
    gone.close()


def test_peers_that_fail_are_left_out_and_rows_that_fail_are_named(
    rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    result = zoo_table.run(["swin", "bert", "llama"], HOW, file)
    cells = result["cells"]
    assert set(cells["swin_t_b32"]["left_out"]) == {"torch_compile"}
    assert "do not train the same" in cells["bert_base_b32"]["left_out"]["torch_compile"]
    assert cells["llama_b8"] == {"error": "wholestep: no such op"}
    assert result["compared"] == 2
    assert result["geomean"] == 1.0
    zoo_table.show(result)
    said = capsys.readouterr().out
    assert "failed" in said
    assert "100 times its price" in said
    del rows[:]
    again = zoo_table.run(["swin", "bert", "llama"], HOW, file)
    assert {asked.split()[1] for asked in rows} == {"llama_b8"}, "rows of the file are not measured again"
    json.dumps(again)


def test_rows_are_chosen_by_the_beginning_of_their_names() -> None:
    assert [case.name for case in zoo_table.cases(["gpt2", "swin"])] == ["swin_t_b32", "gpt2_hf_b8"]
    with pytest.raises(BenchmarkError, match="no network 'gpt5' in the zoo; expected some of mobilenet_v3_large_b64"):
        zoo_table.cases(["gpt5"])


def test_the_own_network_is_the_same_in_both_frameworks() -> None:
    """Forward and loss of the MobileNet in our layers and in torch's, from the same weights."""
    start, batch = zoo.separable_weights(), zoo.pictures(4, zoo.SIDE, zoo.OWN_CLASSES)
    network = zoo.separable(ws.nn)
    network.load_state_dict({**network.state_dict(), **start})
    loss = ws.losses.cross_entropy(network(batch["x"]), batch["labels"])
    module = zoo.separable_torch(start)
    tensors = {"labels": torch.from_numpy(batch["labels"]).long(), "x": torch.from_numpy(batch["x"])}
    with torch.no_grad():
        assert float(np.asarray(loss)) == pytest.approx(float(module.eval()(**tensors)), rel=1e-4)


def test_an_architecture_is_examined_beside_torch() -> None:
    """As on a GPU, on the reference device: a convolution, a batch norm, a target of the size of the output."""
    build = lambda: torch.nn.Sequential(  # noqa: E731
        torch.nn.Conv2d(3, 4, 3, groups=1), torch.nn.BatchNorm2d(4), torch.nn.Dropout(), torch.nn.ReLU()
    )
    small = Architecture(build, lambda: {"x": torch.randn(8, 3, 5, 5)}, "float32")
    found = wide.examine(small, "cpu")
    assert found["result"] == "ok"
    assert len(found["losses"]) == wide.STEPS
    assert found["apart"] < 1e-5


def test_a_process_that_fails_or_hangs_is_refused_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(architectures()) >= 40
    assert wide.examine_apart("no such", "cpu", 30.0)["error"].startswith("wide.py: error: argument name")
    late = wide.examine_apart("alexnet", "cpu", 0.01)
    assert late == {"result": "refused", "error": "it took more than 0 s"}
    ok = {
        "result": "loss differs",
        "precision": "float32",
        "apart": 0.5,
        "rounding": 0.0,
        "import_s": 1.0,
        "first_step_s": 2.0,
        "worst": {"times": 12.0, "us": 300.0, "name": "conv"},
    }
    wide.show({"device": "cpu", "networks": {"alexnet": late, "vgg11": ok}})
    assert "0 ok, 1 loss differs, 1 refused" in capsys.readouterr().out
