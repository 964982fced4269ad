"""One table of metrics, the same tests for each: scikit-learn, any cut into batches, merging, saving, in the step."""

from __future__ import annotations

import functools
import json
from itertools import pairwise

import numpy as np
import pytest

import wholestep as ws
from tests.metrics.cases import CASES, IN_STEP, NUMBERS, ROWS, case_data, expected
from tests.metrics.groups import LOWER_IS_BETTER, OF_IMAGES, OF_NUMBERS
from tests.support.compilers import judged_by_an_oracle
from wholestep import metrics as M
from wholestep.metrics.row_buffers import KeptRows
from wholestep.schedules.monitor_modes import mode_of_name

CUTS = [0, 1, 8, 9, 24, ROWS]


def batches(name: str, dtype: str = "float64"):
    p, t, w = case_data(name, dtype)
    for start, stop in pairwise(CUTS):
        yield p[start:stop], t[start:stop], None if w is None else w[start:stop]


def test_every_metric_is_in_the_table() -> None:
    exported = {name: getattr(M, name) for name in M.__all__}
    ours = {name for name, cls in exported.items() if isinstance(cls, type) and issubclass(cls, M.Metric)}
    made_by_users = {"Metric", "Function", "OverEpoch"}
    assert ours - made_by_users == {cls.__name__ for cls in M.METRICS.values()}, (
        "a metric is exported by wholestep/metrics/__init__.pyi and in METRICS of wholestep/metrics/table.py"
    )


def test_every_metric_of_the_table_has_a_case() -> None:
    kinds = {case.make().kind for case in CASES.values()}
    assert kinds == set(M.METRICS) - {"loss"}, "add a case to CASES of tests/metrics/cases.py"


def test_every_metric_of_the_table_says_what_it_reads() -> None:
    kinds = {case.make().kind for case in CASES.values() if case.data in NUMBERS}
    assert {*OF_NUMBERS, *OF_IMAGES} == kinds | {"loss"}, "correct OF_NUMBERS of tests/metrics/groups.py"


def test_every_metric_of_the_table_says_what_is_better() -> None:
    silent = [kind for kind, cls in M.METRICS.items() if "higher_is_better" not in cls.__dict__]
    assert silent == [], "define higher_is_better in the class, also if a base class does"
    better = {kind: cls.higher_is_better for kind, cls in M.METRICS.items()}
    none = dict.fromkeys(("confusion_matrix", "roc_curve", "pr_curve"))
    assert better == {kind: kind not in LOWER_IS_BETTER for kind in M.METRICS} | none, (
        "higher_is_better of the class, or LOWER_IS_BETTER of tests/metrics/groups.py, is wrong"
    )
    assert mode_of_name("val_variance") is None  # of which nobody says what is better
    for kind, up in better.items():
        assert mode_of_name(f"val_{kind}") == {True: "max", False: "min", None: None}[up]


