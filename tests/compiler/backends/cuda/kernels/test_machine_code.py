"""Kernels become machine code without a GPU; what is missing on a machine is told with what to install."""

from __future__ import annotations

import builtins
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cuda import bindings

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver, fake_gpu
from tests.compiler.backends.cuda.emulation.models import MODELS, session_of
from tests.user.test_cli import run
from wholestep.compiler.backends.cuda.driver import driver
from wholestep.compiler.backends.cuda.driver import nvrtc as compiler
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_text, nvrtc, translation_unit
from wholestep.compiler.backends.cuda.libraries import cublas, versions
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.render.convolution.implicit_gemm import WINDOWS
from wholestep.compiler.backends.gpu.render.language import OPS as TEXTS
from wholestep.compiler.backends.gpu.render.source import RENDER, GpuSource, Rendered, render
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.plan.lower.routine_ops import ROUTINES
from wholestep.compiler.plan.model.kernel import Kind, Plan
from wholestep.errors import CompilerError, OptionError, UsageError

ARCHITECTURES = ("sm_80", "sm_90")
PLAIN = ws.CompileOptions(verify=False, egraph=False)


GOLDEN = Path(__file__).parents[4] / "golden" / "cuda_kernels.json"
MOST_REGISTERS = 255
NEXT_TO_NOTHING = 64  # bytes of spills in all functions of a step


def planned(
    model: ws.nn.Module, shape: tuple[int, ...], dtype: str, labels: tuple[int, ...] = (), precision: str = "float32"
) -> Plan:
    g = ws.Graph()
    x, y = g.input("x", ("batch", *shape), dtype), g.input("labels", ("batch", *labels), "int32")
    scores = model(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, y)})
    session = ws.build_session(
        g, optimizer=ws.Adam(lr=1e-3), batch_size=64, device="null:cuda/sm_90", options=PLAIN, precision=precision
    )
    return session.plan


LARGE = {
    "lenet5": lambda: planned(ws.models.lenet5(), (1, 28, 28), "float32"),
    "resnet20": lambda: planned(ws.models.resnet20(), (3, 32, 32), "float32"),
    "gpt of 64": lambda: planned(
        ws.models.gpt2(layers=1, width=64, heads=2, vocabulary=65, context=16), (16,), "int32", (16,)
    ),
    "lstm of 48": lambda: planned(ws.models.lstm_lm(65, width=48, layers=2), (16,), "int32", (16,)),
    "gpt of 64 in bfloat16": lambda: planned(
        ws.models.gpt2(layers=1, width=64, heads=2, vocabulary=65, context=16), (16,), "int32", (16,), "bfloat16"
    ),
}

# -- registers and spills ------------------------------------------------------------------------------------------

USED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Used:
    """What ptxas says of a function."""

    function: str
    stack: int
    stores: int  # bytes of spills
    loads: int
    registers: int


def compiled(plan: Plan, architecture: str) -> list[Used]:
    """Machine code of a plan's kernels is made; what each of them uses."""
    library, source = nvrtc(), render(plan)
    _, program = library.nvrtcCreateProgram(translation_unit(source.text).encode(), b"wholestep.cu", 0, [], [])
    options = [*compiler.options(architecture), b"--ptxas-options=-v"]
    (error,) = library.nvrtcCompileProgram(program, len(options), options)
    _, size = library.nvrtcGetProgramLogSize(program)
    log = b" " * size
    library.nvrtcGetProgramLog(program, log)
    assert not int(error), log.decode()[:4000]
    _, size = library.nvrtcGetCUBINSize(program)
    assert size > 1000
    library.nvrtcDestroyProgram(program)
    found = [Used(name, *map(int, numbers)) for name, *numbers in USED.findall(log.decode())]
    assert {used.function for used in found} == set(source.functions)
    return found


def summary(plan: Plan, found: list[Used]) -> dict[str, int]:
    return {
        "kernels": len(plan.kernels),
        "functions": len(found),
        "most registers": max(used.registers for used in found),
        "spilled bytes": sum(used.stores + used.loads for used in found),
        "stack bytes": sum(used.stack for used in found),
    }


def hold_against_golden(plan: Plan, name: str, architecture: str, updating: bool) -> None:
    """Print what every function uses; spills are at most those of the golden file, or next to nothing."""
    found = compiled(plan, architecture)
    for used in sorted(found, key=lambda used: -used.registers):
        spilled = used.stores + used.loads
        print(f"{name} {architecture} {used.function:<12} {used.registers:>4} registers {spilled:>4} bytes spilled")
    ours, key = summary(plan, found), f"{name} {architecture}"
    known = json.loads(GOLDEN.read_text())
    if updating:
        GOLDEN.write_text(json.dumps({**known, key: ours}, indent=2, sort_keys=True) + "\n")
        return
    assert ours["spilled bytes"] <= max(known[key]["spilled bytes"], NEXT_TO_NOTHING), (ours, known[key])
    assert ours["most registers"] <= MOST_REGISTERS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", MODELS)
def test_the_small_suite_becomes_machine_code(name: str, architecture: str, request: pytest.FixtureRequest) -> None:
    """Every kernel of a step; `pytest -s` shows what each of them uses."""
    plan = session_of(name, "null:cuda/sm_90").plan
    hold_against_golden(plan, name, architecture, request.config.getoption("--update-golden"))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", LARGE)
def test_the_model_suite_becomes_machine_code(name: str, architecture: str, request: pytest.FixtureRequest) -> None:
    hold_against_golden(LARGE[name](), name, architecture, request.config.getoption("--update-golden"))


