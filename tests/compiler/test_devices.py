"""What `device=` says is read in one place, and reaches the planner from every entry point; no cache mixes targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import wholestep as ws
from tests.compiler.targets import HERE
from tests.support.compilers import quick
from tests.support.sessions import data, mlp
from wholestep.cli import app
from wholestep.compiler import devices
from wholestep.compiler.backends.cpu import target as cpu_target
from wholestep.compiler.backends.cpu.runtime import device as cpu
from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.compiler.backends.cpu.target import AVX2, PORTABLE, available_targets
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.devices import device_named, target_named
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.runtime.cache.content_store import ContentStore
from wholestep.compiler.runtime.cache.plan_cache import find_plan, find_report, plan_key, store_plan, store_report
from wholestep.compiler.target import Target
from wholestep.errors import OptionError, PlanError, UsageError
from wholestep.steps.train import train_graph

SM_90 = GPUS["cuda/sm_90"]
PLANNED, RUN = "null:cuda/sm_90", "cpu/portable"


# -- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "target", "runs"),
    [
        ("cpu", HERE.name, HERE, True),
        ("cpu/portable", "cpu/portable", PORTABLE, True),
        *((t.name, t.name, t, True) for t in available_targets()),
        ("reference", "reference", REFERENCE, True),
        ("null", f"null:{HERE.name}", HERE, False),
        ("null:reference", "null:reference", REFERENCE, False),
        ("null:cpu/avx2", "null:cpu/avx2", AVX2, False),
        *((f"null:{name}", f"null:{name}", target, False) for name, target in GPUS.items()),
    ],
)
def test_a_device_has_a_backend_and_a_target(text: str, name: str, target: Target, runs: bool) -> None:
    device = device_named(text)
    assert (device.name, device.target, device.runs) == (name, target, runs)
    assert target_named(text) is target
    assert device_named(device.name).target is target  # what is printed can be typed


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "gpu",
            r"device='gpu': expected one of 'cpu', .*'cpu/portable'; or, to plan without running, 'null:cuda/sm_90'",
        ),
        ("", r"device='': expected one of 'cpu'"),
        (None, r"device=None: expected one of 'cpu'"),
        ("cpu/sve", r"device='cpu/sve': there is no target 'cpu/sve'; there are: cpu/avx512bf16, .*cpu/portable\."),
        (
            "tpu/v5",
            r"there is no target 'tpu/v5'; there are: cpu/avx512bf16, .*cuda/sm_80\+tf32conv, reference\.",
        ),
        ("null:tpu", r"device='null:tpu': there is no target 'tpu'; there are: .*cuda/sm_90"),
        ("null:", r"device='null:': there is no target ''"),
        ("cpu:cpu/avx2", r"device='cpu:cpu/avx2': only .*null.* takes a target after a colon"),
        ("cuda/sm_1", r"there is no target 'cuda/sm_1'; there are: cuda/sm_90, cuda/sm_89"),
    ],
)
def test_what_is_no_device_is_told_with_what_is(text: Any, match: str) -> None:
    for read in (device_named, target_named, lambda d: ws.build_session(mlp(), batch_size=4, device=d)):
        with pytest.raises(OptionError, match=match):
            read(text)


def test_a_cpu_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_target, "available_targets", lambda: (PORTABLE,))
    monkeypatch.setattr(cpu_target.platforms, "processor_features", lambda: frozenset({"sse2", "fma"}))
    match = (
        r"device='cpu/avx2': this machine cannot run it, it lacks avx2\. Supported here: 'cpu/portable'; "
        r"device='cpu' selects the first\. To plan for it without running: device='null:cpu/avx2'"
    )
    with pytest.raises(OptionError, match=match):
        device_named("cpu/avx2")
    assert device_named("null:cpu/avx2").target is AVX2
    assert device_named("cpu").target is PORTABLE


def test_the_processor_is_looked_at_for_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Target:
        raise AssertionError("the processor was asked what it is")

    monkeypatch.setattr(cpu, "detect_target", refuse)
    monkeypatch.setattr("wholestep.compiler.backends.null.detect_target", refuse)
    monkeypatch.setattr(cpu_target, "detect_target", refuse)
    ws.build_session(mlp(), batch_size=4, device=PLANNED)
    ws.build_session(mlp(), batch_size=4, device=RUN).step(**data(4))
    with pytest.raises(AssertionError, match="the processor was asked"):
        ws.build_session(mlp(), batch_size=4)


def test_a_backend_may_be_brought_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def default_target(self) -> Target:
            return replace(PORTABLE, name="own/one")

        def make_device(self, target: Target) -> Any:
            return devices.device_named("null").__class__(target)

    monkeypatch.setitem(devices.BACKENDS, "own", Own())
    monkeypatch.setitem(devices.FAMILIES, "own", {"own/two": replace(PORTABLE, name="own/two")})
    assert ws.build_session(mlp(), batch_size=4, device="own").plan.target == "own/one"
    assert ws.build_session(mlp(), batch_size=4, device="own/two").plan.target == "own/two"
    assert ws.build_session(mlp(), batch_size=4, device="null:own/two").plan.target == "own/two"
    with pytest.raises(OptionError, match="there is no target 'own/three'; there are: own/two"):
        device_named("own/three")


# -- every entry point -----------------------------------------------------------------------------------------------

X, Y = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
LOSS = "cross_entropy"
SCRIPT = """
import wholestep as ws
import numpy as np
def build(hidden=3):
    model = ws.nn.Sequential(ws.nn.Linear(5, hidden), ws.nn.ReLU(), ws.nn.Linear(hidden, 3))
    x = np.ones((8, 5), np.float32)
    y = np.zeros(8, np.int32)
    return ws.Experiment(model=model, data=(x, y), test=(x, y), loss="cross_entropy", epochs=1, batch_size=4)
