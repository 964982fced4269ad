"""Half types for users: casts, promotion, states and files, and where they are refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file as save_with_torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.errors import DTypeError, UsageError

HALVES = ("bfloat16", "float16")
RNG = np.random.default_rng(0)


def to_torch(half: str) -> torch.dtype:
    return getattr(torch, half)


# -- promotion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("b", [*HALVES, "float32", "float64"])
def test_half_types_promote_as_in_torch(a: str, b: str):
    g = ws.Graph()
    x, y = g.input("x", (3,), a), g.input("y", (3,), b)
    expected = torch.promote_types(to_torch(a), to_torch(b))
    if {a, b} == {"float32", "float64"}:
        with pytest.raises(DTypeError, match="dtypes are never mixed silently"):
            x + y
        return
    assert f"torch.{(x + y).dtype}" == f"torch.{ws.where(x > y, x, y).dtype}" == str(expected)
    assert f"torch.{(x.reshape(1, 3) @ y).dtype}" == str(expected)


@pytest.mark.parametrize("half", HALVES)
def test_numbers_adopt_a_half_type_and_integer_tensors_do_not_mix(half: str):
    g = ws.Graph()
    x = g.input("x", (3,), half)
    for y in (x + 1, 2.5 * x, x / ws.size("batch"), x * g.scalar("s", 2.0), -x, x.sum(), x.mean(), x.max(), ws.exp(x)):
        assert y.dtype.name == half
    assert ws.matmul(x.reshape(1, 3), x, dtype="float32").dtype.name == "float32"
    with pytest.raises(DTypeError, match="dtypes are never mixed silently"):
        x + g.input("i", (3,), "int32")


# -- random expressions ----------------------------------------------------------------------------------------------

UNARY = {"exp": torch.exp, "tanh": torch.tanh, "sqrt": torch.sqrt, "abs": torch.abs, "sigmoid": torch.sigmoid}


def expression(rng: np.random.Generator, half: str):
    """A chain over two half tensors, ours and torch's in turn; each op rounds once, in both."""
    g = ws.Graph()
    ours = [g.input("x", (4, 4), half), g.input("y", (4, 4), half)]
    arrays = {n: np.abs(rng.normal(size=(4, 4))).astype(np.float32) + 0.1 for n in "xy"}
    theirs = [torch.tensor(arrays[n]).to(to_torch(half)) for n in "xy"]
    for _ in range(6):
        kind, (i, j) = rng.integers(5), rng.integers(len(ours), size=2)
        a, b, ta, tb = ours[i], ours[j], theirs[i], theirs[j]
        if kind == 0:
            name = list(UNARY)[rng.integers(len(UNARY))]
            a, ta = abs(a), ta.abs()  # roots of what is not negative
            made = getattr(ws, name)(a), UNARY[name](ta)
        elif kind == 1:
            made = a + b, ta + tb
        elif kind == 2:
            made = a * b, ta * tb
        elif kind == 3:
            made = a @ b * 0.125, ta @ tb * 0.125
        else:
            made = ws.maximum(a, b.mean(0)), torch.maximum(ta, tb.mean(0).expand(4, 4))
        ours.append(made[0])
        theirs.append(made[1])
    ours.append(ours[0] + ours[1])
    theirs.append(theirs[0] + theirs[1])
    g.set_outputs([t.astype("float32") for t in ours[2:]])
    return g, arrays, theirs[2:]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("seed", range(12))
def test_random_expressions_in_half_beside_torch(seed: int, half: str):
    g, arrays, theirs = expression(np.random.default_rng(seed), half)
    found = interpret(g.to_ir(), inputs=arrays).outputs
    for value, wanted in zip(found.values(), theirs, strict=True):
        exact = wanted.double().numpy()
        # One or two units in the last place over six ops: torch's float32 may be on the other side of a tie.
        np.testing.assert_allclose(value, exact, rtol=8 * getattr(ws, half).eps, atol=1e-6)


@pytest.mark.parametrize("half", HALVES)
def test_a_compiled_program_has_the_interpreters_bits(half: str):
    g, arrays, _ = expression(np.random.default_rng(3), half)
    session = ws.build_inference_session(g, options=quick())
    result = session.step(**{n: a.astype(getattr(ws, half).numpy) for n, a in arrays.items()})
    for name, value in interpret(g.to_ir(), inputs=arrays).outputs.items():
        np.testing.assert_allclose(result[name], value, rtol=2 * getattr(ws, half).eps, atol=1e-6)


