"""Networks of other libraries compared with torch: the measurement of one network, and the page's summary of all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.networks import page
from benchmarks.one_network import examine


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.inner(x)).tanh()


class Branching(Small):
    def forward(self, x: Any) -> Any:
        return super().forward(x) if x.sum() > 0 else x


def _build(name: str, drop: bool) -> Any:
    torch.manual_seed(0)
    kind = {"a:small": Small, "a:branching": Branching}[name]
    return SimpleNamespace(module=kind(), args=(torch.randn(4, 3),))


ZOO = SimpleNamespace(build=_build)


def test_a_network_is_compared_step_by_step_and_with_a_row_less() -> None:
    found = examine(ZOO, "a:small", "float64", 2)
    assert found["equal"], found
    assert found["symbolic"]
    assert 0.0 < found["fewer_rows"] < 1e-12 or found["fewer_rows"] == 0.0
    assert 0.0 < found["update"] < 1e-9  # compared, and not with itself


def test_a_wrong_number_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.one_network.DECAY", 0.5)
    import wholestep as ws

    known = ws.AdamW
    monkeypatch.setattr(ws, "AdamW", lambda **named: known(**{**named, "weight_decay": 0.4}))
    assert examine(ZOO, "a:small", "float64", 2)["equal"] is False


def test_what_torch_cannot_export_is_no_failure_of_ours() -> None:
    found = examine(ZOO, "a:branching", "float32", 2)
    assert found["stage"] == "import"
    assert "torch.export cannot export Branching in train mode" in found["error"]
    done = {"stage": "done", "symbolic": True, "forward": 1e-16, "losses": 0.0, "update": 2e-15, "equal": True}
    text = page(
        [
            found,
            {"name": "a:small", "dtype": "float64", **done, "widened": True},
            {"name": "a:small", "dtype": "float32", **done, "update": 0.1, "rounding": 0.2, "equal": False},
            {"name": "b:late", "dtype": "float64", "stage": "train", "symbolic": False, "error": "TimeoutError: late"},
        ]
    )
    assert "| exported by torch | 2 of 3, 67 % |" in text
    assert "| of the exported networks, imported | 2 of 2, 100 % |" in text
    assert "| of the exported networks, equal to torch | 1 of 2, 50 % |" in text
    assert "| within 2e-03 in float32 | 0 of 1, 0 % |" in text
    assert "| a:small | symbol | 1e-16, 0e+00, 2e-15 * | 1e-16, 0e+00, 1e-01, 2e-01 | equal |" in text
    assert "| b:late | fixed |  |  | TimeoutError: late |" in text
