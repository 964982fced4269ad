"""Every node case of the onnx package that is in scope, by the interpreter; every case that passed once must pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.interop.onnx.onnx_cases import all_cases, judged, out_of_scope

GOLDEN = Path(__file__).parents[2] / "golden" / "onnx_node_cases.txt"


def test_cases_in_scope_pass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wholestep.interop.onnx.read.reading.OLDEST", 1
    )  # a case has the opset of its operator's version
    cases = all_cases()
    reasons = {case.name: out_of_scope(case) for case in cases}
    results = {case.name: judged(case) for case in cases if reasons[case.name] is None}
    passed = sorted(name for name, wrong in results.items() if not wrong)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text("\n".join(passed) + "\n")
        print(Counter(reasons.values()), {n: w for n, w in results.items() if w})
    before = set(GOLDEN.read_text().split()) & set(results)  # another version of onnx has other cases
    broken = {name: results[name] for name in sorted(before) if results[name]}
    assert not broken
    assert len(passed) >= 0.98 * len(results), {n: w for n, w in results.items() if w}
    assert len(results) >= 0.7 * len(cases)
