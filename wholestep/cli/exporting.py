"""The command `wholestep export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wholestep.cli.shared import experiment_of, parse_settings, report_errors


@report_errors
def export(
    script: Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write; or a file, run.html: a page that trains.")],
    to: Annotated[str, typer.Option(help="c: C source that needs one block of memory; wasm: a module.")] = "c",
    target: Annotated[str | None, typer.Option(help="The instruction set, such as cpu/portable.")] = None,
    image: Annotated[str | None, typer.Option(help="Of a page: inputs that are pixels, e.g. 28x28 or 3x32x32.")] = None,
    rows: Annotated[int | None, typer.Option(help="Of a page: the most rows to embed as an example.")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")] = None,
) -> None:
    """Write the training step of a script as a folder that trains, evaluates and predicts without Python; or a page."""
    from wholestep.session.export.write import write_folder

    experiment = experiment_of(script, parse_settings(set or []))
    if folder.suffix == ".html":
        from wholestep.web.export import export_page

        page = export_page(experiment, folder, image=image, rows=rows, script=script.name)
        print(f"{page}: {page.stat().st_size:,} bytes; open it in a browser")
        return
    trainer, _ = experiment.trainer()
    settings = {name: getattr(experiment, name) for name in ("epochs", "batch_size", "shuffle")}
    write_folder(trainer.session._programs, folder, to, target, settings)
    files = [path for path in folder.rglob("*") if path.is_file()]
    print(f"{folder}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")
