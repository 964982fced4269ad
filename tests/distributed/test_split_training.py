"""Training with layers divided among ranks, compiled: results equal undivided layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.distributed.scripts import split
from tests.distributed.support.ranks import launch
from tests.support.compilers import quick
from wholestep.compiler.plan.io.serialize import encode
from wholestep.compiler.runtime.state.partitioned_state import Parts
from wholestep.errors import OptionError
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in

nn = ws.nn
RNG = np.random.default_rng(3)


def fitted(network: str, **settings: Any) -> dict[str, np.ndarray]:
    model, _ = split.train(network, **settings)
    return {name: np.asarray(a) for name, a in model.state_dict().items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], atol: float = 2e-7) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=1e-5, atol=atol, err_msg=name)


CASES: dict[str, tuple[tuple[int, int], str, dict[str, Any]]] = {
    "gpt": ((2, 2), "gpt", {}),
    "micro-batches": ((1, 4), "perceptron", {"accumulate": 2}),
    "heads that share keys, and parts of parts": ((2, 2), "grouped", {"shard": "optimizer"}),
    "averages, and parts of parts": (
        (2, 2),
        "perceptron",
        {"optimizer": ws.optim.EMA(ws.SGD(lr=0.05, momentum=0.9), 0.9), "shard": "optimizer", "nonfinite": "skip"},
    ),
}


@pytest.mark.parametrize("settings", [{}, {"shard": "optimizer"}], ids=str)
def test_a_plan_of_a_grid_is_checked_with_rows_of_its_own(settings: dict[str, Any], tmp_path: Path) -> None:
    checked = replace(quick(), verify=True, cache_dir=tmp_path)
    session = ws.build_session(split.perceptron(), **ABOUT, shards=(2, 2), options=checked, **settings)
    assert "worst error" in str(session.report())
    assert np.isfinite(session.step(x=split.VECTORS[:8], labels=split.LABELS[:8]).loss)


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_that_of_whole_layers(case: str) -> None:
    """To 1e-6: products are added up over ranks, in another order."""
    grid, network, settings = CASES[case]
    whole, made = split.train(network, **{k: v for k, v in settings.items() if k != "shard"})
    parts, run = split.train(network, shards=grid, **settings)
    same(whole.state_dict(), parts.state_dict())
    np.testing.assert_allclose(run["val_loss"], made["val_loss"], rtol=1e-5)


def by_adamw(dtype: str, folder: Path, **settings: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Two epochs of a GPT-2: its weights, and the root of the mean square of each gradient of c_attn's bias."""
    model, folder = split.gpt(dtype=dtype), folder / f"{dtype}{settings}"
    told = {"optimizer": ws.AdamW(lr=1e-2), "epochs": 2, "batch_size": 8, "seed": 3, "checkpoint": folder}
    data = split.NETWORKS["gpt"][1]
    ws.fit(model, data, loss="cross_entropy", progress=False, options=quick(), **told, **settings)
    squares = np.asarray(load_checkpoint(folder).arrays["h.0.attn.c_attn.bias.adam.v"], np.float64)
    return {n: np.asarray(a) for n, a in model.state_dict().items()}, np.sqrt(squares / (1 - 0.999**8))


def test_adamw_makes_a_difference_only_of_gradients_that_are_none(tmp_path: Path) -> None:
    """In float64 every weight agrees to 1e-9.  A key's bias adds the same to all scores of a query, which softmax takes
    away: its gradient is 0, what is computed of it is rounding, and Adam divides that by its own size.  In float32 such
    a bias is therefore anything within some 1e-4 of where it was, with whole layers too; all else agrees to 2e-6."""
    keys = slice(16, 32)
    (whole, gradients), (parts, _) = (by_adamw("float64", tmp_path, **g) for g in ({}, {"shards": (2, 2)}))
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=1e-9, atol=1e-9, err_msg=name)
    assert gradients[keys].max() < 1e-17
    assert np.delete(gradients, keys).min() > 1e-6
    (one, _), (other, rounding) = (by_adamw("float32", tmp_path, **g) for g in ({}, {"shards": (2, 2)}))
    assert 0 < rounding[keys].max() < 1e-9
    for name, array in one.items():
        without = (lambda a: np.delete(a, keys)) if name.endswith("c_attn.bias") else np.asarray
        np.testing.assert_allclose(without(other[name]), without(array), rtol=1e-5, atol=2e-6, err_msg=name)
    for found in (one, other):
        np.testing.assert_allclose(found["h.0.attn.c_attn.bias"][keys], 0, atol=2e-4)