"""


def network(hidden: int) -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(5, hidden), ws.nn.ReLU(), ws.nn.Linear(hidden, 3))


def whole_session(hidden: int, device: str) -> None:
    """What a session compiles when it is first asked for."""
    session = ws.build_session(mlp(hidden=hidden), batch_size=4, device=device)
    session.evaluate(**data(4))
    session.evaluate_all(data(9))
    session.predict(x=data(4)["x"])
    session.gradient_stats(**data(4))


def modules_of_a_session(hidden: int, device: str) -> None:
    """A session asks a module to predict and evaluate where it is itself."""
    model = network(hidden)

    @ws.step(inputs={"x": ws.Spec(("batch", 5)), "y": ws.Spec(("batch",), "int32")})
    def step(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> ws.Tensor:
        loss = ws.losses.cross_entropy(model(x), y)
        ws.SGD(lr=0.1).update(g, model.traced(g), ws.gradients(loss, model))
        return loss

    session = ws.build_session(step, batch_size=8, device=device)
    session.predict(x=X)
    session.predict(model, X)
    session.evaluate(model, X, Y, loss=LOSS)


def command(*arguments: str) -> Callable[[int, str], None]:
    def call(hidden: int, device: str) -> None:
        given = [a.format(hidden=hidden, other=hidden - 1) for a in arguments]
        result = CliRunner().invoke(app, [*given, "--device", device])
        assert result.exit_code == 0, result.output

    return call


SIZE = ("small.py", "--set", "hidden={hidden}")
# Entry point -> a call of it, and the device that it is called with.
ENTRIES: dict[str, tuple[Callable[[int, str], Any], str]] = {
    "build_session": (lambda h, d: ws.build_session(mlp(hidden=h), batch_size=4, device=d), PLANNED),
    "build_session_with_report": (
        lambda h, d: ws.build_session_with_report(mlp(hidden=h), batch_size=4, device=d),
        PLANNED,
    ),
    "build_session_unoptimized": (
        lambda h, d: ws.build_session_unoptimized(mlp(hidden=h), batch_size=4, device=d),
        PLANNED,
    ),
    "build_session_cached": (
        lambda h, d: ws.build_session_cached(mlp(hidden=h), "mlp.plan", batch_size=4, device=d),
        PLANNED,
    ),
    "build_inference_session": (
        lambda h, d: ws.build_inference_session(mlp(hidden=h), batch_size=4, device=d),
        PLANNED,
    ),
    "compile_training_graph": (lambda h, d: ws.compile_training_graph(mlp(hidden=h), batch_size=4, device=d), PLANNED),
    "estimate": (lambda h, d: ws.estimate(mlp(hidden=h), batch_size=4, device=d), PLANNED),
    "accumulate": (lambda h, d: ws.build_session(mlp(hidden=h), batch_size=4, accumulate=3, device=d), PLANNED),
    "Session": (
        lambda h, d: ws.Session(ws.compile_training_graph(mlp(hidden=h), batch_size=4, device=d)[0], device=d),
        PLANNED,
    ),
    "session.optimization": (
        lambda h, d: ws.build_session(mlp(hidden=h), batch_size=4, device=d).optimization(),
        PLANNED,
    ),
    "the other programs of a session": (whole_session, RUN),
    "the modules of a session": (modules_of_a_session, RUN),
    "fit": (lambda h, d: ws.fit(network(h), (X, Y), loss=LOSS, batch_size=4, device=d, progress=False), RUN),
    "Experiment": (
        lambda h, d: ws.Experiment(model=network(h), data=(X, Y), loss=LOSS, batch_size=4, device=d).trainer(),
        PLANNED,
    ),
    "Module.evaluate": (lambda h, d: network(h).evaluate(X, Y, loss=LOSS, device=d), RUN),
    "Module.predict": (lambda h, d: network(h).predict(X, device=d), RUN),
    "Module.predict_classes": (lambda h, d: network(h).predict_classes(X, scores="softmax", device=d), RUN),
    "cross_validate": (
        lambda h, d: ws.cross_validate(network(h), (X, Y), loss=LOSS, folds=2, batch_size=4, device=d, progress=False),
        RUN,
    ),
    "gradcheck": (lambda h, d: ws.gradcheck(network(h), X, loss=LOSS, targets=Y, elements=2, device=d), RUN),
    "wholestep train": (command("train", *SIZE, "--no-progress"), RUN),
    "wholestep evaluate": (command("evaluate", "runs/small"), RUN),
    "wholestep predict": (command("predict", "runs/small", "x.npy"), RUN),
    "wholestep bench": (command("bench", *SIZE, "--seconds", "0.01"), RUN),
    "wholestep trace": (command("trace", *SIZE, "--steps", "1"), RUN),
    "wholestep plan explain": (command("plan", "explain", "small.py", "loss", "--set", "hidden={hidden}"), PLANNED),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the entries run, with a cache of their own: what is planned there is new."""
    made = tmp_path_factory.mktemp("entries")
    (made / "small.py").write_text(SCRIPT)
    np.save(made / "x.npy", X)
    return made


