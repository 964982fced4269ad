"""Profiles and traces: every kernel is timed, no bit changes, viewers can read what is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.session.inspect.layers import FORWARD, LayerProfile
from wholestep.session.inspect.profile import BARRIER, KernelLayers, Profile

# The part of the Trace Event Format that Chrome and Perfetto ask of every event, by phase: field -> types.
COMMON = {"ph": (str,), "name": (str,), "pid": (int,), "tid": (int,)}
SCHEMA = {"X": {**COMMON, "cat": (str,), "ts": (int, float), "dur": (int, float)}, "M": {**COMMON, "args": (dict,)}}
OPTIONAL = {"args": (dict,)}
SPANS = ("build_session", "optimize_forward", "autodiff", "optimize_full", "compile", "device_init", "train_epoch")


def check_schema(trace: Any) -> None:
    """What the format's description demands; a viewer ignores or refuses anything else."""
    assert trace.keys() == {"displayTimeUnit", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(trace["traceEvents"], list)
    for event in trace["traceEvents"]:
        fields = SCHEMA[event["ph"]]
        assert event.keys() - OPTIONAL.keys() == fields.keys() - OPTIONAL.keys(), event
        for name, value in event.items():
            assert isinstance(value, {**OPTIONAL, **fields}[name]), event
            assert not isinstance(value, bool), event
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0


def check_nested(events: list[dict[str, Any]]) -> None:
    """On one row, events lie beside or inside each other."""
    slack = 1.0  # us: a span's clock is read before its parent's
    for a in events:
        for b in events:
            apart = a["ts"] + a["dur"] <= b["ts"] + slack or b["ts"] + b["dur"] <= a["ts"] + slack
            inside = a["ts"] <= b["ts"] + slack and b["ts"] + b["dur"] <= a["ts"] + a["dur"] + slack
            around = b["ts"] <= a["ts"] + slack and a["ts"] + a["dur"] <= b["ts"] + b["dur"] + slack
            assert apart or inside or around, (a, b)


@pytest.fixture(scope="module")
def session() -> ws.Session:
    return ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, threads=2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_kernel_is_timed_and_nothing_changes(accumulate: int) -> None:
    session = ws.build_session(
        mlp(), optimizer=ws.Adam(), metrics=["accuracy"], batch_size=8, accumulate=accumulate, threads=2
    )
    batch = data(8 * accumulate)
    session.step(batch)
    before = session.state_dict()
    found = session.profile(batch, steps=3)
    after = session.state_dict()
    assert before.keys() == after.keys()
    assert all(before[n].tobytes() == after[n].tobytes() for n in before)
    assert [(k.program, k.kernel) for k in found.kernels] == [
        (i, k.id) for i, plan in enumerate(session.plans) for k in plan.kernels
    ]
    assert all(k.seconds > 0 for k in found.kernels)
    assert sum(k.flops for k in found.kernels if k.program == 0) == accumulate * session.plans[0].flops
    assert "GFLOP/s" in str(found)


def test_training_with_a_profile_in_between_ends_with_the_same_bits() -> None:
    states = []
    for profiled in (False, True):
        session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, threads=2)
        for i in range(4):
            session.step(data(16, seed=i))
            if profiled:
                session.profile(data(16), steps=1)
        states.append(session.state_dict())
    assert all(states[0][n].tobytes() == states[1][n].tobytes() for n in states[0])


def test_a_profiled_build_computes_the_same_bits() -> None:
    from wholestep.session.inspect.profile import _profiled_program

    plain, profiled = (ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, threads=2) for _ in range(2))
    entry, _ = _profiled_program(profiled._programs)
    for i in range(3):
        plain.step(data(16, seed=i))
        entry(data(16, seed=i))
    assert all(np.array_equal(plain.get(n), profiled.get(n)) for n in plain.state.names)
    assert replace(profiled._programs.place, profile=True).profile


