from __future__ import annotations

import ctypes
import gc
import json
import logging
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.sessions import assert_same_bits, data, mlp, trained
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import GraphError, OptionError, ShapeError, UnknownNameError, UsageError


def torch_twin(session: ws.Session) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(session.get(name), requires_grad=True) for name in ("w1", "b1", "w2", "b2")}


def torch_loss(p: dict[str, torch.Tensor], batch) -> torch.Tensor:
    logits = torch.relu(torch.tensor(batch["x"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]).long())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ws.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            ws.SGD(lr=0.1, momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        ),
        (ws.Adam(lr=1e-3), lambda p: torch.optim.Adam(p, lr=1e-3)),
    ],
)
def test_steps_equal_torch(ours, theirs) -> None:
    session = ws.build_session(mlp(), optimizer=ours, batch_size=16)
    twin = torch_twin(session)
    optimizer = theirs(twin.values())
    for i in range(10):
        batch = data(16 if i % 2 else 7, seed=i)
        loss = torch_loss(twin, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert session.step(**batch).loss == pytest.approx(loss.item(), rel=1e-5)
    for name, value in twin.items():
        np.testing.assert_allclose(session.get(name), value.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_result_keeps_its_outputs_after_the_next_step() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    first = session.step(**data(16))
    second = session.step(**data(9, seed=1))
    assert first["logits"].shape == (16, 5)
    assert second.logits.shape == (9, 5)
    again = ws.build_session(mlp(), batch_size=16).step(**data(16))
    np.testing.assert_array_equal(first.outputs["logits"], again["logits"])
    assert float(first) == first.loss == float(again)
    with pytest.raises(UnknownNameError, match="no output named 'nothing'"):
        first["nothing"]
    with pytest.raises(AttributeError, match="no output named 'nothing'"):
        second.nothing  # noqa: B018


def test_get_reads_states_and_outputs_and_set_writes_states() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    w = session.get("w1")
    session.set("w1", w + 1)
    np.testing.assert_array_equal(session.get("w1"), w + 1)
    with pytest.raises(UsageError, match="no value yet"):
        session.get("logits")
    result = session.step(**data(4))
    np.testing.assert_array_equal(session.get("logits"), result["logits"])
    assert session.get("loss") == np.float32(result.loss)


def test_a_changed_state_reaches_every_stored_layout() -> None:
    """`set` must refresh the second layouts that a program keeps of a weight (for the input gradient)."""
    session, fresh = (ws.build_session(mlp(), batch_size=16) for _ in range(2))
    session.step(**data(16))
    for name in ("w1", "b1", "w2", "b2"):
        session.set(name, fresh.get(name))
    session.step(**data(16, seed=1))
    fresh.step(**data(16, seed=1))
    for name in ("w1", "b1", "w2", "b2"):
        np.testing.assert_array_equal(session.get(name), fresh.get(name))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_does_not_change_a_bit(threads: int) -> None:
    one, many = (trained(mlp(), threads=n) for n in (1, threads))
    assert one[0] == many[0]
    assert_same_bits(one[1], many[1])


def test_the_capacity_does_not_change_a_bit() -> None:
    small, large = (trained(mlp(), rows=13, batch_size=n) for n in (13, 64))
    assert small[0] == large[0]
    assert_same_bits(small[1], large[1])


def test_fusion_does_not_change_a_bit() -> None:
    fused, unfused = (trained(mlp(), options=ws.CompileOptions(fuse=f)) for f in (True, False))
    assert fused[0] == unfused[0]
    assert_same_bits(fused[1], unfused[1])


def test_run_after_run_gives_the_same_bits() -> None:
    def losses() -> np.ndarray:
        return ws.build_session(mlp(), batch_size=16).run(**data(100), epochs=3)

    np.testing.assert_array_equal(losses(), losses())


def test_two_sessions_over_one_model_share_its_numbers() -> None:
    graph = mlp()
    first = ws.build_session(graph, optimizer=ws.Adam(), batch_size=16)
    second = ws.build_session(graph, optimizer=ws.Adam(), batch_size=16)
    alone = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    for i in range(6):
        batch = data(16, seed=i)
        assert (first if i % 2 else second).step(**batch).loss == alone.step(**batch).loss
    ours, theirs = first.state_dict(), alone.state_dict()
    assert (ours.pop("session/updates"), theirs.pop("session/updates")) == (3, 6)  # each has made its own
    assert_same_bits(ours, theirs)
    assert first.state is second.state


# -- run ---------------------------------------------------------------------------------------------------------


def test_run_in_order_equals_steps_in_order() -> None:
    everything = data(50)
    by_run = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    by_step = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    losses = by_run.run(**everything, shuffle=False)
    expected = [by_step.step({k: v[i : i + 16] for k, v in everything.items()}).loss for i in range(0, 50, 16)]
    assert losses.tolist() == expected
    for name in ("w1", "b2"):
        np.testing.assert_array_equal(by_run.get(name), by_step.get(name))
    assert by_run.get("logits").shape == (2, 5)  # of the last, smaller batch


def test_run_shuffles_anew_each_epoch_and_uses_every_row() -> None:
    """With lr 0 the loss of an epoch is a sum over its rows: any order gives the same mean, batches differ."""
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.0), batch_size=10)
    one, two = session.run(**data(100), epochs=2).reshape(2, 10)
    assert one.mean() == pytest.approx(two.mean(), rel=1e-6)
    assert set(one.tolist()) != set(two.tolist())