@pytest.mark.parametrize("name", CASES)
def test_one_update_is_scikit_learn(name: str) -> None:
    metric = CASES[name].make()
    metric.update(*case_data(name))
    np.testing.assert_allclose(metric.compute(), expected(name), rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_many_updates_are_one_update(name: str) -> None:
    metric = CASES[name].make()
    for batch in batches(name):
        metric.update(*batch)
    np.testing.assert_allclose(metric.compute(), expected(name), rtol=1e-9)
    metric.reset()
    assert np.isnan(metric.compute())


@pytest.mark.parametrize("name", CASES)
def test_two_halves_merge(name: str) -> None:
    halves = CASES[name].make(), CASES[name].make()
    for i, batch in enumerate(batches(name)):
        halves[i % 2].update(*batch)
    halves[0].merge(halves[1])
    np.testing.assert_allclose(halves[0].compute(), expected(name), rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_saved_and_restored_mid_way_it_has_the_same_bits(name: str) -> None:
    straight, first = CASES[name].make(), CASES[name].make()
    for i, batch in enumerate(batches(name)):
        straight.update(*batch)
        if i == 2:
            second = M.Metric.from_config(json.loads(json.dumps(first.to_config())))
            second.load_state_dict(first.state_dict())
            first = second
        first.update(*batch)
    assert np.asarray(first.compute()).tobytes() == np.asarray(straight.compute()).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_descriptions_make_the_same_metric(name: str) -> None:
    metric = CASES[name].make()
    again = M.Metric.from_config(json.loads(json.dumps(metric.to_config())))
    assert type(again) is type(metric)
    assert again.to_config() == metric.to_config()


def test_nothing_is_known_before_the_first_update() -> None:
    for name, cls in M.METRICS.items():
        assert np.isnan(cls().compute()), name


def test_the_state_of_a_streaming_metric_stays_small() -> None:  # L03
    kept = [n for n, cls in M.METRICS.items() if issubclass(cls, KeptRows)]
    streaming = [M.get(n) for n in M.METRICS if n not in (*OF_NUMBERS, *OF_IMAGES, *kept)]
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(100):
        for metric in streaming:
            metric.update(rng.normal(size=(8, 6)), rng.integers(0, 6, 8))
        sizes.append(sum(v.nbytes for m in streaming for v in m.state_dict().values()))
    assert len(set(sizes)) == 1


# -- inside the step ---------------------------------------------------------------------------------------------


@functools.cache
def session(dtype: str, threads: int = 1) -> tuple[ws.Session, dict[str, M.Metric]]:
    """All cases in one program over a model that does nothing with them."""
    g = ws.Graph()
    made: dict[str, M.Metric] = {}
    for i, name in enumerate(IN_STEP):
        arrays = case_data(name, dtype)
        tensors = [
            None if a is None else g.input(f"{name}/{j}", ("batch", *a.shape[1:]), a.dtype)
            for j, a in enumerate(arrays)
        ]
        made[name] = metric = CASES[name].make()
        metric.name = f"m{i}"
        metric.record(g, *tensors)  # type: ignore[arg-type]
    g.set_outputs([g.input("x", ("batch",), dtype).mean() * g.parameter("w", (), init=1.0, dtype=dtype)])
    return ws.build_session(g, batch_size=16, threads=threads, options=judged_by_an_oracle(dtype)), made


def step_through(dtype: str, threads: int = 1) -> dict[str, dict[str, np.ndarray]]:
    """Every case's states after all batches, from 0."""
    running, made = session(dtype, threads)
    for name in running.state.names:
        if name.startswith("metrics."):
            running.set(name, np.zeros_like(running.get(name)))
    for parts in zip(*(list(batches(name, dtype)) for name in IN_STEP), strict=True):
        given = {
            f"{name}/{j}": a for name, arrays in zip(IN_STEP, parts) for j, a in enumerate(arrays) if a is not None
        }
        running.step({**given, "x": np.zeros(len(parts[0][0]), dtype)})
    states = {n: running.get(n) for n in running.state.names if n.startswith("metrics.")}
    return {name: metric.own(states) for name, metric in made.items()}


states_after = functools.cache(step_through)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", IN_STEP)
def test_inside_the_step_it_is_scikit_learn(name: str, dtype: str) -> None:
    result = CASES[name].make().result(states_after(dtype)[name])
    np.testing.assert_allclose(result, expected(name), rtol=1e-9 if dtype == "float64" else 5e-6)


@pytest.mark.parametrize("name", IN_STEP)
def test_counts_inside_the_step_are_those_on_arrays(name: str) -> None:
    metric = CASES[name].make()
    for batch in batches(name):
        metric.update(*batch)
    inside, outside = states_after("float64")[name], metric.state_dict()
    assert inside.keys() == outside.keys()
    for part, value in outside.items():
        assert inside[part].shape == value.shape
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(inside[part], value)
        else:
            np.testing.assert_allclose(inside[part], value, rtol=1e-11, atol=1e-13)


def test_a_result_from_zeros_is_nan() -> None:
    for name, states in states_after("float64").items():
        zeros = {part: np.zeros_like(value) for part, value in states.items()}
        assert np.isnan(CASES[name].make().result(zeros)), name


def test_the_loss_tracker_divides_once() -> None:  # I04, H08: rows count, not batches
    g = ws.Graph()
    y, labels = g.input("y", ("batch",)), g.input("labels", ("batch",), "int32")
    w = g.parameter("w", (), init=0.0)
    quotient = ws.losses.mse_loss(y * 1.0, w.expand(y.shape))
    M.LossTracker(name="quotient").record(g, quotient, labels)
    M.LossTracker(name="other").record(g, 2.0 * quotient, labels)
    g.set_outputs([quotient])
    running = ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=4)
    running.step(y=np.full(4, 1.0, np.float32), labels=np.zeros(4, np.int32))
    running.step(y=np.full(1, np.sqrt(2.0), np.float32), labels=np.zeros(1, np.int32))
    states = {n: running.get(n) for n in running.state.names if n.startswith("metrics.")}
    for name, factor in (("quotient", 1.0), ("other", 2.0)):
        tracker = M.LossTracker(name=name)
        np.testing.assert_allclose(tracker.result(tracker.own(states)), factor * 1.2, rtol=1e-6)