def test_clocks_are_off_by_default(session: ws.Session) -> None:
    assert "ws_now_ns" not in render(session.plan)
    assert "ws_now_ns" in render(session.plan, profile=True)
    assert "ws_now_ns" not in session.source


def test_sizes_below_the_capacity_have_no_rates(session: ws.Session) -> None:
    found = session.profile(data(5), steps=1)
    assert all(k.flops == k.bytes == 0 for k in found.kernels)
    assert all(k.gflops == k.gbytes == 0 for k in found.kernels)


def test_what_cannot_be_profiled(session: ws.Session) -> None:
    with pytest.raises(ws.errors.OptionError, match="steps must be an integer of at least 1; received 0"):
        session.profile(data(16), steps=0)
    planned = ws.build_session(mlp(), batch_size=4, device="null")
    with pytest.raises(ws.errors.UsageError, match=r"device='null:.*' does not run plans; profile a session on"):
        planned.profile(data(4))


def test_a_trace_of_a_build_an_epoch_and_kernels(tmp_path: Path) -> None:  # K01
    session = ws.build_session(
        mlp(),
        optimizer=ws.Adam(),
        batch_size=32,
        threads=2,
        options=ws.CompileOptions(cache_dir=str(tmp_path / "cache")),
    )
    arrays = data(64)
    ws.Trainer(session).train(ws.DataLoader(arrays["x"], arrays["labels"], transform=ws.data.Noise(0.1)), epochs=1)
    session.trace(tmp_path / "trace.json", session.profile(data(16), steps=2))
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_schema(trace)
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    spans = [e for e in events if e["cat"] == "span"]
    names = {e["name"] for e in spans}
    assert {*SPANS, "set_input", "gcc"} <= names
    check_nested(spans)
    build = next(e for e in spans if e["name"] == "build_session")
    compiled = next(e for e in spans if e["name"] == "gcc")
    assert build["ts"] <= compiled["ts"] <= compiled["ts"] + compiled["dur"] <= build["ts"] + build["dur"]
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert {e["args"]["kernel"] for e in kernels} == {k.id for k in session.plan.kernels}
    assert all(e["ts"] >= build["ts"] + build["dur"] for e in kernels), "one clock: kernels run after the build"
    for thread in (0, 1):
        check_nested([e for e in events if e["pid"] == 2 and e["tid"] == thread])
    assert BARRIER not in {e["args"]["kernel"] for e in kernels}


# -- by layer, and beside the target's prices ------------------------------------------------------------------------


