"""`wholestep doctor`: versions, devices, compiler, cache, a self-test, and the commands that mend what is missing."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from wholestep import platforms
from wholestep.cli import machine
from wholestep.cli.shared import AsJson
from wholestep.errors import CompilerError, OptionError, WholestepError

OTHERS = ("safetensors", "matplotlib", "rich", "typer")


def doctor(
    workers: Annotated[
        int | None, typer.Option(min=2, help="Also start so many processes, which add numbers together, and time them.")
    ] = None,
    hosts: Annotated[str | None, typer.Option(help="Machines that they are on, by commas.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report platform, compiler, instructions and limits of this machine, train two steps, and name fixes."""
    failures: dict[str, Exception] = {}
    asked, texts = rows(), dict[str, str]()
    if workers is not None:
        asked.append(("workers", partial(_workers, workers, hosts)))
    for name, probe in asked:
        try:
            text = probe()
        except (WholestepError, OSError, MemoryError) as error:
            text, failures[name] = f"FAILED: {error}", error
        texts[name] = text
        if not as_json:
            print(f"{name:<12}{text}")
    if as_json:
        print(json.dumps({"rows": texts, "failed": list(failures), "to do": remedies(failures)}, indent=1))
    for advice in [] if as_json else remedies(failures):
        print(f"{'to do':<12}{advice}")
    if failures:
        raise typer.Exit(1)


def rows() -> list[tuple[str, Callable[[], str]]]:
    """The rows of the report, in order."""
    return [
        ("wholestep", _own_version),
        ("platform", machine.describe_platform),
        ("python", machine.describe_python),
        ("numpy", lambda: metadata.version("numpy")),
        ("others", _others),
        ("device", _device),
        ("target", _target),
        ("processor", platforms.processor_name),
        ("cores", machine.describe_cores),
        ("memory", machine.describe_memory),
        ("compiler", _compiler),
        ("gpu", _gpu),
        ("cache", _cache),
        ("self-test", _self_test),
    ]


def remedies(failures: Mapping[str, Exception]) -> list[str]:
    """For each failed check, and for each cause of slow starts, the one command that fixes it."""
    from wholestep.options import CompileOptions

    advice, on_windows = [], sys.platform == "win32"  # its shell is PowerShell
    python = f'& "{sys.executable}"' if on_windows else shlex.quote(sys.executable)
    if "compiler" in failures:
        named = CompileOptions().compiler_command
        unset = "Remove-Item Env:CC" if on_windows else "unset CC"
        advice.append(unset if named else f'{python} -m pip install "wholestep[cc]"')
    if machine.cache_folder()[1]:
        assign = '$env:WHOLESTEP_CACHE_DIR = "{}"' if on_windows else "export WHOLESTEP_CACHE_DIR={}"
        advice.append(f"{assign.format('/a/folder/that/you/can/write')}    # else every process compiles again")
    if machine.usable_bytes() < machine.LEAST_BYTES:
        advice.append(
            f"ulimit -v {machine.LEAST_BYTES >> 10}    # or give the container 512 MiB of memory: compilers need it"
        )
    return advice


def _own_version() -> str:
    import wholestep

    return wholestep.__version__


def _others() -> str:
    versions = []
    for name in OTHERS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} is missing")
    return ", ".join(versions)


def _device() -> str:
    from wholestep.compiler.devices import BACKENDS

    return f"cpu unless device= says otherwise; there are {', '.join(BACKENDS)}"


def _target() -> str:
    from wholestep.compiler.backends.cpu.target import available_targets
    from wholestep.compiler.devices import device_named

    target = device_named("cpu").target
    others = [each.name for each in available_targets() if each is not target]
    return target.name + (f" (also {', '.join(others)})" if others else "")


def _compiler() -> str:
    from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
    from wholestep.options import CompileOptions

    command = find_compiler(CompileOptions().compiler_command).command
    output = subprocess.run(
        [*command, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    ).stdout
    return f"{' '.join(command)}: {output.partition(chr(10))[0] or 'it does not tell its version'}"


def _gpu() -> str:
    """The GPUs, NVIDIA's libraries, and two steps on the first GPU; a machine without one is also fine."""
    from wholestep.compiler.backends.cuda.driver.driver import gpu, gpu_count
    from wholestep.compiler.backends.cuda.libraries.versions import library_versions
    from wholestep.compiler.backends.cuda.target import target_of

    try:
        gpus = [gpu(number) for number in range(gpu_count())]
    except OptionError as error:
        return f"none can be used: {error}"
    named = ", ".join(f"cuda:{g.number} {g.name} ({target_of(g.capability).name}, {g.bytes >> 30} GiB)" for g in gpus)
    return "; ".join([named, *library_versions(), f"two steps: {_two_steps('cuda')}"])


def _cache() -> str:
    folder, problem = machine.cache_folder()
    sizes = [size for path in folder.rglob("*") if (size := _file_size(path)) is not None]
    return f"{folder} ({len(sizes)} files, {sum(sizes):,} bytes)" + (f", NOT KEPT: {problem}" if problem else "")


def _file_size(path: Path) -> int | None:
    """The bytes of a regular file; None of anything else, and of a temporary file that its writer has just renamed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _workers(count: int, hosts: str | None) -> str:
    """The report of the processes, after their errors were printed."""
    from wholestep.distributed.launch.launcher import Job, parse_hosts, run_job

    messages: list[str] = []
    command = (sys.executable, "-m", "wholestep.distributed.probe")
    with tempfile.TemporaryFile("w+") as output:
        code = run_job(Job(count, command, parse_hosts(hosts), output=output), messages.append)
        output.seek(0)
        report = output.read().strip()
    if code or not report:
        raise WholestepError("; ".join(messages) or f"{count} processes ended with exit code {code}")
    return report


def _self_test() -> str:
    """Two steps on the CPU; without a compiler, in NumPy."""
    try:
        return _two_steps("cpu")
    except CompilerError:
        return f'{_two_steps("reference")} with device="reference", which needs no compiler'


def _two_steps(device: str) -> str:
    """Two steps of SGD with lr 0.25: the gradient of mean((x w)²) at w = x = 1 is 2, so the first leads to 0.5."""
    import numpy as np

    import wholestep as ws

    g = ws.Graph()
    x = g.input("x", ("batch", 1))
    w = g.parameter("w", (1, 1), init=1.0)
    g.set_outputs([((x @ w) ** 2).mean()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.25), batch_size=4, device=device)
    losses = [session.step(x=np.ones((4, 1), np.float32)).loss for _ in range(2)]
    if losses != [1.0, 0.25]:
        raise WholestepError(f"two steps gave the losses {losses} instead of [1.0, 0.25]")
    return "ok"
