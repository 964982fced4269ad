"""The fuzzer itself: cases repeat, findings get smaller, deaths and hangs are findings, wrong numbers are seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
import torch

from tests.fuzz import graphs, networks
from tests.fuzz.case import Wrong
from tests.fuzz.cases import layer, leaf, network
from tests.fuzz.children import Child
from tests.fuzz.expressions import OPS
from tests.fuzz.graphs import Program
from tests.fuzz.layers import kinds
from tests.fuzz.programs import Op, OpRow
from tests.fuzz.shrink import smallest
from tests.fuzz.worker import MODES


@pytest.mark.parametrize("mode", MODES)
def test_a_case_follows_from_its_seed_and_goes_through_json(mode: str) -> None:
    module = import_module(MODES[mode])
    for index in range(5):
        case, again = (module.draw(Random(f"{mode} 1 {index}")) for _ in range(2))
        assert case == again
        assert module.from_data(json.loads(json.dumps(module.to_data(case)))) == case
        assert module.text(case)
        assert all(module.to_data(c) != module.to_data(case) for c in module.smaller(case))


def test_a_finding_is_made_as_small_as_it_gets() -> None:
    def smaller(word: str) -> Iterator[str]:
        return (word[:i] + word[i + 1 :] for i in range(len(word)))

    assert smallest("a long word", smaller, lambda w: "o" in w and "d" in w, 10.0) == "od"
    assert smallest("a long word", smaller, lambda w: "o" in w, 0.0) == "a long word"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("import os; os.abort()", "SIGABRT"), ("import time; time.sleep(60)", "Hang"), ("raise SystemExit(3)", "exit 3")],
)
def test_a_child_that_dies_or_hangs_is_a_finding(code: str, kind: str, tmp_path: Path) -> None:
    child = Child(tmp_path, 0, (sys.executable, "-c", code))
    reply = child.ask({"ask": "check"}, 1.0 if kind == "Hang" else 30.0)
    assert (reply["result"], reply["kind"]) == ("failed", kind)


def test_a_wrong_layer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = kinds.ACTIVATIONS["tanh"]
    monkeypatch.setitem(kinds.ACTIVATIONS, "tanh", (ours, torch.nn.Softsign))
    with pytest.raises(Wrong, match="losses: off by"):
        networks.check(network(("batch", 2), layer("linear", outputs=3), layer("activation", name="tanh")))


def test_a_wrong_derivative_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is right, and its slope half of what it should be."""
    row = OPS["square"]
    monkeypatch.setitem(OPS, "square", OpRow(row.ours, lambda x: x * x.detach(), row.draw))
    with pytest.raises(Wrong, match="d1 of 0"):
        graphs.check(Program("floats", (leaf("batch", 2), Op("square", (0,))), (1,), order=1))