# -- what a state is -----------------------------------------------------------------------------------------------

ABOUT: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 16)),
    "targets": ws.Spec(("batch",), "int32"),
    "loss": "cross_entropy",
    "optimizer": ws.SGD(lr=0.05, momentum=0.9),
    "batch_size": 8,
    "seed": 3,
}


def test_states_are_seen_whole(tmp_path: Path) -> None:
    """The plan is what its trace means, checked on ranks of its own."""
    checked = replace(quick(), verify=True, cache_dir=tmp_path)
    divided = ws.build_session(split.perceptron(), **ABOUT, shards=(1, 2), options=checked)
    plain = ws.build_session(split.perceptron(), **ABOUT, options=quick())

    def measured() -> list[float]:
        """Of 12 rows, in two parts."""
        return [one.evaluate(x=split.VECTORS[8:20], labels=split.LABELS[8:20]).loss for one in (divided, plain)]

    np.testing.assert_allclose(*measured(), rtol=1e-6)
    for one in (divided, plain):
        one.step(x=split.VECTORS[:8], labels=split.LABELS[:8])
    np.testing.assert_allclose(*measured(), rtol=1e-6)
    for name in plain.state.names:
        np.testing.assert_allclose(divided.get(name), plain.get(name), rtol=1e-5, atol=1e-7, err_msg=name)
    held = {
        name: divided.state.slot(name).newest for name in ("0.weight", "2.weight", "2.weight.sgd.velocity", "2.bias")
    }
    parts = {name: [a.read() for a in p.of.values()] for name, p in held.items() if isinstance(p, Parts)}
    assert {name: [a.shape for a in each] for name, each in parts.items()} == {
        "0.weight": [(32, 16)] * 2,
        "2.weight": [(4, 32)] * 2,
        "2.weight.sgd.velocity": [(4, 32)] * 2,
    }
    np.testing.assert_array_equal(parts["2.weight"][1], divided.get("2.weight")[:, 32:])
    np.testing.assert_array_equal(parts["0.weight"][1], divided.get("0.weight")[32:])
    value = RNG.standard_normal((64, 16)).astype(np.float32)
    for one in (divided, plain):
        one.set("0.weight", value)
        one.load_state_dict({**one.state_dict(), "0.bias": np.ones(64, np.float32)})
    np.testing.assert_array_equal(divided.get("0.weight"), value)
    np.testing.assert_allclose(*measured(), rtol=1e-6)


def test_a_run_goes_on_in_another_grid_and_without(tmp_path: Path) -> None:
    fitted("perceptron", validation=None, shards=(1, 2), epochs=1, checkpoint=tmp_path)
    unbroken = fitted("perceptron", validation=None, shards=(1, 2))
    again = fitted("perceptron", validation=None, shards=(1, 2), resume=tmp_path, exact=True)
    assert {n: a.tobytes() for n, a in again.items()} == {n: a.tobytes() for n, a in unbroken.items()}
    for other in ({"shards": (2, 2)}, {"shards": 2}, {}):
        same(unbroken, fitted("perceptron", validation=None, resume=tmp_path, **other))