# -- states and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
def test_half_states_live_in_steps_and_checkpoints(half: str, tmp_path: Path):
    def session() -> ws.Session:
        g = ws.Graph()
        x, s, w = g.input("x", ("batch", 4)), g.state("s", (4,), 1.5, half), g.parameter("w", (4, 1))
        g.update(s, s + x.mean(0).astype(half))
        g.set_outputs([((x * s) @ w).mean()])
        return ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=2, options=quick())

    first, other = session(), session()
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    first.step(x=x)
    expected = (torch.full((4,), 1.5).to(to_torch(half)) + torch.tensor(x.mean(0)).to(to_torch(half))).float().numpy()
    assert first.get("s").dtype == getattr(ws, half).numpy
    np.testing.assert_array_equal(first.get("s").astype(np.float32), expected)
    ws.save_checkpoint(tmp_path / "checkpoint", first)
    ws.load_checkpoint(tmp_path / "checkpoint").restore(other)
    assert other.get("s").tobytes() == first.get("s").tobytes()
    assert first.step(x=x).loss == other.step(x=x).loss
    stored = {n: a for f in (tmp_path / "checkpoint").rglob("*.safetensors") for n, a in load_file(f).items()}
    assert stored["s"].dtype == getattr(ws, half).numpy


@pytest.mark.parametrize("half", HALVES)
def test_half_files_of_torch_are_read_exactly_and_half_buffers_are_written(half: str, tmp_path: Path):
    values = {"weight": torch.randn(3, 2).to(to_torch(half)), "bias": torch.randn(3).to(to_torch(half))}
    save_with_torch(values, tmp_path / "torch.safetensors")
    model = ws.nn.Linear(2, 3)
    model.load(tmp_path / "torch.safetensors")
    for name, tensor in values.items():  # every half number is a float32 number
        np.testing.assert_array_equal(model.state_dict()[name], tensor.float().numpy())
        assert model.state_dict()[name].dtype == np.float32
    model.load_state_dict(values)

    class Own(ws.nn.Module):
        def __init__(self) -> None:
            self.table = ws.nn.Buffer((4,), 0.1, dtype=half)

    own, again = Own(), Own()
    own.load_state_dict({"table": np.array([0.1, 1 / 3, 1000.0, 1.0], np.float32)})  # rounded to the nearest
    own.save(tmp_path / "own.safetensors")
    again.load(tmp_path / "own.safetensors")
    nearest = torch.tensor([0.1, 1 / 3, 1000.0, 1.0]).to(to_torch(half)).float().numpy()
    np.testing.assert_array_equal(again.state_dict()["table"].astype(np.float32), nearest)


def test_arrays_of_bfloat16_are_numbers():
    model = ws.nn.Sequential(ws.nn.Linear(4, 1))
    x = RNG.normal(size=(8, 4)).astype(ml_dtypes.bfloat16)
    found = model.predict(x)
    np.testing.assert_array_equal(found, model.predict(x.astype(np.float32)))


# -- where half types are refused --------------------------------------------------------------------------------


def test_half_types_are_refused_where_none_makes_sense():
    g = ws.Graph()
    scores, half = g.input("scores", ("batch", 4)), g.input("half", ("batch",), "bfloat16")
    with pytest.raises(DTypeError, match="class indices of an integer dtype; received bfloat16"):
        ws.losses.cross_entropy(scores, half)
    with pytest.raises(DTypeError, match="looks up integers"):
        ws.nn.Embedding(3, 4)(half)
    with pytest.raises(DTypeError, match=r"the parameter 'w' is bfloat16\[3\]; parameters and .*precision='bfloat16'"):
        g.parameter("w", (3,), dtype="bfloat16")
    with pytest.raises(DTypeError, match=r"model.astype\('float16'\); parameters and"):
        ws.nn.Linear(2, 3).astype("float16")
    with pytest.raises(DTypeError, match=r"a parameter of float16.*ws.nn.Buffer or g.state"):
        ws.nn.Linear(2, 3, dtype="float16")
    state = g.state("s", (3,), 0.0, "float16")
    with pytest.raises(DTypeError, match=r"an optimizer was given 's', float16\[3\]; parameters and"):
        ws.SGD(lr=0.1).update(g, [state], [state])
    with pytest.raises(UsageError, match="in_float32 takes a layer"):
        ws.nn.in_float32(scores)
    g.set_outputs([scores.astype("bfloat16").mean()])
    with pytest.raises(DTypeError, match=r"the loss is bfloat16.*logits.astype\('float32'\)"):
        ws.build_session(g, batch_size=2)
    with pytest.raises(DTypeError, match=r"'float8' is not a dtype .* bfloat16, float16"):
        scores.astype("float8")
