"""First values that a GPU draws: the bits that NumPy draws, for every kind of them."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from wholestep.compiler.backends.cuda.runtime import device_init
from wholestep.compiler.devices import device_named
from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.types import TensorType, float32, float64
from wholestep.options import CompileOptions

KINDS = [
    ws.init.normal(0.5, 0.02),
    ws.init.kaiming_normal(a=1.0),
    ws.init.uniform(0.0, 3.0),  # a quarter of its numbers are halfway between two floats
    ws.init.xavier_uniform(),
]
SHAPE = (61, 47)


@pytest.fixture(autouse=True)
def small_states_are_drawn(gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_init, "LEAST", 100)


def drawn(first: InitialValue) -> tuple[bool, np.ndarray]:
    """Did the GPU draw it, and what is there?"""
    device = device_named("cuda")
    memory = device.memory
    memory.drawing = lambda: device.draws(CompileOptions())
    _, held = memory.hold([TensorType((3,), float32), TensorType(first.shape, first.dtype)])
    return memory.draw(held, first), held.read()


@pytest.mark.parametrize("init", KINDS, ids=lambda init: init.kind)
def test_a_gpu_draws_numpys_bits(init: Initializer) -> None:
    first = InitialValue(init, SHAPE, float32, 2**63 + 5, "layer.weight")
    done, found = drawn(first)
    assert done
    np.testing.assert_array_equal(found.view(np.int32), first.array().view(np.int32))


def test_what_another_library_could_round_otherwise_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = InitialValue(ws.init.normal(std=0.02), SHAPE, float32, 1, "w")
    asked: list[int] = []
    normal = device_init.random.normal
    monkeypatch.setattr(device_init, "RELATIVE", 2.0**-27)
    monkeypatch.setattr(device_init.random, "normal", lambda *given: asked.append(given[-1]) or normal(*given) + 1.0)
    _, found = drawn(first)
    monkeypatch.setattr(device_init.random, "normal", normal)
    expected = first.array()
    assert 0.05 < len(asked) / expected.size < 0.4
    others = np.delete(np.arange(expected.size), asked)
    np.testing.assert_array_equal(found.ravel()[others], expected.ravel()[others])
    np.testing.assert_allclose(found.ravel()[asked], expected.ravel()[asked] + 0.02, rtol=1e-5)
    monkeypatch.setattr(device_init, "ROOM", len(asked) - 1)
    assert not drawn(first)[0], "more than there is room for: the host draws all"


def test_what_has_no_formula_or_is_no_float32_is_the_hosts() -> None:
    assert not drawn(InitialValue(ws.init.orthogonal(), (20, 20), float32, 0, "w"))[0]
    assert not drawn(InitialValue(ws.init.normal(), (20, 20), float64, 0, "w"))[0]


def test_a_model_begins_with_the_same_numbers_on_every_device() -> None:
    def numbers(device: str) -> dict[str, np.ndarray]:
        model = ws.nn.Sequential(ws.nn.Linear(20, 30), ws.nn.ReLU(), ws.nn.Linear(30, 2))
        kinds = {"inputs": ws.Spec(("batch", 20)), "targets": ws.Spec(("batch", 2)), "loss": "mse"}
        options = CompileOptions(verify=False, egraph=False)
        session = ws.build_session(model, **kinds, batch_size=4, seed=3, device=device, options=options)
        return {name: session.get(name) for name in session.state.names}

    here, there = numbers("reference"), numbers("cuda")
    assert here.keys() == there.keys()
    for name in here:
        np.testing.assert_array_equal(here[name], there[name])
