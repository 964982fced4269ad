"""`device="reference"` as people use it: fit, resume, micro-batches, refused input, one model on two devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from tests.support.sessions import data, mlp
from wholestep.compiler.devices import target_named
from wholestep.compiler.runtime.cache.plan_cache import plan_key
from wholestep.errors import InputError, PlanError, UsageError
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]

UNCHECKED = ws.CompileOptions(verify=False)
NEAR = {"rtol": 2e-5, "atol": 2e-6}  # a few steps in float32, added up in different orders


def network() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(20, 17), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(17, 5))


def fit(
    device: str, epochs: int = 2, model: ws.nn.Module | None = None, **options: Any
) -> tuple[Any, dict[str, Array]]:
    """The history and the weights of a short run."""
    rows, net = data(43), model or network()
    history = ws.fit(
        net,
        (rows["x"], rows["labels"]),
        loss="cross_entropy",
        optimizer=ws.Adam(lr=1e-2),
        batch_size=8,
        epochs=epochs,
        device=device,
        progress=False,
        options=quick() if device == "cpu" else UNCHECKED,
        **options,
    )
    return history, net.state_dict()


def assert_near(got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, err_msg=name, **NEAR)


def test_fit_gives_the_cpus_history_and_weights() -> None:
    ours, weights = fit("reference", validation=0.2, metrics=["accuracy"], clip_norm=1.0)
    cpus, expected = fit("cpu", validation=0.2, metrics=["accuracy"], clip_norm=1.0)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(ours[name], cpus[name], rtol=1e-5)
    np.testing.assert_array_equal(ours["val_accuracy"], cpus["val_accuracy"])
    assert_near(weights, expected)


@pytest.mark.parametrize(("first", "then"), [("cpu", "reference"), ("reference", "cpu")])
def test_a_run_goes_on_from_a_checkpoint_on_the_other_device(first: str, then: str, tmp_path: Path) -> None:
    fit(first, epochs=1, checkpoint=tmp_path)
    history, weights = fit(then, epochs=3, checkpoint=tmp_path, resume=True)
    straight, expected = fit("cpu", epochs=3)
    np.testing.assert_allclose(history["loss"], straight["loss"], rtol=1e-5)
    assert_near(weights, expected)


def test_one_model_trains_on_both_devices_in_turn() -> None:
    """A state is one piece of memory, whichever device changes it."""

    def trained(devices: list[str]) -> tuple[list[float], dict[str, Array]]:
        graph = mlp()
        sessions = {
            d: ws.build_session(
                graph, optimizer=ws.Adam(lr=1e-2), batch_size=16, device=d, options=quick() if d == "cpu" else UNCHECKED
            )
            for d in dict.fromkeys(devices)
        }
        losses = [float(sessions[d].step(**data(13, seed=i))) for i, d in enumerate(devices)]
        state = sessions[devices[-1]].state_dict()
        return losses, {name: value for name, value in state.items() if not name.startswith("session/")}

    losses, state = trained(["cpu", "reference", "cpu", "reference", "cpu"])
    expected, other = trained(["cpu"] * 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_near(state, other)


def test_micro_batches_make_the_step_of_the_large_batch() -> None:
    def trained(**sizes: int) -> tuple[float, dict[str, Array]]:
        session = ws.build_session(
            mlp(), optimizer=ws.SGD(lr=0.1), clip_norm=0.5, device="reference", options=UNCHECKED, **sizes
        )
        losses = [float(session.step(**data(rows, seed=rows))) for rows in (24, 19)]
        return losses[-1], session.state_dict()

    (loss, state), (expected, other) = trained(batch_size=8, accumulate=3), trained(batch_size=24)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_near({name: state[name] for name in other}, other)


def test_a_set_larger_than_the_batch_is_evaluated_and_run_in_parts() -> None:
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, device="reference", options=UNCHECKED)
    whole = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.1), batch_size=32, device="reference", options=UNCHECKED)
    rows = data(29)
    assert session.evaluate(**rows).loss == pytest.approx(float(whole.evaluate(**rows).loss), rel=1e-6)
    assert len(session.run(rows, epochs=2)) == 8
    assert session.state.step == 8


def test_a_step_that_is_not_finite_is_left_out() -> None:
    session = ws.build_session(
        mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, nonfinite="skip", device="reference", options=UNCHECKED
    )
    session.step(**data(8))
    before, bad = session.state_dict(), data(8)
    bad["x"][3, 4] = np.inf
    session.step(**bad)
    after = session.state_dict()
    assert session.skipped_steps == after.pop("nonfinite.skipped") == 1
    assert session.state.step == 1
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_an_index_out_of_range_is_refused_before_anything_changes() -> None:
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, device="reference", options=UNCHECKED)
    session.step(**data(8))
    before, bad = session.state_dict(), data(8)
    bad["labels"][2] = 5
    with pytest.raises(InputError, match="holds indices from 0 to 4; received 5 at position 2"):
        session.step(**bad)
    for name, value in session.state_dict().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_new_plan_is_checked_against_the_interpreter() -> None:
    options = ws.CompileOptions(verify=True, cache=False)
    session = ws.build_session(mlp(), optimizer=ws.AdamW(lr=1e-2), batch_size=8, device="reference", options=options)
    last = str(session.report()).splitlines()[-1]
    assert last.startswith("note: checked against the interpreter at batch=3 and batch=8: worst error")


def test_a_plan_is_kept_apart_from_the_cpus() -> None:
    """In the cache by its key, and in a file by its target: neither runs in the other's place."""
    graph = mlp()
    plans = {d: ws.compile_training_graph(graph, batch_size=8, device=d)[0] for d in ("reference", "cpu")}
    assert plans["reference"].target == "reference"
    assert plans["cpu"].target.startswith("cpu/")
    traced, options = train_graph(graph.copy(), ws.SGD()), ws.CompileOptions()
    keys = {plan_key(traced, {"batch": 8}, options, target_named(d)) for d in ("reference", "cpu", "null:reference")}
    assert len(keys) == 2
    for plan, other in (("reference", "cpu"), ("cpu", "reference")):
        with pytest.raises(PlanError, match=rf"the plan is for '{plan}[^']*' and cannot run on '{other}"):
            ws.Session(plans[plan], device=other)


def test_it_has_no_source_and_notes_no_times() -> None:
    session = ws.build_session(mlp(), batch_size=8, device="reference", options=UNCHECKED)
    with pytest.raises(UsageError, match="the device of 'reference' has no timers for kernels"):
        session.profile(**data(8))
    with pytest.raises(UsageError, match="interprets its plan and has no source"):
        _ = session.source