def test_a_run_resumes_in_the_middle_of_an_epoch() -> None:
    whole = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    expected = whole.run(**data(100), epochs=2)
    part = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    part.run(**data(100), epochs=1)
    saved = part.state_dict()
    resumed = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    resumed.load_state_dict(saved)
    assert resumed.run(**data(100), epochs=1).tolist() == expected[7:].tolist()
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    skipped = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.0), batch_size=16)
    still = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.0), batch_size=16)
    assert skipped.run(**data(100), start=3).tolist() == still.run(**data(100))[3:].tolist()


@pytest.mark.parametrize(
    "arguments", [{"epochs": -1}, {"start": 7}, {"start": -1}, {"batch_size": 17}, {"batch_size": 0}]
)
def test_run_refuses_options_outside_their_range(arguments) -> None:
    session = ws.build_session(mlp(), batch_size=16)
    with pytest.raises(OptionError, match=f"{next(iter(arguments))}="):
        session.run(**data(100), **arguments)


def test_run_with_smaller_batches() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    assert len(session.run(**data(100), batch_size=5)) == 20
    assert len(session.run(**data(100), epochs=0)) == 0


# -- hyper-parameters --------------------------------------------------------------------------------------------


def test_the_optimizer_is_live_and_nothing_recompiles() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    before = compile_counter.value
    session.optimizer.lr = 0.5
    session.optimizer.betas = (0.5, 0.6)
    session.optimizer.epsilon = 1e-3
    assert (session.optimizer.learning_rate, session.optimizer.beta2, session.optimizer.eps) == (0.5, 0.6, 1e-3)
    session.set_learning_rate(0.0)
    w = session.get("w1")
    session.step(**data(16))
    np.testing.assert_array_equal(session.get("w1"), w)
    assert compile_counter.value == before
    with pytest.raises(UnknownNameError, match="no live 'momentum'"):
        session.optimizer.momentum = 0.5
    with pytest.raises(OptionError, match="finite"):
        session.set_learning_rate(float("nan"))


def test_changed_hyperparameters_are_those_of_a_session_built_with_them() -> None:
    changed = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    changed.set_adam(lr=0.02, beta1=0.8, beta2=0.9, eps=1e-4)
    built = ws.build_session(mlp(), optimizer=ws.Adam(lr=0.02, betas=(0.8, 0.9), eps=1e-4), batch_size=16)
    for i in range(3):
        assert changed.step(**data(16, seed=i)).loss == built.step(**data(16, seed=i)).loss
    assert_same_bits(changed.state_dict(), built.state_dict())


# -- state dicts -------------------------------------------------------------------------------------------------