def profiled(model: ws.nn.Module, *shape: int, **more: Any) -> tuple[ws.Session, Profile]:
    session = ws.build_session(
        model,
        inputs=ws.Spec(("batch", *shape)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer=ws.SGD(lr=0.1),
        batch_size=8,
        threads=2,
        options=quick(),
        **more,
    )
    return session, session.profile(x=np.ones((8, *shape), np.float32), labels=np.zeros(8, np.int32), steps=2)


@pytest.fixture(scope="module")
def of_mlp() -> tuple[ws.Session, Profile]:
    model = ws.nn.Sequential(ws.nn.Linear(6, 16), ws.nn.ReLU(), ws.nn.Linear(16, 3))
    return profiled(model, 6, metrics=["accuracy"], clip_norm=1.0)


def check_layers(found: Profile, names: list[str]) -> LayerProfile:
    layers = found.by_layer()
    assert [row.layer for row in layers] == names
    assert sum(row.seconds for row in layers) == pytest.approx(sum(k.seconds for k in found.kernels))
    assert sum(row.share for row in layers) == pytest.approx(1.0)
    assert all(sum(parts.values()) == pytest.approx(1.0) for parts in found.layers.parts.values())
    return layers


def test_the_time_of_a_step_by_layer(of_mlp: tuple[ws.Session, Profile]) -> None:
    session, found = of_mlp
    layers = check_layers(found, ["0", "1", "2", "(loss)", "(metrics)", "(update)"])
    assert all(layers[name].forward > 0 and layers[name].backward > 0 for name in ("0", "1", "2", "(loss)"))
    assert layers["0"].update > 0
    assert layers["2"].update > 0
    assert layers["1"].update == 0, "it has no parameters"
    assert layers["(metrics)"].backward == layers["(metrics)"].update == 0
    assert layers["(update)"].update == layers["(update)"].seconds > 0, "the norm of all gradients is of no layer"
    first = next(k for k in session.plan.kernels if k.origin == ("matmul", "add", "relu"))
    parts = found.layers.parts[0, first.id]
    assert parts.keys() == {("0", FORWARD), ("1", FORWARD)}
    assert parts["0", FORWARD] > parts["1", FORWARD] > 0, "a product costs more than what follows it"
    text = str(layers).splitlines()
    assert text[0].split() == ["layer", "forward", "backward", "update", "share"]
    assert text[1].startswith("0 ")
    assert text[-2].startswith("total ")
    assert text[-2].endswith("100.0%")
    with pytest.raises(ws.errors.UnknownNameError, match=r"there is no layer 'head'; there are: '0', '1', '2',"):
        layers["head"]


def test_layers_of_a_small_convolutional_network() -> None:
    block = ws.nn.Sequential(ws.nn.Conv2d(1, 4, 3, padding=1), ws.nn.ReLU(), ws.nn.MaxPool2d(2))
    _, found = profiled(ws.nn.Sequential(block, ws.nn.Flatten(), ws.nn.Linear(16, 3)), 1, 4, 4)
    layers = check_layers(found, ["0.0", "0.2", "0.1", "1", "2", "(loss)"])  # relu is computed after the pool
    assert all(layers[name].backward > 0 for name in ("0.0", "2"))
    assert all(layers[name].update > 0 for name in ("0.0", "2"))


def test_layers_of_a_step_with_a_limit_of_memory() -> None:
    """Its plan is made again within the same limit."""
    tokens = ws.Spec(("batch", 16), "int32")
    session = ws.build_session(
        ws.models.gpt2(layers=3, width=32, heads=2, vocabulary=64, context=16),
        inputs=tokens,
        targets=tokens,
        loss="cross_entropy",
        batch_size=64,
        memory=0.9,
        threads=2,
        options=quick(),
    )
    assert "values recomputed" in "\n".join(session.plan.notes)
    batch = {name: np.zeros((64, 16), np.int32) for name in ("x", "labels")}
    layers = session.profile(batch, steps=1).by_layer()
    assert layers["h.0.mlp.c_fc"].forward > 0


def test_what_has_no_layers(of_mlp: tuple[ws.Session, Profile], session: ws.Session) -> None:
    _, found = of_mlp
    with pytest.raises(ws.errors.UsageError, match="built from a plan alone, which does not store the layers"):
        replace(found, layers=KernelLayers(None, found.layers.plans)).by_layer()
    with pytest.raises(ws.errors.UsageError, match="planning again gave another plan than the profiled one"):
        replace(found, layers=KernelLayers(session._programs.compiled, found.layers.plans)).by_layer()


def test_kernels_beside_what_the_target_expects(of_mlp: tuple[ws.Session, Profile]) -> None:
    session, found = of_mlp
    costs = session.target.costs
    for timed, kernel in zip(found.kernels, session.plan.kernels, strict=True):
        computing = 1e-9 * kernel.flops * (costs.product / 2 if kernel.kind is Kind.DOT else costs.operation) / 2
        moving = 1e-9 * kernel.bytes * costs.byte / 2
        assert timed.expected == pytest.approx(max(computing, moving))
        assert timed.bound == ("flops" if computing > moving else "bytes")
        assert timed.intensity == pytest.approx(kernel.flops / kernel.bytes)
        assert timed.of_expected == pytest.approx(timed.expected / timed.seconds)
    assert "FLOP/B" in str(found)
    assert re.search(r"target's cost table its kernels take [\d.]+ us on 2 threads; measured [\d.]+ us", str(found))
