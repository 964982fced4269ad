"""Workers on GPUs, as far as one process can tell: one rank alone, by NCCL all the same; what is missing or wrong.

With `--gpu` the GPU and NCCL are this machine's own.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.fake_nccl import FakeNccl, fake_nccl
from tests.compiler.backends.cuda.emulation.models import UNCHECKED, device_bytes
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph
from wholestep.compiler.backends.cuda.driver.driver import gpu as numbered
from wholestep.compiler.backends.cuda.libraries import nccl
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.distributed.transport import nccl_group
from wholestep.errors import OptionError, UsageError, WorkerError

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((29, 12)).astype(np.float32), RNG.integers(0, 3, 29).astype(np.int32)
ABOUT = {"inputs": ws.Spec(("batch", 12)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
ALONE = ws.Workers(1, engine="nccl")


@pytest.fixture(scope="module")
def ranks(gpu: FakeDriver | None) -> Iterator[FakeNccl | None]:
    """None stands for a real one."""
    if gpu is None:
        yield None
        return
    with fake_nccl(gpu) as found:
        yield found
        leave()


def leave() -> None:
    for number, group in list(nccl_group._joined.items()):
        group.close()
        assert numbered(number).watch is None
        del nccl_group._joined[number]


def network() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(12, 10), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(10, 3))


def session_of(**where: Any) -> ws.Session:
    optimizer = ws.Adam(lr=1e-2)
    given = {"optimizer": optimizer, "batch_size": 8, "seed": 1, "device": "cuda", "options": UNCHECKED, **where}
    return ws.build_session(network(), **ABOUT, **given)


def need_same(alone: ws.Session, divided: ws.Session, gpu: FakeDriver | None) -> None:
    """The same numbers: to the bit, but where NVRTC fuses a product and a sum in one of both kernels of an update."""
    theirs, ours = alone.state_dict(), divided.state_dict()
    same = all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    print(f"one rank of NCCL has the bits of a run without workers: {same}")
    assert same or gpu is None
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6 * np.abs(value).max(), err_msg=name)


def test_one_rank_has_the_bits_of_a_run_without_workers(gpu: FakeDriver | None, ranks: FakeNccl | None) -> None:
    """Steps one by one and whole epochs; the exchange stands in their graphs, and its room in the plan's bytes."""
    alone, before = session_of(), device_bytes()
    divided = session_of(workers=ALONE)
    exchanges = [k for k in divided.plan.kernels if isinstance(k.body, Exchange)]
    assert len(exchanges) == 1
    assert divided.group is not None
    assert (divided.group.engine, divided.group.size) == ("nccl", 1)
    for rows in (8, 5):
        batch = {"x": X[:rows], "labels": Y[:rows]}
        assert float(divided.step(**batch)) == pytest.approx(float(alone.step(**batch)), rel=0 if gpu else 1e-6)
    assert device_bytes() - before == divided.peak_bytes, "bytes are known before"
    for session in (alone, divided):
        session.run(x=X, labels=Y, epochs=2)
    need_same(alone, divided, gpu)
    assert divided.report().collectives == (("all_reduce", 4 * (12 * 10 + 10 + 10 * 3 + 3) + 4),)
    assert divided.report().wire_bytes == 0
    if ranks is not None:
        assert ranks.asked[0] == "init"
        assert 2 <= ranks.asked.count("start") == ranks.asked.count("end")
        assert ranks.sent == 0, "to others"


def test_one_rank_that_divides_the_optimizers_state_among_one(gpu: FakeDriver | None, ranks: FakeNccl | None) -> None:
    """It has all of it, and the bits of one that was not asked to."""
    plain, divided = (session_of(workers=replace(ALONE, shard=shard)) for shard in (None, "optimizer"))
    for session in (plain, divided):
        session.run(x=X, labels=Y, epochs=2)
    theirs, ours = plain.state_dict(), divided.state_dict()
    assert {n: a.tobytes() for n, a in theirs.items()} == {n: a.tobytes() for n, a in ours.items()}


def test_a_profile_has_the_collectives(ranks: FakeNccl | None) -> None:
    profile = session_of(workers=ALONE).profile(x=X[:8], labels=Y[:8])
    assert "exchange" in str(profile)