def test_a_state_dict_resumes_to_the_bit_including_the_learning_rate() -> None:
    whole = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    for i in range(3):
        whole.step(**data(16, seed=i))
    whole.set_learning_rate(0.05)
    saved = whole.state_dict()
    assert saved["session/step"] == 3
    other = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, seed=0)
    other.load_state_dict(saved)
    assert other.step(**data(16, seed=9)).loss == whole.step(**data(16, seed=9)).loss
    assert_same_bits(whole.state_dict(), other.state_dict())


def test_a_state_dict_that_does_not_fit_changes_nothing() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    before = session.state_dict()
    for wrong, text in (
        ({**before, "w9": np.zeros(3)}, r"unexpected \['w9'\]"),
        ({k: v for k, v in before.items() if k != "w1"}, r"missing \['w1'\]"),
        ({**before, "w1": before["w1"] + 1, "w2": np.zeros((2, 2), np.float32)}, "the state 'w2' has shape"),
    ):
        with pytest.raises((UnknownNameError, ValueError), match=text):
            session.load_state_dict(wrong)
        assert_same_bits(session.state_dict(), before)
    session.load_state_dict({"w1": before["w1"] + 1}, strict=False)
    np.testing.assert_array_equal(session.get("w1"), before["w1"] + 1)


# -- further entry points ----------------------------------------------------------------------------------------


def test_predict_and_evaluate_change_nothing_and_see_the_same_numbers() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    session.step(**data(16))
    before, batch = session.state_dict(), data(11, seed=3)
    logits, evaluated = session.predict(x=batch["x"]), session.evaluate(**batch)
    assert_same_bits(session.state_dict(), before)
    np.testing.assert_array_equal(logits, evaluated["logits"])
    stepped = session.step(**batch)  # reads the same numbers before it changes them
    assert stepped.loss == evaluated.loss
    np.testing.assert_array_equal(stepped["logits"], logits)
    assert not np.array_equal(session.predict(x=batch["x"]), logits)


def test_further_entry_points_are_compiled_once_and_never_change_training() -> None:
    plain = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    mixed = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    mixed.evaluate(**data(16))
    count = compile_counter.value
    for i in range(4):
        mixed.evaluate(**data(16, seed=i))
        assert plain.step(**data(16, seed=i)).loss == mixed.step(**data(16, seed=i)).loss
    assert compile_counter.value == count


# -- memory ------------------------------------------------------------------------------------------------------


def mapped(session: ws.Session) -> int:
    programs = [e.program._region for e in session._programs.entries.values()]
    states = {id(b): b for name in session.state.names for b in session.state.slot(name).blocks}
    return sum(r.size for r in [*states.values(), session._programs.place.scratch.region, *programs])


def test_the_bytes_mapped_are_the_bytes_planned() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, threads=3)
    assert session.peak_bytes == session.report().peak_bytes == mapped(session)
    session.step(**data(16))
    session.run(**data(100))
    assert session.peak_bytes == mapped(session) == session.report().peak_bytes
    session.predict(x=data(4)["x"])
    assert session.peak_bytes == mapped(session) > session.report().peak_bytes


def test_an_estimate_is_exact_and_compiles_nothing() -> None:
    options = {"optimizer": ws.Adam(), "batch_size": 16, "clip_norm": 1.0, "threads": 3}
    count = compile_counter.value
    estimate = ws.estimate(mlp(), **options)
    assert compile_counter.value == count
    session = ws.build_session(mlp(), **options)
    assert (estimate.peak_bytes, estimate.flops) == (mapped(session), session.plan.flops)
    assert f"{session.peak_bytes:,}" in str(estimate)
    with pytest.raises(UsageError, match="covers one plan, and accumulate= needs several"):
        ws.estimate(mlp(), accumulate=2, batch_size=16, workers=2)