def test_the_report_counts_what_a_bad_mark_costs() -> None:
    """Columns without rows behind them: the gradient of the next weight, 4 x 64, is there in parts and needed whole."""
    for mark, gathers, sent in (("rows", 0, 2 * 8 * 4), (None, 1, 2 * 8 * 4 + 4 * 64)):
        network = nn.Sequential(nn.Linear(16, 64, split="columns"), nn.ReLU(), nn.Linear(64, 4, split=mark))
        report = ws.build_session(network, **ABOUT, device="null", shards=(1, 2)).report()
        assert (report.gathers, report.wire_bytes) == (gathers, 4 * sent // 2)
        assert ("1 of them gather parts of layers" in str(report)) == bool(gathers)
        assert "1 x 2 ranks, each with all rows" in str(report)


def test_a_mark_alone_changes_nothing() -> None:
    """Not even the plan: without ranks that divide layers it is that of a layer that is not marked."""
    told = {**ABOUT, "inputs": ws.Spec(("batch", 6), "int32"), "targets": ws.Spec(("batch", 6), "int32")}
    plans = [ws.build_session(split.gpt(marked), **told, device="null", shards=2).plan for marked in (False, True)]
    assert encode(plans[0]) == encode(plans[1])


# -- what it takes, before it runs -----------------------------------------------------------------------------------


def test_a_rank_needs_its_part_of_the_blocks_and_sends_activations() -> None:
    """To the byte: of two blocks of GPT-2 weights and Adam's moments, and four sums of (batch, time, width) in each."""
    layers, width, time, words, batch = 2, 64, 16, 96, 8
    network = ws.models.gpt2(layers=layers, width=width, heads=4, vocabulary=words, context=time, split=True)
    told = {**ABOUT, "inputs": ws.Spec(("batch", time), "int32"), "targets": ws.Spec(("batch", time), "int32")}
    told |= {"optimizer": "adamw", "threads": 1, "options": replace(quick(), egraph=False)}
    divided = layers * (12 * width * width + 7 * width)  # of 3 + 1 + 4 + 4 matrices, and 3 + 4 biases
    whole = (words + time) * width + layers * 6 * width + 2 * width  # embeddings, norms, and biases behind sums
    alone = ws.estimate(network, **told)
    assert alone.footprint.state == 3 * 4 * (divided + whole)
    for data, model in ((1, 4), (2, 2)):
        found = ws.estimate(network, workers=ws.Workers(data=data, model=model), **told)
        assert found.footprint.parts == 3 * 4 * divided // model
        assert found.footprint.state == 3 * 4 * whole
        assert found.peak_bytes < alone.peak_bytes
        along = found.wire_bytes_along("model")
        assert along == 4 * layers * 4 * (batch // data) * time * width * 2 * (model - 1) / model
        gradients, loss = 4 * (divided // model + whole), 4
        assert found.wire_bytes - along == (gradients + loss) * 2 * (data - 1) // data
        kinds = [(e.axis, e.collective) for e in found.exchanges]
        assert kinds.count(("model", "all_reduce")) == 4 * layers
        assert {axis for axis, _ in kinds} == {"model"} | ({"data"} if data > 1 else set())
        assert f"along model {round(along):,} of them".split() in [line.split() for line in str(found).splitlines()]


# -- what cannot be ------------------------------------------------------------------------------------------------


def test_a_grid_without_marks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ws.build_session(nn.Linear(16, 4), **ABOUT, device="null", shards=(1, 2))
    assert "model=2, and no layer has split=: all workers compute the same" in caplog.text


@pytest.mark.parametrize(
    ("make", "given", "error", "told"),
    [
        (
            split.perceptron,
            {"shards": (1, 3)},
            OptionError,
            "the 64 outputs of '0.weight' do not divide among 3 workers",
        ),
        (
            split.perceptron,
            {"shards": (1, 2), "device": "reference"},
            OptionError,
            r"run on its CPU or on one GPU; device='reference' has none. Train with device='cpu' or device='cuda'",
        ),
        (
            split.perceptron,
            {"workers": ws.Workers(model=2), "device": "reference"},
            OptionError,
            "model=2: layers are divided among CPUs or GPUs; device='reference' does not divide them. Train with",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(make: Any, given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ws.build_session(make(), **{**ABOUT, "device": "null", **given})


# -- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "data", "model"),
    [("perceptron", 1, 2), ("gpt", 2, 2), pytest.param("grouped", 1, 2, marks=pytest.mark.long)],
)
def test_workers_have_the_bits_of_shards(network: str, data: int, model: int, tmp_path: Path) -> None:
    """Weights, moments in the checkpoint, and what rank 0 predicts alone."""
    trained, _ = split.train(network, shards=(data, model), checkpoint=tmp_path / "shards", threads=1)
    done = launch("-n", str(data * model), split.__file__, str(tmp_path / "workers"), network, str(model))
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(np.load(tmp_path / "workers" / "found.npz"))
    np.testing.assert_array_equal(found.pop("predicted"), trained.predict(split.NETWORKS[network][1][0][:4]))
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in trained.state_dict().items()}
    kept, expected = (load_checkpoint(tmp_path / name).arrays for name in ("workers", "shards"))
    assert {n: np.asarray(a).tobytes() for n, a in kept.items()} == {
        n: np.asarray(a).tobytes() for n, a in expected.items()
    }
    owned = list(checkpoints_in(tmp_path / "workers")[-1].path.glob("training-*-of-*.safetensors"))
    assert len(owned) == data * model, "each worker has written its parts of moments"
