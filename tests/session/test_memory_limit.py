"""`memory=`: a step takes at most that many bytes, which its plan determines; results are as without a limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_plain_products import ALL
from tests.compiler.backends.cuda.kernels.test_plain_products import PLAIN as PLAIN_PRODUCTS
from tests.compiler.passes.common import graph_of, leaf
from tests.support.compilers import quick
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.grids import gemm_library
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.types import bfloat16
from wholestep.compiler.passes.rematerialize.memory_budget import RecomputeCandidates
from wholestep.compiler.plan.fusion import partial_column_sums
from wholestep.errors import LimitError, OptionError
from wholestep.session.building.build import build_session_with_report
from wholestep.steps.options import as_memory_limit

MOMENTUM = ws.SGD(lr=0.1, momentum=0.9)
PLAIN = ws.CompileOptions(egraph=False, cache=False)


def tokens(rows: int, time: int, most: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, most, (rows, time)).astype(np.int32) for name in ("x", "labels")}


def gpt(width: int = 32, layers: int = 3, vocabulary: int = 64, time: int = 16) -> dict[str, Any]:
    model = ws.models.gpt2(layers=layers, width=width, heads=2, vocabulary=vocabulary, context=time)
    spec = ws.Spec(("batch", time), "int32")
    return {"model_or_graph": model, "inputs": spec, "targets": spec, "loss": "cross_entropy"}


def mlp(width: int = 64) -> dict[str, Any]:
    layers = [m for _ in range(3) for m in (ws.nn.Linear(width, width), ws.nn.GELU(), ws.nn.Dropout(0.1))]
    spec = {"inputs": ws.Spec(("batch", width)), "targets": ws.Spec(("batch",), "int32")}
    return {"model_or_graph": ws.nn.Sequential(*layers, ws.nn.Linear(width, 10)), "loss": "cross_entropy", **spec}


def images() -> dict[str, Any]:
    channels = [(3, 16), (16, 16), (16, 16), (16, 16)]
    layers = [m for i, o in channels for m in (ws.nn.Conv2d(i, o, 3, padding=1), ws.nn.BatchNorm2d(o), ws.nn.ReLU())]
    model = ws.nn.Sequential(*layers, ws.nn.GlobalAvgPool2d(), ws.nn.Flatten(), ws.nn.Linear(16, 10))
    spec = {"inputs": ws.Spec(("batch", 3, 16, 16)), "targets": ws.Spec(("batch",), "int32")}
    return {"model_or_graph": model, "loss": "cross_entropy", **spec}


def lstm() -> dict[str, Any]:
    spec = ws.Spec(("batch", 16), "int32")
    model = ws.models.lstm_lm(32, width=24, layers=1)
    return {"model_or_graph": model, "inputs": spec, "targets": spec, "loss": "cross_entropy"}


# What is built, rows, the limit, and how it is kept: values recomputed, micro-batches.
TABLE: dict[str, tuple[Callable[[], dict[str, Any]], int, float, str]] = {
    "gpt": (gpt, 128, 0.9, "values recomputed"),
    "mlp": (mlp, 512, 0.6, "accumulate="),
    "images": (images, 64, 0.9, "values recomputed"),
    "lstm": (lstm, 256, 0.6, "accumulate="),
}


@pytest.mark.parametrize("device", ["null:cpu/avx2", "null:cuda/sm_90"])
@pytest.mark.parametrize("name", list(TABLE))
def test_the_bytes_of_a_step_are_within_its_limit(name: str, device: str) -> None:
    made, rows, part, how = TABLE[name]
    arguments = {**made(), "batch_size": rows, "device": device, "threads": 2, "options": PLAIN}
    free = ws.build_session(**arguments).report().peak_bytes
    session = ws.build_session(**arguments, memory=part)
    notes = "\n".join(session.plan.notes)
    assert how in notes
    limit = int(part * free)
    assert f" bytes of {limit:,}, " in notes
    if "accumulate=" not in notes:
        assert session.report().peak_bytes <= limit
        assert ws.estimate(**arguments, memory=limit).peak_bytes == session.report().peak_bytes


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    arguments = {**mlp(), "batch_size": 64, "device": "null", "options": PLAIN}
    free, limited = ws.build_session(**arguments).plan, ws.build_session(**arguments, memory="1 GiB").plan
    assert replace(limited, notes=free.notes) == free
    assert limited.notes[-1].endswith("without a limit: no need to save any")


def trained(batch: dict[str, np.ndarray], steps: int = 4, **arguments: Any) -> tuple[ws.Session, list[float]]:
    session = ws.build_session(**arguments, optimizer=MOMENTUM, seed=3, threads=2)
    return session, [float(session.step(**batch)) for _ in range(steps)]


def equal_states(a: ws.Session, b: ws.Session) -> None:
    for name, value in a.state_dict().items():
        if not name.startswith("accumulate/"):
            np.testing.assert_allclose(b.state_dict()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_numbers_are_those_without_a_limit() -> None:
    """A limited plan is new, so it was checked against the interpreter as well."""
    batch = tokens(64, 16, 64)
    free, expected = trained(batch, **gpt(), batch_size=64, options=quick())
    for part, how in ((0.9, "values recomputed"), (0.5, "accumulate=")):
        checked = replace(quick(), verify=None)
        limited, losses = trained(batch, **gpt(), batch_size=64, options=checked, memory=part)
        assert how in "\n".join(limited.plan.notes)
        assert limited.peak_bytes <= part * free.peak_bytes
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        equal_states(free, limited)


def test_an_emulated_gpu_makes_values_products_and_the_largest_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPT-2: products are a library's, sums over columns begin in other kernels, the logits come in parts."""
    monkeypatch.setattr(gemm_library, "least_flops", lambda target: dict.fromkeys(ALL, 1))
    monkeypatch.setattr(partial_column_sums, "LEAST_COLUMNS", 32)
    monkeypatch.setattr(partial_column_sums, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(partial_column_sums, "PARTS", 3)
    set_costs(monkeypatch, "memory", chunked_loss=1 << 12)
    batch = tokens(8, 8, 72)

    def arguments() -> dict[str, Any]:
        how = {"batch_size": 8, "device": "plain", "precision": "bfloat16", "options": replace(PLAIN, verify=False)}
        return {**gpt(layers=2, vocabulary=72, time=8), **how}

    with emulated_device("plain", PLAIN_PRODUCTS):
        with pytest.raises(LimitError) as least:
            ws.estimate(**arguments(), optimizer=MOMENTUM, memory=1, threads=2)
        free, expected = trained(batch, 3, **arguments())
        limited, losses = trained(batch, 3, **arguments(), memory=least.value.bytes)
    note = limited.plan.notes[-1]
    assert re.search(
        r"values recomputed, [1-9][0-9]* products computed twice, the largest value in [48] chunks", note
    ), note
    assert limited.report().peak_bytes == least.value.bytes < free.report().peak_bytes
    np.testing.assert_allclose(losses, expected, rtol=2e-3)


def test_a_product_is_made_again_at_the_price_of_half_operands() -> None:
    x, w, v = (leaf(name, shape, bfloat16) for name, shape in (("x", (64, 32)), ("w", (32, 128)), ("v", (128, 64))))
    product = b.matmul(x, w)
    value = b.cast(product, bfloat16)  # read immediately, and after another product
    graph, own = graph_of(b.matmul(b.cast(b.matmul(value, v), bfloat16), value)), TARGETS["cuda/sm_90"].costs
    (cheap,), (dear,) = (
        RecomputeCandidates(graph, {}, costs).choices()[1] for costs in (own, replace(own, half_product=0.0))
    )
    assert cheap.products == (graph.nodes.index(product),)
    assert dear.cost - cheap.cost == pytest.approx(64 * 128 * 32 * (own.product - own.half_product))


def test_fit_trains_the_same_with_less() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 64)).astype(np.float32), rng.integers(0, 10, 300).astype(np.int32)

    def losses(**more: Any) -> tuple[list[float], list[float]]:
        settings = {"loss": "cross_entropy", "epochs": 2, "batch_size": 128, "validation": 0.2, "progress": False}
        history = ws.fit(mlp()["model_or_graph"], (x, y), **settings, seed=1, options=quick(), **more)
        return history["loss"], history["val_loss"]

    np.testing.assert_allclose(losses(memory="0.8"), losses(), rtol=1e-5)