def test_who_leaves_lets_go_of_all_graphs(ranks: FakeNccl | None) -> None:
    """NCCL waits for graphs with exchanges in them, and those must not be destroyed behind its end."""

    def graphs() -> int:
        gc.collect()
        return sum(isinstance(found, CudaGraph) for found in gc.get_objects())

    before, session = graphs(), session_of(workers=ALONE)
    for rows in (8, 5, 8):
        session.step(x=X[:rows], labels=Y[:rows])
    session.run(x=X, labels=Y, epochs=1)
    assert graphs() > before
    program = session._programs.main.program
    assert isinstance(program, CudaProgram)
    program.forget_graphs()
    assert graphs() == before


@pytest.mark.long
def test_one_rank_of_a_transformer_beside_none(gpu: FakeDriver | None, ranks: FakeNccl | None) -> None:
    """Products and attention of libraries, half types, several exchanges, weights that are tied."""
    if gpu is not None:
        pytest.skip("an emulated one takes minutes: make test-cuda")
    tokens = RNG.integers(0, 500, (8, 65)).astype(np.int32)
    made = []
    for precision, workers in (("float32", None), ("float32", ALONE), ("bfloat16", None), ("bfloat16", ALONE)):
        model = ws.models.gpt2(layers=4, width=256, heads=4, vocabulary=20_000, context=64)
        g = ws.Graph()
        x, labels = (g.input(name, ("batch", 64), "int32") for name in ("x", "labels"))
        g.set_outputs([ws.losses.cross_entropy(model(x), labels)])  # scores that nobody reads are half numbers in all
        given = {"optimizer": ws.SGD(lr=0.1, momentum=0.9), "batch_size": 8, "seed": 2, "options": UNCHECKED}
        session = ws.build_session(g, device="cuda", precision=precision, workers=workers, **given)
        losses = [float(session.step(x=tokens[:, :-1], labels=tokens[:, 1:])) for _ in range(5)]
        print(f"{precision}, {'alone' if workers is None else 'one rank of NCCL'}: {losses}")
        exchanges = sum(isinstance(k.body, Exchange) for k in session.plan.kernels)
        assert exchanges > 1 if workers else exchanges == 0
        made.append((session.state_dict(), losses))
    (exact, first), (ranked, second), (half, third), (half_ranked, fourth) = made
    np.testing.assert_allclose(second, first, rtol=1e-5)
    np.testing.assert_allclose(fourth, third, rtol=1e-3)
    for name, value in exact.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(ranked[name], value, rtol=1e-4, atol=1e-4 * scale, err_msg=name)
        # As near to float32 as a run without workers is, but for how half numbers round in other kernels.
        error, own = (np.linalg.norm(found[name] - value) for found in (half_ranked, half))
        assert error <= 1.5 * own + 1e-5 * np.linalg.norm(value), (name, error, own)
        near = {"rtol": 0.02, "atol": 0.02 * np.abs(half[name]).max()}
        np.testing.assert_allclose(half_ranked[name], half[name], err_msg=name, **near)


@pytest.mark.long
def test_what_an_exchange_costs_a_step(gpu: FakeDriver | None, ranks: FakeNccl | None) -> None:
    """Printed, not judged: a step of 784-128-10 alone, and the same with a rank that sends to itself."""
    if gpu is not None:
        pytest.skip("times are those of a GPU: make test-cuda")
    model = ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))
    about = {**ABOUT, "inputs": ws.Spec(("batch", 784)), "optimizer": ws.Adam(lr=1e-3), "batch_size": 128}
    about["options"] = UNCHECKED
    x, y = RNG.standard_normal((128, 784)).astype(np.float32), RNG.integers(0, 10, 128).astype(np.int32)
    for title, workers in (("alone", None), ("one rank of NCCL", ALONE)):
        session = ws.build_session(model, **about, device="cuda", workers=workers)
        session.step(x=x, labels=y)
        program: Any = session._programs.main.program
        assert isinstance(program, CudaProgram)
        program.replay(20)
        print(f"{title}: {1e6 * min(program.replay(100) for _ in range(5)) / 100:.1f} us a step")


# -- what is missing or wrong --------------------------------------------------------------------------------------


