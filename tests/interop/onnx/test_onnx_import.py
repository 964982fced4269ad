"""ONNX files of other exporters as networks: which arrays are trained or constant, and which files are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import wholestep as ws
from wholestep.errors import CheckpointError, ShapeError, UnsupportedOpError, UsageError, WholestepError

DRAW = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def model_of(
    nodes: list[Any],
    inputs: dict[str, list[int | str]],
    arrays: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    output: str = "y",
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in (arrays or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def network_of(*given: Any, **options: Any) -> Any:
    return ws.from_onnx(model_of(*given, **options).SerializeToString())


node = helper.make_node


class Twin(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.BatchNorm2d(3, momentum=0.2)
        self.fc = torch.nn.Linear(3 * 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def test_a_network_with_a_batch_norm_trains_as_torchs_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    twin = Twin()
    arrays = {name: t.detach().numpy().copy() for name, t in twin.state_dict().items() if t.dtype == torch.float32}
    nodes = [
        node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["a", *(f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var"))],
             ["b"], momentum=0.8),
        node("Relu", ["b"], ["c"]),
        node("Shape", ["c"], ["s"], start=0, end=1),
        node("Constant", [], ["rest"], value_ints=[-1]),
        node("Concat", ["s", "rest"], ["shape"], axis=0),
        node("Reshape", ["c", "shape"], ["d"]),
        node("Dropout", ["d"], ["e"]),  # by mode: the file says nothing of it
        node("Gemm", ["d", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]  # fmt: skip
    net = network_of(nodes, {"x": ["N", 2, 2, 2]}, arrays)
    assert set(net.parameters()) == {name for name, _ in twin.named_parameters()}
    assert set(net.state_dict()) == set(arrays)
    x = floats(4, 2, 2, 2)
    np.testing.assert_allclose(net.predict(x, device="reference"), twin.eval()(torch.tensor(x)).detach(), atol=1e-6)
    session = ws.build_session(
        net,
        inputs=ws.Spec(("batch", 2, 2, 2)),
        loss=lambda y: (y * y).mean(),
        optimizer=ws.SGD(lr=0.1),
        batch_size=4,
        device="reference",
        options=ws.CompileOptions(egraph=False),
    )
    optimizer = torch.optim.SGD(twin.train().parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (twin(torch.tensor(x)) ** 2).mean().backward()
        optimizer.step()
        session.step(x=x)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, twin.state_dict()[name].numpy(), atol=1e-5, err_msg=name)
    net.freeze("conv.*").save(tmp_path / "net.safetensors")
    monkeypatch.setitem(sys.modules, "onnx", None)  # a saved network needs it no more
    again = ws.load_network(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.predict(x[:3], device="reference"), net.predict(x[:3], device="reference"))
    assert [n for n, p in again.parameters().items() if p.frozen] == ["conv.weight", "conv.bias"]


def test_what_is_a_parameter_and_what_a_constant(tmp_path: Path) -> None:
    arrays = {
        "w": floats(3, 2),
        "half": floats(2).astype(np.float16),
        "scale": np.float32(2.0).reshape(()),
        "mask": np.array([0.0, -np.inf], np.float32),
        "unused": floats(2),
        "kept": floats(2),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Mul", ["a", "scale"], ["b"]),
        node("Add", ["b", "half"], ["c"]),
        node("Add", ["c", "kept"], ["d"]),
        node("Max", ["d", "mask"], ["y"]),
    ]
    (tmp_path / "net.onnx").write_bytes(model_of(nodes, {"x": ["N", 3]}, arrays).SerializeToString())
    net = ws.from_onnx(tmp_path / "net.onnx", constants=["kept"])
    assert {name: str(p.type) for name, p in net.parameters().items()} == {"w": "float32[3, 2]", "half": "float32[2]"}
    x = floats(2, 3)
    right = np.maximum(x @ arrays["w"] * 2 + arrays["half"] + arrays["kept"], arrays["mask"])
    np.testing.assert_allclose(net.predict(x, device="reference"), right, atol=1e-5)
    with pytest.raises(UsageError, match="constants='nothing' matches none of the initialisers: w, half"):
        ws.from_onnx(tmp_path / "net.onnx", constants=["nothing"])


def test_inputs_have_the_files_names_and_several_outputs_too() -> None:
    graph = helper.make_graph(
        [node("Add", ["input.1", "class"], ["sum"]), node("Sub", ["input.1", "class"], ["difference"])],
        "net",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["N"]) for n in ("input.1", "class")],
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["N"]) for n in ("sum", "difference")],
    )
    net = ws.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    found = net.predict(input_1=np.array([5, 7]), input_class=np.array([2, 3]), device="reference")
    assert {name: list(a) for name, a in found.items()} == {"sum": [7, 10], "difference": [3, 4]}


def test_shapes_that_are_computed_keep_the_batch_symbolic() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Gather", ["s", "one"], ["m"]),
        node("Mul", ["n", "m"], ["nm"]),
        node("Unsqueeze", ["nm", "axes"], ["flat"]),
        node("Reshape", ["x", "flat"], ["a"]),
        node("Div", ["nm", "m"], ["back"]),
        node("Unsqueeze", ["back", "axes"], ["rows"]),
        node("Concat", ["rows", "width"], ["shape"], axis=0),
        node("Reshape", ["a", "shape"], ["b"]),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Range", ["zero", "n", "one"], ["steps"]),
        node("Cast", ["steps"], ["floats"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["floats", "one_axis"], ["column"]),
        node("Add", ["b", "zeros"], ["c"]),
        node("Add", ["c", "column"], ["y"]),
    ]
    arrays = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0]), "width": np.array([4])}
    arrays = {k: np.asarray(v) for k, v in arrays.items()} | {"one_axis": np.array([1])}
    net = network_of(nodes, {"x": ["N", 4]}, arrays)
    for rows in (3, 5):
        x = floats(rows, 4)
        right = x + np.arange(rows)[:, None]
        np.testing.assert_allclose(net.predict(x, device="reference"), right, atol=1e-6)


def test_a_file_for_one_row_takes_many() -> None:
    arrays = {"w": floats(4, 2, 1, 1), "token": floats(1, 1, 4), "v": floats(12, 3), "b": floats(3)}
    shapes = {"tokens": np.array([1, 4, 2]), "flat": np.array([1, -1]), "one": np.array([1, 3])}
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Reshape", ["a", "tokens"], ["c"]),
        node("Transpose", ["c"], ["d"], perm=[0, 2, 1]),
        node("Concat", ["token", "d"], ["e"], axis=1),
        node("Reshape", ["e", "flat"], ["f"]),
        node("Reshape", ["b", "one"], ["g"]),
        node("Gemm", ["f", "v", "g"], ["y"]),
    ]
    net = network_of(nodes, {"x": [1, 2, 1, 2]}, arrays | shapes)
    x = floats(3, 2, 1, 2)
    one_by_one = np.concatenate([net.predict(row[None], device="reference") for row in x])
    np.testing.assert_allclose(net.predict(x, device="reference"), one_by_one, atol=1e-6)
    c = np.einsum("oc,ncw->nwo", arrays["w"][:, :, 0, 0], x[:, :, 0])
    whole = np.concatenate([np.repeat(arrays["token"], 3, 0), c], 1).reshape(3, 12)
    np.testing.assert_allclose(one_by_one, whole @ arrays["v"] + arrays["b"], atol=1e-5)


def test_sequences_of_pieces() -> None:
    arrays = {"two": np.array(2), "last": np.array(-1), "first": np.array(0)}
    nodes = [
        node("SplitToSequence", ["x", "two"], ["s"], axis=1),
        node("SequenceAt", ["s", "last"], ["a"]),
        node("SequenceErase", ["s", "first"], ["t"]),
        node("SequenceInsert", ["t", "a", "first"], ["u"]),
        node("SequenceLength", ["u"], ["n"]),
        node("Cast", ["n"], ["m"], to=TensorProto.FLOAT),
        node("ConcatFromSequence", ["u"], ["c"], axis=1),
        node("Mul", ["c", "m"], ["y"]),
    ]
    net = network_of(nodes, {"x": ["N", 6]}, arrays)
    x = floats(2, 6)
    right = np.concatenate([x[:, 4:], x[:, 2:4], x[:, 4:]], 1) * 3
    np.testing.assert_allclose(net.predict(x, device="reference"), right, atol=1e-6)
    with pytest.raises(ShapeError, match="the index 7 is outside of a sequence of 3 tensors"):
        network_of(nodes, {"x": ["N", 6]}, arrays | {"last": np.array(7)}).predict(x, device="reference")
    with pytest.raises(UsageError, match="is a sequence; a tensor was expected"):
        network_of([nodes[0], node("Neg", ["s"], ["y"])], {"x": ["N", 6]}, arrays).predict(x, device="reference")


def test_an_operator_of_ones_own() -> None:
    nodes = [
        helper.make_node("Scaled", ["x"], ["a"], name="first", domain="com.example", factor=3.0),
        node("Frobnicate", ["a"], ["y"], name="last"),
    ]
    model = model_of(nodes, {"x": ["N", 2]})
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(
        UnsupportedOpError, match=r"not imported: com\.example\.Scaled \(node 'first'.*; Frobnicate \(node 'last'"
    ) as e:
        ws.from_onnx(model.SerializeToString())
    assert '@ws.onnx_op("Scaled", domain="com.example")' in str(e.value)

    @ws.onnx_op("Scaled", domain="com.example")
    def scaled(x: ws.Tensor, *, factor: float = 1.0) -> ws.Tensor:
        return x * factor

    @ws.onnx_op("Frobnicate")
    def frobnicate(x: ws.Tensor) -> ws.Tensor:
        return x + 1.0

    net = ws.from_onnx(model.SerializeToString())
    np.testing.assert_allclose(net.predict(np.ones((1, 2), np.float32), device="reference"), [[4.0, 4.0]])
    model.graph.node[0].attribute[0].name = "unknown"
    with pytest.raises(
        UsageError, match=r"node 'first' \(com.example.Scaled\): its attribute 'unknown' is not supported"
    ):
        ws.from_onnx(model.SerializeToString()).predict(np.ones((1, 2), np.float32), device="reference")
    with pytest.raises(UsageError, match=r"takes the names of operators"):
        ws.onnx_op()


def test_control_flow_is_refused_by_name_unless_it_is_known() -> None:
    def branch(name: str, op: str) -> Any:
        return helper.make_graph(
            [node(op, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )

    chosen = node("If", ["c"], ["y"], name="fork", then_branch=branch("p", "Neg"), else_branch=branch("q", "Abs"))
    x = np.array([[1.0, -2.0]], np.float32)
    known = network_of([chosen], {"x": ["N", 2]}, {"c": np.asarray(True)})
    np.testing.assert_allclose(known.predict(x, device="reference"), -x)
    compared = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "zero"], ["c"]), chosen]
    with pytest.raises(
        UsageError, match=r"node 'fork' \(If\): the condition of If depends on data, which is not supported"
    ):
        network_of(compared, {"x": ["N", 2]}, {"zero": np.float32(0).reshape(())}).predict(x)
    body = helper.make_graph([node("Identity", ["c"], ["d"])], "b", [], [])
    with pytest.raises(
        UnsupportedOpError, match=r"Loop .*runs as often as data says; a loop over the slices of a sequence is Scan"
    ):
        network_of([node("Loop", ["", "", "x"], ["y"], body=body)], {"x": ["N", 2]})


def test_what_a_file_cannot_mean_is_said() -> None:
    reshape = [node("Reshape", ["x", "shape"], ["y"], name="r")]
    with pytest.raises(UsageError, match=r"node 'r' \(Reshape\): its input 'shape' depends on data"):
        network_of([node("Cast", ["x"], ["shape"], to=7), *reshape], {"x": [2]}).predict(np.ones(2, np.float32))
    odd = network_of(reshape, {"x": ["N", 3]}, {"shape": np.array([-1, 2])})
    with pytest.raises(ShapeError, match=r"ONNX node 'r' \(Reshape\): .*not divisible by"):
        odd.predict(np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match=r"ONNX opset 11; 13 to 28 are read.*convert_version"):
        network_of([node("Neg", ["x"], ["y"])], {"x": [2]}, opset=11)
    with pytest.raises(CheckpointError, match=r"node 'y' \(Neg\) reads 'z', which no node computes"):
        network_of([node("Neg", ["z"], ["y"])], {"x": [2]})
    with pytest.raises(TypeError, match="'x' of these bytes is of int8; supported: "):
        network_of([node("Neg", ["x"], ["y"])], {"x": [2]}, kind=TensorProto.INT8)
    with pytest.raises(UsageError, match="takes the path or the bytes of an ONNX file; received int"):
        ws.from_onnx(3)


def test_files_that_lack_or_exceed_something_are_refused() -> None:
    x = {"x": ["N", 2, 3, 3]}
    spec = ws.Spec(("batch", 2, 3, 3))
    for text, nodes in {
        "its attribute 'kernel_shape' is missing": [node("MaxPool", ["x"], ["y"])],
        "its input is missing": [node("Shape", [""], ["s"]), node("Reshape", ["x", "s"], ["y"])],
        "it needs 2 inputs": [node("Add", ["x"], ["y"])],
        "it takes at most 1 inputs": [node("Neg", ["x", "x"], ["y"])],
        "windows of 1000000 x 3 elements; at most": [node("LpPool", ["x"], ["y"], kernel_shape=[10**6, 3])],
        "LRN over 1000000 of 2 channels": [node("LRN", ["x"], ["y"], size=10**6)],
    }.items():
        net = network_of(nodes, x)
        with pytest.raises(WholestepError, match=text):
            net.summary(spec)


def test_damaged_files_are_refused_or_read_never_worse() -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Reshape", ["a", "shape"], ["c"]),
        node("Gemm", ["c", "v"], ["y"], transB=1),
    ]
    arrays = {"w": floats(2, 1, 3, 3), "b": floats(2), "shape": np.array([0, -1]), "v": floats(3, 18)}
    whole = model_of(nodes, {"x": ["N", 1, 3, 3]}, arrays).SerializeToString()
    draw, refused = np.random.default_rng(3), 0
    for attempt in range(120):
        if attempt < 40:
            data = whole[: draw.integers(1, len(whole))]
        else:
            damaged = bytearray(whole)
            for place in draw.integers(0, len(whole), 3):
                damaged[place] = draw.integers(0, 256)
            data = bytes(damaged)
        try:
            ws.from_onnx(data).summary(ws.Spec(("batch", 1, 3, 3)))
        except WholestepError:
            refused += 1
    assert refused > 80
    with pytest.raises(CheckpointError, match="these bytes is not a complete ONNX file"):
        ws.from_onnx(b"PK\x03\x04 no network at all")
    with pytest.raises(CheckpointError, match=r"there is no file missing\.onnx"):
        ws.from_onnx("missing.onnx")


def test_absurd_shapes_and_wrong_second_files(tmp_path: Path) -> None:
    model = model_of([node("Add", ["x", "w"], ["y"])], {"x": ["N", 2]}, {"w": floats(2)})
    model.graph.initializer[0].dims[:] = [2**50, 2**50]
    with pytest.raises(CheckpointError, match=r"'w' of these bytes has the invalid shape"):
        ws.from_onnx(model.SerializeToString())
    model.graph.initializer[0].dims[:] = [3]
    with pytest.raises(CheckpointError, match="these bytes is not a valid ONNX file"):
        ws.from_onnx(model.SerializeToString())
    path, data = tmp_path / "net.onnx", tmp_path / "net.onnx.data"
    good = model_of([node("Add", ["x", "w"], ["y"])], {"x": ["N", 2]}, {"w": floats(2)})
    onnx.save_model(good, str(path), save_as_external_data=True, location=data.name, size_threshold=0)
    assert list(ws.from_onnx(path).state_dict()) == ["w"]
    with pytest.raises(CheckpointError, match=r"'w' is stored in another file, 'net\.onnx\.data': give the path"):
        ws.from_onnx(path.read_bytes())
    data.write_bytes(data.read_bytes()[:5])
    with pytest.raises(CheckpointError, match=r"'w' of .* takes 8 bytes; net\.onnx\.data has 5"):
        ws.from_onnx(path)
    data.unlink()
    with pytest.raises(CheckpointError, match="and there is no such file"):
        ws.from_onnx(path)
    for entry in good.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../elsewhere"
    path.write_bytes(good.SerializeToString())
    with pytest.raises(CheckpointError, match=r"is stored at '\.\./elsewhere', outside of the file's own folder"):
        ws.from_onnx(path)


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (lambda: ws.from_onnx(b""), lambda: ws.export_onnx(ws.nn.Linear(1, 1), "net.onnx")):
        with pytest.raises(UsageError, match=r'pip install "wholestep\[onnx\]"'):
            call()
