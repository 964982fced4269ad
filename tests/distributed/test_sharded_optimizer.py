"""`shard="optimizer"`: each rank holds a part of the optimizer's state and updates its part of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.ir.state_partition import shard_shape
from wholestep.compiler.runtime.state.partitioned_state import Parts
from wholestep.errors import GraphError, LimitError, OptionError, UsageError

ROWS = 29  # in batches of 8: the last one has 5, which 2, 3 and 4 ranks divide unevenly
RNG = np.random.default_rng(7)
IMAGES = RNG.standard_normal((ROWS, 3, 6, 6)).astype(np.float32)
VECTORS = RNG.standard_normal((ROWS, 12)).astype(np.float32)
LABELS = RNG.integers(0, 4, ROWS).astype(np.int32)
TOKENS = RNG.integers(0, 40, (ROWS, 7)).astype(np.int32)
ABOUT: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 12)),
    "targets": ws.Spec(("batch",), "int32"),
    "loss": "cross_entropy",
    "optimizer": "adam",
    "batch_size": 16,
}


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(12, 64), ws.nn.ReLU(), ws.nn.Linear(64, 4))


def convolutions() -> ws.nn.Module:
    return ws.nn.Sequential(
        ws.nn.Conv2d(3, 10, 3, padding=1), ws.nn.BatchNorm2d(10), ws.nn.ReLU(), ws.nn.Flatten(), ws.nn.Linear(360, 4)
    )


def transformer() -> ws.nn.Module:
    return ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=40, context=6)


def trained(make: Callable[[], ws.nn.Module], data: Any, **settings: Any) -> dict[str, np.ndarray]:
    model = make()
    told = {"epochs": 2, "batch_size": 8, "seed": 3, "progress": False, "loss": "cross_entropy", "options": quick()}
    ws.fit(model, data, **{**told, **settings})
    return {name: np.asarray(array) for name, array in model.state_dict().items()}


CASES: dict[str, tuple[int, Callable[[], ws.nn.Module], Any, dict[str, Any]]] = {
    "batch norm, momentum": (3, convolutions, (IMAGES, LABELS), {"optimizer": ws.SGD(lr=0.05, momentum=0.9)}),
    "tied weights, AdamW": (2, transformer, (TOKENS[:, :-1], TOKENS[:, 1:]), {"optimizer": ws.AdamW(lr=1e-2)}),
    "micro-batches": (2, perceptron, (VECTORS, LABELS), {"accumulate": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_weights_have_the_bits_of_the_run_that_divides_nothing(case: str) -> None:
    shards, make, data, settings = CASES[case]
    whole = trained(make, data, shards=shards, **settings)
    divided = trained(make, data, shards=shards, shard="optimizer", **settings)
    assert {name: a.tobytes() for name, a in divided.items()} == {name: a.tobytes() for name, a in whole.items()}


def test_a_norm_over_all_gradients_is_added_up_over_parts(tmp_path: Path) -> None:
    """The order of that sum differs; what is refused is refused by all, and the plan is what its trace means."""
    told = {"clip_norm": 0.1, "nonfinite": "skip", "optimizer": ws.AdamW(lr=1e-2)}
    whole = trained(perceptron, (VECTORS, LABELS), **told)
    checked = replace(quick(), verify=True, cache_dir=tmp_path)
    divided = trained(perceptron, (VECTORS, LABELS), shards=4, shard="optimizer", **told, options=checked)
    for name, array in whole.items():
        np.testing.assert_allclose(divided[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


# -- what a state is -----------------------------------------------------------------------------------------------


def session(**where: Any) -> ws.Session:
    return ws.build_session(perceptron(), **ABOUT, seed=3, options=quick(), **where)


def step(session: ws.Session, first: int = 0) -> None:
    session.step(x=VECTORS[first : first + 13], labels=LABELS[first : first + 13])


@pytest.fixture(scope="module")
def plain() -> ws.Session:
    made = session(shards=3)
    step(made)
    return made


def test_states_are_seen_whole_and_go_to_other_numbers_of_ranks(plain: ws.Session) -> None:
    divided = session(shards=3, shard="optimizer")
    step(divided)
    for name in plain.state.names:
        np.testing.assert_array_equal(divided.get(name), plain.get(name), err_msg=name)
    held = divided.state.slot("2.weight.adam.m").newest
    assert isinstance(held, Parts)
    assert [part.read().shape for part in held.of.values()] == [(22, 4)] * 3  # 64 rows by columns, and 2 that fill up
    saved = divided.state_dict()
    assert {name: a.shape for name, a in saved.items()} == {n: a.shape for n, a in plain.state_dict().items()}
    other = session(shards=2, shard="optimizer")
    other.load_state_dict(saved)
    for one in (plain, divided, other):
        step(one, 13)
    for name in plain.state.names:
        np.testing.assert_array_equal(divided.get(name), plain.get(name), err_msg=name)
        np.testing.assert_allclose(other.get(name), plain.get(name), rtol=1e-5, atol=1e-7, err_msg=name)
    divided.set("0.weight.adam.m", np.full((64, 12), 2.0, np.float32))
    assert (divided.get("0.weight.adam.m") == 2).all()
    divided.reset_optimizer()
    assert not divided.get("0.weight.adam.m").any()


def test_a_run_goes_on_with_another_number_of_ranks_and_without(tmp_path: Path) -> None:
    told = {"optimizer": ws.AdamW(lr=1e-2), "epochs": 1, "checkpoint": tmp_path}
    trained(perceptron, (VECTORS, LABELS), shards=2, shard="optimizer", **told)
    on = {"optimizer": ws.AdamW(lr=1e-2), "epochs": 2}
    unbroken = trained(perceptron, (VECTORS, LABELS), shards=2, shard="optimizer", **on)
    again = trained(perceptron, (VECTORS, LABELS), shards=2, shard="optimizer", resume=tmp_path, exact=True, **on)
    alone = trained(perceptron, (VECTORS, LABELS), resume=tmp_path, **on)
    for name, array in unbroken.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
        np.testing.assert_allclose(alone[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "by_columns", "ranks", "part"),
    [
        ((64, 12), False, 4, (16, 12)),
        ((64, 12), True, 4, (3, 64)),
        ((100, 3), False, 3, (34, 3)),  # enough rows: two fill up the last part
        ((7, 90), False, 4, (158,)),  # element by element
        ((10, 3, 3, 3), False, 4, (68,)),
    ],
)
def test_a_part_is_some_rows_or_some_elements(
    shape: tuple[int, ...], by_columns: bool, ranks: int, part: tuple[int, ...]
) -> None:
    assert shard_shape(shape, by_columns, ranks) == part


# -- what it takes, before it runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_needs_its_part_of_the_bytes_and_sends_as_many(ranks: int) -> None:
    whole = ws.estimate(perceptron(), workers=ranks, threads=1, **ABOUT)
    divided = ws.estimate(perceptron(), workers=ranks, threads=1, shard="optimizer", **ABOUT)
    weights = 2 * 4 * (64 * 12 + 64 * 4)  # Adam's m and v; biases are too small to divide
    assert (whole.footprint.parts, divided.footprint.parts) == (0, weights // ranks)
    assert divided.footprint.state < whole.footprint.state - weights + 1
    assert divided.wire_bytes == whole.wire_bytes
    kinds = [e.collective for e in divided.exchanges]
    assert sorted(kinds) == ["all_gather", "all_reduce", "reduce_scatter"]
    sizes = {e.collective: e.bytes for e in divided.exchanges}
    assert sizes["reduce_scatter"] == sizes["all_gather"] == 4 * (64 * 12 + 64 * 4)
    assert f"parts {weights // ranks:,}".split() in [line.split() for line in str(divided).splitlines()]


@pytest.mark.long
def test_values_are_made_again_where_a_limit_of_memory_asks_for_it() -> None:
    """Of one rank's step: a batch that is divided already is not cut into micro-batches to keep the limit."""

    def session(**more: Any) -> ws.Session:
        model, spec = (
            ws.models.gpt2(layers=3, width=32, heads=2, vocabulary=64, context=16),
            ws.Spec(("batch", 16), "int32"),
        )
        about = {**ABOUT, "inputs": spec, "targets": spec, "batch_size": 64, "threads": 1, "seed": 3}
        return ws.build_session(model, **about, shards=2, shard="optimizer", options=quick(), **more)

    tokens = np.random.default_rng(1).integers(0, 64, (64, 16)).astype(np.int32)
    free, limited = session(), session(memory=0.9)
    for one in (free, limited):
        for _ in range(2):
            one.step(x=tokens, labels=tokens)
    assert "values recomputed" in limited.plan.notes[-1]
    assert limited.report().peak_bytes <= 0.9 * free.report().peak_bytes
    for name in free.state.names:
        np.testing.assert_allclose(limited.get(name), free.get(name), rtol=1e-4, atol=1e-5, err_msg=name)
    with pytest.raises(LimitError, match=r"a step takes at least .* bytes .* without recomputation"):
        session(memory=1)


# -- what cannot be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"shards": 2, "shard": "weights"}, OptionError, "shard='weights': expected 'optimizer', or None"),
        ({"shard": "optimizer"}, OptionError, "divides among workers, and there are none: give shards=4"),
        (
            {"shards": 2, "shard": "optimizer", "device": "reference"},
            OptionError,
            "run on its CPU or on one GPU; device='reference' has none. Train with device='cpu' or device='cuda'",
        ),
        (
            {"shards": 2, "shard": "optimizer", "optimizer": ws.SGD(lr=0.1)},
            UsageError,
            "this optimizer has none for its weights. Leave shard= out, or train with momentum, Adam",
        ),
        (
            {"shards": 2, "shard": "optimizer", "optimizer": "adafactor"},
            GraphError,
            "an elementwise update, and none of '0.weight.adafactor.rows', .* Train with SGD and momentum, Adam",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ws.build_session(perceptron(), **{**ABOUT, "device": "null", **given})