def test_every_page_is_resident_before_the_first_step() -> None:
    session = ws.build_session(mlp(inputs=600, hidden=128), optimizer=ws.Adam(), batch_size=64)
    address, size = session._programs.place.scratch.region.address, session._programs.place.scratch.region.size
    with open("/proc/self/pagemap", "rb") as pages:  # noqa: PTH123  seek in a device file
        for page in range(address // 4096, (address + size) // 4096):
            pages.seek(page * 8)
            assert int.from_bytes(pages.read(8), "little") >> 63, f"page {page} is not there"


GOLDEN = Path(__file__).parents[1] / "golden" / "peak_bytes.json"


def test_peak_bytes_have_not_grown() -> None:
    for case, limit in json.loads(GOLDEN.read_text()).items():
        optimizer, batch, threads = case.split()
        graph = mlp(inputs=784, hidden=128, classes=10)
        chosen = {"sgd": ws.SGD(), "adam": ws.Adam()}[optimizer]
        session = ws.build_session(graph, optimizer=chosen, batch_size=int(batch), threads=int(threads), device="null")
        assert session.peak_bytes <= limit, case


class Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc; uordblks are the bytes in use."""

    _fields_ = [
        (n, ctypes.c_size_t)
        for n in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def test_the_native_step_allocates_nothing_after_the_first() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16)
    session.step(**data(16))
    program, sizes = session._programs.main.program, session._programs.main.inputs.sizes
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Heap

    def grown() -> tuple[int, int]:
        before = libc.mallinfo2()
        for _ in range(50):
            program.launch(sizes)
        after = libc.mallinfo2()
        return after.uordblks - before.uordblks, after.hblkhd - before.hblkhd

    assert (0, 0) in [grown() for _ in range(5)], "other threads of this process may allocate, but not every time"


def test_an_interrupt_stops_a_run_between_slices_and_leaves_the_session_whole() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=4)

    def interrupt(number: int, frame: object) -> None:
        if session.state.step:  # a busy machine may take long to begin
            raise KeyboardInterrupt

    def run() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        session.run(**data(2000), epochs=100_000)

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    steps = int(session.state_dict()["session/step"])
    assert steps > 0
    assert np.isfinite(session.step(**data(3)).loss)
    assert session.state_dict()["session/step"] == steps + 1


def test_a_session_that_is_dropped_gives_its_memory_back_at_once() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    session.step(**data(16))
    session.predict(x=data(16)["x"])
    gone = weakref.ref(session), weakref.ref(session._programs.main.program)
    gc.disable()  # reference counts alone must do it
    try:
        del session
        assert [r() for r in gone] == [None, None]
    finally:
        gc.enable()


# -- the session as an object ------------------------------------------------------------------------------------


def test_the_source_names_nodes_in_comments_only() -> None:
    g = ws.Graph()
    evil = 'evil"\n*/ #error " \u2603'
    x = g.input(evil, ("batch", 3))
    w = g.parameter(f"w{evil}", (3, 9))
    (x @ w).keep(f"k{evil}")
    g.set_outputs({f"loss{evil}": (x @ w).mean()})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=4)
    assert evil not in session._programs.main.program.source
    assert "evil" not in session._programs.main.program.source
    assert "#error" not in [line.strip()[:6] for line in session.source.splitlines()]
    assert "evil" in session.source
    assert session.source.count("*/") == session.source.count("/*")
    result = session.step({evil: np.ones((4, 3), np.float32)})
    np.testing.assert_allclose(session.get(f"k{evil}"), np.ones((4, 3)) @ session.get(f"w{evil}"), rtol=1e-5)
    assert result.loss == result[f"loss{evil}"]


def test_the_report_shows_kernels_and_memory() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    text = str(session.report())
    for word in ("batch=16", "matmul", "flops", "state", "arena", "peak", f"{session.peak_bytes:,}"):
        assert word in text
    assert f"{session.peak_bytes:,}" in repr(session)


def test_peak_bytes_are_logged_before_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wholestep"):
        session = ws.build_session(mlp(), batch_size=16)
    assert f"peak {session.peak_bytes} bytes" in caplog.text


def test_the_null_device_plans_and_reports_but_does_not_run() -> None:
    session = ws.build_session(
        mlp(), batch_size=16, device="null", options=ws.CompileOptions(compiler="no-such-compiler")
    )
    assert session.peak_bytes == ws.build_session(mlp(), batch_size=16).peak_bytes
    assert "matmul" in str(session.report())
    with pytest.raises(UsageError, match="null device plans and reports but cannot step"):
        session.step(**data(16))


def test_two_symbolic_dimensions() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", "time"))
    y = g.input("y", ("batch", "time"))
    a = g.parameter("a", (), init=0.5)
    g.set_outputs([((x * a - y) ** 2).mean()])
    session = ws.build_session(g, capacity={"batch": 4, "time": 6}, optimizer=ws.SGD(lr=0.0))
    rng = np.random.default_rng(0)
    for shape in ((4, 6), (3, 5), (1, 1), (2, 6)):
        xs, ys = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        assert session.step(x=xs, y=ys).loss == pytest.approx(((xs * 0.5 - ys) ** 2).mean(), rel=1e-5)
    assert len(session.run(x=np.zeros((10, 3), np.float32), y=np.zeros((10, 3), np.float32))) == 3


def test_a_step_function_is_a_session_too() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 2))})
    def train(g, x):
        w = g.parameter("w", (2, 1))
        loss = ((x @ w) ** 2).mean()
        ws.SGD(lr=0.1, name="main").update(g, [w], ws.gradients(loss, [w]))
        return {"loss": loss}

    session = ws.build_session(train, batch_size=4)
    losses = [session.step(x=np.eye(2, dtype=np.float32)).loss for _ in range(20)]
    assert losses[-1] < losses[0]
    assert session.optimizer.lr == 0.1
    with pytest.raises(UsageError, match="applies its own optimizers"):
        ws.build_session(train, optimizer=ws.SGD(), batch_size=4)
    with pytest.raises(GraphError, match=r"the loss is the only output.*or return it from the step"):
        session.predict(x=np.eye(2, dtype=np.float32))
    assert session.evaluate(x=np.eye(2, dtype=np.float32)).loss < losses[-1]


def test_predict_takes_any_number_of_rows() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    x = data(41)["x"]
    whole = session.predict(x=x)
    parts = [session.predict(x=x[i : i + 16]) for i in (0, 16, 32)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    np.testing.assert_array_equal(session.predict(x=x.tolist()), whole)  # lists are arrays to be
    with pytest.raises(ShapeError, match="the input 'x'"):
        session.predict(x=x[:, :3])


@pytest.mark.parametrize("exactness", ["reassociating", "bitwise"])
def test_what_a_slice_takes_nothing_of_has_a_gradient_of_zero(exactness: str) -> None:
    """A rewrite of the forward pass leaves it out; it is trained all the same, as in torch: weight decay goes on."""

    class Halves(ws.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = ws.nn.Linear(3, 4), ws.nn.Linear(3, 4)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return ws.concat([self.a(x), self.b(x)], axis=1)[:, 0:2]

    model, x, y = Halves(), np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    about = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch", 2)), "loss": "mse", "batch_size": 4}
    optimizer, options = ws.SGD(lr=0.5, weight_decay=0.5), ws.CompileOptions(exactness=exactness)
    session = ws.build_session(model, **about, optimizer=optimizer, options=options, seed=0)
    told = "rewrites of the forward pass were left out" in str(session.optimization())
    assert told == (exactness == "reassociating")
    before = {name: session.get(name) for name in ("a.weight", "b.weight")}
    session.step(x=x, labels=y)
    np.testing.assert_allclose(session.get("b.weight"), 0.75 * before["b.weight"], rtol=1e-6)
    assert not np.allclose(session.get("a.weight"), 0.75 * before["a.weight"])


def test_an_unknown_argument_is_refused_by_every_function_that_takes_those_of_a_session() -> None:
    for build in (ws.build_session, ws.build_session_with_report, ws.estimate):
        with pytest.raises(ws.errors.UsageError, match=r"no argument 'batch_sizes'\. Did you mean batch_size=\?"):
            build(ws.nn.Linear(2, 2), inputs=ws.Spec(("batch", 2)), loss="mse", batch_sizes=3)  # type: ignore[call-arg, call-overload, operator]