@pytest.fixture
def planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets of all plans that are made, in order."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WHOLESTEP_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("CC", f"{find_compiler().command[0]} -O0")
    seen: list[str] = []
    real = Compiler.plan

    def plan(self: Compiler, graph: Any, capacity: Mapping[str, int], target: Target, *more: Any) -> Any:
        seen.append(target.name)
        return real(self, graph, capacity, target, *more)

    monkeypatch.setattr(Compiler, "plan", plan)
    return seen


@pytest.mark.parametrize("name", ENTRIES)
def test_the_target_reaches_the_planner(name: str, planned: list[str]) -> None:
    call, device = ENTRIES[name]
    if name in ("wholestep evaluate", "wholestep predict") and not Path("runs/small").exists():
        command("train", *SIZE, "--no-progress")(3, RUN)
        planned.clear()
    call(30 + list(ENTRIES).index(name), device)  # no other entry has a network of this size
    assert set(planned) == {target_named(device).name}
    least = {
        "session.optimization": 2,
        "accumulate": 2,
        "the other programs of a session": 4,
        "the modules of a session": 3,
    }
    assert len(planned) >= least.get(name, 1)


def test_these_are_all_entry_points() -> None:
    functions = {name: getattr(ws, name) for name in ws.__all__}
    found = {n for n, f in functions.items() if callable(f) and "device" in _parameters(f)}
    found |= {f"Module.{n}" for n, f in vars(ws.nn.Module).items() if "device" in _parameters(f)}
    commands = _commands(typer.main.get_command(app))
    found |= {f"wholestep {n}" for n, c in commands if "device" in [p.name for p in c.params]}
    assert "device" in {f.name for f in fields(ws.Experiment)}
    # They take the arguments of build_session as they are.
    found |= {"build_session_with_report", "build_session_unoptimized", "build_session_cached", "estimate"}
    inside = {"accumulate", "session.optimization", "the other programs of a session", "the modules of a session"}
    assert found == ENTRIES.keys() - inside, "ENTRIES has a call of everything that takes device="


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The commands below a group, by the words that call them."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name.strip(), command
    for word, each in (inner or {}).items():
        yield from _commands(each, f"{name} {word}")


# -- plans for what is not here --------------------------------------------------------------------------------------


def tokens() -> dict[str, Any]:
    return {"inputs": ws.Spec(("batch", 8), "int32"), "targets": ws.Spec(("batch", 8), "int32")}


SUITE: dict[str, Callable[[], dict[str, Any]]] = {
    "mlp": lambda: {"model_or_graph": mlp()},
    "lenet": lambda: {
        "model_or_graph": ws.models.lenet5(),
        "inputs": ws.Spec(("batch", 1, 28, 28)),
        "targets": ws.Spec(("batch",), "int32"),
    },
    "resnet": lambda: {
        "model_or_graph": ws.models.resnet20(),
        "inputs": ws.Spec(("batch", 3, 8, 8)),
        "targets": ws.Spec(("batch",), "int32"),
    },
    "gpt": lambda: {
        "model_or_graph": ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=11, context=8),
        **tokens(),
    },
    "lstm": lambda: {"model_or_graph": ws.models.lstm_lm(11, width=12, layers=1), **tokens()},
}


def first_batch(session: ws.Session) -> dict[str, tuple[tuple[int, ...], str]]:
    types = {name: session.plan.buffers[id].type for name, id in session.plan.inputs}
    return {n: (tuple(e if isinstance(e, int) else 4 for e in t.shape), t.dtype.name) for n, t in types.items()}


