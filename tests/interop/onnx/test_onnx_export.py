"""Networks as ONNX files: what onnxruntime makes of them, and what comes back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as runtime
import pytest
import torch

import wholestep as ws
from tests.interop.onnx.networks import flat, small_networks
from tests.support.complete import assert_equal_rows, assert_has_rows
from wholestep.compiler.ir.ops import OPS
from wholestep.errors import GraphError, OptionError, UsageError
from wholestep.interop.onnx.write.functions import DOMAIN
from wholestep.interop.onnx.write.graph import ALL_ROWS
from wholestep.interop.onnx.write.values import LAZY, OWN
from wholestep.steps.module import forward_graph

NETWORKS = small_networks()


def run(path: Path, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), arrays)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("onnx")
    for name, (net, arrays) in NETWORKS.items():
        ws.export_onnx(net, folder / f"{name}.onnx", example=arrays if len(arrays) > 1 else arrays[0])
    return {name: folder / f"{name}.onnx" for name in NETWORKS}


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_gives_our_outputs(exported: dict[str, Path], name: str) -> None:
    net, arrays = NETWORKS[name]
    for given in (arrays, tuple(a[:1] for a in arrays)):  # the batch is symbolic
        wanted = flat(net.predict(*given, device="reference"))
        for found, right in zip(run(exported[name], given), wanted, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_functions_of_one_op_are_exact_in_float64(tmp_path: Path) -> None:
    """Their constants, too: ONNX writes them as float32."""

    class Functions(ws.nn.Module):
        def forward(self, x: ws.Tensor) -> tuple[ws.Tensor, ...]:
            return ws.exp2(x), ws.expm1(x), ws.log2(x), ws.log1p(x), ws.silu(x)

    x = np.linspace(0.25, 3.0, 12).reshape(3, 4)
    ws.export_onnx(Functions(), tmp_path / "f.onnx", example=x)
    expected = (np.exp2(x), np.expm1(x), np.log2(x), np.log1p(x), x / (1 + np.exp(-x)))
    for found, right in zip(run(tmp_path / "f.onnx", (x,)), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-14, atol=1e-15)


def plan_of(net: ws.nn.Module, arrays: tuple[np.ndarray, ...], train: bool) -> Any:
    specs = [ws.Spec(("batch", *a.shape[1:]), a.dtype.name) for a in arrays]
    inputs: Any = specs[0] if len(specs) == 1 else dict(zip(("left", "right"), specs))
    options = ws.CompileOptions(egraph=False)
    if not train:
        graph = forward_graph(net, inputs)[0]
        return ws.build_inference_session(graph, capacity={"batch": 4}, device="null", options=options).plan

    def loss(outputs: Any, *_: Any) -> ws.Tensor:
        first = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
        return (first * first).mean()

    given = {"inputs": inputs, "loss": loss, "optimizer": ws.AdamW(), "batch_size": 4}
    return ws.build_session(net, **given, device="null", options=options).plan


@pytest.mark.parametrize("name", NETWORKS)
def test_what_comes_back_has_the_same_names_and_plans(exported: dict[str, Path], name: str) -> None:
    net, arrays = NETWORKS[name]
    back = ws.from_onnx(exported[name])
    held = back.state_dict()
    assert list(held) == list(net.state_dict())
    for key, array in net.state_dict().items():
        np.testing.assert_array_equal(held[key], array)
    for train in (False, True):
        ours, theirs = plan_of(net, arrays, train), plan_of(back, arrays, train)
        differing = [f.name for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)]
        assert set(differing) <= {"initial"}, name  # how parameters start: by their numbers in the file


def test_attention_and_rms_norm_are_operators_of_opset_23(tmp_path: Path) -> None:
    net, (x,) = NETWORKS["attention"]
    ws.export_onnx(net, tmp_path / "a.onnx", example=x, opset=23)
    operators = {node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node}
    assert "Attention" in operators
    np.testing.assert_allclose(run(tmp_path / "a.onnx", (x,))[0], net.predict(x, device="reference"), atol=1e-4)
    assert ws.from_onnx(tmp_path / "a.onnx").summary(ws.Spec(("batch", *x.shape[1:])))


def test_attention_of_shared_heads_and_masks(tmp_path: Path) -> None:
    class Shared(ws.nn.Module):
        def forward(self, q: ws.Tensor, k: ws.Tensor) -> ws.Tensor:
            seen = ws.iota((q.shape[2], k.shape[2]), 1) != 1  # nobody sees the second
            hidden = ws.where(ws.iota((q.shape[2], k.shape[2]), 0) > 0, 0.0, float("-inf"))  # the first sees nothing
            both = ws.attention(q, k, k, causal=True, mask=seen) + ws.attention(q, k, k, scale=0.3)
            return both + ws.attention(q, k, k, mask=hidden.astype("float32"))

    draw = np.random.default_rng(1)
    q, k = (draw.standard_normal((2, heads, 3, 4)).astype(np.float32) for heads in (4, 2))
    net = Shared()
    ws.export_onnx(net, tmp_path / "s.onnx", example=(q, k))
    np.testing.assert_allclose(run(tmp_path / "s.onnx", (q, k))[0], net.predict(q, k, device="reference"), atol=1e-5)


def test_numbers_in_a_second_file(tmp_path: Path) -> None:
    net, (x,) = NETWORKS["mlp"]
    ws.export_onnx(net, tmp_path / "net.onnx", example=x, external_data=True)
    ws.export_onnx(net, tmp_path / "net.onnx", example=x, external_data=True)  # again, over the first
    assert (tmp_path / "net.onnx.data").stat().st_size >= sum(a.nbytes for a in net.state_dict().values())
    assert (tmp_path / "net.onnx").stat().st_size < 4000
    back = ws.from_onnx(tmp_path / "net.onnx")
    np.testing.assert_array_equal(back.state_dict()["0.weight"], net.state_dict()["0.weight"])
    np.testing.assert_allclose(run(tmp_path / "net.onnx", (x,))[0], net.predict(x, device="reference"), atol=1e-5)


def test_every_op_has_a_row_or_a_reason() -> None:
    without = {
        *("input", "parameter", "state"),  # names of the graph
        *("by_mode", "stop_gradient", "item", "custom_gradient", "scan"),  # written by the writer itself
        *("gradient", "call"),  # expanded before a step is written; a network has none
        *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "exchange"),  # of several ranks; a file has one
        "write_rows",  # changes a state in place; as any other value it is lowered first
        *("pooled_grad_weight", "pooled_grad_input"),  # made by passes that no export runs
        *(
            name for name in OPS if name.endswith("norm_grad") or name in ("attention_lse", "attention_grad")
        ),  # decomposed
    }
    where = (
        "ROWS of wholestep/interop/onnx/write/values.py, or LAYERS of layers.py beside it (or `without` of this test),"
    )
    assert_equal_rows({*ALL_ROWS, *LAZY, *without}, OPS, where)


def test_every_function_of_one_op_is_written_and_read(exported: dict[str, Path]) -> None:
    """The test above compares what onnxruntime makes of them, the one after it what comes back."""
    used = {f.name for path in exported.values() for f in onnx.load(path).functions if f.domain == DOMAIN}
    assert_has_rows(used, OWN, "`Odds` of tests/interop/onnx/networks.py, the network of ops without an ONNX operator,")


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(UsageError, match=r"example=images\[:1\]"):
        ws.export_onnx(ws.nn.Linear(2, 2), path)
    with pytest.raises(UsageError, match=r"takes a ws\.nn\.Module or a session; received int"):
        ws.export_onnx(3, path)
    with pytest.raises(OptionError, match="opset must be one of 20, 21, 22, 23; received 12"):
        ws.export_onnx(ws.nn.Linear(2, 2), path, example=np.zeros((1, 2), np.float32), opset=12)

    class Writes(ws.nn.Module):
        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return ws.write_rows(ws.zeros(4, 2), x[:1], 2)

    with pytest.raises(GraphError, match="write_rows cannot be exported to ONNX"):
        ws.export_onnx(Writes(), path, example=np.zeros((1, 2), np.float32))


def test_the_whole_training_step_runs_elsewhere(tmp_path: Path) -> None:
    runtime.set_default_logger_severity(3)  # it warns that states are inputs
    for name in ("lenet", "gpt", "gru", "autoencoder"):
        net, arrays = small_networks()[name]
        (x,) = arrays
        options = {"loss": lambda y, *_: (y["output0"] if isinstance(y, dict) else y).std(), "batch_size": 4}
        options |= {"options": ws.CompileOptions(egraph=False)}
        spec = ws.Spec(("batch", *x.shape[1:]), x.dtype.name)
        optimizer = ws.AdamW(lr=0.01, eps=1e-3)
        session = ws.build_session(net, inputs=spec, optimizer=optimizer, clip_norm=1.0, device="reference", **options)
        session.step(x=x)
        ws.export_onnx(session, tmp_path / "step.onnx")
        other = runtime.InferenceSession(str(tmp_path / "step.onnx"), providers=["CPUExecutionProvider"])
        names, states = [o.name for o in other.get_outputs()], {}
        for _ in range(2):
            found = dict(zip(names, other.run(None, {"x": x, **states})))
            states = {k.removeprefix("next."): v for k, v in found.items() if k.startswith("next.")}
            np.testing.assert_allclose(found["loss"], session.step(x=x).loss, rtol=1e-4)
        assert states.pop("step") == 3
        for key, value in states.items():
            np.testing.assert_allclose(value, session.get(key), rtol=1e-3, atol=2e-5, err_msg=f"{name}: {key}")


def test_networks_of_torch_and_frozen_parts_go_through_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, momentum=0.3), torch.nn.Flatten(), torch.nn.Linear(16, 2)
    theirs = torch.nn.Sequential(*layers)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    theirs(torch.tensor(x))  # running statistics differ from their initial values
    net = ws.from_torch(theirs, x).freeze("0.*")
    ws.export_onnx(net, tmp_path / "net.onnx", example=x)
    wanted = theirs.eval()(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(run(tmp_path / "net.onnx", (x,))[0], wanted, atol=1e-5)
    (norm,) = [n for n in onnx.load(tmp_path / "net.onnx").graph.node if n.op_type == "BatchNormalization"]
    assert {round(a.f, 6) for a in norm.attribute} == {0.7, 1e-5}
    back = ws.from_onnx(tmp_path / "net.onnx")
    assert {n: p.frozen for n, p in back.parameters().items()} == {n: p.frozen for n, p in net.parameters().items()}
    assert set(back.state_dict()) == {n for n, t in theirs.state_dict().items() if t.dtype == torch.float32}


def test_sessions_that_do_not_train_on_one_batch_are_refused(tmp_path: Path) -> None:
    given = {"inputs": ws.Spec(("batch", 2)), "loss": lambda y: y.mean(), "device": "null", "batch_size": 2}
    session = ws.build_session(ws.nn.Linear(2, 1), accumulate=2, **given)
    with pytest.raises(UsageError, match="this one accumulates over several"):
        ws.export_onnx(session, tmp_path / "step.onnx")
