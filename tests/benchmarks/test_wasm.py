"""`python -m benchmarks wasm`: a step in Node compared with the same step in Python."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("node") is None, reason="the module runs in Node: apt-get install nodejs"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="zig compiles it: pip install ziglang"),
]


def test_both_steps_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks", "wasm", "--json", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert {"mlp", "lenet"} <= result.keys()
    for name in ("mlp", "lenet"):
        row = result[name]
        assert row["python_ms"] > 0
        assert row["node_ms"] > row["python_ms"]  # without fused multiply-adds, with half the vector