@pytest.mark.parametrize("name", SUITE)
def test_the_suite_is_planned_for_a_gpu(name: str) -> None:
    given = SUITE[name]()
    if "inputs" in given:
        given["loss"] = LOSS
    options = ws.CompileOptions(cache=False, egraph=False)
    exact = {"precision": "float32"}  # without it convolutions round to tf32, on another target
    session = ws.build_session(**given, **exact, batch_size=4, optimizer=ws.Adam(), device=PLANNED, options=options)
    assert session.plan.target == "cuda/sm_90"
    assert session.device == PLANNED
    assert session.target is SM_90
    assert f"target {SM_90.name}" in str(session.report())
    with pytest.raises(UsageError, match="a session on the null device plans and reports but"):
        session.step({name: np.zeros(shape, dtype) for name, (shape, dtype) in first_batch(session).items()})


# -- caches ----------------------------------------------------------------------------------------------------------


def test_plans_reports_and_programs_of_targets_are_kept_apart(tmp_path: Path) -> None:
    store, options = ContentStore(tmp_path), ws.CompileOptions(cache_dir=str(tmp_path))
    graph, sizes = train_graph(mlp(), ws.Adam()), {"batch": 16}
    odd = replace(HERE, limits=replace(HERE.limits, batch_parts=3))  # of the same name
    targets = [HERE, PORTABLE, AVX2, odd, *GPUS.values()]
    keys = {t: plan_key(graph, sizes, options, t) for t in targets}
    assert len(set(keys.values())) == len({*targets})
    plan, report = Compiler(ws.CompileOptions(egraph=False)).plan(graph, sizes, SM_90)
    store_plan(store, keys[SM_90], plan)
    store_report(store, keys[SM_90], report)
    for target, key in keys.items():
        found = find_plan(store, key)
        assert (found == plan) == (target is SM_90)
        assert (found is None) == (find_report(store, key) is None) == (target is not SM_90)
    programs = {device_named("cpu").program_key(replace(plan, target=t.name), options) for t in targets}
    assert len(programs) == len({t.name for t in targets})


def test_a_session_after_a_plan_for_a_gpu_plans_for_itself(tmp_path: Path) -> None:
    options = ws.CompileOptions(cache_dir=str(tmp_path), egraph=False)
    sessions = [ws.build_session(mlp(), batch_size=4, device=d, options=options) for d in (PLANNED, "null", PLANNED)]
    assert [s.plan.target for s in sessions] == ["cuda/sm_90", HERE.name, "cuda/sm_90"]
    assert [s.optimization().cached for s in sessions] == [False, False, True]
    file = tmp_path / "mlp.plan"
    for device in (PLANNED, "null"):
        assert ws.build_session_cached(mlp(), file, batch_size=4, device=device, options=options).device in (
            PLANNED,
            f"null:{HERE.name}",
        )
    assert ws.load_plan(mlp(), file).target == HERE.name  # type: ignore[union-attr]


def test_a_plan_for_another_device_is_refused() -> None:
    plan, _ = ws.compile_training_graph(mlp(), batch_size=4, device=PLANNED)
    with pytest.raises(PlanError, match=r"the plan is for 'cuda/sm_90' and cannot run on 'cpu/.*plan it again with"):
        ws.Session(plan)
    assert ws.Session(plan, device=PLANNED).plan is plan


def test_a_plan_for_a_cpu_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = ws.compile_training_graph(mlp(), batch_size=4, device="null:cpu/avx2")
    monkeypatch.setattr(cpu_target, "available_targets", lambda: (PORTABLE,))
    with pytest.raises(OptionError, match="device='cpu/avx2': this machine cannot run it"):
        ws.Session(plan)


def test_a_checkpoint_knows_the_target_of_its_session(tmp_path: Path) -> None:
    from wholestep.train.checkpoint.identity import differences, identity_of

    here, there = (identity_of(ws.build_session(mlp(), batch_size=4, device=d)) for d in ("null", PLANNED))
    assert (here["target"], there["target"]) == (HERE.name, "cuda/sm_90")
    assert any(text.startswith("target: ") for text in differences(there, here))


# -- one CPU as several targets --------------------------------------------------------------------------------------


def trained(device: str) -> dict[str, Any]:
    options = quick()
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, seed=3, device=device, options=options)
    for i in range(3):
        session.step(**data(13, seed=i))
    return session.state_dict()


def test_a_session_as_another_target_of_this_cpu() -> None:
    """Without fused multiply-adds numbers are a little different; that the others have the same bits is tested beside
    their kernels."""
    expected, found = trained("cpu"), trained(PORTABLE.name)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5)
    assert HERE is PORTABLE or any(not np.array_equal(found[name], expected[name]) for name in found)