def test_a_cached_start_finds_the_parts_again(tmp_path: Path) -> None:
    options = ws.CompileOptions(egraph=False, cache_dir=str(tmp_path))
    arguments = {**mlp(), "batch_size": 256, "device": "null", "options": options}
    sessions = [build_session_with_report(**arguments, memory=0.5) for _ in range(2)]
    assert [report.cached for _, report in sessions] == [False, True]
    assert sessions[0][0].plan == sessions[1][0].plan
    assert "accumulate=" in sessions[1][0].plan.notes[-1]


def test_a_step_of_ones_own_has_a_limit() -> None:
    @ws.step
    def step(g: ws.Graph) -> ws.Tensor:
        x = g.input("x", ("batch", 64))
        for i in range(4):
            x = ws.gelu(x @ g.parameter(f"w{i}", (64, 64)))
        loss = (x * x).mean()
        params = [g.parameters[f"w{i}"] for i in range(4)]
        ws.SGD(lr=0.1).update(g, params, ws.gradients(loss, params))
        return loss

    arguments = {"batch_size": 4096, "device": "null:cuda/sm_90", "options": PLAIN}
    free = ws.build_session(step, **arguments).report().peak_bytes
    limited = ws.build_session(step, **arguments, memory=0.9)
    assert limited.report().peak_bytes <= 0.9 * free
    with pytest.raises(LimitError, match=r"a step takes at least [0-9,]+ bytes"):
        ws.build_session(step, **arguments, memory=0.1)


