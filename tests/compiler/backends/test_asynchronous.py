"""A device that goes on by itself: launches are queued, and a thread makes them one after the other, later.

Nothing waits but whoever reads a number.  The thread runs the reference backend's programs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backend import (
    Epoch,
    Launch,
    LoadContext,
    MicroBatchShape,
    NoScratch,
    Program,
    StepRange,
    check_indices,
    do_nothing,
    epoch_of_launches,
)
from wholestep.compiler.backends.common.micro_batches import LaunchedMicroBatches
from wholestep.compiler.backends.common.numpy_program import ROWS
from wholestep.compiler.backends.reference.program import ReferenceProgram
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.target import Target
from wholestep.options import CompileOptions

Array = np.ndarray[Any, Any]

LATER = replace(REFERENCE, name="later")


class Queue:
    """One thread makes what it is given, in order; `gate` holds it back."""

    def __init__(self) -> None:
        self.gate, self.made, self.broken = threading.Event(), 0, ""
        self.gate.set()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Later]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()
        self.begun: list[Later] = []

    def put(self, call: Callable[[], Any]) -> Later:
        later = Later()
        self.begun.append(later)
        self._work.put((call, later))
        return later

    def _run(self) -> None:
        while True:
            call, later = self._work.get()
            self.gate.wait()
            try:
                if self.broken:
                    raise RuntimeError(self.broken)
                later.found = call()
                self.made += 1
            except BaseException as error:
                later.error = error
            later.done.set()

    def wait(self) -> None:
        """For everything; the first error that nobody was told is raised."""
        begun, self.begun = self.begun, []
        for later in begun:
            later.done.wait()
        for later in begun:
            later.tell()


class Later:
    """What a call will give."""

    def __init__(self) -> None:
        self.done, self.found, self.error, self.told = threading.Event(), None, None, False  # type: ignore[var-annotated]

    def tell(self) -> None:
        if self.error is not None and not self.told:
            self.told = True
            raise self.error

    def result(self) -> Any:
        self.done.wait()
        self.told = False  # whoever reads a number that is not there is told each time
        self.tell()
        return self.found


QUEUE = Queue()


class LaterTicket:
    def __init__(self, later: Later) -> None:
        self._later = later

    def wait(self) -> None:
        self._later.result()

    def loss(self) -> float:
        return float(self._later.result().loss())

    def read(self, name: str) -> Array:
        found: Array = self._later.result().read(name)
        return found

    def keep(self) -> LaterTicket:
        return self  # every launch has separate outputs


class LaterProgram:
    """A program of the reference backend, run by the queue's thread over numbers of its own."""

    synchronous = False

    def __init__(self, plan: Plan, place: LoadContext, meanwhile: Callable[[], None]) -> None:
        meanwhile()
        self.plan, self._state = plan, place.state
        self._own = State()  # what the thread sees
        types = {name: plan.buffers[id].type for name, id in plan.states}
        self._states = {name: place.state.slot(name).on(MEMORY) for name in types}
        self._own.add(types, lambda name: None, memory=ROWS)
        self._inner = ReferenceProgram(plan, replace(place, state=self._own))
        self._inner.count_steps(False)
        self.outputs: Mapping[str, TensorType] = self._inner.outputs
        self.mapped_bytes = self._inner.mapped_bytes
        self._given: dict[str, Array] = {}
        self._last: LaterTicket | None = None
        self.count_steps(bool(plan.updated))

    @property
    def source(self) -> str:
        return self._inner.source

    def scalar(self, name: str, value: float) -> None:
        QUEUE.put(lambda: self._inner.scalar(name, value))  # it is for the launches from now on

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        self._advances, self._unless, self._stop = advances, unless, stop

    def staging(self, name: str) -> Array:
        return self._inner.staging(name)

    def bind(self, name: str, array: Array) -> None:
        self._given[name] = array

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        check_indices(self.plan, self._given, sizes)
        given = {name: array.copy() for name, array in self._given.items()}  # they may change when this returns
        state = self._state
        for name in self._states:
            state.slot(name).sync_to(MEMORY.kind, name in self.plan.updated)
        step, epoch = state.step, state.epoch
        ticket = self._last = LaterTicket(QUEUE.put(lambda: self._run(given, sizes, step, epoch)))
        state.family.version += bool(self.plan.updated)
        # Whether it counts is known when it is done: a step that may be refused is waited for.
        if self._advances and (self._unless is None or not ticket.read(self._unless)):
            state.step += 1
        return ticket

    def _run(self, given: Mapping[str, Array], sizes: Mapping[str, int], step: int, epoch: int) -> Launch:
        self._own.step, self._own.epoch = step, epoch
        for name, stored in self._states.items():
            self._own.set(name, stored.array)
        for name, array in given.items():
            self._inner.bind(name, array)
        done = self._inner.launch(sizes)
        for name in self.plan.updated:
            self._states[name].array = self._own.get(name)
        return done

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        return epoch_of_launches(self, epoch, self._unless if self._stop else None)

    def wait(self) -> None:
        QUEUE.wait()

    def loss(self) -> float:
        assert self._last is not None
        return self._last.loss()

    def read(self, name: str) -> Array:
        assert self._last is not None
        return self._last.read(name)

    def keep(self) -> Launch:
        assert self._last is not None
        return self._last


