"""`session.export("...", to="wasm")`: the module in Node has the bits of cpu/portable."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.session.export.library import network_session, rows

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="the module runs in Node: apt-get install nodejs"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="zig compiles it: pip install ziglang"),
]
PROGRAM = """
import { readFileSync, writeFileSync } from "node:fs";
import { Step } from "./step.mjs";
const read = (name) => { const b = readFileSync(name); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); };
const step = await Step.load(read("step.wasm"), JSON.parse(readFileSync("manifest.json")));
const tensors = step.load(new Uint8Array(read("weights.safetensors")));
const x = new Float32Array(read("x")), labels = new Int32Array(read("labels"));
step.setData({ x, labels }, labels.length);
const losses = [];
for (let epoch = 0; epoch < 2; epoch++)
  for (let position = 0; position < labels.length; position += 64) losses.push(...step.run({ position, steps: 2 }));
const metrics = step.metrics(), evaluation = step.evaluate();
const outputs = Array.from(step.predict({ x }, labels.length).output);
writeFileSync("out.safetensors", step.save());
let refused = "";
try { step.setData({ x, labels: labels.map(() => 99) }, labels.length); step.run(); } catch (e) { refused = e.message; }
step.scalars.set("optimizer.beta1", 0.5);
const numbers = { beta1: step.scalars.get("optimizer.beta1"), epoch: step.epoch, steps: step.steps };
console.log(JSON.stringify({ tensors, losses, metrics, evaluation, outputs, refused, numbers }));
"""


def test_node_has_the_bits_of_the_portable_target(tmp_path: Path) -> None:
    session, data = network_session(), rows()
    session.export(tmp_path, to="wasm")
    for name, array in data.items():
        array.tofile(tmp_path / name)
    (tmp_path / "run.mjs").write_text(PROGRAM)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    np.testing.assert_array_equal(result["losses"], session.run(data, epochs=2))
    assert result["metrics"] == {"accuracy": session.metrics()["accuracy"]}
    evaluated = session.evaluate_all(data)
    assert result["evaluation"] == {"loss": evaluated["loss"], "metrics": {"accuracy": evaluated["accuracy"]}}
    np.testing.assert_array_equal(
        np.array(result["outputs"], np.float32).reshape(len(data["x"]), -1), session.predict(x=data["x"])
    )
    saved, states = load_file(tmp_path / "out.safetensors"), session.state_dict()
    assert result["tensors"] == len(saved)
    for name, array in saved.items():
        np.testing.assert_array_equal(array, states[name], err_msg=name)
    assert result["numbers"] == {"beta1": 0.5, "epoch": 2, "steps": 6}
    assert "out of bounds" in result["refused"]