def test_what_cannot_be_met_says_the_least_and_what_to_do() -> None:
    with pytest.raises(
        LimitError,
        match=r"(?s)a step takes at least [0-9,]+ bytes \([0-9,]+ without recomputation\), but memory= allows "
        r"20,000\. Its largest tensors: .*Raise memory=, or lower batch_size\.",
    ) as found:
        ws.build_session(**mlp(), batch_size=64, device="null", options=PLAIN, memory="20kB")
    assert found.value.limit == 20_000 < found.value.bytes
    with pytest.raises(LimitError, match=r"(?s)Its batch cannot be split: .*`batch_norm`.*of the whole batch"):
        ws.build_session(**images(), batch_size=8, device="null", options=PLAIN, memory=0.1)


def test_an_estimate_of_accumulation_keeps_the_limit_too() -> None:
    given = {"batch_size": 64, "accumulate": 2, "memory": "1MB", "options": PLAIN}
    assert ws.estimate(**mlp(), **given).peak_bytes == ws.build_session(**mlp(), **given).peak_bytes


@pytest.mark.parametrize("given", [0, -5, True, 1.5, 0.0, "much", "150%", [1]])
def test_what_a_limit_may_be(given: object) -> None:
    with pytest.raises(OptionError, match=r"memory=.*(expected a number of bytes|a fraction of the bytes)"):
        as_memory_limit(given)


def test_what_a_limit_is() -> None:
    given = ["5.5GB", "512 MiB", 1000, 0.7, "0.7", ".7", "70%", None]
    assert [as_memory_limit(g) for g in given] == [5_500_000_000, 512 << 20, 1000, 0.7, 0.7, 0.7, 0.7, None]
