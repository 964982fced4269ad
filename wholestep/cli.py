"""The command `wholestep`: what is installed, does it work, what is in a plan file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import wholestep
from wholestep.errors import WholestepError

app = typer.Typer(
    help="Wholestep: a whole training step as one native call.", no_args_is_help=True, add_completion=False
)
plans = typer.Typer(help="Look into plan files.", no_args_is_help=True)
app.add_typer(plans, name="plan")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"wholestep {wholestep.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before a command."""


@app.command()
def doctor() -> None:
    """Say what Wholestep finds on this machine, and train two steps to see that it works."""
    rows: list[tuple[str, Callable[[], str]]] = [
        ("wholestep", lambda: wholestep.__version__),
        ("python", lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("numpy", lambda: np.__version__),
        ("target", _target),
        ("threads", _threads),
        ("compiler", _compiler),
        ("cache", _cache),
        ("self-test", _self_test),
    ]
    failed = False
    for name, probe in rows:
        try:
            found = probe()
        except (WholestepError, OSError) as error:
            found, failed = f"FAILED: {error}", True
        print(f"{name:<12}{found}")
    if failed:
        raise typer.Exit(1)


def _target() -> str:
    from wholestep.compiler.runtime.compiler import detect_target

    return detect_target().name


def _threads() -> str:
    from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
    from wholestep.options import thread_count

    return f"{thread_count(None, default_threads(), MAX_THREADS)} by default"


def _compiler() -> str:
    from wholestep.compiler.runtime.compiler import find_compiler

    return " ".join(find_compiler(wholestep.CompileOptions().compiler_command).command)


def _cache() -> str:
    from wholestep.compiler.runtime.store import cache_of

    folder = cache_of(wholestep.CompileOptions()).folder
    files = [f for f in folder.rglob("*") if f.is_file()]
    return f"{folder} ({len(files)} files, {sum(f.stat().st_size for f in files):,} bytes)"


def _self_test() -> str:
    """The gradient of mean((x w)²) at w = 1, x = 1 is 2: one step of SGD with lr 0.25 leads to 0.5."""
    g = wholestep.Graph()
    x = g.input("x", ("batch", 1))
    w = g.parameter("w", (1, 1), init=1.0)
    g.set_outputs([((x @ w) ** 2).mean()])
    session = wholestep.build_session(g, optimizer=wholestep.SGD(lr=0.25), batch_size=4)
    losses = [session.step(x=np.ones((4, 1), np.float32)).loss for _ in range(2)]
    if losses != [1.0, 0.25]:
        raise WholestepError(f"two steps gave the losses {losses} instead of [1.0, 0.25]")
    return "ok"


@plans.command()
def show(file: Annotated[Path, typer.Argument(help="A file written by save_plan or build_session_cached.")]) -> None:
    """Print the kernels and the memory of a plan."""
    from wholestep.compiler.plan import serialize
    from wholestep.compiler.plan.report import plan_report
    from wholestep.compiler.runtime.threads import default_threads

    try:
        plan = serialize.load(file.read_bytes())
    except (WholestepError, OSError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(plan_report(plan, default_threads(), file.name))


def main() -> None:
    """The entry point of the command."""
    app()


if __name__ == "__main__":
    main()