class LaterArray:
    """A state on the device: whoever reads or writes it stands in the queue."""

    size = 0

    def __init__(self, type: TensorType) -> None:
        self.array: Array = np.zeros(tuple(int(e) for e in type.shape), type.dtype.numpy)
        self.block = self

    def read(self) -> Array:
        found: Array = QUEUE.put(lambda: self.array.copy()).result()
        return found

    def write(self, value: Array) -> None:
        copied = np.array(value)

        def take() -> None:
            self.array = copied

        QUEUE.put(take)

    def fill(self, numbers: Array) -> None:
        self.write(np.resize(numbers, self.array.shape).astype(self.array.dtype))

    def take(self, at: tuple[Any, ...]) -> Array:
        return self.read()[at]

    def is_finite(self) -> bool:
        return bool(np.isfinite(self.read()).all())


class LaterMemory:
    kind, turns = "later", False

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[LaterArray]:
        return [LaterArray(type) for type in types]

    def draw(self, into: LaterArray, first: object) -> bool:
        """The host draws first values."""
        return False


MEMORY = LaterMemory()


class LaterDevice:
    runs, memory = True, MEMORY

    def __init__(self, target: Target) -> None:
        self.target, self.name = target, target.name

    def scratch(self) -> NoScratch:
        return NoScratch()

    def prepare(self, options: CompileOptions) -> None:
        """Nothing is needed."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> LaterProgram:
        return LaterProgram(plan, place, meanwhile)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> LaunchedMicroBatches:
        return LaunchedMicroBatches(plan, programs, place.state, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return key

    def notes(self, plan: Plan) -> tuple[str, ...]:
        return plan.notes


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    register("later", LATER, LaterDevice)
    yield
    unregister("later")


# -- steps -------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 5)).astype(np.float32), RNG.integers(0, 3, 12).astype(np.int32)
PLAIN = ws.CompileOptions(verify=False, egraph=False)


def network() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(5, 8), ws.nn.Tanh(), ws.nn.Linear(8, 3))


def built(device: str = "later", **options: Any) -> ws.Session:
    given = {"loss": "cross_entropy", "optimizer": ws.Adam(lr=0.05), "batch_size": 4, "seed": 1, **options}
    specs = {"inputs": ws.Spec(("batch", 5)), "targets": ws.Spec(("batch",), "int32")}
    return ws.build_session(network(), **specs, **given, device=device, options=PLAIN)  # type: ignore[arg-type]


def batch(session: ws.Session, number: int) -> dict[str, Array]:
    x, labels = (item.name for item in session._programs.main.inputs.all)
    return {x: X[4 * number : 4 * number + 4].copy(), labels: Y[4 * number : 4 * number + 4].copy()}


@pytest.fixture
def held_back() -> Iterator[Queue]:
    """Nothing that is launched is made until the gate opens."""
    QUEUE.wait()
    QUEUE.gate.clear()
    yield QUEUE
    QUEUE.gate.set()
    QUEUE.broken = ""


def test_a_step_returns_before_it_is_made_and_reading_it_waits(held_back: Queue) -> None:
    session, cpu = built(), built("reference")
    made = held_back.made
    results = []
    for number in range(3):
        given = batch(session, number)
        results.append(session.step(given))
        given[next(iter(given))][:] = np.nan  # a step has what it was given
    assert held_back.made == made, "three steps returned, and none was made"
    threading.Timer(0.05, held_back.gate.set).start()
    expected = [float(cpu.step(batch(cpu, number))) for number in range(3)]
    assert [float(r) for r in results] == expected, "each result is that of its own step"
    assert held_back.made > made
    assert float(results[0]) == expected[0]
    assert repr(results[1]) == f"StepResult(loss={expected[1]:.6g})"


def test_a_state_is_read_after_the_steps_that_were_begun(held_back: Queue) -> None:
    session, other = built(), built("reference")
    for number in range(3):
        session.step(batch(session, number))
        other.step(batch(other, number))
    threading.Timer(0.05, held_back.gate.set).start()
    for name in other.state.names:
        np.testing.assert_array_equal(session.get(name), other.get(name))
    assert session.state.step == 3


def test_wait_means_that_all_steps_are_made(held_back: Queue) -> None:
    session, made = built(), held_back.made
    result = session.step(batch(session, 0))
    threading.Timer(0.05, held_back.gate.set).start()
    session.wait()
    assert held_back.made > made
    assert np.isfinite(result.loss)


def test_an_error_of_a_step_is_raised_where_it_is_read_and_by_wait(held_back: Queue) -> None:
    session = built()
    held_back.gate.set()
    session.wait()
    held_back.broken = "the device has gone"
    result = session.step(batch(session, 0))  # nobody knows yet
    with pytest.raises(RuntimeError, match="the device has gone"):
        float(result)
    with pytest.raises(RuntimeError, match="the device has gone"):
        session.wait()
    with pytest.raises(RuntimeError, match="the device has gone"):
        result["output"]
    with pytest.raises(RuntimeError, match="the device has gone"):
        result.wait()


def test_an_index_that_is_out_of_range_is_refused_before_anything_is_queued(held_back: Queue) -> None:
    session = built()
    given = batch(session, 0)
    given[list(given)[1]][2] = 7
    with pytest.raises(ws.errors.InputError, match=r"holds indices from 0 to 2.*received 7 at position 2"):
        session.step(given)
    assert session.state.step == 0


# -- runs --------------------------------------------------------------------------------------------------------


def fitted(device: str, **options: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    model = network()
    given: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": 3, "batch_size": 4, **options}
    history = ws.fit(model, (X, Y), validation=(X, Y), **given, device=device, progress=False, options=PLAIN)
    return model, history


def test_fit_evaluates_and_ends_with_the_same_bits_as_a_device_that_waits() -> None:
    (later, one), (reference, other) = fitted("later"), fitted("reference")
    assert one.epochs == other.epochs
    assert one.epochs[-1].logs["val_loss"] < one.epochs[0].logs["val_loss"]
    for name, value in reference.state_dict().items():
        np.testing.assert_array_equal(later.state_dict()[name], value)


def test_the_numbers_are_there_for_another_device() -> None:
    model, _ = fitted("later")
    np.testing.assert_allclose(
        model.predict(X), model.predict(X, device="later"), atol=1e-6
    )  # on the CPU, without asking


@pytest.mark.parametrize(("other", "within"), [("reference", 0), ("cpu", 1e-5)])
def test_sessions_on_two_devices_take_turns_over_one_model(other: str, within: float) -> None:
    """Each has its numbers in memory of its own; a step begins with what the other has left."""
    model, given = network(), {"loss": "cross_entropy", "optimizer": ws.Adam(lr=0.05), "batch_size": 4, "seed": 1}
    specs = {"inputs": ws.Spec(("batch", 5)), "targets": ws.Spec(("batch",), "int32")}
    first, second = (ws.build_session(model, **specs, **given, device=d, options=PLAIN) for d in (other, "later"))
    alone = built("reference")
    for number in (0, 1, 2, 0, 1):
        session = second if number % 2 else first
        np.testing.assert_allclose(
            session.step(batch(session, number)).loss, alone.step(batch(alone, number)).loss, rtol=within
        )
        model.load_state_dict({n: 0.5 * a for n, a in model.state_dict().items()})  # and somebody writes in between
        for name in model.state_dict():
            alone.set(name, 0.5 * alone.get(name))
    for name in alone.state.names:
        np.testing.assert_allclose(first.get(name), alone.get(name), rtol=within, atol=within)
        np.testing.assert_array_equal(second.get(name), first.get(name))


def test_callbacks_see_every_step_in_order() -> None:
    seen: list[tuple[int, int, float]] = []

    class Spy(ws.Callback):
        def on_step(self, metrics: ws.StepMetrics) -> None:
            seen.append((metrics.epoch, metrics.step, metrics.loss))

    _, history = fitted("later", callbacks=[Spy()])
    assert [(e, s) for e, s, _ in seen] == [(e, s) for e in range(3) for s in range(3)]
    for epoch, stats in enumerate(history.epochs):
        assert stats.avg_loss == pytest.approx(np.mean([loss for e, _, loss in seen if e == epoch]))


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    whole, _ = fitted("later", epochs=4)
    model = network()
    for epochs in (2, 4):
        ws.fit(
            model,
            (X, Y),
            loss="cross_entropy",
            metrics=["accuracy"],
            epochs=epochs,
            batch_size=4,
            checkpoint=tmp_path / "run",
            resume=True,
            device="later",
            progress=False,
            options=PLAIN,
        )
        model = model if epochs == 4 else network()
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], value)


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_gradients_that_are_not_finite(policy: str) -> None:
    session = built(nonfinite=policy)
    session.step(batch(session, 0))
    before, bad = session.state_dict(), batch(session, 1)
    bad[next(iter(bad))][0, 0] = np.inf
    if policy == "raise":
        with pytest.raises(ws.errors.NonFiniteError, match="No state was changed"):
            session.step(bad)
    else:
        session.step(bad)
        assert session.skipped_steps == 1
    assert session.state.step == 1
    for name in ("0.weight", "0.weight.adam.m"):
        np.testing.assert_array_equal(session.get(name), before[name])


def test_a_loss_that_is_no_number_ends_a_run_and_says_which_step() -> None:
    with pytest.raises(ws.errors.NonFiniteError, match=r"the loss of step 2 of epoch 0.*weights are restored"):
        fitted("later", optimizer=ws.SGD(lr=1e38), metrics=[])


def test_batches_that_are_added_up_for_one_update() -> None:
    (later, one), (reference, other) = fitted("later", accumulate=2), fitted("reference", accumulate=2)
    assert one.epochs == other.epochs
    for name, value in reference.state_dict().items():
        np.testing.assert_array_equal(later.state_dict()[name], value)
