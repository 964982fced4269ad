"""The steps of several ranks on one GPU: one graph, in which ranks synchronise where they would communicate.

With `--gpu` the GPU is this machine's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED
from wholestep.compiler.backends.cpu.check.soundness import _check_layout as check_layout
from wholestep.compiler.backends.cuda.driver.memory import CudaMemory
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_text, translation_unit
from wholestep.compiler.backends.cuda.runtime import simulated_ranks as here
from wholestep.compiler.backends.cuda.runtime.collectives import Sum
from wholestep.compiler.backends.cuda.runtime.simulated_ranks import GpuRanksProgram
from wholestep.compiler.backends.gpu.plan_format import FORMAT
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.errors import InputError, PlanError, VerificationError

RNG = np.random.default_rng(5)
ROWS = 29
X = RNG.standard_normal((ROWS, 16)).astype(np.float32)
Y = RNG.integers(0, 4, ROWS).astype(np.int32)
WORDS = RNG.integers(0, 40, (ROWS, 7)).astype(np.int32)
PARTS = {"shard": "optimizer"}
DIVIDED: list[dict[str, Any]] = [{"shards": 3, **PARTS}, {"shards": (2, 2)}, {"shards": (2, 2), **PARTS}]


def network() -> ws.nn.Module:
    columns, rows = ws.nn.Linear(16, 64, split="columns"), ws.nn.Linear(64, 4, split="rows")
    return ws.nn.Sequential(columns, ws.nn.GELU(), rows)


def gpt(**sizes: int) -> ws.nn.Module:
    return ws.models.gpt2(**{"layers": 1, "width": 16, "heads": 4, "vocabulary": 40, "context": 6, **sizes}, split=True)


def session_of(**told: Any) -> ws.Session:
    about = {"inputs": ws.Spec(("batch", 16)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    common = {"optimizer": ws.Adam(lr=1e-2), "batch_size": 8, "seed": 1, "device": "cuda", "options": UNCHECKED}
    return ws.build_session(network(), **{**about, **common, **told})


def checked(folder: Path) -> ws.CompileOptions:
    return ws.CompileOptions(verify=True, egraph=False, cache_dir=folder)


def near(one: dict[str, Any], other: dict[str, Any], rtol: float = 2e-5, atol: float = 2e-6) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(np.asarray(other[name]), np.asarray(array), rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("divided", [{"shards": 2}, *DIVIDED], ids=str)
def test_ranks_on_one_gpu_train_as_threads_of_a_cpu(gpu: FakeDriver | None, divided: dict[str, Any]) -> None:
    """Step by step, a smaller batch among them, then by epochs."""
    gpus, threads = session_of(**divided), session_of(**divided, device="cpu", threads=1)
    assert isinstance(gpus._programs.main.program, GpuRanksProgram)
    for rows in (8, 5, 8):
        losses = [float(session.step(x=X[:rows], labels=Y[:rows])) for session in (gpus, threads)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    for session in (gpus, threads):
        session.run(x=X, labels=Y, epochs=2)
    near(threads.state_dict(), gpus.state_dict())
    assert gpus.state.step == threads.state.step == 3 + 2 * 4


@pytest.mark.parametrize("told", [{"precision": "bfloat16"}, {"accumulate": 2, "nonfinite": "skip"}], ids=str)
def test_second_forms_of_weights_and_shares_of_sums_are_each_ranks_own(
    gpu: FakeDriver | None, told: dict[str, Any]
) -> None:
    """Programs of micro-batches change states one after the other; somebody else changes them in between."""
    steps = 2 if "accumulate" in told else 1
    found = []
    for where in ({"device": "cuda"}, {"device": "cpu", "threads": 1}):
        session = session_of(shards=2, **PARTS, **told, **where)
        for first in (0, 8 * steps):
            session.step(x=X[first : first + 8 * steps - 3], labels=Y[first : first + 8 * steps - 3])
            session.set("2.bias", np.full(4, 0.5 * first, np.float32))
        found.append(session.state_dict())
    near(found[1], found[0], *((0.02, 0.02) if "precision" in told else ()))


@pytest.mark.parametrize("divided", DIVIDED, ids=str)
def test_a_divided_plan_is_checked_against_the_interpreter(
    gpu: FakeDriver | None, divided: dict[str, Any], tmp_path: Path
) -> None:
    session = session_of(**divided, options=checked(tmp_path))
    assert "worst error" in str(session.report())
    assert np.isfinite(session.step(x=X[:8], labels=Y[:8]).loss)


def test_ranks_that_are_given_each_others_parts_are_noticed(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    carried = here.match_transfers

    def wrong(carriers: Any) -> list[Sum]:
        """Of two pieces of one length each comes where the other should."""
        found = carried(carriers)
        alike = {s.count: [o.own for o in found if o.count == s.count] for s in found}
        return [replace(s, own=alike[s.count].pop()) for s in found]

    monkeypatch.setattr(here, "match_transfers", wrong)
    with pytest.raises(VerificationError, match=r"does not compute what the graph means"):
        session_of(shards=2, **PARTS, options=checked(tmp_path))


def test_ranks_that_do_not_fit_side_by_side_are_not_checked_and_the_report_says_so(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaMemory, "free_bytes", 1000)
    session = session_of(shards=3, **PARTS, options=ws.CompileOptions(egraph=False, cache=False))
    assert "3 ranks side by side need" in str(session.report())
    assert "this device has 1,000 left" in str(session.report())


def test_an_index_that_one_rank_would_refuse_is_refused_by_all(gpu: FakeDriver | None) -> None:
    session = session_of(shards=2, **PARTS)
    before, labels = session.state_dict(), Y[:8].copy()
    labels[7] = 4
    with pytest.raises(InputError, match=r"indices from 0 to 3; received 4 at position 7"):
        session.step(x=X[:8], labels=labels)
    assert {n: a.tobytes() for n, a in session.state_dict().items()} == {n: a.tobytes() for n, a in before.items()}


def test_a_profile_is_that_of_the_first_rank(gpu: FakeDriver | None) -> None:
    session = session_of(shards=(2, 2), **PARTS)
    profile = session.profile(x=X[:8], labels=Y[:8])
    assert sum(isinstance(kernel.body, Exchange) for kernel in session.plan.kernels) == 4
    assert {found.kernel for found in profile.kernels} == {kernel.id for kernel in session.plan.kernels}


def test_a_gpt_in_a_grid_trains_as_a_whole_one(gpu: FakeDriver | None) -> None:
    """Heads are divided, weights are tied; validation is measured by all ranks together."""
    data = WORDS[:, :-1], WORDS[:, 1:]
    told = {
        "loss": "cross_entropy",
        "optimizer": ws.SGD(lr=0.05, momentum=0.9),
        "epochs": 1,
        "batch_size": 8,
        "seed": 3,
    }
    told |= {"progress": False, "options": UNCHECKED, "device": "cuda", "validation": tuple(a[:8] for a in data)}
    found = []
    for where in ({}, {"shards": (2, 2), **PARTS}):
        model = gpt()
        history = ws.fit(model, data, **told, **where)
        found.append({**model.state_dict(), "val_loss": np.array(history["val_loss"])})
    near(*found)


@pytest.mark.long
def test_a_larger_gpt_in_half_precision(gpu: FakeDriver | None) -> None:
    """Products and attention of libraries; what is held, and what differs from a whole one, is printed."""
    if gpu is not None:
        pytest.skip("an emulated one takes minutes: make test-cuda")
    tokens, spec = RNG.integers(0, 20_000, (8, 65)).astype(np.int32), ws.Spec(("batch", 64), "int32")
    about = {"inputs": spec, "targets": spec, "loss": "cross_entropy", "batch_size": 8, "seed": 2, "device": "cuda"}
    about |= {"precision": "bfloat16", "options": UNCHECKED}
    made: list[tuple[ws.Session, list[float]]] = []
    for where in ({}, {"shards": (2, 2), **PARTS}):
        model = gpt(layers=4, width=256, heads=4, vocabulary=20_000, context=64)
        session = ws.build_session(model, optimizer=ws.SGD(lr=0.1, momentum=0.9), **about, **where)
        losses = [float(session.step(x=tokens[:, :-1], labels=tokens[:, 1:])) for _ in range(5)]
        print(f"{where or 'alone'}: {losses}, {session.report().peak_bytes:,} bytes of a rank")
        made.append((session, losses))
    (whole, first), (parts, second) = made
    np.testing.assert_allclose(second, first, rtol=1e-3)
    assert parts.report().peak_bytes < whole.report().peak_bytes
    for name, value in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], value, rtol=0.02, atol=0.02 * np.abs(value).max())


def test_a_gpu_cuts_states_by_their_rows_and_moves_nothing() -> None:
    """A CPU, which stores by columns what products read so, by columns; a plan that says otherwise is refused."""
    plans = [session_of(shards=2, **PARTS, device=f"null:{target}").plan for target in ("cuda/sm_90", "cpu/portable")]
    gpu, cpu = (next(b for b in plan.buffers if b.name == "0.weight.adam.m") for plan in plans)
    assert (gpu.type.shape, cpu.type.shape) == ((32, 16), (8, 64))
    assert gpu.by_columns == cpu.by_columns is True, "as it was declared"
    assert not [k for k in plans[0].kernels if "permute" in k.origin]
    turned = replace(gpu, type=cpu.type)  # as many bytes
    with pytest.raises(PlanError, match=rf"buffer {gpu.id} is not partitioned as cuda/sm_90 partitions states"):
        FORMAT.check(replace(plans[0], kernels=(), buffers=(turned,)))
    with pytest.raises(PlanError, match=rf"buffer {cpu.id} must have the shape of its shard"):
        check_layout(replace(cpu, type=gpu.type))


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_divided_steps_become_machine_code(precision: str) -> None:
    """Without a GPU, by NVIDIA's compiler: kernels of parts, at places that a record tells them."""
    words = ws.Spec(("batch", 6), "int32")
    told = {"inputs": words, "targets": words, "loss": "cross_entropy", "optimizer": ws.AdamW(), "batch_size": 8}
    told |= {"device": "null:cuda/sm_90", "options": UNCHECKED, "precision": precision, "shards": (2, 2), **PARTS}
    plans = [ws.build_session(gpt(width=32), **told).plan]
    plans += [session_of(**DIVIDED[0], device="null:cuda/sm_90", precision=precision).plan]
    for plan in plans:
        assert "rank.number" in plan.symbols
        assert compile_text(translation_unit(render(plan).text), "sm_90")
