"""Networks built one after the other have different initial weights, unless a seed is given; copies have equal ones."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import OptionError
from wholestep.steps.states import agree_on_network, network_of

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 4)).astype(np.float32), RNG.integers(0, 3, 24).astype(np.int32)


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(4, 5), ws.nn.Tanh(), ws.nn.Linear(5, 3))


def fit(model: ws.nn.Module | None = None, **options: Any) -> np.ndarray[Any, Any]:
    model = model or mlp()
    ws.fit(model, (X, Y), loss="cross_entropy", progress=False, **options)
    found: np.ndarray[Any, Any] = model.predict(X)
    return found


def weight_of(model: ws.nn.Module) -> bytes:
    return model.state_dict()["0.weight"].tobytes()


# -- one after the other ---------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[], Any]] = {
    "state_dict": lambda: mlp().state_dict()["0.weight"],
    "predict": lambda: mlp().predict(X),
    "fit": fit,
    "evaluate": lambda: np.array(mlp().evaluate(X, Y, loss="cross_entropy")["loss"]),
    "a session": lambda: ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 4)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8
    ).get("0.weight"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_networks_start_differently(way: str) -> None:
    first, second = WAYS[way](), WAYS[way]()
    assert not np.array_equal(first, second)
    ws.manual_seed(0)
    np.testing.assert_array_equal(WAYS[way](), first)
    np.testing.assert_array_equal(WAYS[way](), second)


def test_an_ensemble_is_better_than_its_members() -> None:
    """Of three networks fitted alike each predicts something else, so that their mean has less variance."""
    members = [fit(epochs=3) for _ in range(3)]
    assert len({m.tobytes() for m in members}) == 3
    centre = np.mean(members, axis=0)
    assert all(np.abs(m - centre).max() > 1e-3 for m in members)


def test_a_script_that_is_run_twice_has_the_same_bits() -> None:
    script = """if True:
        import wholestep as ws
        for net in (ws.nn.Linear(3, 3), ws.nn.Linear(3, 3)):
            print(net.state_dict()["weight"].tobytes().hex())
    """
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in "ab"]
    lines = runs[0].stdout.split()
    assert runs[1].stdout.split() == lines
    assert lines[0] != lines[1]
    here = [ws.nn.Linear(3, 3).state_dict()["weight"].tobytes().hex() for _ in "ab"]
    assert here == lines


def test_other_networks_compile_nothing() -> None:
    """The number of a network is no part of its plan."""
    spec = {"inputs": ws.Spec(("batch", 4)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    first, _ = ws.build_session_with_report(mlp(), **spec, batch_size=8)
    second, report = ws.build_session_with_report(mlp(), **spec, batch_size=8)
    assert report.cached
    assert second.source == first.source
    assert not np.array_equal(first.get("0.weight"), second.get("0.weight"))


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_network_whenever_it_is_built() -> None:
    first = fit(seed=3)
    fit()
    mlp().predict(X)
    np.testing.assert_array_equal(fit(seed=3), first)
    assert not np.array_equal(fit(seed=4), first)


def test_the_first_network_of_a_process_has_seed_0() -> None:
    np.testing.assert_array_equal(fit(), fit(seed=0))


def test_manual_seed_is_that_of_everything_that_is_given_none() -> None:
    ws.manual_seed(5)
    first, second = fit(), fit()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(fit(seed=5), first)  # weights, order of rows
    ws.manual_seed(5)
    np.testing.assert_array_equal(fit(), first)
    for wrong in (-1, 2**64, 1.0, "5", True, None):
        with pytest.raises(OptionError, match=r"seed=.*: expected an integer from 0 to 2\*\*64 - 1"):
            ws.manual_seed(wrong)  # type: ignore[arg-type]


def test_a_seed_of_an_inference_session() -> None:
    spec, found = ws.Spec(("batch", 4)), []
    for _ in "ab":
        session = ws.build_inference_session(mlp(), inputs=spec, batch_size=32, seed=9)
        found.append(np.asarray(session.step(x=X)["output"]))
    np.testing.assert_array_equal(found[0], found[1])


# -- copies ----------------------------------------------------------------------------------------------------------


def pickled(model: ws.nn.Module) -> ws.nn.Module:
    found: ws.nn.Module = pickle.loads(pickle.dumps(model))  # noqa: S301
    return found


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("first", ["the model", "its copy"])
def test_a_copy_of_a_network_that_was_not_used_starts_as_it_does(first: str, copied: Any) -> None:
    mlp().predict(X)
    model = mlp()
    other = copied(model)
    pair = (model, other) if first == "the model" else (other, model)
    assert len({weight_of(m) for m in (*pair, copied(model))}) == 1
    assert weight_of(mlp()) != weight_of(model)


def test_a_seed_is_the_seed_of_a_copy_too() -> None:
    expected = fit(mlp(), seed=7)
    model = mlp()
    np.testing.assert_array_equal(fit(copy.deepcopy(model), seed=7), expected)
    np.testing.assert_array_equal(fit(model, seed=7), expected)


def test_a_target_network_in_a_step_starts_as_the_one_it_was_copied_from() -> None:
    online = ws.nn.Linear(4, 3)
    target = copy.deepcopy(online)
    both = ws.nn.Sequential(online, ws.nn.Linear(3, 2))

    @ws.step(inputs={"x": ws.Spec(("batch", 4))})
    def step(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        loss = ((both[0](x) - ws.stop_gradient(target(x))) ** 2).mean() + (both(x) ** 2).mean() * 0.0
        ws.SGD(lr=0.1).update(g, both.traced(g), ws.gradients(loss, both))
        return loss

    assert float(ws.build_session(step, batch_size=24).step(x=X)) == 0.0


def test_folds_begin_with_the_same_weights() -> None:
    found = ws.cross_validate(mlp(), (X, Y), loss="cross_entropy", folds=3, optimizer=ws.SGD(lr=0.0), progress=False)
    assert len({weight_of(m) for m in found.models}) == 1


def test_the_rate_is_looked_for_from_the_weights_that_are_trained() -> None:
    model = mlp()
    ws.find_lr(model, (X, Y), loss="cross_entropy", steps=20)
    found = fit(model)
    ws.manual_seed(0)
    np.testing.assert_array_equal(fit(), found)


def test_layers_of_a_stack_are_drawn_independently() -> None:
    stack = ws.nn.TransformerEncoder(ws.nn.TransformerEncoderLayer(4, 2, 8), 2)
    values = stack.state_dict()
    assert not np.array_equal(values["layers.0.linear1.weight"], values["layers.1.linear1.weight"])
    session = ws.build_inference_session(
        ws.nn.TransformerEncoder(ws.nn.TransformerEncoderLayer(4, 2, 8), 2),
        inputs=ws.Spec(("batch", 3, 4)), batch_size=2, seed=0,
    )  # fmt: skip
    np.testing.assert_array_equal(session.get("layers.1.linear1.weight"), values["layers.1.linear1.weight"])


# -- what takes no number --------------------------------------------------------------------------------------------


def estimate(state: int) -> Any:
    from wholestep.sklearn import Classifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        return Classifier((4,), max_iter=3, random_state=state).fit(X, Y).predict_proba(X)


def test_networks_with_weights_of_their_own_do_not_shift_the_others() -> None:
    expected = weight_of(mlp())
    ws.manual_seed(0)
    loaded = mlp()
    loaded.load_state_dict({name: np.ones(p.shape, np.float32) for name, p in loaded.named_arrays().items()})
    ws.nn.Sequential(ws.nn.BatchNorm1d(4)).predict(X)
    print(mlp().summary(ws.Spec(("batch", 4))))
    fit(seed=1)
    estimate(0)
    assert weight_of(mlp()) == expected


def test_estimators_follow_their_random_state() -> None:
    first = estimate(1)
    fit()
    np.testing.assert_array_equal(estimate(1), first)
    assert not np.array_equal(estimate(2), first)


# -- ranks -----------------------------------------------------------------------------------------------------------


class Ranks:
    """What one rank sees of a group whose other ranks have sent something."""

    def __init__(self, *others: str) -> None:
        self.others = [text.encode() for text in others]

    def gather(self, data: bytes) -> Sequence[bytes]:
        return [*self.others, data]


def test_ranks_agree_on_the_number_of_a_network() -> None:
    mlp().predict(X)  # here one network was drawn
    state = State()
    agree_on_network(state, Ranks("-1 4"))  # type: ignore[arg-type]
    assert state.network == 4  # on rank 0 there were four
    assert network_of(State()) == 5
    state = State()
    agree_on_network(state, Ranks("2 9"))  # type: ignore[arg-type]
    assert state.network == 2  # rank 0 has drawn this one before
    assert network_of(State()) == 9