def test_what_nvrtc_refuses_is_shown() -> None:
    with pytest.raises(CompilerError, match=r"a bug of Wholestep:\n.*identifier \"nothing\" is undefined"):
        compile_text('extern "C" __global__ void k() { nothing(); }', "sm_90")


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Nobody has looked for a GPU yet."""
    cached = (driver.bindings, driver.gpu, nvrtc)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not installed."""
    imported = builtins.__import__

    def refuse(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == name:
            raise ImportError(f"No module named {name!r}")
        return imported(module, *rest)

    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_the_bindings_it_is_said_what_to_install(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without("cuda", monkeypatch)
    text = r"NVIDIA's bindings, which are not installed .*pip install \"wholestep\[cuda\]\"; or train with device='cpu'"
    with pytest.raises(OptionError, match=text):
        ws.build_session(ws.Graph(), device="cuda")
    with pytest.raises(CompilerError, match=r"NVRTC, which cannot be loaded .*pip install \"wholestep\[cuda\]\""):
        compile_text("", "sm_90")


def test_without_cublas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise RuntimeError(f"no {name}")

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", refuse)
    cublas.library.cache_clear()
    with pytest.raises(OptionError, match=r"cuBLASLt, which cannot be loaded .*it: pip install \"wholestep\[cuda\]\""):
        cublas.library()


def test_a_machine_without_a_gpu_refuses_and_doctor_says_so(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver:
        @staticmethod
        def cuInit(flags: int) -> None:
            raise RuntimeError("libcuda.so.1 is not there")

    monkeypatch.setattr(bindings, "driver", NoDriver, raising=False)
    with pytest.raises(OptionError, match=r"needs NVIDIA's driver, and this machine has none .*device='cpu'"):
        ws.build_session(ws.Graph(), device="cuda")
    code, text = run("doctor")
    assert (code, "gpu         none can be used: device='cuda' needs NVIDIA's driver" in text) == (0, True), text


def test_a_driver_that_finds_no_gpu_is_told(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(FakeDriver):
        def cuInit(self, flags: int) -> tuple[Any]:
            return (self.CUresult.CUDA_ERROR_LAUNCH_FAILED,)

    monkeypatch.setattr(bindings, "driver", Empty(), raising=False)
    with pytest.raises(OptionError, match=r"found no usable GPU \(CUDA_ERROR_LAUNCH_FAILED\)"):
        ws.build_session(ws.Graph(), device="cuda")


def test_doctor_lists_gpus_and_libraries_and_trains_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise OptionError("cuDNN cannot be loaded")

    def absent() -> str:
        raise UsageError("NCCL cannot be loaded")

    monkeypatch.setattr(versions, "OF_WORKERS", {"NCCL": absent})
    monkeypatch.setattr(versions, "LIBRARIES", {**versions.LIBRARIES, "cuBLASLt": lambda: "13.4.0", "cuDNN": refuse})
    with fake_gpu() as fake:
        code, text = run("doctor")
        assert fake.launched >= 2
    assert code == 0, text
    assert "cuda:0 no GPU at all (cuda/sm_90, 1 GiB); driver for CUDA 13.1; NVRTC none" in text
    assert 'cuBLASLt 13.4.0; cuDNN is missing; install what is missing: pip install "wholestep[cuda]"' in text
    assert 'NCCL is missing; workers on GPUs need it: pip install "wholestep[nccl]"' in text
    assert "two steps: ok" in text
    assert compiler.TOGETHER > 0


def test_units_that_compile_in_parallel_have_every_function_once_and_similar_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    lengths = [90_000, 100, 200, 40_000, 300, 400, 30_000, 500, 600, 700, 20_000, 800] * 3
    texts = {f"k{i}": f"k{i}".ljust(length, ";") for i, length in enumerate(lengths)}
    launches = tuple(Rendered(name, ()) for name in texts)
    units = compiler.pieces(GpuSource("\n\n".join(texts.values()) + "\n", launches))
    assert len(units) == 8
    assert sorted(name for names, _ in units for name in names) == sorted(texts)
    assert all(text == "\n\n".join(texts[name] for name in names) for names, text in units)
    prices = [sum(len(texts[name]) + compiler.FUNCTION for name in names) for names, _ in units]
    assert max(prices) <= max(1.25 * sum(prices) / len(prices), 90_000 + compiler.FUNCTION)


# -- every op ------------------------------------------------------------------------------------------------------


def test_every_pointwise_op_and_every_window_has_a_text() -> None:
    """What the IR computes element by element, and what a target keeps, is a row of the renderer's tables."""
    made_of_others = {"cast"}  # by `cast_text`
    pointwise = {name for name, op in OPS.items() if op.family is Family.POINTWISE} - made_of_others
    kept = {name for target in TARGETS.values() for name in target.composites}
    kept -= ROUTINES.keys()  # these have separate kernels
    assert pointwise | kept <= TEXTS.keys(), sorted((pointwise | kept) - TEXTS.keys())
    windows = {name for name, op in OPS.items() if op.family is Family.WINDOW}
    behind_pools = {name for name in windows if name.startswith("pooled")}  # made by a pass that no GPU asks for
    assert windows - behind_pools == WINDOWS.keys()
    alone = {Kind.LOOP, Kind.EXCHANGE}  # kernels take the place of the one; the other is NCCL's, and native/ranks.h
    assert set(Kind) - alone == RENDER.keys()
