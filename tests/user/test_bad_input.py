"""Whatever a user passes by mistake gets a clear error or works as documented, and nothing is lost."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import assert_same_bits, data, mlp
from wholestep.compiler.runtime.cache.content_store import CacheWarning
from wholestep.errors import (
    CompilerError,
    DTypeError,
    GradientError,
    GraphError,
    InputError,
    OptionError,
    ShapeError,
    UnknownNameError,
    UsageError,
)


@pytest.fixture(scope="module")
def session() -> ws.Session:
    return ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)


GOOD = data(16)
X, Y = GOOD["x"], GOOD["labels"]


def changed(array: np.ndarray, value: Any) -> np.ndarray:
    out = array.copy()
    out[3] = value
    return out


REFUSED = {
    "wrong width": ({"x": X[:, :19], "labels": Y}, ShapeError, r"'x' has shape \(batch, 20\).*received \(16, 19\)"),
    "wrong rank": ({"x": X[0], "labels": Y}, ShapeError, r"'x' has shape \(batch, 20\); received \(20,\)"),
    "rows that disagree": ({"x": X, "labels": Y[:9]}, ShapeError, r"batch=16 from the input 'x'.*received \(9,\)"),
    "integers for floats": (
        {"x": X.astype(int), "labels": Y},
        DTypeError,
        r"takes float32; received int64.*astype\('float32'\)",
    ),
    "floats for integers": (
        {"x": X, "labels": Y.astype(np.float32)},
        DTypeError,
        r"takes int32; received float32.*astype",
    ),
    "NaN labels": ({"x": X, "labels": np.full(16, np.nan)}, DTypeError, "takes int32; received float64"),
    "booleans for integers": ({"x": X, "labels": Y > 1}, DTypeError, "takes int32; received bool"),
    "complex numbers": (
        {"x": X.astype(complex), "labels": Y},
        DTypeError,
        "takes an array of numbers; received ndarray of dtype complex",
    ),
    "text": ({"x": "hello", "labels": Y}, DTypeError, "takes an array of numbers; received str"),
    "nothing": ({"x": None, "labels": Y}, DTypeError, "takes an array of numbers; received NoneType"),
    "an unknown input": (
        {"x": X, "labels": Y, "mask": Y},
        UnknownNameError,
        "no input named 'mask'; expected 'x', 'labels'",
    ),
    "a missing input": (
        {"x": X},
        UnknownNameError,
        "the input 'labels' is missing: expected 'x', 'labels'; received 'x'",
    ),
    "a label too large": (
        {"x": X, "labels": changed(Y, 5)},
        InputError,
        "indices from 0 to 4; received 5 at position 3",
    ),
    "a negative label": (
        {"x": X, "labels": changed(Y, -1)},
        InputError,
        "indices from 0 to 4; received -1 at position 3",
    ),
    "a wide label": ({"x": X, "labels": changed(Y.astype(np.int64), 2**40)}, InputError, "whose values are in"),
    "no rows": ({"x": X[:0], "labels": Y[:0]}, InputError, "'batch' is 0: a step needs at least one row"),
    "too many rows": (data(17), InputError, "'batch' is 17, but this session was built for at most 16.*batch_size=17"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("after_a_good_step", [False, True])
def test_a_step_refuses(session: ws.Session, case: str, after_a_good_step: bool) -> None:
    inputs, kind, text = REFUSED[case]
    if after_a_good_step:
        session.step(**GOOD)  # the quick path compares with the last shapes
    before = session.state_dict()
    with pytest.raises(kind, match=text):
        session.step(**inputs)
    assert_same_bits(session.state_dict(), before)


@pytest.mark.parametrize("case", [c for c in REFUSED if c != "too many rows"])
def test_a_run_refuses_before_it_writes_anything(session: ws.Session, case: str) -> None:
    inputs, kind, text = REFUSED[case]
    text = "0 rows" if case == "no rows" else "different numbers of rows" if case == "rows that disagree" else text
    before = session.state_dict()
    with pytest.raises(kind, match=text.replace("batch=16 from the input 'x'.*", "")):
        session.run(**inputs)
    assert_same_bits(session.state_dict(), before)


def losses_of(*batches: dict[str, Any]) -> list[float]:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    return [session.step(**b).loss for b in batches]


def read_only(array: np.ndarray) -> np.ndarray:
    out = array.copy()
    out.flags.writeable = False
    return out


def misaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    out = raw[1:].view(array.dtype).reshape(array.shape)
    out[:] = array
    return out


ACCEPTED = {
    "read-only": {"x": read_only(X), "labels": read_only(Y)},
    "Fortran order": {"x": np.asfortranarray(X), "labels": Y},
    "every second row": {"x": np.repeat(X, 2, axis=0)[::2], "labels": np.repeat(Y, 2)[::2]},
    "negative strides": {"x": X[:, ::-1].copy()[:, ::-1], "labels": Y},
    "misaligned": {"x": misaligned(X), "labels": misaligned(Y)},
    "other byte order": {"x": X.astype(">f4"), "labels": Y.astype(">i4")},
    "int64 labels": {"x": X, "labels": Y.astype(np.int64)},
    "uint8 labels": {"x": X, "labels": Y.astype(np.uint8)},
    "float64": {"x": X.astype(np.float64), "labels": Y},
    "lists": {"x": X.tolist(), "labels": Y.tolist()},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_step_accepts(case: str) -> None:
    inputs = ACCEPTED[case]
    originals = {k: np.array(v) for k, v in inputs.items()}
    assert losses_of(inputs, GOOD, inputs) == losses_of(GOOD, GOOD, GOOD)
    for name, value in originals.items():
        np.testing.assert_array_equal(inputs[name], value)


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_run_accepts(case: str) -> None:
    ours = ws.build_session(mlp(), batch_size=5).run(**ACCEPTED[case])
    assert ours.tolist() == ws.build_session(mlp(), batch_size=5).run(**GOOD).tolist()


def test_rounding_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    g = ws.Graph()
    x = g.input("rounded once", ("batch", 2))
    g.set_outputs([(x * g.parameter("w", (2,))).mean()])
    session = ws.build_session(g, batch_size=4)
    for _ in range(3):
        session.step({"rounded once": np.zeros((4, 2))})
    assert caplog.text.count("'rounded once': float64 is rounded to float32") == 1
    with caplog.at_level(logging.WARNING):
        session.step({"rounded once": np.zeros((4, 2), np.float16)})
    assert "float16" not in caplog.text


def test_a_result_is_not_changed_by_what_the_user_does_to_the_inputs_later() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    x = X.copy()
    result = session.step(x=x, labels=Y)
    expected = result["logits"]
    x[:] = 0
    np.testing.assert_array_equal(result["logits"], expected)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (np.zeros((20, 23), np.float32), ShapeError, r"'w1' has shape \(20, 24\); received \(20, 23\)"),
        (np.zeros((20, 24), int), DTypeError, "'w1' takes float32; received int64"),
        ("zeros", DTypeError, "'w1' takes an array of numbers"),
    ],
)
def test_set_refuses(session: ws.Session, value: object, kind: type[Exception], text: str) -> None:
    before = session.state_dict()
    with pytest.raises(kind, match=text):
        session.set("w1", value)
    assert_same_bits(session.state_dict(), before)


def test_unknown_names_are_listed(session: ws.Session) -> None:
    with pytest.raises(UnknownNameError, match="nothing named 'w9' to read; there are: 'w1'"):
        session.get("w9")
    with pytest.raises(UnknownNameError, match="no state named 'w9'; there are: 'w1'"):
        session.set("w9", X)
    with pytest.raises(UnknownNameError, match="no input named 'y'; expected 'x', 'labels'"):
        session.set_input("y", X)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({}, OptionError, "'batch' has no capacity.*batch_size=32"),
        ({"batch_size": 0}, OptionError, "integer of at least 1; received 0"),
        ({"batch_size": 4, "capacity": {"batch": 5}}, OptionError, "disagree"),
        ({"batch_size": 4, "capacity": {"time": 5}}, OptionError, "no symbolic dimension 'time'; it has: 'batch'"),
        ({"batch_size": 4, "threads": 0}, OptionError, "threads=0: expected an integer from 1"),
        ({"batch_size": 4, "device": "gpu"}, OptionError, "device='gpu': expected one of 'cpu'"),
        ({"batch_size": 4, "seed": -1}, OptionError, "seed=-1"),
        ({"batch_size": 4, "optimizer": "adma"}, UnknownNameError, "there is no optimizer 'adma'. Did you mean"),
        ({"batch_size": 4, "optimizer": 3}, UsageError, r"such as ws.Adam\(lr=1e-3\), or a name .*; received 3"),
    ],
)
def test_build_session_refuses(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        ws.build_session(mlp(), **arguments)


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes a ws.nn.Module, a ws.Graph or .*; received dict"):
        ws.build_session({})  # type: ignore[arg-type]


def test_a_parameter_that_cannot_reach_the_loss_is_named() -> None:
    g = mlp()
    g.parameter("forgotten", (3,))
    with pytest.raises(GradientError, match="does not depend on 'forgotten'"):
        ws.build_session(g, batch_size=4)


def test_a_dimension_that_no_input_has_is_named() -> None:
    g = ws.Graph()
    x = g.input("x", ("n", "n"))
    g.set_outputs([(x * g.parameter("w", ())).mean()])
    session = ws.build_session(g, capacity={"n": 3})
    with pytest.raises(ShapeError, match=r"received \(3, 2\), expected \(3, 3\)"):
        session.step(x=np.zeros((3, 2), np.float32))
    with pytest.raises(UsageError, match="also another axis"):
        session.run(x=np.zeros((3, 3), np.float32))


def test_a_fixed_batch_refuses_a_remainder() -> None:
    session = ws.build_session(mlp(batch=4))
    assert len(session.run(**data(8))) == 2
    with pytest.raises(InputError, match="10 rows, which is not a multiple of the program's fixed batch of 4"):
        session.run(**data(10))
    with pytest.raises(ShapeError, match="expected"):
        session.step(**data(3))
    with pytest.raises(OptionError, match="fixed batch of 4"):
        session.run(**data(8), batch_size=2)
    with pytest.raises(OptionError, match="batch_size=4: all sizes of this program are fixed"):
        ws.build_session(mlp(batch=4), batch_size=4)


def test_states_of_one_name_and_two_types_are_refused() -> None:
    graph = mlp()
    ws.build_session(graph, batch_size=4)
    from wholestep.compiler.ir.types import TensorType, float32
    from wholestep.steps.states import state_of

    with pytest.raises(GraphError, match="the state 'w1' is"):
        state_of(graph).add({"w1": TensorType((3,), float32)}, lambda _: np.zeros(3))


def test_a_compiler_that_is_not_there_is_named() -> None:
    with pytest.raises(CompilerError, match="'no-such-cc' was not found"):
        ws.build_session(mlp(), batch_size=4, options=ws.CompileOptions(compiler="no-such-cc"))


def test_a_damaged_cache_entry_is_made_again(tmp_path) -> None:
    options = ws.CompileOptions(cache_dir=str(tmp_path / "cache"))
    expected = ws.build_session(mlp(hidden=17), batch_size=4, options=options).step(**data(4)).loss
    entries = [f for f in (tmp_path / "cache").rglob("*") if f.suffix == ".plan"]
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-20])
    with pytest.warns(CacheWarning, match="is damaged"):
        session = ws.build_session(mlp(hidden=17), batch_size=4, options=options)
    assert session.step(**data(4)).loss == expected


def test_a_cache_folder_that_cannot_be_used_is_warned_about(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    options = ws.CompileOptions(cache_dir=str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="cannot be used"):
        session = ws.build_session(mlp(), batch_size=4, options=options)
    assert np.isfinite(session.step(**data(4)).loss)