def test_without_nccl_it_says_what_to_install(gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise RuntimeError("libnccl.so.2 is nowhere")

    leave()
    nccl.library.cache_clear()
    monkeypatch.setattr(nccl, "load", absent)
    with pytest.raises(UsageError, match=r'NCCL, which cannot be loaded \(RuntimeError\). Install it: pip install "wh'):
        session_of(workers=ALONE)
    nccl.library.cache_clear()


def test_nccl_is_for_gpus() -> None:
    with pytest.raises(OptionError, match=r"NCCL exchanges between GPUs, and device='cpu.*leave engine= out"):
        session_of(workers=ALONE, device="cpu")


def test_gpus_under_ray_are_refused(gpu: FakeDriver | None) -> None:
    with pytest.raises(
        UsageError, match=r"engine='ray' and device='cuda': Ray workers run on CPUs only. Start workers on"
    ):
        ws.fit(network(), (X, Y), loss="cross_entropy", device="cuda", workers=ws.Workers(2, engine="ray"))


class Control:
    """A group of processes, of which this is the first."""

    rank, size = 0, 2

    def __init__(self, other: dict[str, Any] | None = None, pid: int = 1) -> None:
        self._other = other
        describe: Callable[[int, int], str] = lambda rank, size: f"rank {rank} of {size} (process 7 on node1)"  # noqa: E731
        self.ranks = [SimpleNamespace(machine="boot ns", pid=p, describe=describe) for p in (1, pid)]
        self.answers = True

    def gather(self, data: bytes) -> list[bytes]:
        if not data and not self.answers:
            raise WorkerError("it did not come", 1, 0)
        return [data, json.dumps({**json.loads(data), **(self._other or {})}).encode() if data else b""]

    def broadcast(self, data: bytes) -> bytes:
        return data

    def wait_for(self, seconds: float) -> None:
        """It answers at once."""

    def check(self) -> None:
        """All is well."""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {},
            r"ranks 0 and 1 have the same GPU, no GPU at all at 0000:00:00.0, and NCCL needs one for each .* has 1:",
        ),
        ({"gpu": "b", "nccl": "2.9.9"}, r"rank 1 of 2 .* has NCCL 2.9.9, and rank 0 has 2.28.3: install the same"),
        ({"missing": "NCCL cannot be loaded"}, r"rank 1 of 2 \(process 7 on node1\): NCCL cannot be loaded"),
    ],
    ids=["one GPU for two", "two versions", "missing there"],
)
def test_ranks_that_cannot_exchange_are_told_why(
    gpu: FakeDriver | None, ranks: FakeNccl | None, other: dict[str, Any], said: str
) -> None:
    if gpu is None:
        pytest.skip("of a GPU that is none")
    with pytest.raises(UsageError, match=said):
        nccl_group.NcclGroup(numbered(0), Control(other), 1.0)  # type: ignore[arg-type]


def test_who_does_not_come_is_named(
    gpu: FakeDriver | None, ranks: FakeNccl | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is gone at once; one that hangs by the time it has; else what NCCL says."""
    if gpu is None:
        pytest.skip("of an NCCL that is none")
    assert ranks is not None
    monkeypatch.setattr(ranks, "aborted", False)
    monkeypatch.setattr("tests.compiler.backends.cuda.emulation.fake_nccl.world_of", lambda ranks: None)

    def waiting(timeout: float, **control: Any) -> tuple[nccl_group.NcclGroup, Control]:
        found = Control({"gpu": "another"}, **control)
        group = nccl_group.NcclGroup(numbered(0), found, timeout)  # type: ignore[arg-type]
        group.step = 6
        return group, found

    group, _ = waiting(100.0, pid=2**22 + 1)  # no such process
    with pytest.raises(
        WorkerError, match=r"rank 1 of 2 \(process 7 on node1\) is gone: .* All had made 6 steps"
    ) as lost:
        group.until(lambda: False)
    assert (lost.value.rank, lost.value.step) == (1, 6)
    assert ranks.asked[-1] == "abort"
    group, control = waiting(0.2)
    control.answers = False
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 1 of 2 .* did not come within 0.2 s: .* All had made 6 steps") as late:
        group.until(lambda: False)
    assert (late.value.rank, time.monotonic() - began >= 0.2) == (1, True)
    group, _ = waiting(100.0)
    monkeypatch.setattr(ranks, "error", 6)
    with pytest.raises(WorkerError, match=r"NCCL could not exchange: remote process exited; the last error"):
        group.until(lambda: False)
    assert numbered(0).watch is None, "nobody looks after what has ended"
